package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// newLlamaCpp returns the dialect of llama.cpp.
func newLlamaCpp() *dialect {
	fingerprint := object{"system_fingerprint": "b7000-mimic"}
	return &dialect{
		addRoutes: (*Server).routeLlamaCpp,
		errorBody: func(kind string, status int, message string) object {
			return object{"error": object{"code": status, "message": message, "type": kind}}
		},
		errorTypes: map[int]string{
			400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 501: "not_supported_error", 503: "unavailable_error",
		},
		otherError: "server_error", ownErrors: true,
		resolve: func(s *Server, name string) (string, error) { // accepts any name
			adapter, _ := s.resolveModel(name)
			return adapter, nil
		},
		negativeIsFull: true, message: object{"tool_calls": []object{}}, chunk: fingerprint, barelyFails: true,
		addWhole: func(_ *Server, c *apiCall, out object, _ string, u *usage) {
			maps.Copy(out, fingerprint)
			out["timings"] = c.slot.llamaTimings(u.completion)
		},
		mapEvents: true, hostMedium: "CPU", diskMedium: "DISK",
	}
}

// routeLlamaCpp registers the HTTP API of llama.cpp's server.
func (s *Server) routeLlamaCpp(mux *http.ServeMux) {
	for _, path := range []string{"/completion", "/completions"} {
		mux.HandleFunc("POST "+path, s.llamaCompletion)
	}
	for _, prefix := range []string{"/v1", ""} {
		if prefix != "" {
			mux.HandleFunc("POST "+prefix+"/completions", s.serveOpenAI(false))
			mux.HandleFunc("GET "+prefix+"/health", s.llamaHealth)
		}
		mux.HandleFunc("POST "+prefix+"/chat/completions", s.serveOpenAI(true))
		mux.HandleFunc("GET "+prefix+"/models", s.llamaModels)
	}
	mux.HandleFunc("POST /tokenize", serveJSON(s, s.llamaTokenize))
	mux.HandleFunc("POST /detokenize", s.serveDetokenize("content"))
	mux.HandleFunc("POST /apply-template", serveJSON(s, s.llamaTemplate))
	mux.HandleFunc("GET /props", s.llamaProps)
	mux.HandleFunc("GET /slots", s.llamaSlots)
	mux.HandleFunc("POST /slots/{id}", s.llamaSlotAction)
	mux.HandleFunc("GET /lora-adapters", s.llamaAdapters)
	mux.HandleFunc("GET /health", s.llamaHealth)
	if s.cfg.Features.Metrics.isOn(true) {
		mux.HandleFunc("GET /metrics", s.serveMetrics(s.llamaMetrics))
	}
}

// llamaRequest is a request to /completion.
type llamaRequest struct {
	Prompt      json.RawMessage `json:"prompt"`
	Predict     *int            `json:"n_predict"`
	MaxTokens   *int            `json:"max_tokens"`
	Choices     *int            `json:"n_cmpl"`
	N           *int            `json:"n"`
	Stream      bool            `json:"stream"`
	Slot        *int            `json:"id_slot"`
	Cache       *bool           `json:"cache_prompt"`
	Tokens      bool            `json:"return_tokens"`
	Timings     bool            `json:"timings_per_token"`
	Progress    bool            `json:"return_progress"`
	Probs       int             `json:"n_probs"`
	Stop        stringList      `json:"stop"`
	IgnoreEOS   bool            `json:"ignore_eos"`
	Temperature *float64        `json:"temperature"`
	TopK        *int            `json:"top_k"`
	TopP        *float64        `json:"top_p"`
	MinP        *float64        `json:"min_p"`
	Repeat      *float64        `json:"repeat_penalty"`
	Presence    float64         `json:"presence_penalty"`
	Frequency   float64         `json:"frequency_penalty"`
	Seed        *int64          `json:"seed"`
	Bias        llamaBias       `json:"logit_bias"`
	Ping        *int            `json:"sse_ping_interval"` // seconds
}

// llamaBias is a list of [token, number], or [token, false] for a token that is never sampled.
type llamaBias struct {
	bias  map[string]float32
	never []kv.Token
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *llamaBias) UnmarshalJSON(data []byte) error {
	var list [][2]json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	b.bias = map[string]float32{}
	for _, entry := range list {
		var token kv.Token
		if err := json.Unmarshal(entry[0], &token); err != nil {
			return err
		}
		if string(entry[1]) == "false" {
			b.never = append(b.never, token)
			continue
		}
		var v float32
		if err := json.Unmarshal(entry[1], &v); err != nil {
			return err
		}
		b.bias[string(entry[0])] += v
	}
	return nil
}

// readLlamaPrompt reads a prompt: a text, tokens, or a mix of both. It refuses several prompts, which the
// real server would run in parallel.
func (s *Server) readLlamaPrompt(raw json.RawMessage) ([]kv.Token, error) {
	raw = nilIfNull(raw)
	if raw == nil {
		return nil, fault.InvalidParam("prompt", `"prompt" must be provided`)
	}
	if raw[0] == '"' {
		p, err := s.readPrompts(raw)
		if err != nil {
			return nil, err
		}
		return p[0].tokens, nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil || len(elements) == 0 {
		return nil, fault.InvalidParam("prompt", `"prompt" must be a string, a list of tokens, a list of mixed strings & tokens, or a list of prompts`)
	}
	if len(elements) == 1 && bytes.HasPrefix(elements[0], []byte("[")) {
		return s.readLlamaPrompt(elements[0])
	}
	var out []kv.Token
	for i, e := range elements {
		switch e[0] {
		case '"':
			var text string
			if err := json.Unmarshal(e, &text); err != nil {
				return nil, fault.InvalidParam("prompt", "the prompt has a broken string")
			}
			if s.cfg.Pipe == nil {
				return nil, fault.New(fault.Invalid, "the server has no tokenizer: give token ids")
			}
			out = s.cfg.Pipe.Tokenizer.Encode(out, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: i == 0})
		default:
			var t kv.Token
			if err := json.Unmarshal(e, &t); err != nil {
				return nil, fault.InvalidParam("prompt", `"prompt" must be a string, a list of tokens, or a list of mixed strings & tokens; several prompts are not taken here`)
			}
			out = append(out, t)
		}
	}
	return out, nil
}

// toPromptRequest converts the request.
func (q *llamaRequest) toPromptRequest(s *Server, id string) (promptRequest, error) {
	tokens, err := s.readLlamaPrompt(q.Prompt)
	if err != nil {
		return promptRequest{}, err
	}
	or := func(v *float64, usual float64) *float64 {
		if v == nil {
			return &usual
		}
		return v
	}
	if q.TopK == nil {
		k := 40
		q.TopK = &k
	}
	if q.Seed != nil && *q.Seed < 0 {
		q.Seed = nil
	}
	draw := samplingParams{or(q.Temperature, 0.8), or(q.TopP, 0.95), or(q.MinP, 0.05), or(q.Repeat, 1), q.TopK, q.Presence, q.Frequency, q.Seed, q.Bias.bias}
	how, err := draw.toEngine(s)
	if err != nil {
		return promptRequest{}, err
	}
	room := s.card.ContextLength - len(tokens)
	if room < 1 {
		return promptRequest{}, fault.New(fault.Invalid, "the request exceeds the available context size, try increasing it")
	}
	limit := room
	for _, n := range []*int{q.MaxTokens, q.Predict} {
		if n != nil && *n >= 0 {
			limit = min(max(*n, 1), room)
		}
	}
	choices := 1
	for _, n := range []*int{q.N, q.Choices} {
		if n != nil {
			choices = *n
		}
	}
	if choices < 1 || choices > engine.MaxChoices {
		return promptRequest{}, fault.InvalidParam("n_cmpl", "n_cmpl must be between 1 and %d", engine.MaxChoices)
	}
	top := -1
	if q.Probs > 0 {
		top = min(q.Probs, 20)
	}
	end := engine.Stop{MaxTokens: limit, IgnoreEOS: q.IgnoreEOS}
	if len(q.Bias.never) > 0 { // engines sample no stop token before the minimum number of tokens
		end.Tokens, end.MinTokens = q.Bias.never, limit
	}
	return promptRequest{
		req: &engine.Request{
			ID: id, Attempt: 1, Model: s.card.Name, Prompt: tokens, Choices: choices, Sampling: how, Logprobs: top, Stop: end,
		},
		stop: stopRule{strings: withoutEmpty(q.Stop)},
	}, nil
}

// llamaCompletion serves /completion.
func (s *Server) llamaCompletion(w http.ResponseWriter, r *http.Request) {
	var q llamaRequest
	f, ok := s.openAnswer(w, r, &q)
	if !ok {
		return
	}
	defer f.release()
	asked, err := q.toPromptRequest(s, "llama-"+s.freshID())
	if err != nil {
		s.writeError(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if q.Cache != nil && !*q.Cache {
		if _, ignored := s.faults.takeDue(FaultSalts); ignored { // cache_prompt keeps prompts apart here
			q.Cache = nil
		}
	}
	slot, err := s.slots.acquireSlot(ctx, asked.req.Prompt, q.Slot, q.Cache)
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer slot.releaseSlot()
	s.serveAnswer(ctx, w, s.ranks[0], f, []promptRequest{asked}, s.writeError, func(a *answer) {
		(&llamaAnswer{answer: a, request: &q, prompt: &asked, slot: slot}).writeAnswer(ctx, w)
	})
}

// llamaAnswer is the answer to a request to /completion.
type llamaAnswer struct {
	*answer
	request *llamaRequest
	prompt  *promptRequest
	slot    *slot
}

func (g *llamaAnswer) writeAnswer(ctx context.Context, w http.ResponseWriter) {
	var st *sseStream
	flush := func() {}
	if g.request.Stream {
		st = newSSEStream(w)
		flush = st.flush
		every := g.server.cfg.Ping
		if g.request.Ping != nil {
			every = time.Duration(*g.request.Ping) * time.Second
		}
		defer st.startPings(every)()
		if g.request.Progress {
			st.writeEvent(g.progressBody())
		}
	}
	err := g.forEachPart(ctx, flush, func(p *outputPart, c *choiceOutput, _ bool) {
		if p.choice == 0 {
			g.slot.addTokens(p.tokens)
		}
		if st != nil && (p.text != "" || len(p.tokens) > 0) {
			o := g.streamPart(p)
			if g.request.Timings {
				o["timings"] = g.slot.llamaTimings(len(c.tokens))
			}
			st.writeEvent(g.addProbs(o, p))
		}
		if p.reason != "" && st != nil {
			st.writeEvent(g.finalPart(&outputPart{choice: p.choice}))
		}
	})
	g.stats.countCached(usage{prompt: g.usage.prompt, cached: g.slot.cached})
	switch {
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler)
	case err != nil && st != nil:
		status, message := statusOf(err)
		st.writeEvent(g.server.errorBody(status, message))
		st.flush()
	case err != nil:
		g.server.writeError(w, err)
	case st != nil:
		st.flush()
	default:
		var all []object
		for i := range g.choices[0] {
			p := &g.choices[0][i].outputPart
			all = append(all, g.addProbs(g.finalPart(p), p))
		}
		if len(all) == 1 {
			writeJSON(w, http.StatusOK, all[0])
			return
		}
		writeJSON(w, http.StatusOK, all)
	}
}

// progressBody encodes the progress of a prompt: it is complete.
func (g *llamaAnswer) progressBody() object {
	n := g.usage.prompt
	progress := object{"total": n, "processed": n, "time_ms": 0}
	if cached := g.server.reportedCached(g.slot.cached); cached != engine.CachedUnknown {
		progress["cache"] = cached
	}
	return object{
		"index": 0, "content": "", "tokens": []int{0}, "stop": false, "id_slot": g.slot.id, "tokens_predicted": 0,
		"tokens_evaluated": n, "prompt_progress": progress,
	}
}

// addProbs adds the log-probabilities of p on request.
func (g *llamaAnswer) addProbs(o object, p *outputPart) object {
	if g.request.Probs > 0 {
		o["completion_probabilities"] = llamaProbs(p.logprobs)
	}
	return o
}

// llamaProbs encodes tokens with their log-probabilities and the top alternatives.
func llamaProbs(probs []engine.Logprob) []object {
	all := []object{}
	for _, l := range probs {
		top := []object{}
		for _, t := range l.Top {
			top = append(top, object{"id": t.Token, "token": "", "bytes": []int{}, "logprob": t.Logprob})
		}
		all = append(all, object{"id": l.Token, "token": "", "bytes": []int{}, "logprob": l.Logprob, "top_logprobs": top})
	}
	return all
}

// streamPart encodes a part of a stream.
func (g *llamaAnswer) streamPart(p *outputPart) object {
	o := object{
		"index": p.choice, "content": p.text, "tokens": []kv.Token{}, "stop": false, "id_slot": g.slot.id,
		"tokens_predicted": len(g.choices[0][p.choice].tokens), "tokens_evaluated": g.usage.prompt,
	}
	if g.request.Tokens || g.request.Stream {
		o["tokens"] = orEmpty(p.tokens)
	}
	return o
}

// finalPart encodes the end of p's choice.
func (g *llamaAnswer) finalPart(p *outputPart) object {
	c := &g.choices[0][p.choice]
	o := g.streamPart(p)
	kind, word := "limit", ""
	if c.reason == reasonStop {
		kind = "eos"
		if s, ok := c.stop.(string); ok {
			kind, word = "word", s
		}
	}
	cached := g.usage.prompt + len(c.tokens) - 1
	o["stop"], o["model"], o["stop_type"], o["stopping_word"] = true, g.server.cfg.Models[0], kind, word
	o["tokens_cached"], o["truncated"], o["has_new_line"] = cached, false, strings.Contains(c.text, "\n")
	o["generation_settings"] = object{"n_predict": g.prompt.req.Stop.MaxTokens, "seed": g.prompt.req.Sampling.Seed, "temperature": g.prompt.req.Sampling.Temperature, "stream": g.request.Stream}
	timings := g.slot.llamaTimings(len(c.tokens))
	if g.server.reportedCached(0) == engine.CachedUnknown {
		delete(timings, "cache_n")
	}
	o["timings"] = timings
	return o
}

func (s *Server) llamaHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, object{"status": "ok"})
}

func (s *Server) llamaModels(w http.ResponseWriter, _ *http.Request) {
	name := s.cfg.Models[0]
	writeJSON(w, http.StatusOK, object{
		"models": []object{{"name": name, "model": name, "type": "model", "capabilities": []string{"completion"}}},
		"object": "list",
		"data": []object{{
			"id": name, "object": "model", "created": s.startedAt.Unix(), "owned_by": "llamacpp",
			"meta": object{"vocab_type": 2, "n_vocab": s.card.VocabSize, "n_ctx_train": s.card.ContextLength, "n_embd": 4096, "n_params": int64(8_030_261_312), "size": int64(4_912_898_304)},
		}},
	})
}

// llamaText is a request to /tokenize.
type llamaText struct {
	Content string `json:"content"`
	Add     bool   `json:"add_special"`
	Parse   *bool  `json:"parse_special"`
	Pieces  bool   `json:"with_pieces"`
}

func (s *Server) llamaTokenize(_ context.Context, q *llamaText) (any, error) {
	if s.cfg.Pipe == nil {
		return nil, fault.New(fault.Unimplemented, "the server has no tokenizer")
	}
	tokens := s.cfg.Pipe.Tokenizer.Encode(nil, q.Content, prep.EncodeOptions{AddSpecial: q.Add, ParseSpecial: q.Parse == nil || *q.Parse})
	if !q.Pieces {
		return object{"tokens": orEmpty(tokens)}, nil
	}
	pieces := []object{}
	for _, id := range tokens {
		pieces = append(pieces, object{"id": id, "piece": s.tokenText(id)})
	}
	return object{"tokens": pieces}, nil
}

func (s *Server) llamaTemplate(ctx context.Context, q *openaiRequest) (any, error) {
	p, err := s.chatPrompt(ctx, q)
	if err != nil {
		return nil, err
	}
	// The tokenizer's leading special token is not part of the text.
	tokens := p.tokens
	if added := s.cfg.Pipe.Tokenizer.Encode(nil, "", prep.EncodeOptions{AddSpecial: true}); len(added) > 0 && len(tokens) > 0 && added[0] == tokens[0] {
		tokens = tokens[1:]
	}
	var text []byte
	for _, t := range tokens {
		text, _ = s.cfg.Pipe.Tokenizer.AppendBytes(text, t)
	}
	return object{"prompt": strings.ToValidUTF8(string(text), "\uFFFD")}, nil
}

func (s *Server) llamaProps(w http.ResponseWriter, _ *http.Request) {
	template := ""
	if s.cfg.Pipe != nil {
		template = s.cfg.Pipe.TemplateText
	}
	writeJSON(w, http.StatusOK, object{
		"default_generation_settings": object{"id": 0, "n_ctx": s.card.ContextLength, "speculative": false, "is_processing": false},
		"total_slots":                 s.cfg.Slots, "model_alias": s.cfg.Models[0], "model_path": s.cfg.Root, "modalities": object{"vision": false, "audio": false},
		"chat_template": template, "bos_token": "", "eos_token": "", "build_info": "b7000-mimic", "is_sleeping": false,
	})
}

func (s *Server) llamaSlots(w http.ResponseWriter, r *http.Request) {
	busy, _ := s.slots.countBusy()
	if r.URL.Query().Get("fail_on_no_slot") != "" && busy == s.cfg.Slots {
		s.refuseRequest(w, http.StatusServiceUnavailable, "no slot available")
		return
	}
	s.slots.mu.Lock()
	var all []object
	for _, c := range s.slots.mu.all {
		all = append(all, object{"id": c.id, "n_ctx": s.card.ContextLength, "speculative": false, "is_processing": c.busy})
	}
	s.slots.mu.Unlock()
	writeJSON(w, http.StatusOK, all)
}

func (s *Server) llamaSlotAction(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		s.refuseRequest(w, http.StatusBadRequest, "Invalid slot ID")
		return
	}
	switch r.URL.Query().Get("action") {
	case "erase":
		n, ok := s.slots.eraseSlot(id)
		if !ok {
			s.refuseRequest(w, http.StatusBadRequest, "Invalid slot ID, or the slot is busy")
			return
		}
		writeJSON(w, http.StatusOK, object{"id_slot": id, "n_erased": n})
	case "save", "restore":
		s.refuseRequest(w, http.StatusNotImplemented, "This server does not support slots action. Start it with `--slot-save-path`")
	default:
		s.refuseRequest(w, http.StatusBadRequest, "Invalid action")
	}
}

func (s *Server) llamaAdapters(w http.ResponseWriter, _ *http.Request) {
	all := []object{}
	for i, a := range s.loadedAdapters() {
		all = append(all, object{"id": i, "path": a.Path, "scale": 0.0})
	}
	writeJSON(w, http.StatusOK, all)
}

// llamaMetrics writes the metrics of the only rank.
func (s *Server) llamaMetrics(p *metricsPage, rank int, t *rankCounters, load engine.Load) {
	busy, waiting := s.slots.countBusy()
	p.addSample("counter", "llamacpp:prompt_tokens_total", "", float64(t.prompt))
	p.addSample("counter", "llamacpp:prompt_seconds_total", "", t.timeToFirst.sum)
	p.addSample("counter", "llamacpp:tokens_predicted_total", "", float64(t.generated))
	p.addSample("counter", "llamacpp:tokens_predicted_seconds_total", "", max(t.endToEnd.sum-t.timeToFirst.sum, 0))
	p.addSample("counter", "llamacpp:n_decode_total", "", float64(t.generated))
	p.addSample("gauge", "llamacpp:n_busy_slots_per_decode", "", float64(busy))
	rate := func(n uint64, seconds float64) float64 {
		if seconds <= 0 {
			return 0
		}
		return float64(n) / seconds
	}
	p.addSample("gauge", "llamacpp:prompt_tokens_seconds", "", rate(t.prompt, t.timeToFirst.sum))
	p.addSample("gauge", "llamacpp:predicted_tokens_seconds", "", rate(t.generated, t.endToEnd.sum-t.timeToFirst.sum))
	p.addSample("gauge", "llamacpp:requests_processing", "", float64(busy))
	p.addSample("gauge", "llamacpp:requests_deferred", "", float64(waiting))
}

// errNoTokenizer is the error of an operation that needs a missing tokenizer.
var errNoTokenizer = errors.New("no tokenizer")

// encodeText tokenizes a text. Names of special tokens in it become those tokens, as in Hugging Face's
// tokenizers.
func (s *Server) encodeText(text string, addSpecial bool) ([]kv.Token, error) {
	if s.cfg.Pipe == nil {
		return nil, &fault.Error{Code: fault.Unimplemented, Message: "the server has no tokenizer", Err: errNoTokenizer}
	}
	return s.cfg.Pipe.Tokenizer.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: addSpecial}), nil
}

// decodeTokens makes a text of tokens, including special tokens.
func (s *Server) decodeTokens(tokens []kv.Token) (string, error) {
	if s.cfg.Pipe == nil {
		return "", &fault.Error{Code: fault.Unimplemented, Message: "the server has no tokenizer", Err: errNoTokenizer}
	}
	d := s.cfg.Pipe.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
	var text []byte
	for _, t := range tokens {
		if int64(t) >= int64(s.card.VocabSize) {
			return "", fault.InvalidParam("tokens", "a token is outside the vocabulary of %d", s.card.VocabSize)
		}
		text = d.Push(text, t)
	}
	return string(d.Flush(text)), nil
}
