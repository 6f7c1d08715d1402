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
)

// The paths of conversations and of plain prompts.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
)

// maxPassthrough bounds the body of a passthrough response that is no stream, in bytes.
const maxPassed = 64 << 20

// usageOptions returns the stream_options that make a stream of the path report its usage; "" if it reports
// it anyway.
func askUsage(path string) string {
	switch path {
	case pathChat, pathCompletions:
		return `{"include_usage":true}`
	}
	return ""
}

// PassthroughPaths implements [engine.PassthroughEngine].
func (b *Base) Passes() []string { return slices.Clone(b.cfg.Passes) }

// PassThrough serves a client's request unchanged; see [engine.PassthroughEngine]. It changes the model's
// name and the names of media in the request, and makes a stream report its usage; it removes a usage that
// the client did not ask for from the response.
func (b *Base) Pass(ctx context.Context, req *engine.PassRequest, sink func(*engine.PassPiece) error) error {
	if !slices.Contains(b.cfg.Passes, req.Path) {
		return fault.New(fault.Unimplemented, "the engine of %.100q does not take %.100q", b.cfg.Card.Name, req.Path)
	}
	inside, done, err := b.Enter(ctx)
	if err != nil {
		return err
	}
	return done(b.pass(inside, req, sink))
}

func (b *Base) pass(ctx context.Context, req *engine.PassRequest, sink func(*engine.PassPiece) error) error {
	lora := b.adapter(req.Model)
	ask := ""
	if req.Stream {
		ask = askUsage(req.Path)
	}
	body := NewBody()
	defer body.Release()
	w := wishes{model: b.upstream(lora), usage: ask}
	if req.Path == pathChat { // other APIs have no member for them
		w.names = namesOf(b.cfg.Card.MediaKeys, req.Objects)
	}
	sent, err := edit(body.B, req.Body, &w)
	if err != nil {
		return fault.New(fault.Invalid, "%v", err)
	}
	if err := b.admitSalt(ctx, req.Path, cmp.Or(sent.salt, req.Salt.Namespace)); err != nil {
		return err
	}
	body.B = sent.body
	p := &passing{b: b, req: req, sink: sink, hide: sent.usage}
	p.piece = engine.PassPiece{PromptTokens: engine.CachedUnknown, OutputTokens: engine.CachedUnknown, Cached: engine.CachedUnknown}
	part := b.account(req, kv.Salt{LoRA: lora, Namespace: sent.salt}, sent.told || req.Objects == nil)
	defer b.load.end(part.a.flight)
	defer b.cache.end(part)
	p.part = part

	call := &Call{Path: req.Path, ID: part.ID, Headers: b.cfg.Headers, Large: body, Wait: b.cfg.Client.silence}
	if !req.Stream {
		call.Wait = -1 // its header comes when it is complete
	}
	b.stats.calls.Add(1)
	answer, err := b.cfg.Client.Do(ctx, call)
	if err != nil {
		return err
	}
	defer answer.Close()
	if !answer.OK() && !answersClient(answer.Status) {
		return answer.Refused()
	}
	if err := p.send(&engine.PassPiece{Accepted: true, Status: answer.Status, Type: answer.Type}); err != nil {
		return err
	}
	if answer.OK() && answer.eventStream() {
		err = p.stream(ctx, answer)
	} else {
		err = p.whole(ctx, answer)
	}
	if err != nil {
		return err
	}
	return p.last()
}

// isClientAnswer reports whether a status outside 2xx is an answer to the client, and not a failure of the
// engine or of Penstock's configuration.
func answersClient(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// trackRequest adds a passthrough request to load and cache, as far as its prompt is known. Media have other
// names in the engine's cache if the engine was not sent their keys and did not make the prompt itself (then
// there are no Objects): in that case only the prompt before the first medium is known.
func (b *Base) account(req *engine.PassRequest, salt kv.Salt, told bool) *Part {
	known, shows := req.Prompt, req.Media
	if len(shows) > 0 && !told {
		known, shows = known[:min(len(known), max(shows[0].Start, 0))], nil
	}
	r := &engine.Request{
		ID: req.ID, Attempt: req.Attempt, Model: req.Model, Salt: salt, Choices: 1, Logprobs: -1,
		Prompt: known, Media: shows, Stop: engine.Stop{MaxTokens: b.cfg.Card.ContextLength},
	}
	a := newAttempt(b, r, nil)
	a.flight = b.load.begin(a)
	p := a.part([]int{0})
	a.calls = []*Part{p}
	if salt.Namespace != "" {
		b.cache.salted()
	}
	if len(known) > 0 {
		b.cache.begin(p)
	}
	return p
}

// passthroughCall is a passthrough request in progress.
type passing struct {
	b     *Base
	req   *engine.PassRequest
	sink  func(*engine.PassPiece) error
	part  *Part
	hide  bool             // the usage at a stream's end is not for the client
	piece engine.PassPiece // the last chunk, with the usage of the whole response
}

func (p *passing) send(piece *engine.PassPiece) error {
	piece.Attempt = p.req.Attempt
	return p.sink(piece)
}

// forwardEvents forwards whole events.
func (p *passing) stream(ctx context.Context, answer *Answer) error {
	events := NewEvents(answer)
	defer events.Release()
	for ended := false; !ended; {
		data, err := events.Next()
		switch {
		case err == io.EOF && p.req.Path != pathChat && p.req.Path != pathCompletions:
			return nil // these end with an event of their own
		case err == io.EOF:
			return answer.Broken(ctx, io.ErrUnexpectedEOF)
		case err != nil:
			return answer.Broken(ctx, err)
		}
		out := engine.PassPiece{Data: events.Raw()}
		if string(data) == "[DONE]" {
			ended = true
		} else {
			seen, err := look(data)
			if err != nil {
				return answer.failed(ctx, err)
			}
			p.learn(&seen)
			if seen.usageOnly && p.hide {
				continue
			}
			out.Tokens = seen.tokens
			if seen.tokens > 0 {
				p.b.load.grew(p.part.a.flight, seen.tokens)
			}
		}
		if err := p.send(&out); err != nil {
			return answer.failed(ctx, err)
		}
	}
	answer.Finish() // further bytes are not part of the response
	return nil
}

// forwardBody forwards a response that is no stream.
func (p *passing) whole(ctx context.Context, answer *Answer) error {
	text := NewBody()
	defer text.Release()
	if err := readInto(text, answer, maxPassed); err != nil {
		return answer.Broken(ctx, err)
	}
	if answer.OK() {
		if seen, err := look(text.B); err == nil {
			p.learn(&seen)
		}
	}
	if len(text.B) == 0 {
		return nil
	}
	return p.send(&engine.PassPiece{Data: text.B, Tokens: max(p.piece.OutputTokens, 0)})
}

// recordUsage keeps the usage which an event reports.
func (p *passing) learn(s *seen) {
	if s.prompt >= 0 {
		p.piece.PromptTokens = s.prompt
	}
	if s.output >= 0 {
		p.piece.OutputTokens = s.output
	}
	if s.cached >= 0 {
		p.piece.Cached = s.cached
		p.b.reports()
	}
}

// sendLast sends the last chunk with the usage.
func (p *passing) last() error {
	if p.piece.Cached < 0 && p.piece.PromptTokens >= 0 && p.b.unreportedPass() == 0 {
		p.piece.Cached = 0
	}
	if prompt := p.piece.PromptTokens; prompt >= 0 { // at most the whole prompt can have been cached
		p.piece.Cached = min(p.piece.Cached, prompt)
	}
	p.part.a.choices[0].over = engine.FinishStop
	p.part.a.flight.whole = true
	if known := len(p.part.Request.Prompt); p.piece.Cached >= 0 && known > 0 {
		p.part.reported(min(p.piece.Cached, known))
	}
	p.piece.Last = true
	return p.send(&p.piece)
}

// eventUsage is the usage information of one event, or of a whole response. Absent numbers are -1.
type seen struct {
	prompt, output, cached int
	tokens                 int  // approximate number of output tokens in the event
	usageOnly              bool // it has a usage and no choices
}

// parseUsage reads an event of any of the APIs. An error inside a stream is an error.
func look(data []byte) (seen, error) {
	s := seen{prompt: -1, output: -1, cached: -1}
	usage := bytes.Contains(data, []byte(`"usage"`))
	failed := bytes.Contains(data, []byte(`"error"`))
	c := NewCursor(data)
	if !c.Is('{') {
		return s, nil
	}
	choices, hasUsage := -1, false
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "choices":
			choices = elements(&c)
		case "usage":
			if usage && !c.Null() {
				hasUsage = true
				s.usage(&c)
			} else if !usage {
				c.Skip()
			}
		case "message", "response": // Anthropic's first event, and the events of /v1/responses
			if usage && c.Is('{') {
				s.within(&c)
			} else {
				c.Skip()
			}
		case "delta":
			s.tokens = 1
			c.Skip()
		case "error":
			if failed && !c.Null() {
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
func elements(c *Cursor) int {
	if !c.Is('[') {
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
func (s *seen) within(c *Cursor) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "usage" && c.Is('{') {
			s.usage(c)
		} else {
			c.Skip()
		}
	}
}

// readUsage reads the numbers of tokens by their names in the APIs.
func (s *seen) usage(c *Cursor) {
	if !c.Is('{') {
		c.Skip()
		return
	}
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "prompt_tokens", "input_tokens":
			s.prompt = count(c)
		case "completion_tokens", "output_tokens":
			s.output = count(c)
		case "cache_read_input_tokens":
			s.cached = count(c)
		case "prompt_tokens_details", "input_tokens_details":
			if c.Null() {
				continue
			}
			for c.Open('{'); c.More('}'); {
				if string(c.Key()) == "cached_tokens" {
					s.cached = count(c)
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
func count(c *Cursor) int {
	if c.Null() {
		return -1
	}
	n := c.Int()
	if n < 0 || n > 1<<31-1 {
		return -1
	}
	return int(n)
}
