package enginemock

import (
	"context"
	"maps"
	"net/http"
	"strconv"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// serveOpenAI serves both OpenAI routes.
func (s *Server) serveOpenAI(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q openaiRequest
		f, ok := s.openAnswer(w, r, &q)
		if !ok {
			return
		}
		defer f.release()
		c, err := s.newCall(r, &q, chat)
		if err != nil {
			s.writeError(w, err)
			return
		}
		if !s.readiesMedia(w, c) {
			return
		}
		if s.generatesNothing() {
			s.answerNothing(w, c)
			return
		}
		s.serveCall(w, r, c, f, func(ctx context.Context, a *answer) {
			if q.Stream {
				s.streamAnswer(ctx, w, c, a)
			} else {
				s.wholeAnswer(ctx, w, c, a)
			}
		})
	}
}

// serveCall passes the answer to a call to write, in a slot if the engine has slots.
func (s *Server) serveCall(w http.ResponseWriter, r *http.Request, c *apiCall, f *answerFaults, write func(context.Context, *answer)) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.registerRequest(c.id, cancel)()
	if s.slots != nil {
		var err error
		if c.slot, err = s.slots.acquireSlot(ctx, c.prompts[0].tokens, c.request.Slot, c.request.CachePrompt); err != nil {
			s.writeError(w, err)
			return
		}
		defer c.slot.releaseSlot()
	}
	s.serveAnswer(ctx, w, c.rank, f, c.promptRequests, s.writeError, func(a *answer) { write(ctx, a) })
}

// usageBody encodes usage. Cached tokens are reported only with the complete usage.
func (s *Server) usageBody(u usage, withCached bool) object {
	o := object{"prompt_tokens": u.prompt, "total_tokens": u.prompt + u.completion, "completion_tokens": u.completion}
	maps.Copy(o, s.dialect.usage)
	if withCached && s.reportsCached(u.cached) {
		o["prompt_tokens_details"] = object{"cached_tokens": u.cached}
	}
	return o
}

// reportsCached reports whether a number of cached tokens appears in usage.
func (s *Server) reportsCached(cached int) bool {
	return cached != engine.CachedUnknown && s.cfg.Features.Details.isOn(true) && (cached > 0 || !s.dialect.hidesZero)
}

// reportedCached is the number of cached tokens to report: unknown if a fault omits it.
func (s *Server) reportedCached(cached int) int {
	if _, hit := s.faults.takeDue(FaultNoCached); hit {
		return engine.CachedUnknown
	}
	return cached
}

// choiceBody encodes a part of a choice in the dialect's format.
func (s *Server) choiceBody(c *apiCall, p *outputPart, first bool) object {
	o := object{"index": p.prompt*c.choices + p.choice, "logprobs": nil, "finish_reason": nil}
	if p.reason != "" {
		o["finish_reason"] = p.reason
	}
	if c.logprobs >= 0 {
		o["logprobs"] = s.logprobsBody(c, p)
	}
	if s.dialect.addChoice != nil {
		s.dialect.addChoice(c, o, p, first)
	}
	return o
}

func orEmpty(t []kv.Token) []kv.Token {
	if t == nil {
		return []kv.Token{}
	}
	return t
}

// newBody returns the fields which all chunks of an answer start with.
func (c *apiCall) newBody(kind string) object {
	return object{"id": c.id, "object": kind, "created": c.created, "model": c.model}
}

// chunkBody encodes a chunk of a stream. Only the complete usage, in a chunk without choices, has cached tokens.
func (s *Server) chunkBody(c *apiCall, choices []object, u *usage) object {
	kind := "text_completion"
	if c.chat {
		kind = "chat.completion.chunk"
	}
	o := c.newBody(kind)
	o["choices"] = choices
	maps.Copy(o, s.dialect.chunk)
	if !c.chat {
		maps.Copy(o, s.dialect.textChunk)
	}
	if u != nil {
		o["usage"] = s.usageBody(*u, len(choices) == 0)
	}
	return o
}

// streamAnswer answers with a stream.
func (s *Server) streamAnswer(ctx context.Context, w http.ResponseWriter, c *apiCall, a *answer) {
	st := newSSEStream(w)
	defer st.startPings(s.cfg.Ping)()
	var timings object // llama.cpp's, in the last chunk
	err := a.forEachPart(ctx, st.flush, func(p *outputPart, out *choiceOutput, first bool) {
		c.slot.addTokens(p.tokens)
		p.offset = out.offset
		o := s.choiceBody(c, p, first)
		out.offset = p.offset
		var continuous *usage
		if c.request.StreamOptions.Continuous {
			continuous = &usage{prompt: len(c.prompts[p.prompt].tokens), completion: len(out.tokens)}
		}
		if c.chat && first {
			role := s.chunkBody(c, []object{{"index": o["index"], "delta": object{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}}, nil)
			if s.dialect.showsPrompt && c.request.ReturnTokens {
				role["prompt_token_ids"] = c.prompts[p.prompt].tokens
			}
			st.writeEvent(role)
		}
		switch {
		case c.chat:
			delta := object{}
			if p.text != "" || p.reason == "" {
				delta["content"] = p.text
			}
			o["delta"] = delta
		case first && c.request.Echo:
			o["text"] = c.prompts[p.prompt].text + p.text
		default:
			o["text"] = p.text
		}
		event := s.chunkBody(c, []object{o}, continuous)
		if p.reason != "" && c.slot != nil {
			timings = c.slot.llamaTimings(a.usage.completion)
			event["timings"] = timings
		}
		st.writeEvent(event)
	})
	u := a.usage
	if c.slot != nil {
		u.cached = c.slot.cached
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		st.writeEvent(s.streamError(statusOf(err)))
		if s.dialect.barelyFails {
			st.flush()
			return
		}
	case c.request.StreamOptions.Usage:
		u.cached = s.reportedCached(u.cached)
		event := s.chunkBody(c, []object{}, &u)
		if timings != nil {
			event["timings"] = timings
		}
		st.writeEvent(event)
	}
	a.stats.countCached(u)
	st.writeDone()
}

// streamError is an error inside a stream.
func (s *Server) streamError(status int, message string) any {
	return nestedError(s.dialect.errorType(status), status, message)
}

// wholeAnswer answers with one object.
func (s *Server) wholeAnswer(ctx context.Context, w http.ResponseWriter, c *apiCall, a *answer) {
	err := a.forEachPart(ctx, func() {}, func(p *outputPart, _ *choiceOutput, _ bool) { c.slot.addTokens(p.tokens) })
	if !s.isComplete(ctx, w, err) {
		return
	}
	kind := "text_completion"
	if c.chat {
		kind = "chat.completion"
	}
	u := a.usage
	if c.slot != nil {
		u.cached = c.slot.cached
	}
	out := c.newBody(kind)
	var choices []object
	for _, ofPrompt := range a.choices {
		for i := range ofPrompt {
			p := &ofPrompt[i].outputPart
			o := s.choiceBody(c, p, true)
			switch {
			case c.chat:
				message := object{"role": "assistant", "content": p.text}
				maps.Copy(message, s.dialect.message)
				o["message"] = message
			case c.request.Echo:
				o["text"] = c.prompts[p.prompt].text + p.text
			default:
				o["text"] = p.text
			}
			choices = append(choices, o)
		}
	}
	out["choices"] = choices
	if s.dialect.addWhole != nil {
		s.dialect.addWhole(s, c, out, a.choices[0][0].reason, &u)
	}
	u.cached = s.reportedCached(u.cached)
	a.stats.countCached(u)
	out["usage"] = s.usageBody(u, true)
	writeJSON(w, http.StatusOK, out)
}

// isComplete reports whether an answer which is no stream is complete. Otherwise it answers with the error, or
// drops the connection of a request which was aborted.
func (s *Server) isComplete(ctx context.Context, w http.ResponseWriter, err error) bool {
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.writeError(w, err)
	}
	return err == nil
}

// logprobsBody encodes the log-probabilities of a part, in the format of completions or chats.
func (s *Server) logprobsBody(c *apiCall, p *outputPart) object {
	name := func(t kv.Token) string {
		if s.cfg.Pipe == nil || c.request.TokenNames {
			return "token_id:" + strconv.FormatUint(uint64(t), 10)
		}
		return s.tokenText(t)
	}
	if c.chat {
		content := []object{}
		for i := range p.logprobs {
			l := &p.logprobs[i]
			top := []object{}
			for _, t := range l.Top {
				top = append(top, object{"token": name(t.Token), "logprob": t.Logprob, "bytes": bytesOf(name(t.Token))})
			}
			content = append(content, object{"token": name(l.Token), "logprob": l.Logprob, "bytes": bytesOf(name(l.Token)), "top_logprobs": top})
		}
		return object{"content": content}
	}
	tokens, values, tops, offsets := []string{}, []float32{}, []map[string]float32{}, []int{}
	for i := range p.logprobs {
		l := &p.logprobs[i]
		top := map[string]float32{name(l.Token): l.Logprob}
		for _, t := range l.Top {
			top[name(t.Token)] = t.Logprob
		}
		tokens, values, tops, offsets = append(tokens, name(l.Token)), append(values, l.Logprob), append(tops, top), append(offsets, p.offset)
		p.offset += len(name(l.Token))
	}
	return object{"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
}

func bytesOf(s string) []int {
	out := make([]int, len(s))
	for i := range len(s) {
		out[i] = int(s[i])
	}
	return out
}
