package enginemock

import (
	"context"
	"encoding/json"
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
	"penstock/internal/engine"
)

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
	if s.release.ready {
		mux.HandleFunc("GET /ready", s.serveOK)
	}
	mux.HandleFunc("GET /flush_cache", s.sglangFlush)
	mux.HandleFunc("POST /flush_cache", s.sglangFlush)
	mux.HandleFunc("POST /abort_request", s.sglangAbort)
	mux.HandleFunc("POST /tokenize", s.sglangTokenize)
	mux.HandleFunc("POST /v1/tokenize", s.sglangTokenize)
	mux.HandleFunc("POST /detokenize", s.sglangDetokenize)
	mux.HandleFunc("POST /v1/detokenize", s.sglangDetokenize)
	mux.HandleFunc("POST /load_lora_adapter", s.sglangLoadAdapter)
	mux.HandleFunc("POST /unload_lora_adapter", s.sglangLoadAdapter)
	if s.cfg.Features.Metrics.isOn(true) {
		mux.HandleFunc("GET /metrics", s.serveMetrics(s.sglangMetrics))
	}
}

// oneOrMany is a value, or a list with one value for each request of a batch.
type oneOrMany[T any] struct {
	list []T
	many bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *oneOrMany[T]) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var one T
	if json.Unmarshal(b, &one) == nil {
		o.list = []T{one}
		return nil
	}
	o.many = true
	return json.Unmarshal(b, &o.list)
}

// at returns the value of a request of a batch; the zero value if there is none.
func (o *oneOrMany[T]) at(i int) (v T) {
	switch {
	case !o.many && len(o.list) == 1:
		return o.list[0]
	case i < len(o.list):
		return o.list[i]
	}
	return v
}

// sglangRequest is a request to /generate.
type sglangRequest struct {
	Text          oneOrMany[string]         `json:"text"`
	InputIDs      oneOrMany[[]kv.Token]     `json:"input_ids"`
	Sampling      oneOrMany[sglangSampling] `json:"sampling_params"`
	RID           oneOrMany[string]         `json:"rid"`
	Stream        bool                      `json:"stream"`
	ReturnLogprob oneOrMany[bool]           `json:"return_logprob"`
	TopLogprobs   oneOrMany[int]            `json:"top_logprobs_num"`
	LoRA          oneOrMany[string]         `json:"lora_path"`
	ExtraKey      oneOrMany[string]         `json:"extra_key"`
	CacheSalt     oneOrMany[string]         `json:"cache_salt"`
	Images        json.RawMessage           `json:"image_data"`
	Videos        json.RawMessage           `json:"video_data"`
	Sounds        json.RawMessage           `json:"audio_data"`
	MediaHashes   json.RawMessage           `json:"mm_hashes"`
	ReturnPrompt  bool                      `json:"return_prompt_token_ids"`
	Rank          *int                      `json:"routed_dp_rank"`
	OldRank       *int                      `json:"data_parallel_rank"`
	Incremental   *bool                     `json:"incremental_streaming_output"`
}

type sglangSampling struct {
	samplingFields
	MaxNew      *int   `json:"max_new_tokens"`
	MinNew      int    `json:"min_new_tokens"`
	Seed        *int64 `json:"sampling_seed"`
	KeepStop    bool   `json:"no_stop_trim"`
	SkipSpecial *bool  `json:"skip_special_tokens"`
}

// sglangJob is one request of a batch.
type sglangJob struct {
	id      string
	request promptRequest
	single  bool // one choice
}

// splitJobs converts the requests of a batch.
func (q *sglangRequest) splitJobs(ctx context.Context, s *Server) ([]sglangJob, error) {
	n := max(len(q.Text.list), len(q.InputIDs.list))
	if n == 0 || n > maxPrompts || len(q.Text.list) > 0 && len(q.InputIDs.list) > 0 {
		return nil, fault.New(fault.Invalid, "Either text, input_ids or input_embeds should be provided.")
	}
	var out []sglangJob
	for i := range n {
		tokens := q.InputIDs.at(i)
		if len(q.Text.list) > 0 {
			p, err := s.encodePrompt(q.Text.at(i))
			if err != nil {
				return nil, err
			}
			tokens = p.tokens
		}
		shows := prompt{tokens: tokens}
		if err := q.addMedia(ctx, s, &shows, i, n > 1); err != nil {
			return nil, err
		}
		tokens = shows.tokens
		p := q.Sampling.at(i)
		draw := p.withSeed(p.Seed)
		how, err := draw.toEngine(s)
		if err != nil {
			return nil, err
		}
		room := s.card.ContextLength - len(tokens)
		if room < 1 {
			return nil, fault.New(fault.Invalid, "The input (%d tokens) is longer than the model's context length (%d tokens).", len(tokens), s.card.ContextLength)
		}
		limit, choices, top := 128, 1, -1
		if p.MaxNew != nil {
			limit = *p.MaxNew
		}
		if limit < 1 {
			return nil, fault.New(fault.Invalid, "max_new_tokens must be at least 1, got %d.", limit)
		}
		if p.N != nil {
			choices = *p.N
		}
		if choices < 1 || choices > engine.MaxChoices {
			return nil, fault.New(fault.Invalid, "n must be between 1 and %d", engine.MaxChoices)
		}
		if q.ReturnLogprob.at(i) {
			top = max(q.TopLogprobs.at(i), 0)
		}
		adapter, ok := s.sglangAdapter(q.LoRA.at(i))
		if !ok {
			return nil, fault.New(fault.Invalid, "The following requested LoRA adapters are not loaded: %.80q", q.LoRA.at(i))
		}
		id := q.RID.at(i)
		if id == "" {
			id = s.freshID()
		}
		out = append(out, sglangJob{id: id, single: choices == 1, request: promptRequest{
			req: &engine.Request{
				ID: id, Attempt: 1, Model: s.card.Name, Prompt: tokens, Media: shows.media, Choices: choices, Sampling: how, Logprobs: top,
				Salt: kv.Salt{LoRA: adapter, Namespace: s.release.cacheNamespace(q.CacheSalt.at(i), q.ExtraKey.at(i), false)},
				Stop: engine.Stop{MaxTokens: min(limit, room), MinTokens: min(p.MinNew, limit, room), Tokens: p.StopTokens, IgnoreEOS: p.IgnoreEOS},
			},
			prompt:  shows,
			stop:    stopRule{withoutEmpty(p.Stop), p.KeepStop},
			special: p.SkipSpecial != nil && !*p.SkipSpecial,
		}})
	}
	return out, nil
}

// addMedia puts the media of request i into its prompt. It ignores hashes whose number differs from the
// media's, as the engine does.
func (q *sglangRequest) addMedia(ctx context.Context, s *Server, p *prompt, i int, batch bool) error {
	var want []mediaRef
	for _, of := range [...]struct {
		kind media.Kind
		raw  json.RawMessage
	}{{media.Image, q.Images}, {media.Video, q.Videos}, {media.Audio, q.Sounds}} {
		for _, url := range stringsOf(of.raw, i, batch) {
			want = append(want, mediaRef{kind: of.kind, url: url})
		}
	}
	if len(want) == 0 {
		return nil
	}
	if s.cfg.Pipe == nil || s.cfg.Pipe.Family == nil {
		return fault.New(fault.Invalid, "The model is not a multimodal model, and the request shows media.")
	}
	hashes := stringsOf(q.MediaHashes, i, batch)
	if len(hashes) != len(want) || !s.release.takesHashes {
		hashes = nil
	}
	return s.expandMedia(ctx, p, want, hashes)
}

// stringsOf reads a text or a list of texts; in a batch, a list of those.
func stringsOf(raw json.RawMessage, i int, batch bool) []string {
	if batch {
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) != nil || i >= len(all) {
			return nil
		}
		raw = all[i]
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		return many
	}
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	return nil
}

// sglangState is the output of one choice so far.
type sglangState struct {
	text     string
	tokens   []kv.Token
	logprobs []engine.Logprob
	cached   int
	reason   string
	stop     any
}

// sglangGenerate serves /generate.
func (s *Server) sglangGenerate(w http.ResponseWriter, r *http.Request) {
	var q sglangRequest
	if !s.readBody(w, r, &q) {
		return
	}
	f, ok := s.startAnswer(w, r)
	if !ok {
		return
	}
	defer f.release()
	jobs, err := q.splitJobs(r.Context(), s)
	if err != nil {
		s.sglangWriteError(w, err)
		return
	}
	rank, err := s.chooseRank(rankOf(r, q.Rank, q.OldRank))
	if err != nil {
		s.sglangWriteError(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var asks []promptRequest
	prompt := 0
	for i := range jobs {
		asks = append(asks, jobs[i].request)
		prompt += len(jobs[i].request.req.Prompt)
		defer s.registerRequest(jobs[i].id, cancel)()
	}
	a, err := s.startGeneration(ctx, rank, asks...)
	if err != nil {
		s.sglangWriteError(w, err)
		return
	}
	defer a.stopAndWait()
	if err := a.awaitAccepted(ctx); err != nil {
		s.sglangWriteError(w, err)
		return
	}
	m := s.stats.startRequest(rank.index, prompt, publicPart(asks[0].req.Salt.LoRA))
	defer m.finishRequest()
	g := &sglangAnswer{server: s, request: &q, jobs: jobs, stats: m, usage: usage{prompt: prompt, cached: engine.CachedUnknown}, began: time.Now(), rank: rank.index}
	for i := range jobs {
		g.states = append(g.states, make([]sglangState, jobs[i].request.req.Choices))
	}
	if q.Stream {
		g.streamAnswer(ctx, r.Context(), w, a, f)
		return
	}
	g.wholeAnswer(ctx, r.Context(), w, a, f)
}

// sglangWriteError answers with an error of /generate, which has its own format.
func (s *Server) sglangWriteError(w http.ResponseWriter, err error) {
	status, message := statusOf(err)
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, status, object{"error": object{"message": message}})
}

// sglangAnswer is the answer to a request to /generate.
type sglangAnswer struct {
	server  *Server
	request *sglangRequest
	jobs    []sglangJob
	states  [][]sglangState
	stats   *requestStats
	usage   usage
	began   time.Time
	rank    int
}

// addPart appends a part to its choice.
func (g *sglangAnswer) addPart(p *outputPart) *sglangState {
	st := &g.states[p.prompt][p.choice]
	if st.tokens == nil {
		st.cached = p.cached
		if p.choice == 0 {
			g.usage.cached = addCached(g.usage.cached, p.cached)
		}
	}
	st.text += p.text
	st.tokens = append(st.tokens, p.tokens...)
	st.logprobs = append(st.logprobs, p.logprobs...)
	g.stats.countTokens(p)
	g.usage.completion += len(p.tokens)
	if p.reason != "" {
		st.reason, st.stop = p.reason, p.stop
		g.stats.countFinish(p.reason)
	}
	return st
}

// choiceBody encodes a choice: all output so far, or only the new part.
func (g *sglangAnswer) choiceBody(prompt, choice int, text string, tokens []kv.Token, logprobs []engine.Logprob) object {
	st, job := &g.states[prompt][choice], &g.jobs[prompt]
	id := job.id
	if choice > 0 {
		id += "-" + strconv.Itoa(choice)
	}
	r := g.server.release
	meta := object{
		"id": id, "finish_reason": nil, "prompt_tokens": len(job.request.req.Prompt), "completion_tokens": len(st.tokens), "weight_version": "default",
		r.retractions: 0, "queue_time": 0.0, "dp_rank": nil,
	}
	if len(g.server.ranks) > 1 {
		meta["dp_rank"] = g.rank
	}
	if r.chats { // of the same versions
		meta["reasoning_tokens"] = 0
	}
	if cached := g.server.reportedCached(st.cached); cached != engine.CachedUnknown {
		meta["cached_tokens"], meta["cached_tokens_details"] = cached, nil
		if cached > 0 {
			meta["cached_tokens_details"] = object{"device": cached, "host": 0}
		}
	}
	if st.reason != "" {
		meta["e2e_latency"] = time.Since(g.began).Seconds()
		if r.spans {
			meta["weight_versions"] = []object{{"version": "default", "start": 0, "end": len(st.tokens)}}
		}
	}
	switch st.reason {
	case reasonLength:
		meta["finish_reason"] = object{"type": "length", "length": len(st.tokens)}
	case reasonStop:
		reason := object{"type": "stop"}
		if st.stop != nil {
			reason["matched"] = st.stop
		} else if n := len(st.tokens); n > 0 {
			reason["matched"] = st.tokens[n-1]
		}
		meta["finish_reason"] = reason
	case "abort":
		meta["finish_reason"] = object{"type": "abort", "message": "Abort in waiting queue", "status_code": nil, "err_type": nil}
	}
	if job.request.req.Logprobs >= 0 {
		all := [][]any{}
		for i := range logprobs {
			all = append(all, []any{logprobs[i].Logprob, logprobs[i].Token, nil})
		}
		meta["output_token_logprobs"] = all
		if job.request.req.Logprobs > 0 {
			top := [][][]any{}
			for i := range logprobs {
				beside := [][]any{}
				for _, l := range logprobs[i].Top {
					beside = append(beside, []any{l.Logprob, l.Token, nil})
				}
				top = append(top, beside)
			}
			meta["output_top_logprobs"] = top
		}
	}
	o := object{"text": text, "output_ids": orEmpty(tokens), "meta_info": meta}
	if g.request.ReturnPrompt {
		o["prompt_token_ids"] = job.request.req.Prompt
	}
	if len(g.jobs) > 1 || !job.single {
		o["index"] = prompt*job.request.req.Choices + choice
	}
	return o
}

// markAborted marks choices which an abort left unfinished.
func (g *sglangAnswer) markAborted() {
	for i := range g.states {
		for j := range g.states[i] {
			if g.states[i][j].reason == "" {
				g.states[i][j].reason = "abort"
			}
		}
	}
}

// streamAnswer answers with a stream: each chunk repeats all output so far, unless the request or the
// settings ask for only the new output.
func (g *sglangAnswer) streamAnswer(ctx, client context.Context, w http.ResponseWriter, a *outputStream, f *answerFaults) {
	st := newSSEStream(w)
	cumulative := g.server.cfg.Features.Cumulative.isOn(true) && (g.request.Incremental == nil || !*g.request.Incremental)
	err := g.server.forEachPart(ctx, a, f, st.flush, func(p *outputPart) error {
		now := g.addPart(p)
		if cumulative {
			st.writeEvent(g.choiceBody(p.prompt, p.choice, now.text, now.tokens, now.logprobs))
		} else {
			st.writeEvent(g.choiceBody(p.prompt, p.choice, p.text, p.tokens, p.logprobs))
		}
		return nil
	})
	switch {
	case client.Err() != nil:
		return
	case ctx.Err() != nil: // the request was aborted
		g.markAborted()
		for i := range g.states {
			for j := range g.states[i] {
				s := &g.states[i][j]
				st.writeEvent(g.choiceBody(i, j, s.text, s.tokens, s.logprobs))
			}
		}
	case err != nil:
		_, message := statusOf(err)
		st.writeEvent(object{"error": object{"message": message}})
	}
	g.stats.countCached(g.usage)
	st.writeLine([]byte("[DONE]"))
	st.flush()
}

// wholeAnswer answers with one object, or a list of objects for a batch.
func (g *sglangAnswer) wholeAnswer(ctx, client context.Context, w http.ResponseWriter, a *outputStream, f *answerFaults) {
	err := g.server.forEachPart(ctx, a, f, func() {}, func(p *outputPart) error {
		g.addPart(p)
		return nil
	})
	switch {
	case client.Err() != nil:
		panic(http.ErrAbortHandler)
	case ctx.Err() != nil:
		g.markAborted()
	case err != nil:
		g.server.sglangWriteError(w, err)
		return
	}
	g.stats.countCached(g.usage)
	var all []object
	for i := range g.states {
		for j := range g.states[i] {
			st := &g.states[i][j]
			all = append(all, g.choiceBody(i, j, st.text, st.tokens, st.logprobs))
		}
	}
	if len(all) == 1 && !g.request.Text.many && !g.request.InputIDs.many {
		writeJSON(w, http.StatusOK, all[0])
		return
	}
	writeJSON(w, http.StatusOK, all)
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
	if s.release.ready { // of the same versions
		o["served_model_name"], o["load_format"], o["disaggregation_mode"] = s.cfg.Models[0], "auto", "null"
		o["reasoning_parser"], o["tool_call_parser"] = nil, nil
	}
	writeJSON(w, http.StatusOK, o)
}

// sglangServerInfo serves the arguments of the server, and the addresses of its events.
func (s *Server) sglangServerInfo(w http.ResponseWriter, _ *http.Request) {
	size := s.reportedBlockSize()
	o := object{
		"model_path": s.cfg.Root, "served_model_name": s.cfg.Models[0], "version": s.release.version, "page_size": size, "dp_size": len(s.ranks), "tp_size": 1,
		"context_length": s.card.ContextLength, "max_total_num_tokens": s.card.Blocks * s.card.BlockSize, "disable_radix_cache": false,
		"max_running_requests": 256, "chunked_prefill_size": s.card.MaxBatchedTokens, "stream_interval": 1, "enable_metrics": s.cfg.Features.Metrics.isOn(true),
		"incremental_streaming_output": !s.cfg.Features.Cumulative.isOn(true), "disaggregation_mode": "null", "enable_cache_report": s.cfg.Features.Details.isOn(true),
		"internal_states": []object{}, "kv_events_config": nil,
	}
	if s.release.announces {
		o["kv_events"] = nil
	}
	if at := s.EventsAddr(); at != "" {
		config := object{"publisher": "zmq", "endpoint": at, "topic": s.cfg.Topic, "buffer_steps": s.cfg.BufferSteps}
		if replay := s.ReplayAddr(); replay != "" {
			config["replay_endpoint"] = replay
		}
		o["kv_events_config"] = string(marshalJSON(config))
		if s.release.announces {
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
	if replay := s.ReplayAddr(); replay != "" && s.release.announcesReplay {
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
		if s.release.aggregate {
			o["num_total_reqs"] = l.Running + l.Waiting
		} else {
			o["num_waiting_uncached_tokens"], o["num_total_tokens"], o["num_active_tokens"] = 0, o["num_used_tokens"], o["num_used_tokens"]
			o["total_prefill_uncached_tokens"], o["total_prefill_busy_us"] = 0, 0
		}
		loads = append(loads, o)
	}
	o := object{"timestamp": time.Now().UTC().Format(time.RFC3339Nano), "version": s.release.version, "loads": loads}
	if s.release.aggregate {
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

func (s *Server) sglangAbort(w http.ResponseWriter, r *http.Request) {
	var q struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if !s.readBody(w, r, &q) {
		return
	}
	if q.RID != "" || q.All {
		s.abortRequest(q.RID)
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) sglangTokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		openaiRequest
		Prompt     oneOrMany[string] `json:"prompt"`
		AddSpecial *bool             `json:"add_special_tokens"`
	}
	if !s.readBody(w, r, &q) {
		return
	}
	chat := s.release.chats && q.Messages != nil
	if chat == (q.Prompt.list != nil) {
		s.refuseRequest(w, http.StatusBadRequest, "1 validation error: "+s.release.promptError())
		return
	}
	var all [][]kv.Token
	var counts []int
	var err error
	add := func(tokens []kv.Token) {
		all, counts = append(all, orEmpty(tokens)), append(counts, len(tokens))
	}
	if chat {
		var p prompt
		p, err = s.chatPrompt(r.Context(), &q.openaiRequest)
		add(p.tokens)
	}
	for _, text := range q.Prompt.list {
		var tokens []kv.Token
		if tokens, err = s.encodeText(text, q.AddSpecial == nil || *q.AddSpecial); err != nil {
			break
		}
		add(tokens)
	}
	switch {
	case err != nil:
		s.writeError(w, err)
	case q.Prompt.many:
		writeJSON(w, http.StatusOK, object{"tokens": all, "count": counts, "max_model_len": s.card.ContextLength})
	default:
		writeJSON(w, http.StatusOK, object{"tokens": all[0], "count": counts[0], "max_model_len": s.card.ContextLength})
	}
}

// promptError is the error of /tokenize for a request without exactly one accepted input.
func (r *sglangRelease) promptError() string {
	if r.chats {
		return "Value error, Exactly one of 'prompt' or 'messages' must be provided."
	}
	return "body.prompt: Field required"
}

func (s *Server) sglangDetokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tokens oneOrMany[[]kv.Token] `json:"tokens"`
	}
	if !s.readBody(w, r, &q) {
		return
	}
	var all []string
	for _, tokens := range q.Tokens.list {
		text, err := s.decodeTokens(tokens)
		if err != nil {
			s.writeError(w, err)
			return
		}
		all = append(all, text)
	}
	switch {
	case len(all) == 0:
		s.refuseRequest(w, http.StatusBadRequest, "tokens is required")
	case q.Tokens.many:
		writeJSON(w, http.StatusOK, object{"text": all})
	default:
		writeJSON(w, http.StatusOK, object{"text": all[0]})
	}
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
func (s *Server) sglangAdapter(name string) (adapter string, ok bool) {
	s.mu.Lock()
	if a, there := s.mu.unloaded[name]; there && !slices.ContainsFunc(s.mu.adapters, func(a Adapter) bool { return a.Name == name }) {
		s.mu.adapters = append(s.mu.adapters, a)
		s.mu.loads[name]++
	}
	loads := s.mu.loads[name]
	s.mu.Unlock()
	if adapter, ok = s.resolveModel(name); adapter != "" && loads > 1 {
		adapter += hiddenSeparator + strconv.Itoa(loads)
	}
	return adapter, ok
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
