package remote

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// The paths of conversations and of plain prompts.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
)

// maxPassthrough bounds the body of a passthrough response that is no stream, in bytes.
const maxPassthrough = 64 << 20

// usageOptions returns the stream_options that make a stream of the path report its usage; "" if it reports
// it anyway.
func usageOptions(path string) string {
	switch path {
	case pathChat, pathCompletions:
		return `{"include_usage":true}`
	}
	return ""
}

// PassthroughPaths implements [engine.PassthroughEngine].
func (b *Base) PassthroughPaths() []string { return slices.Clone(b.cfg.PassthroughPaths) }

// PassThrough serves a client's request unchanged; see [engine.PassthroughEngine]. It changes the model's
// name and the names of media in the request, and makes a stream report its usage; it removes a usage that
// the client did not ask for from the response.
func (b *Base) PassThrough(ctx context.Context, req *engine.PassthroughRequest, sink func(*engine.PassthroughChunk) error) error {
	if !slices.Contains(b.cfg.PassthroughPaths, req.Path) {
		return fault.New(fault.Unimplemented, "the engine of %.100q does not take %.100q", b.cfg.Card.Name, req.Path)
	}
	inside, done, err := b.StartCall(ctx)
	if err != nil {
		return err
	}
	return done(b.forwardRequest(inside, req, sink))
}

func (b *Base) forwardRequest(ctx context.Context, req *engine.PassthroughRequest, sink func(*engine.PassthroughChunk) error) error {
	lora := b.adapterOf(req.Model)
	ask := ""
	if req.Stream {
		ask = usageOptions(req.Path)
	}
	body := NewBody()
	defer body.Release()
	w := editOptions{model: b.upstreamModel(lora), usage: ask}
	if b.cfg.TakesEncodings { // a client could name what it must not see, and hosts to connect to
		w.encodings = null
	}
	if req.Path == pathChat { // other APIs have no member for them
		w.names = mediaNames(b.cfg.Card.MediaKeys, req.Objects, req.Salt.Namespace)
	}
	sent, err := editRequestBody(body.B, req.Body, &w)
	if err != nil {
		return fault.New(fault.Invalid, "%v", err)
	}
	salt := cmp.Or(sent.salt, req.Salt.Namespace)
	if err := b.admitSalt(ctx, req.Path, salt); err != nil {
		return err
	}
	if w.names != nil && salt != req.Salt.Namespace {
		w.names = mediaNames(b.cfg.Card.MediaKeys, req.Objects, salt)
		if sent, err = editRequestBody(body.B, req.Body, &w); err != nil {
			return fault.New(fault.Invalid, "%v", err)
		}
	}
	body.B = sent.body
	p := &passthroughCall{base: b, req: req, sink: sink, hideUsage: sent.usage}
	p.chunk = engine.PassthroughChunk{PromptTokens: engine.CachedUnknown, OutputTokens: engine.CachedUnknown, Cached: engine.CachedUnknown}
	part := b.trackRequest(req, kv.Salt{LoRA: lora, Namespace: sent.salt}, sent.namesMedia || req.Objects == nil)
	defer b.load.finishRequest(part.attempt.load)
	defer b.cache.finishCall(part)
	p.part = part
	if jobs := b.encodeJobs(req, &sent, part, salt); len(jobs) > 0 {
		return p.forwardWithEncodings(ctx, &w, jobs, body)
	}
	return p.forwardCall(ctx, body)
}

// forwardCall sends body to the engine and its answer to the client.
func (p *passthroughCall) forwardCall(ctx context.Context, body *BodyBuffer) error {
	b := p.base
	call := &Call{Path: p.req.Path, ID: p.part.ID, Headers: b.cfg.Headers, Large: body, Wait: b.cfg.Client.maxSilence}
	if !p.req.Stream {
		call.Wait = -1 // its header comes when it is complete
	}
	b.counters.calls.Add(1)
	answer, err := b.cfg.Client.Do(ctx, call)
	if err != nil {
		return err
	}
	defer answer.Close()
	if !answer.OK() && !isClientAnswer(answer.Status) {
		return answer.RefusalError()
	}
	events := answer.OK() && answer.isEventStream()
	if !events || !p.awaitsTokens {
		if err := p.accept(answer); err != nil {
			return err
		}
	}
	if events {
		err = p.forwardEvents(ctx, answer)
	} else {
		err = p.forwardBody(ctx, answer)
	}
	if err != nil {
		return err
	}
	return p.sendLast()
}

// accept sends the first chunk, after which the request is the engine's.
func (p *passthroughCall) accept(answer *Response) error {
	p.accepted = true
	return p.sendChunk(&engine.PassthroughChunk{Accepted: true, Status: answer.Status, Type: answer.Type})
}

// isClientAnswer reports whether a status outside 2xx is an answer to the client, and not a failure of the
// engine or of Penstock's configuration.
func isClientAnswer(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// trackRequest adds a passthrough request to load and cache, as far as its prompt is known. Media have other
// names in the engine's cache if the engine was not sent their keys and did not make the prompt itself (then
// there are no Objects): in that case only the prompt before the first medium is known.
func (b *Base) trackRequest(req *engine.PassthroughRequest, salt kv.Salt, told bool) *SubRequest {
	known, shows := req.Prompt, req.Media
	if len(shows) > 0 && !told {
		known, shows = known[:min(len(known), max(shows[0].Start, 0))], nil
	}
	r := &engine.Request{
		ID: req.ID, Attempt: req.Attempt, Model: req.Model, Salt: salt, Choices: 1, Logprobs: -1,
		Prompt: known, Media: shows, Stop: engine.Stop{MaxTokens: b.cfg.Card.ContextLength},
	}
	a := newAttempt(b, r, nil)
	a.load = b.load.startRequest(a)
	p := a.newSubRequest([]int{0})
	a.calls = []*SubRequest{p}
	if salt.Namespace != "" {
		b.cache.noteSaltedCall()
	}
	if len(known) > 0 {
		b.cache.startCall(p)
	}
	return p
}

// passthroughCall is a passthrough request in progress.
type passthroughCall struct {
	base      *Base
	req       *engine.PassthroughRequest
	sink      func(*engine.PassthroughChunk) error
	part      *SubRequest
	hideUsage bool // the usage at a stream's end is not for the client
	// awaitsTokens delays the acceptance of a stream to its second event: the first one of a conversation has a
	// role, also if the engine then fails. accepted says that it was accepted.
	awaitsTokens, accepted bool
	chunk                  engine.PassthroughChunk // the last chunk, with the usage of the whole response
}

func (p *passthroughCall) sendChunk(piece *engine.PassthroughChunk) error {
	piece.Attempt = p.req.Attempt
	return p.sink(piece)
}

// forwardEvents forwards whole events.
func (p *passthroughCall) forwardEvents(ctx context.Context, answer *Response) error {
	events := NewEventReader(answer)
	defer events.Release()
	var held []byte // the first event, until the second
	for n, ended := 1, false; !ended; n++ {
		data, err := events.Next()
		switch {
		case err == io.EOF && p.req.Path != pathChat && p.req.Path != pathCompletions:
			return nil // these end with an event of their own
		case err == io.EOF:
			return answer.ReadError(ctx, io.ErrUnexpectedEOF)
		case err != nil:
			return answer.ReadError(ctx, err)
		}
		out := engine.PassthroughChunk{Data: events.RawEvent()}
		if string(data) == "[DONE]" {
			ended = true
		} else {
			seen, err := parseUsage(data)
			if err != nil {
				return answer.contextError(ctx, err)
			}
			p.recordUsage(&seen)
			if seen.usageOnly && p.hideUsage {
				continue
			}
			out.Tokens = seen.tokens
			if seen.tokens > 0 {
				p.base.load.addOutput(p.part.attempt.load, seen.tokens)
			}
		}
		if !p.accepted {
			if n == 1 && !ended {
				held = append(held, out.Data...)
				continue
			}
			if err := p.accept(answer); err != nil {
				return answer.contextError(ctx, err)
			}
			out.Data = append(held, out.Data...)
		}
		if err := p.sendChunk(&out); err != nil {
			return answer.contextError(ctx, err)
		}
	}
	answer.DrainAndClose() // further bytes are not part of the response
	return nil
}

// forwardBody forwards a response that is no stream.
func (p *passthroughCall) forwardBody(ctx context.Context, answer *Response) error {
	text := NewBody()
	defer text.Release()
	if err := readInto(text, answer, maxPassthrough); err != nil {
		return answer.ReadError(ctx, err)
	}
	if answer.OK() {
		if seen, err := parseUsage(text.B); err == nil {
			p.recordUsage(&seen)
		}
	}
	if len(text.B) == 0 {
		return nil
	}
	return p.sendChunk(&engine.PassthroughChunk{Data: text.B, Tokens: max(p.chunk.OutputTokens, 0)})
}

// recordUsage keeps the usage which an event reports.
func (p *passthroughCall) recordUsage(s *eventUsage) {
	if s.prompt >= 0 {
		p.chunk.PromptTokens = s.prompt
	}
	if s.output >= 0 {
		p.chunk.OutputTokens = s.output
	}
	if s.cached >= 0 {
		p.chunk.Cached = s.cached
		p.base.noteCachedReport()
	}
}

// sendLast sends the last chunk with the usage.
func (p *passthroughCall) sendLast() error {
	if p.chunk.Cached < 0 && p.chunk.PromptTokens >= 0 && p.base.cachedIfMissingPassthrough() == 0 {
		p.chunk.Cached = 0
	}
	if prompt := p.chunk.PromptTokens; prompt >= 0 { // at most the whole prompt can have been cached
		p.chunk.Cached = min(p.chunk.Cached, prompt)
	}
	p.part.attempt.choices[0].finish = engine.FinishStop
	p.part.attempt.load.completed = true
	if known := len(p.part.Request.Prompt); p.chunk.Cached >= 0 && known > 0 {
		p.part.compareCached(min(p.chunk.Cached, known))
	}
	p.chunk.Last = true
	return p.sendChunk(&p.chunk)
}

// eventUsage is the usage information of one event, or of a whole response. Absent numbers are -1.
type eventUsage struct {
	prompt, output, cached int
	tokens                 int  // approximate number of output tokens in the event
	usageOnly              bool // it has a usage and no choices
}

// parseUsage reads an event of any of the APIs. An error inside a stream is an error.
func parseUsage(data []byte) (eventUsage, error) {
	s := eventUsage{prompt: -1, output: -1, cached: -1}
	usage := bytes.Contains(data, []byte(`"usage"`))
	failed := bytes.Contains(data, []byte(`"error"`))
	c := strictjson.NewCursor(data)
	if !c.NextIs('{') {
		return s, nil
	}
	choices, hasUsage := -1, false
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "choices":
			choices = countElements(&c)
		case "usage":
			if usage && !c.SkipNull() {
				hasUsage = true
				s.readUsage(&c)
			} else if !usage {
				c.Skip()
			}
		case "message", "response": // Anthropic's first event, and the events of /v1/responses
			if usage && c.NextIs('{') {
				s.readNested(&c)
			} else {
				c.Skip()
			}
		case "delta":
			s.tokens = 1
			c.Skip()
		case "error":
			if failed && !c.SkipNull() {
				return s, StreamError(data)
			} else if !failed {
				c.Skip()
			}
		default:
			c.Skip()
		}
	}
	if choices > 0 {
		s.tokens = choices
	}
	s.usageOnly = hasUsage && choices == 0
	return s, nil
}

// countElements skips an array and counts its elements.
func countElements(c *strictjson.Cursor) int {
	if !c.NextIs('[') {
		c.Skip()
		return -1
	}
	n := 0
	for c.Open('['); c.More(']'); n++ {
		c.Skip()
	}
	return n
}

// readNested reads the usage of an object inside an event.
func (s *eventUsage) readNested(c *strictjson.Cursor) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "usage" && c.NextIs('{') {
			s.readUsage(c)
		} else {
			c.Skip()
		}
	}
}

// readUsage reads the numbers of tokens by their names in the APIs.
func (s *eventUsage) readUsage(c *strictjson.Cursor) {
	if !c.NextIs('{') {
		c.Skip()
		return
	}
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "prompt_tokens", "input_tokens":
			s.prompt = readCount(c)
		case "completion_tokens", "output_tokens":
			s.output = readCount(c)
		case "cache_read_input_tokens":
			s.cached = readCount(c)
		case "prompt_tokens_details", "input_tokens_details":
			if c.SkipNull() {
				continue
			}
			for c.Open('{'); c.More('}'); {
				if string(c.Key()) == "cached_tokens" {
					s.cached = readCount(c)
				} else {
					c.Skip()
				}
			}
		default:
			c.Skip()
		}
	}
}

// readCount reads a number of tokens; -1 for null.
func readCount(c *strictjson.Cursor) int {
	if c.SkipNull() {
		return -1
	}
	n := c.ReadInt()
	if n < 0 || n > 1<<31-1 {
		return -1
	}
	return int(n)
}
