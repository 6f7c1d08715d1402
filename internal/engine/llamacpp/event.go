package llamacpp

import (
	"io"
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// completionEvent is an event of a response of /completion, or the whole response if it is no stream.
// Versions differ in their fields.
type chunk struct {
	tokens    []kv.Token
	stop      bool
	eos       bool // with stop: an end-of-sequence token ended it
	slot      int  // -1 if absent
	predicted int  // tokens so far; -1 if absent
	cached    int  // -1 if absent
	wide      bool // the text is not all ASCII
	probs     []byte
	fault     bool
}

// HandleEvent handles an event of a response.
func (d *dialect) Event(p *remote.Part, data []byte) error {
	if string(data) == "[DONE]" {
		return io.EOF
	}
	e, err := decode(data, p.Tokens[:0])
	p.Tokens = e.tokens[:0]
	switch {
	case err != nil:
		return engine.Broken("an answer that cannot be read", err)
	case e.fault:
		return remote.StreamError(data)
	}
	if e.slot >= 0 {
		p.Placed(e.slot)
	}
	if e.cached >= 0 {
		if err := p.Cached(e.cached); err != nil {
			return err
		}
	}
	if p.Over() {
		return e.end()
	}
	if missing := e.predicted - p.Delivered(0) - len(e.tokens); missing > 0 && (e.wide || e.stop) {
		// Tokens without a whole character of text were omitted. Deliver neither them nor the tokens after
		// them: another call continues from here and returns all of them.
		p.Again(missing + len(e.tokens))
		return remote.ErrEnough
	}
	return d.take(p, &e)
}

// eofIfLast returns io.EOF with the last event.
func (e *chunk) end() error {
	if e.stop {
		return io.EOF
	}
	return nil
}

// deliverEvent delivers the content of an event.
func (d *dialect) take(p *remote.Part, e *chunk) error {
	leg, end := d.leg(p), engine.NotFinished
	if at := slices.IndexFunc(e.tokens, func(t kv.Token) bool { return d.ends(p, t) }); at >= 0 && !leg.least {
		e.tokens, end = e.tokens[:at+1], engine.FinishStop
	}
	total := p.Delivered(0) + len(e.tokens)
	switch {
	case end != engine.NotFinished:
	case total >= p.MaxTokens:
		end = engine.FinishLength
	case e.stop && e.eos:
		end = engine.FinishStop
	case e.stop && total < leg.tokens:
		end = engine.FinishLength // the context is full
	case e.stop:
		p.Again(0) // this call was for a part of the tokens
	}
	tokens, probs, err := d.text(p, e, end)
	if err != nil {
		return err
	}
	if err := p.Deliver(0, tokens, probs, end); err != nil {
		return err
	}
	if end == engine.FinishStop && !e.stop && !slices.Contains(d.eos, last(tokens)) {
		return remote.ErrEnough // the engine would continue
	}
	return e.end()
}

// isStopToken reports whether a token ends the choice. Under a schema an EOS token does so even if EOS is to
// be ignored: nothing can follow it.
func (d *dialect) ends(p *remote.Part, t kv.Token) bool {
	return slices.Contains(p.Request.Stop.Tokens, t) || (!p.Request.Stop.IgnoreEOS || p.Request.Guide != nil) && slices.Contains(d.eos, t)
}

// eventTokens returns the tokens of an event, with their log-probabilities if requested. It drops the EOS
// token that ends a text under a schema if EOS is to be ignored.
func (d *dialect) text(p *remote.Part, e *chunk, end engine.Finish) ([]kv.Token, []engine.Logprob, error) {
	tokens := e.tokens
	probs, err := probabilities(p, e, len(tokens))
	if err != nil {
		return nil, nil, err
	}
	if end == engine.FinishStop && p.Request.Stop.IgnoreEOS && len(tokens) > 0 && slices.Contains(d.eos, last(tokens)) {
		tokens = tokens[:len(tokens)-1]
		probs = probs[:min(len(probs), len(tokens))]
	}
	return tokens, probs, nil
}

func last(tokens []kv.Token) kv.Token {
	if len(tokens) == 0 {
		return math.MaxUint32
	}
	return tokens[len(tokens)-1]
}

// readLogprobs reads the log-probabilities of the first n tokens of an event; nil if not requested.
func probabilities(p *remote.Part, e *chunk, n int) ([]engine.Logprob, error) {
	if p.Request.Logprobs < 0 || n == 0 {
		return nil, nil
	}
	p.Logprobs = p.Logprobs[:0]
	p.Top = slices.Grow(p.Top[:0], n*p.Request.Logprobs) // so that slices of it stay valid
	c := remote.NewCursor(e.probs)
	for c.Open('['); c.More(']'); {
		var l engine.Logprob
		from, named := len(p.Top), false
		for c.Open('{'); c.More('}'); {
			switch string(c.Key()) {
			case "id":
				l.Token, named = c.Token(), true
			case "logprob":
				l.Logprob = logprob(&c)
			case "top_logprobs":
				alternatives(p, &c, from)
			default:
				c.Skip()
			}
		}
		if !named {
			return nil, engine.Broken("log-probabilities without tokens: llama.cpp names them since 2025; use a newer one", c.Err())
		}
		l.Top = p.Top[from:len(p.Top):len(p.Top)]
		if len(l.Top) == 0 {
			l.Top = nil
		}
		if p.Logprobs = append(p.Logprobs, l); len(p.Logprobs) == n {
			break
		}
	}
	if len(p.Logprobs) < n {
		return nil, engine.Broken("tokens without log-probabilities", c.Err())
	}
	return p.Logprobs, nil
}

// readAlternatives reads the most likely tokens and keeps as many as requested.
func alternatives(p *remote.Part, c *remote.Cursor, from int) {
	for c.Open('['); c.More(']'); {
		var l engine.TokenLogprob
		for c.Open('{'); c.More('}'); {
			switch string(c.Key()) {
			case "id":
				l.Token = c.Token()
			case "logprob":
				l.Logprob = logprob(c)
			default:
				c.Skip()
			}
		}
		if len(p.Top)-from < p.Request.Logprobs && len(p.Top) < cap(p.Top) {
			p.Top = append(p.Top, l)
		}
	}
}

// readLogprob reads a log-probability: not above 0, nor infinite.
func logprob(c *remote.Cursor) float32 {
	if c.Null() {
		return -math.MaxFloat32
	}
	return float32(max(min(c.Float(), 0), -math.MaxFloat32))
}

// decodeEvent reads an event. It appends the tokens to tokens. A progress event has a token 0 that was not
// drawn.
func decode(data []byte, tokens []kv.Token) (chunk, error) {
	e := chunk{tokens: tokens, slot: -1, predicted: -1, cached: -1}
	progress := false
	c := remote.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.Null():
		case string(key) == "tokens":
			e.tokens = c.Tokens(e.tokens)
		case string(key) == "content":
			e.wide = slices.ContainsFunc(c.Raw(), func(b byte) bool { return b >= 0x80 || b == '\\' })
		case string(key) == "stop":
			e.stop = c.Bool()
		case string(key) == "stop_type":
			e.eos = e.eos || c.Text() == "eos"
		case string(key) == "stopped_eos": // before 2025
			e.eos = c.Bool() || e.eos
		case string(key) == "id_slot":
			e.slot = small(&c)
		case string(key) == "tokens_predicted":
			e.predicted = small(&c)
		case string(key) == "prompt_progress":
			progress = true
			e.inner(&c, "cache")
		case string(key) == "timings":
			e.inner(&c, "cache_n")
		case string(key) == "completion_probabilities":
			e.probs = c.Raw()
		case string(key) == "error":
			e.fault = true
			c.Skip()
		default:
			c.Skip()
		}
	}
	if progress {
		e.tokens = tokens
	}
	return e, c.End()
}

// readCached reads the number of cached tokens from member name of an object.
func (e *chunk) inner(c *remote.Cursor, name string) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == name && !c.Is('-') {
			e.cached = small(c)
		} else {
			c.Skip()
		}
	}
}

// readCount reads a count.
func small(c *remote.Cursor) int { return int(max(min(c.Int(), math.MaxInt32), -1)) }
