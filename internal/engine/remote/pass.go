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

// maxPassed bounds an answer that is passed on whole.
const maxPassed = 64 << 20

// askUsage is what a stream of the path is asked with for its usage; "" if it tells by itself.
func askUsage(path string) string {
	switch path {
	case pathChat, pathCompletions:
		return `{"include_usage":true}`
	}
	return ""
}

// Passes returns the paths of which clients' requests are taken.
func (b *Base) Passes() []string { return slices.Clone(b.cfg.Passes) }

// Pass serves a client's request as it is, as [engine.Passer] says. What is changed of it is the model's
// name, and that a stream tells its usage; what is changed of the answer is that a usage which the client
// had not asked for is left out.
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
	if req.Path == pathChat { // other APIs have no place for them
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
		call.Wait = -1 // its header comes with its end
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

// answersClient reports whether a status that is no success is an answer to the client, and no failure
// of the engine or of what is configured here.
func answersClient(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// account enters a request that is passed on into load and cache, as far as its prompt is known. Media whose keys the
// engine was not told, and that are not known by its own names (it made the prompt: there are no Objects), have others there: of the prompt no more is known then than what is before the first.
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

// passing is a request that is being passed on.
type passing struct {
	b     *Base
	req   *engine.PassRequest
	sink  func(*engine.PassPiece) error
	part  *Part
	hide  bool             // the usage at a stream's end is not for the client
	piece engine.PassPiece // the last, with what was learned of the whole
}

func (p *passing) send(piece *engine.PassPiece) error {
	piece.Attempt = p.req.Attempt
	return p.sink(piece)
}

// stream hands on whole events.
func (p *passing) stream(ctx context.Context, answer *Answer) error {
	events := NewEvents(answer)
	defer events.Release()
	for ended := false; !ended; {
		data, err := events.Next()
		switch {
		case err == io.EOF && p.req.Path != pathChat && p.req.Path != pathCompletions:
			return nil // these end by an event of their own, which only the client knows
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
	answer.Finish() // whatever else the engine sends is none of the answer
	return nil
}

// whole hands on an answer that is no stream.
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

// learn keeps what an event says of the whole.
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

// last says that the answer is whole, and what was learned.
func (p *passing) last() error {
	if p.piece.Cached < 0 && p.piece.PromptTokens >= 0 && p.b.unreportedPass() == 0 {
		p.piece.Cached = 0
	}
	if prompt := p.piece.PromptTokens; prompt >= 0 { // more than all of it cannot have been cached
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

// seen is what one event, or a whole answer, says that matters to others than the client.
// Numbers that it does not say are -1.
type seen struct {
	prompt, output, cached int
	tokens                 int  // of output that it carries, about
	usageOnly              bool // it has a usage and no choices
}

// look reads an event of any of the APIs. An error inside a stream is an error.
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
		case "message", "response": // Anthropic's first event, and the events of responses
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

// elements steps over an array and counts what is in it.
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

// within reads the usage of an object inside an event.
func (s *seen) within(c *Cursor) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "usage" && c.Is('{') {
			s.usage(c)
		} else {
			c.Skip()
		}
	}
}

// usage reads the numbers of tokens by the names that the APIs have for them.
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

// count reads a number of tokens; -1 for null.
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
