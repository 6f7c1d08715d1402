package enginemock

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/engine"
)

// newVLLM returns the dialect of vLLM, of 2025 if legacy.
func newVLLM(legacy bool) *dialect {
	d := &dialect{
		legacy: legacy, addRoutes: (*Server).routeVLLM, errorBody: nestedError, errorTypes: webErrors(), otherError: "InternalServerError",
		keyed: []string{"/v1", "/inference/"}, clientIDs: true, refusesExcess: true,
		usage: object{"prompt_tokens_details": nil}, message: object{"tool_calls": []object{}}, textChunk: object{"usage": nil}, hidesZero: true,
		addChoice: addVLLMChoice, showsPrompt: true, addWhole: (*Server).addVLLMWhole, transfer: (*Server).nixlTransfer, loader: family.VLLM,
		mapEvents: true, replayTopics: true, extraFields: vllmFields, clearsLate: true, hostMedium: "CPU", diskMedium: "STORAGE",
	}
	if legacy {
		d.mapEvents, d.replayTopics, d.noOffsets, d.diskMedium = false, false, true, "DISK"
	}
	return d
}

// addVLLMChoice adds what stopped a choice, and tokens on request.
func addVLLMChoice(c *apiCall, o object, p *outputPart, first bool) {
	o["stop_reason"] = p.stop
	if !c.request.ReturnTokens {
		return
	}
	o["token_ids"] = orEmpty(p.tokens)
	if first && !c.chat {
		o["prompt_token_ids"] = c.prompts[p.prompt].tokens
	}
}

// addVLLMWhole adds the parameters of transfers, and the tokens of a chat's prompt on request.
func (s *Server) addVLLMWhole(c *apiCall, out object, reason string, u *usage) {
	s.addTransfer(c, out, reason, u)
	if c.chat && c.request.ReturnTokens {
		out["prompt_token_ids"] = c.prompts[0].tokens
	}
}

// addTransfer adds the parameters of transfers of the KV cache and of encoder outputs.
func (s *Server) addTransfer(c *apiCall, out object, reason string, u *usage) {
	out["kv_transfer_params"] = s.nixlAnswer(c, reason, u.cached)
	out["ec_transfer_params"] = s.ecAnswer(c)
}

// vllmFields are the adapter's name, the extra keys unless they are off, and in maps of the newer vLLM the cache
// group.
func vllmFields(f *eventEncoder, c *cacheChange) []eventField {
	var fields []eventField
	if c.kind == blockStored {
		fields = append(fields, textField("lora_name", c.salt.LoRA))
		if !f.noExtraKeys {
			fields = append(fields, eventField{"extra_keys", func(b []byte) []byte { return f.appendExtraKeys(b, c) }})
		}
	}
	if f.dialect.legacy || !f.asMaps || c.kind == allCleared {
		return fields
	}
	fields = append(fields, eventField{"group_idx", func(b []byte) []byte { return packUint(b, uint64(c.group)) }})
	if c.kind == blockStored {
		kind := "full_attention"
		if c.group > 0 {
			kind = "sliding_window"
		}
		fields = append(fields, textField("kv_cache_spec_kind", kind))
	}
	return fields
}

// routeVLLM registers the HTTP API of vLLM.
func (s *Server) routeVLLM(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/completions", s.requireAwake(s.serveOpenAI(false)))
	mux.HandleFunc("POST /v1/chat/completions", s.requireAwake(s.serveOpenAI(true)))
	mux.HandleFunc("GET /v1/models", s.vllmModels)
	mux.HandleFunc("GET /health", s.serveOK)
	mux.HandleFunc("GET /ping", s.serveOK)
	mux.HandleFunc("POST /ping", s.serveOK)
	mux.HandleFunc("GET /version", s.vllmVersion)
	mux.HandleFunc("GET /load", s.vllmLoad)
	mux.HandleFunc("POST /tokenize", serveJSON(s, s.vllmTokenize))
	mux.HandleFunc("POST /detokenize", s.serveDetokenize("prompt"))
	mux.HandleFunc("POST /v1/load_lora_adapter", serveJSON(s, s.loadAdapter))
	mux.HandleFunc("POST /v1/unload_lora_adapter", serveJSON(s, s.unloadAdapter))
	if s.cfg.Features.Metrics.isOn(true) {
		mux.HandleFunc("GET /metrics", s.serveMetrics(s.vllmMetrics))
	}
	if s.cfg.Features.Tokens.isOn(!s.dialect.legacy) {
		mux.HandleFunc("POST /inference/v1/generate", s.requireAwake(s.vllmGenerate))
		mux.HandleFunc("POST /v1/completions/render", s.vllmRender(false))
		mux.HandleFunc("POST /v1/chat/completions/render", s.vllmRender(true))
		mux.HandleFunc("POST /inference/v1/abort_requests", serveJSON(s, s.vllmAbort))
	}
	if s.cfg.Features.Dev.isOn(true) {
		mux.HandleFunc("POST /sleep", s.serveSleep)
		mux.HandleFunc("POST /wake_up", s.serveWake)
		mux.HandleFunc("GET /is_sleeping", s.isSleeping)
		mux.HandleFunc("POST /reset_prefix_cache", s.vllmReset)
		mux.HandleFunc("POST /abort_requests", serveJSON(s, s.vllmAbort))
	}
}

func (s *Server) serveOK(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// requireAwake refuses requests while the engine sleeps.
func (s *Server) requireAwake(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		asleep := s.mu.asleep > 0
		s.mu.Unlock()
		if asleep {
			s.refuseRequest(w, http.StatusServiceUnavailable, "The engine is sleeping.")
			return
		}
		h(w, r)
	}
}

func (s *Server) vllmModels(w http.ResponseWriter, _ *http.Request) {
	created := s.startedAt.Unix()
	var data []object
	add := func(id, root string, parent any, length any) {
		data = append(data, object{
			"id": id, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
			"max_model_len": length, "permission": []object{},
		})
	}
	for _, name := range s.cfg.Models {
		add(name, s.cfg.Root, nil, s.card.ContextLength)
	}
	for _, a := range s.loadedAdapters() {
		add(a.Name, a.Path, s.cfg.Models[0], nil)
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

func (s *Server) vllmVersion(w http.ResponseWriter, _ *http.Request) {
	v := "0.29.0"
	if s.dialect.legacy {
		v = "0.10.2"
	}
	writeJSON(w, http.StatusOK, object{"version": v})
}

func (s *Server) vllmLoad(w http.ResponseWriter, _ *http.Request) {
	n := 0
	for _, r := range s.ranks {
		load, _ := s.loadOf(r)
		n += load.Running + load.Waiting
	}
	writeJSON(w, http.StatusOK, object{"server_load": n})
}

// tokenizeRequest is a request to /tokenize.
type tokenizeRequest struct {
	openaiRequest
	AddSpecial *bool `json:"add_special_tokens"`
	Strings    bool  `json:"return_token_strs"`
}

// vllmTokenize tokenizes a text or a conversation.
func (s *Server) vllmTokenize(ctx context.Context, q *tokenizeRequest) (any, error) {
	var tokens []kv.Token
	if len(q.Messages) > 0 {
		p, err := s.chatPrompt(ctx, &q.openaiRequest)
		if err != nil {
			return nil, err
		}
		tokens = p.tokens
	} else {
		var text string
		if json.Unmarshal(q.Prompt, &text) != nil {
			return nil, fault.New(fault.Invalid, "1 validation error: field 'prompt': Input should be a valid string")
		}
		var err error
		if tokens, err = s.encodeText(text, q.AddSpecial == nil || *q.AddSpecial); err != nil {
			return nil, err
		}
	}
	out := object{"count": len(tokens), "max_model_len": s.card.ContextLength, "tokens": orEmpty(tokens), "token_strs": nil}
	if q.Strings && s.cfg.Pipe != nil {
		var strs []string
		for _, t := range tokens {
			strs = append(strs, s.tokenText(t))
		}
		out["token_strs"] = strs
	}
	return out, nil
}

// tokenText is the text of one token, if there is a pipeline.
func (s *Server) tokenText(t kv.Token) string {
	b, _ := s.cfg.Pipe.Tokenizer.AppendBytes(nil, t)
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// adapterRequest is a request about a LoRA adapter.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (s *Server) loadAdapter(_ context.Context, q *adapterRequest) (any, error) {
	if q.Name == "" || q.Path == "" {
		return nil, fault.New(fault.Invalid, "Both 'lora_name' and 'lora_path' must be provided.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == q.Name }) {
		return nil, fault.New(fault.Invalid, "The lora adapter '%s' has already been loaded.", q.Name)
	}
	s.mu.adapters = append(s.mu.adapters, Adapter(*q))
	return plainText("Success: LoRA adapter '" + q.Name + "' added successfully."), nil
}

func (s *Server) unloadAdapter(_ context.Context, q *adapterRequest) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == q.Name })
	if i < 0 {
		return nil, fault.New(fault.NotFound, "The lora adapter '%s' cannot be found.", q.Name)
	}
	s.mu.adapters = slices.Delete(s.mu.adapters, i, i+1)
	return plainText("Success: LoRA adapter '" + q.Name + "' removed successfully."), nil
}

// serveSleep makes the engine sleep, which empties the cache.
func (s *Server) serveSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if n, err := strconv.Atoi(r.URL.Query().Get("level")); err == nil && n > 0 {
		level = n
	}
	if err := s.resetCaches(); err != nil {
		s.writeError(w, err)
		return
	}
	s.setSleep(level)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) serveWake(w http.ResponseWriter, _ *http.Request) {
	s.setSleep(0)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) setSleep(level int) {
	s.mu.Lock()
	s.mu.asleep = level
	s.mu.Unlock()
}

func (s *Server) isSleeping(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	asleep := s.mu.asleep > 0
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, object{"is_sleeping": asleep})
}

// vllmReset empties the cache unless blocks are in use; its response does not say which.
func (s *Server) vllmReset(w http.ResponseWriter, _ *http.Request) {
	_ = s.resetCaches()
	w.WriteHeader(http.StatusOK)
}

// abortedRequests names requests to abort.
type abortedRequests struct {
	IDs []string `json:"request_ids"`
}

func (s *Server) vllmAbort(_ context.Context, q *abortedRequests) (any, error) {
	for _, id := range q.IDs {
		if id != "" {
			s.abortRequest(id)
		}
	}
	return nil, nil
}

// vllmRender tokenizes the prompt of a request.
func (s *Server) vllmRender(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			openaiRequest
			Payload string `json:"mm_payload"`       // "none" omits the processor's output
			Kwargs  *bool  `json:"return_mm_kwargs"` // the same in older versions
		}
		if !s.readBody(w, r, &q) {
			return
		}
		c, err := s.newCall(r, &q.openaiRequest, chat)
		if err != nil {
			s.writeError(w, err)
			return
		}
		bare := q.Payload == "none" || q.Kwargs != nil && !*q.Kwargs
		var all []object
		for i := range c.promptRequests {
			req := c.promptRequests[i].req
			all = append(all, object{
				"request_id": c.id, "token_ids": req.Prompt, "features": c.promptRequests[i].prompt.featuresBody(!bare), "model": c.model, "stream": q.Stream, "cache_salt": nilIfEmpty(q.CacheSalt),
				"sampling_params": object{"max_tokens": req.Stop.MaxTokens, "temperature": req.Sampling.Temperature, "top_p": req.Sampling.TopP, "n": req.Choices},
				"priority":        0, "kv_transfer_params": nil,
			})
		}
		if chat {
			writeJSON(w, http.StatusOK, all[0])
			return
		}
		writeJSON(w, http.StatusOK, all)
	}
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// generateRequest is a request to /inference/v1/generate.
type generateRequest struct {
	RequestID string     `json:"request_id"`
	Model     string     `json:"model"`
	Tokens    []kv.Token `json:"token_ids"`
	Features  *struct {
		Hashes map[string][]string `json:"mm_hashes"`
		Places map[string][]struct {
			Offset int `json:"offset"`
			Length int `json:"length"`
		} `json:"mm_placeholders"`
		Data map[string][]*string `json:"kwargs_data"`
	} `json:"features"`
	Sampling *struct {
		samplingFields
		MaxTokens *int   `json:"max_tokens"`
		MinTokens int    `json:"min_tokens"`
		Seed      *int64 `json:"seed"`
		Logprobs  *int   `json:"logprobs"`
	} `json:"sampling_params"`
	Stream        bool            `json:"stream"`
	StreamOptions streamOptions   `json:"stream_options"`
	CacheSalt     string          `json:"cache_salt"`
	KVTransfer    json.RawMessage `json:"kv_transfer_params"`
	ECTransfer    json.RawMessage `json:"ec_transfer_params"`
	OutputMode    string          `json:"output_mode"`
}

// toCall converts the request.
func (g *generateRequest) toCall(s *Server, r *http.Request) (*apiCall, error) {
	p := g.Sampling
	q := &openaiRequest{
		Model: g.Model, samplingFields: p.samplingFields, MaxTokens: p.MaxTokens, MinTokens: p.MinTokens, Seed: p.Seed,
		Stream: g.Stream, StreamOptions: g.StreamOptions, CacheSalt: g.CacheSalt, KVTransfer: g.KVTransfer, ECTransfer: g.ECTransfer,
	}
	if q.MaxTokens == nil { // to the end of the context, unlike completions
		room := max(s.card.ContextLength-len(g.Tokens), 1)
		q.MaxTokens = &room
	}
	if p.Logprobs != nil {
		q.Logprobs = marshalJSON(*p.Logprobs)
	}
	tokens, err := json.Marshal(g.Tokens)
	if err != nil {
		return nil, err
	}
	q.Prompt = tokens
	c, err := s.newCall(r, q, false)
	if err != nil {
		return nil, err
	}
	c.id = "generate-tokens-" + g.requestID(r, s)
	for i := range c.promptRequests {
		a := &c.promptRequests[i]
		a.prompt.tokens = a.req.Prompt
		g.addMedia(&a.prompt)
		a.req.Media = a.prompt.media
	}
	return c, nil
}

func (g *generateRequest) requestID(r *http.Request, s *Server) string {
	for _, id := range []string{r.Header.Get("X-Request-Id"), g.RequestID} {
		if id != "" {
			return id
		}
	}
	return s.freshID()
}

// addMedia adds the media objects of the features to the prompt.
func (g *generateRequest) addMedia(p *prompt) {
	if g.Features == nil {
		return
	}
	for _, modality := range sortedKeys(g.Features.Places) {
		for i, at := range g.Features.Places[modality] {
			if ids := g.Features.Hashes[modality]; i < len(ids) {
				if h, ok := kv.MediaHash(ids[i]); ok && at.Offset >= 0 && at.Length > 0 && at.Length <= len(p.tokens)-at.Offset {
					p.media = append(p.media, kv.Media{Hash: h, Start: at.Offset, End: at.Offset + at.Length})
					p.objects = append(p.objects, promptMedia{id: ids[i]})
				}
			}
		}
	}
	sort.Sort((*byPlace)(p))
}

// vllmGenerate serves /inference/v1/generate: tokens in, tokens out. Only streams report usage, and only on
// request.
func (s *Server) vllmGenerate(w http.ResponseWriter, r *http.Request) {
	var g generateRequest
	if !s.readBody(w, r, &g) {
		return
	}
	if g.Sampling == nil || g.Tokens == nil {
		s.refuseRequest(w, http.StatusBadRequest, "1 validation error: fields 'token_ids' and 'sampling_params' are required")
		return
	}
	f, ok := s.startAnswer(w, r)
	if !ok {
		return
	}
	defer f.release()
	if !s.checkFeatures(w, &g) {
		return
	}
	c, err := g.toCall(s, r)
	if err != nil {
		s.writeError(w, err)
		return
	}
	if !s.readiesMedia(w, c) {
		return
	}
	if s.generatesNothing() {
		choice := object{"index": 0, "logprobs": nil, "finish_reason": reasonStop, "token_ids": []int{}}
		writeJSON(w, http.StatusOK, object{"request_id": c.id, "choices": []object{choice}, "prompt_logprobs": nil, "kv_transfer_params": nil, "ec_transfer_params": s.ecAnswer(c)})
		return
	}
	s.serveCall(w, r, c, f, func(ctx context.Context, a *answer) {
		if g.Stream {
			s.streamTokens(ctx, w, &g, c, a)
		} else {
			s.wholeTokens(ctx, w, &g, c, a)
		}
	})
}

// tokenChoice encodes a part of a choice of tokens.
func (s *Server) tokenChoice(g *generateRequest, c *apiCall, p *outputPart) object {
	o := object{"index": p.choice, "logprobs": nil, "finish_reason": nil, "token_ids": orEmpty(p.tokens)}
	if p.reason != "" {
		o["finish_reason"] = p.reason
	}
	if c.logprobs >= 0 {
		chat := *c
		chat.chat = true // the format is that of chats, with tokens named by their ids
		names := *c.request
		names.TokenNames = true
		chat.request = &names
		o["logprobs"] = s.logprobsBody(&chat, p)
	}
	if g.OutputMode == "text" {
		o["text"] = p.text
	}
	return o
}

func (s *Server) streamTokens(ctx context.Context, w http.ResponseWriter, g *generateRequest, c *apiCall, a *answer) {
	st := newSSEStream(w)
	write := func(choice object, u any) {
		choices := []object{}
		if choice != nil {
			choices = append(choices, choice)
		}
		st.writeEvent(object{"request_id": c.id, "choices": choices, "usage": u})
	}
	err := a.forEachPart(ctx, st.flush, func(p *outputPart, _ *choiceOutput, _ bool) {
		var u any
		if g.StreamOptions.Continuous {
			u = s.usageBody(a.usage, false)
		}
		write(s.tokenChoice(g, c, p), u)
	})
	u := a.usage
	switch {
	case ctx.Err() != nil && err != nil: // if the client disconnected, the writes have no effect
		for i := range c.choices {
			write(object{"index": i, "logprobs": nil, "finish_reason": "abort", "token_ids": []int{}}, nil)
		}
		st.writeDone()
		return
	case err != nil:
		st.writeEvent(s.streamError(statusOf(err)))
	case g.StreamOptions.Usage:
		u.cached = s.reportedCached(u.cached)
		write(nil, s.usageBody(u, true))
	}
	a.stats.countCached(u)
	st.writeDone()
}

func (s *Server) wholeTokens(ctx context.Context, w http.ResponseWriter, g *generateRequest, c *apiCall, a *answer) {
	if !s.isComplete(ctx, w, a.forEachPart(ctx, func() {}, func(*outputPart, *choiceOutput, bool) {})) {
		return
	}
	var choices []object
	for i := range a.choices[0] {
		choices = append(choices, s.tokenChoice(g, c, &a.choices[0][i].outputPart))
	}
	out := object{"request_id": c.id, "choices": choices, "prompt_logprobs": nil}
	s.addTransfer(c, out, a.choices[0][0].reason, &a.usage)
	a.stats.countCached(a.usage)
	writeJSON(w, http.StatusOK, out)
}

// vllmMetrics writes the metrics of a rank.
func (s *Server) vllmMetrics(p *metricsPage, rank int, t *rankCounters, load engine.Load) {
	l := formatLabel("engine", strconv.Itoa(rank)) + "," + formatLabel("model_name", s.cfg.Models[0])
	p.addSample("gauge", "vllm:num_requests_running", l, float64(load.Running))
	p.addSample("gauge", "vllm:num_requests_waiting", l, float64(load.Waiting))
	usage := "vllm:kv_cache_usage_perc"
	if s.dialect.legacy {
		usage = "vllm:gpu_cache_usage_perc"
	}
	p.addSample("gauge", usage, l, usedShare(load.UsedBlocks, load.TotalBlocks))
	p.addSample("counter", "vllm:prefix_cache_queries_total", l, float64(t.queries))
	p.addSample("counter", "vllm:prefix_cache_hits_total", l, float64(t.hits))
	p.addSample("counter", "vllm:num_preemptions_total", l, float64(load.Preemptions))
	p.addSample("counter", "vllm:prompt_tokens_total", l, float64(t.prompt))
	p.addSample("counter", "vllm:generation_tokens_total", l, float64(t.generated))
	for _, reason := range []string{reasonStop, reasonLength, "abort", "error"} {
		p.addSample("counter", "vllm:request_success_total", l+","+formatLabel("finished_reason", reason), float64(t.ended[reason]))
	}
	p.addHistogram("vllm:time_to_first_token_seconds", l, &t.timeToFirst)
	p.addHistogram("vllm:inter_token_latency_seconds", l, &t.interToken)
	p.addHistogram("vllm:request_time_per_output_token_seconds", l, &t.perToken)
	p.addHistogram("vllm:e2e_request_latency_seconds", l, &t.endToEnd)
	p.addHistogram("vllm:request_prompt_tokens", l, &t.promptSize)
	p.addHistogram("vllm:request_generation_tokens", l, &t.outputSize)
	running := strings.Join(sortedKeys(t.adapters), ",")
	most := max(len(s.loadedAdapters()), 1)
	p.addSample("gauge", "vllm:lora_requests_info", formatLabel("max_lora", strconv.Itoa(most))+","+formatLabel("running_lora_adapters", running)+","+formatLabel("waiting_lora_adapters", ""), float64(time.Now().UnixMicro())/1e6)
	size, caching := s.reportedBlockSize(), "True"
	if s.generatesNothing() || s.card.NoPrefixCache {
		caching = "False"
	}
	p.addSample("gauge", "vllm:cache_config_info", formatLabel("block_size", strconv.Itoa(size))+","+formatLabel("cache_dtype", "auto")+","+formatLabel("enable_prefix_caching", caching)+","+
		formatLabel("engine", strconv.Itoa(rank))+","+formatLabel("num_gpu_blocks", strconv.Itoa(load.TotalBlocks))+","+formatLabel("prefix_caching_hash_algo", "sha256"), 1)
	s.mu.Lock()
	asleep := s.mu.asleep
	s.mu.Unlock()
	p.addSample("gauge", "vllm:engine_sleep_state", l+","+formatLabel("sleep_state", "awake"), float64(min(1, max(0, 1-asleep))))
}
