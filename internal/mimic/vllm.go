package mimic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// routeVLLM registers the HTTP API of vLLM.
func (s *Server) vllm(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/completions", s.awake(s.serveOpenAI(false)))
	mux.HandleFunc("POST /v1/chat/completions", s.awake(s.serveOpenAI(true)))
	mux.HandleFunc("GET /v1/models", s.vllmModels)
	mux.HandleFunc("GET /health", s.ok)
	mux.HandleFunc("GET /ping", s.ok)
	mux.HandleFunc("POST /ping", s.ok)
	mux.HandleFunc("GET /version", s.vllmVersion)
	mux.HandleFunc("GET /load", s.vllmLoad)
	mux.HandleFunc("POST /tokenize", s.vllmTokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize("prompt"))
	mux.HandleFunc("POST /v1/load_lora_adapter", s.loadAdapter)
	mux.HandleFunc("POST /v1/unload_lora_adapter", s.unloadAdapter)
	if s.cfg.Features.Metrics.on(true) {
		mux.HandleFunc("GET /metrics", s.metrics(s.vllmMetrics))
	}
	if s.cfg.Features.Tokens.on(s.cfg.Dialect == VLLM) {
		mux.HandleFunc("POST /inference/v1/generate", s.awake(s.vllmGenerate))
		mux.HandleFunc("POST /v1/completions/render", s.vllmRender(false))
		mux.HandleFunc("POST /v1/chat/completions/render", s.vllmRender(true))
		mux.HandleFunc("POST /inference/v1/abort_requests", s.vllmAbort)
	}
	if s.cfg.Features.Dev.on(true) {
		mux.HandleFunc("POST /sleep", s.sleep)
		mux.HandleFunc("POST /wake_up", s.wake)
		mux.HandleFunc("GET /is_sleeping", s.isSleeping)
		mux.HandleFunc("POST /reset_prefix_cache", s.vllmReset)
		mux.HandleFunc("POST /abort_requests", s.vllmAbort)
	}
}

func (s *Server) ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// requireAwake refuses requests while the engine sleeps.
func (s *Server) awake(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		asleep := s.mu.asleep > 0
		s.mu.Unlock()
		if asleep {
			s.refuse(w, http.StatusServiceUnavailable, "The engine is sleeping.")
			return
		}
		h(w, r)
	}
}

func (s *Server) vllmModels(w http.ResponseWriter, _ *http.Request) {
	created := s.began.Unix()
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
	for _, a := range s.adapters() {
		add(a.Name, a.Path, s.cfg.Models[0], nil)
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

func (s *Server) vllmVersion(w http.ResponseWriter, _ *http.Request) {
	v := "0.29.0"
	if s.cfg.Dialect == VLLMLegacy {
		v = "0.10.2"
	}
	writeJSON(w, http.StatusOK, object{"version": v})
}

func (s *Server) vllmLoad(w http.ResponseWriter, _ *http.Request) {
	n := 0
	for _, r := range s.ranks {
		load, _ := s.load(r)
		n += load.Running + load.Waiting
	}
	writeJSON(w, http.StatusOK, object{"server_load": n})
}

// vllmTokenize tokenizes a text or a conversation.
func (s *Server) vllmTokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		openaiRequest
		AddSpecial *bool `json:"add_special_tokens"`
		Strings    bool  `json:"return_token_strs"`
	}
	if !s.body(w, r, &q) {
		return
	}
	var tokens []kv.Token
	if len(q.Messages) > 0 {
		p, err := s.chatPrompt(r.Context(), &q.openaiRequest)
		if err != nil {
			s.fail(w, err)
			return
		}
		tokens = p.tokens
	} else {
		var text string
		if json.Unmarshal(q.Prompt, &text) != nil {
			s.refuse(w, http.StatusBadRequest, "1 validation error: field 'prompt': Input should be a valid string")
			return
		}
		var err error
		if tokens, err = s.plain(text, q.AddSpecial == nil || *q.AddSpecial); err != nil {
			s.fail(w, err)
			return
		}
	}
	out := object{"count": len(tokens), "max_model_len": s.card.ContextLength, "tokens": orEmpty(tokens), "token_strs": nil}
	if q.Strings && s.cfg.Pipe != nil {
		var strs []string
		for _, t := range tokens {
			b, _ := s.cfg.Pipe.Tokenizer.AppendBytes(nil, t)
			strs = append(strs, strings.ToValidUTF8(string(b), "\uFFFD"))
		}
		out["token_strs"] = strs
	}
	writeJSON(w, http.StatusOK, out)
}

// adapterRequest is a request about a LoRA adapter.
type adapterRequest struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (s *Server) loadAdapter(w http.ResponseWriter, r *http.Request) {
	var q adapterRequest
	if !s.body(w, r, &q) {
		return
	}
	if q.Name == "" || q.Path == "" {
		s.refuse(w, http.StatusBadRequest, "Both 'lora_name' and 'lora_path' must be provided.")
		return
	}
	s.mu.Lock()
	known := slices.ContainsFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == q.Name })
	if !known {
		s.mu.adapters = append(s.mu.adapters, Adapter(q))
	}
	s.mu.Unlock()
	if known {
		s.refuse(w, http.StatusBadRequest, fmt.Sprintf("The lora adapter '%s' has already been loaded.", q.Name))
		return
	}
	s.said(w, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", q.Name))
}

func (s *Server) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	var q adapterRequest
	if !s.body(w, r, &q) {
		return
	}
	s.mu.Lock()
	n := len(s.mu.adapters)
	s.mu.adapters = slices.DeleteFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == q.Name })
	gone := len(s.mu.adapters) < n
	s.mu.Unlock()
	if !gone {
		s.refuse(w, http.StatusNotFound, fmt.Sprintf("The lora adapter '%s' cannot be found.", q.Name))
		return
	}
	s.said(w, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", q.Name))
}

// writeText answers with a text.
func (s *Server) said(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text))
}

// serveSleep makes the engine sleep, which empties the cache.
func (s *Server) sleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if n, err := strconv.Atoi(r.URL.Query().Get("level")); err == nil && n > 0 {
		level = n
	}
	if err := s.reset(); err != nil {
		s.fail(w, err)
		return
	}
	s.setSleep(level)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) wake(w http.ResponseWriter, _ *http.Request) {
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
	_ = s.reset()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) vllmAbort(w http.ResponseWriter, r *http.Request) {
	var q struct {
		IDs []string `json:"request_ids"`
	}
	if !s.body(w, r, &q) {
		return
	}
	for _, id := range q.IDs {
		if id != "" {
			s.abort(id)
		}
	}
	w.WriteHeader(http.StatusOK)
}

// vllmRender tokenizes the prompt of a request.
func (s *Server) vllmRender(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			openaiRequest
			Payload string `json:"mm_payload"`       // "none" omits the processor's output
			Kwargs  *bool  `json:"return_mm_kwargs"` // the same in older versions
		}
		if !s.body(w, r, &q) {
			return
		}
		c, err := s.newCall(r, &q.openaiRequest, chat)
		if err != nil {
			s.fail(w, err)
			return
		}
		bare := q.Payload == "none" || q.Kwargs != nil && !*q.Kwargs
		var all []object
		for i := range c.asks {
			req := c.asks[i].req
			all = append(all, object{
				"request_id": c.id, "token_ids": req.Prompt, "features": c.asks[i].prompt.features(!bare), "model": c.model, "stream": q.Stream, "cache_salt": nilIfEmpty(q.CacheSalt),
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
		drawing
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
func (g *generateRequest) call(s *Server, r *http.Request) (*call, error) {
	p := g.Sampling
	q := &openaiRequest{
		Model: g.Model, drawing: p.drawing, MaxTokens: p.MaxTokens, MinTokens: p.MinTokens, Seed: p.Seed,
		Stream: g.Stream, StreamOptions: g.StreamOptions, CacheSalt: g.CacheSalt, KVTransfer: g.KVTransfer, ECTransfer: g.ECTransfer,
	}
	if q.MaxTokens == nil { // to the end of the context, unlike completions
		room := max(s.card.ContextLength-len(g.Tokens), 1)
		q.MaxTokens = &room
	}
	if p.Logprobs != nil {
		q.Logprobs = marshal(*p.Logprobs)
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
	c.id = "generate-tokens-" + g.id(r, s)
	for i := range c.asks {
		a := &c.asks[i]
		a.prompt.tokens = a.req.Prompt
		g.show(&a.prompt)
		a.req.Media = a.prompt.media
	}
	return c, nil
}

func (g *generateRequest) id(r *http.Request, s *Server) string {
	for _, id := range []string{r.Header.Get("X-Request-Id"), g.RequestID} {
		if id != "" {
			return id
		}
	}
	return s.freshID()
}

// addMedia adds the media objects of the features to the prompt.
func (g *generateRequest) show(p *prompt) {
	if g.Features == nil {
		return
	}
	for _, modality := range sortedKeys(g.Features.Places) {
		for i, at := range g.Features.Places[modality] {
			if ids := g.Features.Hashes[modality]; i < len(ids) {
				if h, ok := kv.MediaHash(ids[i]); ok && at.Offset >= 0 && at.Length > 0 && at.Length <= len(p.tokens)-at.Offset {
					p.media = append(p.media, kv.Media{Hash: h, Start: at.Offset, End: at.Offset + at.Length})
					p.sights = append(p.sights, sight{id: ids[i]})
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
	if !s.body(w, r, &g) {
		return
	}
	if g.Sampling == nil || g.Tokens == nil {
		s.refuse(w, http.StatusBadRequest, "1 validation error: fields 'token_ids' and 'sampling_params' are required")
		return
	}
	f, ok := s.begins(w, r)
	if !ok {
		return
	}
	if !s.processed(w, &g) {
		return
	}
	c, err := g.call(s, r)
	if err != nil {
		s.fail(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.register(c.id, cancel)()
	a, err := s.generate(ctx, c.rank, c.asks...)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer a.close()
	if err := a.accepted(ctx); err != nil {
		s.fail(w, err)
		return
	}
	m := s.stats.begin(c.rank.index, c.tokens(), c.asks[0].req.Salt.LoRA)
	defer m.end()
	if g.Stream {
		s.streamTokens(ctx, w, &g, c, a, f, m)
		return
	}
	s.wholeTokens(ctx, w, &g, c, a, f, m)
}

// tokenChoice encodes a part of a choice of tokens.
func (s *Server) tokenPiece(g *generateRequest, c *call, p *part) object {
	o := object{"index": p.choice, "logprobs": nil, "finish_reason": nil, "token_ids": orEmpty(p.tokens)}
	if p.reason != "" {
		o["finish_reason"] = p.reason
	}
	if c.top >= 0 {
		chat := *c
		chat.chat = true // the format is that of chats, with tokens named by their ids
		names := *c.q
		names.TokenNames = true
		chat.q = &names
		o["logprobs"] = s.logprobs(&chat, p)
	}
	if g.OutputMode == "text" {
		o["text"] = p.text
	}
	return o
}

func (s *Server) streamTokens(ctx context.Context, w http.ResponseWriter, g *generateRequest, c *call, a *answer, f *fate, m *measure) {
	st := newStream(w)
	u := usage{prompt: c.tokens(), cached: engine.CachedUnknown}
	err := s.each(ctx, a, f, st.flush, func(p *part) error {
		if u.cached == engine.CachedUnknown {
			u.cached = p.cached
		}
		u.completion += len(p.tokens)
		m.tokens(p)
		if p.reason != "" {
			m.finished(p.reason)
		}
		o := object{"request_id": c.id, "choices": []object{s.tokenPiece(g, c, p)}, "usage": nil}
		if g.StreamOptions.Continuous {
			o["usage"] = s.usageBody(u, false)
		}
		st.event(o)
		return nil
	})
	switch {
	case ctx.Err() != nil && err != nil:
		s.aborted(st, c, ctx)
		return
	case err != nil:
		status, message := statusOf(err)
		st.event(s.streamError(status, message))
	case g.StreamOptions.Usage:
		u.cached = s.known(u.cached)
		st.event(object{"request_id": c.id, "choices": []object{}, "usage": s.usageBody(u, true)})
	}
	m.cached(u)
	st.line([]byte("[DONE]"))
	st.flush()
}

// writeAborted ends the stream of an aborted request; if the client disconnected, the writes have no effect.
func (s *Server) aborted(st *stream, c *call, ctx context.Context) {
	for i := range c.n {
		st.event(object{"request_id": c.id, "choices": []object{{"index": i, "logprobs": nil, "finish_reason": "abort", "token_ids": []int{}}}, "usage": nil})
	}
	st.line([]byte("[DONE]"))
	st.flush()
}

func (s *Server) wholeTokens(ctx context.Context, w http.ResponseWriter, g *generateRequest, c *call, a *answer, f *fate, m *measure) {
	whole := make([]part, c.n)
	u := usage{prompt: c.tokens(), cached: engine.CachedUnknown}
	err := s.each(ctx, a, f, func() {}, func(p *part) error {
		if u.cached == engine.CachedUnknown {
			u.cached = p.cached
		}
		u.completion += len(p.tokens)
		m.tokens(p)
		to := &whole[p.choice]
		to.choice = p.choice
		to.tokens, to.logprobs = append(to.tokens, p.tokens...), append(to.logprobs, p.logprobs...)
		to.text += p.text
		if p.reason != "" {
			to.reason = p.reason
			m.finished(p.reason)
		}
		return nil
	})
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	transfer, cached := s.transfer(c, whole[0].reason, u.cached)
	u.cached = cached
	m.cached(u)
	var choices []object
	for i := range whole {
		choices = append(choices, s.tokenPiece(g, c, &whole[i]))
	}
	out := object{"request_id": c.id, "choices": choices, "prompt_logprobs": nil, "kv_transfer_params": transfer}
	if raw := notNull(g.ECTransfer); raw != nil {
		out["ec_transfer_params"] = json.RawMessage(raw)
	}
	writeJSON(w, http.StatusOK, out)
}

// vllmMetrics writes the metrics of a rank.
func (s *Server) vllmMetrics(p *page, rank int, t *tally, load engine.Load) {
	l := label("engine", strconv.Itoa(rank)) + "," + label("model_name", s.cfg.Models[0])
	p.add("gauge", "vllm:num_requests_running", l, float64(load.Running))
	p.add("gauge", "vllm:num_requests_waiting", l, float64(load.Waiting))
	usage := "vllm:kv_cache_usage_perc"
	if s.cfg.Dialect == VLLMLegacy {
		usage = "vllm:gpu_cache_usage_perc"
	}
	p.add("gauge", usage, l, share(load.UsedBlocks, load.TotalBlocks))
	p.add("counter", "vllm:prefix_cache_queries_total", l, float64(t.queries))
	p.add("counter", "vllm:prefix_cache_hits_total", l, float64(t.hits))
	p.add("counter", "vllm:num_preemptions_total", l, float64(load.Preemptions))
	p.add("counter", "vllm:prompt_tokens_total", l, float64(t.prompt))
	p.add("counter", "vllm:generation_tokens_total", l, float64(t.generated))
	for _, reason := range []string{reasonStop, reasonLength, "abort", "error"} {
		p.add("counter", "vllm:request_success_total", l+","+label("finished_reason", reason), float64(t.ended[reason]))
	}
	p.histogram("vllm:time_to_first_token_seconds", l, &t.first)
	p.histogram("vllm:inter_token_latency_seconds", l, &t.between)
	p.histogram("vllm:request_time_per_output_token_seconds", l, &t.perToken)
	p.histogram("vllm:e2e_request_latency_seconds", l, &t.whole)
	p.histogram("vllm:request_prompt_tokens", l, &t.promptSize)
	p.histogram("vllm:request_generation_tokens", l, &t.outputSize)
	running := strings.Join(sortedKeys(t.adapters), ",")
	most := max(len(s.adapters()), 1)
	p.add("gauge", "vllm:lora_requests_info", label("max_lora", strconv.Itoa(most))+","+label("running_lora_adapters", running)+","+label("waiting_lora_adapters", ""), float64(time.Now().UnixMicro())/1e6)
	size := s.blockSize()
	p.add("gauge", "vllm:cache_config_info", label("block_size", strconv.Itoa(size))+","+label("cache_dtype", "auto")+","+label("enable_prefix_caching", "True")+","+
		label("engine", strconv.Itoa(rank))+","+label("num_gpu_blocks", strconv.Itoa(load.TotalBlocks))+","+label("prefix_caching_hash_algo", "sha256"), 1)
	s.mu.Lock()
	asleep := s.mu.asleep
	s.mu.Unlock()
	p.add("gauge", "vllm:engine_sleep_state", l+","+label("sleep_state", "awake"), float64(min(1, max(0, 1-asleep))))
}
