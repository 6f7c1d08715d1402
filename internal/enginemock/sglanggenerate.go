package enginemock

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
)

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
	roomFields
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
		adapter, err := s.sglangAdapter(q.LoRA.at(i))
		if err != nil {
			return nil, err
		}
		id := q.RID.at(i)
		if id == "" {
			id = s.freshID()
		}
		out = append(out, sglangJob{id: id, single: choices == 1, request: promptRequest{
			req: &engine.Request{
				ID: id, Attempt: 1, Model: s.card.Name, Prompt: tokens, Media: shows.media, Choices: choices, Sampling: how, Logprobs: top,
				Salt: kv.Salt{LoRA: adapter, Namespace: s.dialect.release.cacheNamespace(q.CacheSalt.at(i), q.ExtraKey.at(i), false)},
				Stop: engine.Stop{MaxTokens: min(limit, room), MinTokens: min(p.MinNew, limit, room), Tokens: p.StopTokens, IgnoreEOS: p.IgnoreEOS},
			},
			prompt:   shows,
			stop:     stopRule{withoutEmpty(p.Stop), p.KeepStop},
			special:  p.SkipSpecial != nil && !*p.SkipSpecial,
			transfer: q.roomTransfer(s, i),
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
	if len(hashes) != len(want) || !s.dialect.release.takesHashes {
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

// sglangGenerate serves /generate.
func (s *Server) sglangGenerate(w http.ResponseWriter, r *http.Request) {
	var q sglangRequest
	f, ok := s.openAnswer(w, r, &q)
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
	for i := range jobs {
		asks = append(asks, jobs[i].request)
		defer s.registerRequest(jobs[i].id, cancel)()
	}
	s.serveAnswer(ctx, w, rank, f, asks, s.sglangWriteError, func(a *answer) {
		g := &sglangAnswer{answer: a, request: &q, jobs: jobs, began: time.Now(), rank: rank.index}
		if q.Stream {
			g.streamAnswer(ctx, r.Context(), w)
		} else {
			g.wholeAnswer(ctx, r.Context(), w)
		}
	})
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
	*answer
	request *sglangRequest
	jobs    []sglangJob
	began   time.Time
	rank    int
}

// choiceBody encodes a choice: all output so far, or only a new part.
func (g *sglangAnswer) choiceBody(p *outputPart) object {
	st, job := &g.choices[p.prompt][p.choice], &g.jobs[p.prompt]
	id := job.id
	if p.choice > 0 {
		id += "-" + strconv.Itoa(p.choice)
	}
	r := g.server.dialect.release
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
		all, tops := [][]any{}, [][][]any{}
		for _, l := range p.logprobs {
			top := [][]any{}
			for _, t := range l.Top {
				top = append(top, []any{t.Logprob, t.Token, nil})
			}
			all, tops = append(all, []any{l.Logprob, l.Token, nil}), append(tops, top)
		}
		meta["output_token_logprobs"] = all
		if job.request.req.Logprobs > 0 {
			meta["output_top_logprobs"] = tops
		}
	}
	o := object{"text": p.text, "output_ids": orEmpty(p.tokens), "meta_info": meta}
	if g.request.ReturnPrompt {
		o["prompt_token_ids"] = job.request.req.Prompt
	}
	if len(g.jobs) > 1 || !job.single {
		o["index"] = p.prompt*job.request.req.Choices + p.choice
	}
	return o
}

// allChoices encodes all output, which an abort may have left unfinished.
func (g *sglangAnswer) allChoices(aborted bool) (all []object) {
	for _, ofPrompt := range g.choices {
		for i := range ofPrompt {
			if c := &ofPrompt[i]; aborted && c.reason == "" {
				c.reason = "abort"
			}
			all = append(all, g.choiceBody(&ofPrompt[i].outputPart))
		}
	}
	return all
}

// streamAnswer answers with a stream: each chunk repeats all output so far, unless the request or the
// settings ask for only the new output.
func (g *sglangAnswer) streamAnswer(ctx, client context.Context, w http.ResponseWriter) {
	st := newSSEStream(w)
	cumulative := g.server.cfg.Features.Cumulative.isOn(true) && (g.request.Incremental == nil || !*g.request.Incremental)
	err := g.forEachPart(ctx, st.flush, func(p *outputPart, c *choiceOutput, _ bool) {
		if cumulative {
			p = &c.outputPart
		}
		st.writeEvent(g.choiceBody(p))
	})
	switch {
	case client.Err() != nil:
		return
	case ctx.Err() != nil: // the request was aborted
		for _, o := range g.allChoices(true) {
			st.writeEvent(o)
		}
	case err != nil:
		_, message := statusOf(err)
		st.writeEvent(object{"error": object{"message": message}})
	}
	g.stats.countCached(g.usage)
	st.writeDone()
}

// wholeAnswer answers with one object, or a list of objects for a batch.
func (g *sglangAnswer) wholeAnswer(ctx, client context.Context, w http.ResponseWriter) {
	err := g.forEachPart(ctx, func() {}, func(*outputPart, *choiceOutput, bool) {})
	switch {
	case client.Err() != nil:
		panic(http.ErrAbortHandler)
	case ctx.Err() == nil && err != nil:
		g.server.sglangWriteError(w, err)
		return
	}
	g.stats.countCached(g.usage)
	all := g.allChoices(ctx.Err() != nil)
	if len(all) == 1 && !g.request.Text.many && !g.request.InputIDs.many {
		writeJSON(w, http.StatusOK, all[0])
		return
	}
	writeJSON(w, http.StatusOK, all)
}
