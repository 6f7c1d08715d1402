package enginemock

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
)

// newSGLang returns the dialect of a release of SGLang, the newest by default.
func newSGLang(version string) *dialect {
	r := mockedRelease(version)
	d := &dialect{
		release: r, addRoutes: (*Server).routeSGLang, errorBody: flatError, errorTypes: webErrors(), otherError: "InternalServerError",
		startup: []string{"/health", "/health_generate", "/ready"}, resolve: resolveSGLang,
		transfer: func(s *Server, c *apiCall) *kvTransfer { return c.request.roomTransfer(s, 0) },
		usage:    object{"prompt_tokens_details": nil}, message: object{"reasoning_content": nil, "tool_calls": nil}, chunk: object{"usage": nil},
		hidesZero: !r.ready, // of the same versions
		loader:    family.SGLang, noUUIDs: true, showMedia: func(_ *Server, _ kv.Token, hash uint64) kv.Token { return kv.PadToken(hash) },
		mapEvents: r.mapEvents, replayTopics: r.replayTopic, signedNames: true, noAdapterIDs: true, extraFields: sglangFields,
		epochTopics: true, clearsAtStart: true, hostMedium: "CPU_PINNED", diskMedium: "DISK",
	}
	chatTokens := "token_ids"
	if r.ready { // of the same versions
		delete(d.message, "tool_calls")
		chatTokens = "response_token_ids"
	}
	if r.chats { // of the same versions
		d.usage["reasoning_tokens"] = 0
	}
	d.addChoice = func(c *apiCall, o object, p *outputPart, _ bool) {
		o["matched_stop"] = p.stop
		switch {
		case c.request.ReturnTokens && c.chat:
			o[chatTokens] = orEmpty(p.tokens)
		case c.request.ReturnTokens:
			o["token_ids"] = orEmpty(p.tokens)
		}
	}
	return d
}

// resolveSGLang accepts any name of a model, with an adapter after a colon.
func resolveSGLang(s *Server, name string) (string, error) {
	_, name, _ = strings.Cut(name, ":")
	return s.sglangAdapter(name)
}

// sglangFields are the salt and the adapter's name, if there are any. Arrays omit the adapter.
func sglangFields(f *eventEncoder, c *cacheChange) (fields []eventField) {
	salt, adapter := c.salt.Namespace, c.salt.LoRA
	switch {
	case c.kind != blockStored, salt == "" && (!f.asMaps || adapter == ""):
		return nil
	case !f.asMaps:
		return []eventField{{"", func(b []byte) []byte { return packString(packString(packMap(b, 1), "cache_salt"), salt) }}}
	}
	if salt != "" {
		fields = append(fields, textField("cache_salt", salt))
	}
	if adapter != "" {
		fields = append(fields, textField("lora_name", adapter))
	}
	return fields
}

// routeSGLang registers the HTTP API of SGLang.
func (s *Server) routeSGLang(mux *http.ServeMux) {
	mux.HandleFunc("POST /generate", s.sglangGenerate)
	mux.HandleFunc("PUT /generate", s.sglangGenerate)
	mux.HandleFunc("POST /v1/completions", s.serveOpenAI(false))
	mux.HandleFunc("POST /v1/chat/completions", s.serveOpenAI(true))
	mux.HandleFunc("GET /v1/models", s.sglangModels)
	for _, path := range []string{"/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, s.sglangModelInfo)
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		mux.HandleFunc("GET "+path, s.sglangServerInfo)
	}
	mux.HandleFunc("GET /v1/loads", s.sglangLoads)
	mux.HandleFunc("GET /health", s.sglangHealth)
	mux.HandleFunc("GET /health_generate", s.sglangHealth)
	if s.dialect.release.ready {
		mux.HandleFunc("GET /ready", s.serveOK)
	}
	mux.HandleFunc("GET /flush_cache", s.sglangFlush)
	mux.HandleFunc("POST /flush_cache", s.sglangFlush)
	mux.HandleFunc("POST /abort_request", serveJSON(s, s.sglangAbort))
	for _, prefix := range []string{"", "/v1"} {
		mux.HandleFunc("POST "+prefix+"/tokenize", serveJSON(s, s.sglangTokenize))
		mux.HandleFunc("POST "+prefix+"/detokenize", serveJSON(s, s.sglangDetokenize))
	}
	mux.HandleFunc("POST /load_lora_adapter", s.sglangLoadAdapter)
	mux.HandleFunc("POST /unload_lora_adapter", s.sglangLoadAdapter)
	if s.cfg.Features.Metrics.isOn(true) {
		mux.HandleFunc("GET /metrics", s.serveMetrics(s.sglangMetrics))
	}
}

func (s *Server) sglangModels(w http.ResponseWriter, _ *http.Request) {
	created := s.startedAt.Unix()
	var data []object
	for _, name := range s.cfg.Models {
		data = append(data, object{"id": name, "object": "model", "created": created, "owned_by": "sglang", "root": s.cfg.Root, "parent": nil, "max_model_len": s.card.ContextLength})
	}
	for _, a := range s.loadedAdapters() {
		data = append(data, object{"id": a.Name, "object": "model", "created": created, "owned_by": "sglang", "root": a.Path, "parent": s.cfg.Models[0], "max_model_len": nil})
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

func (s *Server) sglangModelInfo(w http.ResponseWriter, _ *http.Request) {
	o := object{
		"model_path": s.cfg.Root, "tokenizer_path": s.cfg.Root, "is_generation": true, "preferred_sampling_params": nil, "weight_version": "default",
		"has_image_understanding": s.acceptsMedia(media.Image), "has_audio_understanding": s.acceptsMedia(media.Audio), "model_type": "llama",
		"architectures": []string{"LlamaForCausalLM"},
	}
	if s.dialect.release.ready { // of the same versions
		o["served_model_name"], o["load_format"], o["disaggregation_mode"] = s.cfg.Models[0], "auto", "null"
		o["reasoning_parser"], o["tool_call_parser"] = nil, nil
	}
	writeJSON(w, http.StatusOK, o)
}

// sglangServerInfo serves the arguments of the server, and the addresses of its events.
func (s *Server) sglangServerInfo(w http.ResponseWriter, _ *http.Request) {
	size := s.reportedBlockSize()
	_, bootstrap := s.listenAddr()
	o := object{
		"model_path": s.cfg.Root, "served_model_name": s.cfg.Models[0], "version": s.dialect.release.version, "page_size": size, "dp_size": len(s.ranks), "tp_size": 1,
		"context_length": s.card.ContextLength, "max_total_num_tokens": s.card.Blocks * s.card.BlockSize, "disable_radix_cache": s.card.NoPrefixCache,
		"max_running_requests": 256, "chunked_prefill_size": s.card.MaxBatchedTokens, "stream_interval": 1, "enable_metrics": s.cfg.Features.Metrics.isOn(true),
		"incremental_streaming_output": !s.cfg.Features.Cumulative.isOn(true), "disaggregation_mode": "null", "disaggregation_bootstrap_port": bootstrap, "enable_cache_report": s.cfg.Features.Details.isOn(true),
		"internal_states": []object{}, "kv_events_config": nil,
	}
	if s.dialect.release.announces {
		o["kv_events"] = nil
	}
	if at := s.EventsAddr(); at != "" {
		config := object{"publisher": "zmq", "endpoint": at, "topic": s.cfg.Topic, "buffer_steps": s.cfg.BufferSteps}
		if replay := s.ReplayAddr(); replay != "" {
			config["replay_endpoint"] = replay
		}
		o["kv_events_config"] = string(marshalJSON(config))
		if s.dialect.release.announces {
			o["kv_events"] = s.sglangEvents(at, size)
		}
	}
	writeJSON(w, http.StatusOK, o)
}

// sglangEvents encodes the addresses of the events. Subscribers add their rank to a port.
func (s *Server) sglangEvents(at string, size int) object {
	host, port := hostPort(at)
	o := object{
		"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": s.cfg.Topic, "block_size": size, "dp_size": len(s.ranks),
	}
	if replay := s.ReplayAddr(); replay != "" && s.dialect.release.announcesReplay {
		_, o["replay_endpoint_port_base"] = hostPort(replay)
	}
	return o
}

// hostPort splits a TCP endpoint; a wildcard is "*".
func hostPort(endpoint string) (host string, port int) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint, 0
	}
	h, p, err := net.SplitHostPort(rest)
	if err != nil {
		return rest, 0
	}
	port, _ = strconv.Atoi(p)
	return h, port
}

func (s *Server) sglangLoads(w http.ResponseWriter, _ *http.Request) {
	var loads []object
	running, waiting := 0, 0
	for i, r := range s.ranks {
		l, _ := s.loadOf(r)
		running, waiting = running+l.Running, waiting+l.Waiting
		o := object{
			"timestamp": unixSeconds(time.Now()), "dp_rank": i, "num_running_reqs": l.Running, "num_waiting_reqs": l.Waiting,
			"num_used_tokens": l.UsedBlocks * s.card.BlockSize, "max_total_num_tokens": s.card.Blocks * s.card.BlockSize, "max_running_requests": 256,
			"token_usage": usedShare(l.UsedBlocks, l.TotalBlocks), "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": 0.0,
		}
		if s.dialect.release.aggregate {
			o["num_total_reqs"] = l.Running + l.Waiting
		} else {
			o["num_waiting_uncached_tokens"], o["num_total_tokens"], o["num_active_tokens"] = 0, o["num_used_tokens"], o["num_used_tokens"]
			o["total_prefill_uncached_tokens"], o["total_prefill_busy_us"] = 0, 0
		}
		loads = append(loads, o)
	}
	o := object{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": s.dialect.release.version, "loads": loads}
	if s.dialect.release.aggregate {
		o["dp_rank_count"] = len(s.ranks)
		o["aggregate"] = object{"total_running_reqs": running, "total_waiting_reqs": waiting, "total_reqs": running + waiting}
	} else {
		o["accelerator"], o["num_accelerators"] = nil, 1
	}
	writeJSON(w, http.StatusOK, o)
}

// sglangHealth generates a token to test the engine.
func (s *Server) sglangHealth(w http.ResponseWriter, r *http.Request) {
	a, err := s.startGeneration(r.Context(), s.ranks[0], promptRequest{req: &engine.Request{
		ID: "HEALTH_CHECK_" + s.freshID(), Attempt: 1, Model: s.card.Name, Prompt: []kv.Token{0}, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1},
	}})
	if err == nil {
		defer a.stopAndWait()
		_, err = a.nextParts(r.Context())
	}
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) sglangFlush(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.resetCaches(); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte("Flush cache failed. Please check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"))
		return
	}
	_, _ = w.Write([]byte("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"))
}

// sglangAborted names a request to abort, or all.
type sglangAborted struct {
	RID string `json:"rid"`
	All bool   `json:"abort_all"`
}

func (s *Server) sglangAbort(_ context.Context, q *sglangAborted) (any, error) {
	if q.RID != "" || q.All {
		s.abortRequest(q.RID)
	}
	return nil, nil
}

// sglangTexts is a request to /tokenize.
type sglangTexts struct {
	openaiRequest
	Prompt     oneOrMany[string] `json:"prompt"`
	AddSpecial *bool             `json:"add_special_tokens"`
}

func (s *Server) sglangTokenize(ctx context.Context, q *sglangTexts) (any, error) {
	chat := s.dialect.release.chats && q.Messages != nil
	if chat == (q.Prompt.list != nil) {
		return nil, fault.New(fault.Invalid, "1 validation error: %s", s.dialect.release.promptError())
	}
	var all [][]kv.Token
	var counts []int
	add := func(tokens []kv.Token) {
		all, counts = append(all, orEmpty(tokens)), append(counts, len(tokens))
	}
	if chat {
		p, err := s.chatPrompt(ctx, &q.openaiRequest)
		if err != nil {
			return nil, err
		}
		add(p.tokens)
	}
	for _, text := range q.Prompt.list {
		tokens, err := s.encodeText(text, q.AddSpecial == nil || *q.AddSpecial)
		if err != nil {
			return nil, err
		}
		add(tokens)
	}
	if q.Prompt.many {
		return object{"tokens": all, "count": counts, "max_model_len": s.card.ContextLength}, nil
	}
	return object{"tokens": all[0], "count": counts[0], "max_model_len": s.card.ContextLength}, nil
}

// promptError is the error of /tokenize for a request without exactly one accepted input.
func (r *sglangRelease) promptError() string {
	if r.chats {
		return "Value error, Exactly one of 'prompt' or 'messages' must be provided."
	}
	return "body.prompt: Field required"
}

// sglangTokens is a request to /detokenize.
type sglangTokens struct {
	Tokens oneOrMany[[]kv.Token] `json:"tokens"`
}

func (s *Server) sglangDetokenize(_ context.Context, q *sglangTokens) (any, error) {
	var all []string
	for _, tokens := range q.Tokens.list {
		text, err := s.decodeTokens(tokens)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	switch {
	case len(all) == 0:
		return nil, fault.New(fault.Invalid, "tokens is required")
	case q.Tokens.many:
		return object{"text": all}, nil
	}
	return object{"text": all[0]}, nil
}

func (s *Server) sglangLoadAdapter(w http.ResponseWriter, r *http.Request) {
	var q adapterRequest
	if !s.readBody(w, r, &q) {
		return
	}
	load := r.URL.Path == "/load_lora_adapter"
	s.mu.Lock()
	at := slices.IndexFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == q.Name })
	ok := q.Name != "" && (at < 0) == load
	switch {
	case ok && load:
		s.mu.adapters = append(s.mu.adapters, Adapter(q))
		s.mu.loads[q.Name]++
	case ok:
		s.mu.unloaded[q.Name] = s.mu.adapters[at]
		s.mu.adapters = slices.Delete(s.mu.adapters, at, at+1)
	}
	loaded := object{}
	for _, a := range s.mu.adapters {
		loaded[a.Name] = a.Path
	}
	s.mu.Unlock()
	status, message := http.StatusOK, ""
	if !ok {
		status, message = http.StatusBadRequest, fmt.Sprintf("LoRA adapter %.80q cannot be changed: it is there already, or it is not", url.PathEscape(q.Name))
	}
	writeJSON(w, status, object{"success": ok, "error_message": message, "loaded_adapters": loaded})
}

// sglangAdapter returns the cache namespace of an adapter's name, "" for the model. An unloaded adapter is
// loaded again, and does not find what it cached before.
func (s *Server) sglangAdapter(name string) (string, error) {
	s.mu.Lock()
	if a, there := s.mu.unloaded[name]; there && !slices.ContainsFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == name }) {
		s.mu.adapters = append(s.mu.adapters, a)
		s.mu.loads[name]++
	}
	loads := s.mu.loads[name]
	s.mu.Unlock()
	adapter, ok := s.resolveModel(name)
	if !ok {
		return "", fault.New(fault.Invalid, "The following requested LoRA adapters are not loaded: %.80q", name)
	}
	if adapter != "" && loads > 1 {
		adapter += hiddenSeparator + strconv.Itoa(loads)
	}
	return adapter, nil
}

// sglangMetrics writes the metrics of a rank.
func (s *Server) sglangMetrics(p *metricsPage, rank int, t *rankCounters, load engine.Load) {
	l := formatLabel("dp_rank", strconv.Itoa(rank)) + "," + formatLabel("engine_type", "unified") + "," + formatLabel("model_name", s.cfg.Models[0]) + "," + formatLabel("pp_rank", "0") + "," + formatLabel("tp_rank", "0")
	p.addSample("gauge", "sglang:num_running_reqs", l, float64(load.Running))
	p.addSample("gauge", "sglang:num_queue_reqs", l, float64(load.Waiting))
	p.addSample("gauge", "sglang:token_usage", l, usedShare(load.UsedBlocks, load.TotalBlocks))
	p.addSample("gauge", "sglang:num_used_tokens", l, float64(load.UsedBlocks*s.card.BlockSize))
	rate := 0.0
	if t.queries > 0 {
		rate = float64(t.hits) / float64(t.queries)
	}
	p.addSample("gauge", "sglang:cache_hit_rate", l, rate)
	p.addSample("gauge", "sglang:gen_throughput", l, 0)
	p.addSample("counter", "sglang:prompt_tokens_total", l, float64(t.prompt))
	p.addSample("counter", "sglang:generation_tokens_total", l, float64(t.generated))
	p.addSample("counter", "sglang:cached_tokens_total", l+","+formatLabel("cache_source", "device"), float64(t.hits))
	p.addSample("counter", "sglang:num_requests_total", l, float64(t.requests))
	p.addSample("counter", "sglang:num_aborted_requests_total", l, float64(t.aborted))
	p.addSample("gauge", "sglang:cache_config_info", l+","+formatLabel("num_pages", strconv.Itoa(load.TotalBlocks))+","+formatLabel("page_size", strconv.Itoa(s.reportedBlockSize())), 1)
	p.addHistogram("sglang:time_to_first_token_seconds", l, &t.timeToFirst)
	p.addHistogram("sglang:inter_token_latency_seconds", l, &t.interToken)
	p.addHistogram("sglang:e2e_request_latency_seconds", l, &t.endToEnd)
}
