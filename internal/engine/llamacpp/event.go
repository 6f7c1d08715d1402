package llamacpp

import (
	"io"
	"math"
	"slices"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// completionEvent is an event of a response of /completion, or the whole response if it is no stream.
// Versions differ in their fields.
type completionEvent struct {
	tokens    []kv.Token
	stop      bool
	eos       bool // with stop: an end-of-sequence token ended it
	slot      int  // -1 if absent
	predicted int  // tokens so far; -1 if absent
	cached    int  // -1 if absent
	notASCII  bool // the text is not all ASCII
	probs     []byte
	isError   bool
}

// HandleEvent handles an event of a response.
func (d *completionDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
	if string(data) == "[DONE]" {
		return io.EOF
	}
	e, err := decodeEvent(data, p.Tokens[:0])
	p.Tokens = e.tokens[:0]
	switch {
	case err != nil:
		return engine.ContractError("an answer that cannot be read", err)
	case e.isError:
		return remote.StreamError(data)
	}
	if e.slot >= 0 {
		p.SetSlot(e.slot)
	}
	if e.cached >= 0 {
		if err := p.ReportCached(e.cached); err != nil {
			return err
		}
	}
	if p.IsFinished() {
		return e.eofIfLast()
	}
	if missing := e.predicted - p.DeliveredTokens(0) - len(e.tokens); missing > 0 && (e.notASCII || e.stop) {
		// Tokens without a whole character of text were omitted. Deliver neither them nor the tokens after
		// them: another call continues from here and returns all of them.
		p.ContinueWith(missing + len(e.tokens))
		return remote.ErrEnough
	}
	return d.deliverEvent(p, &e)
}

// eofIfLast returns io.EOF with the last event.
func (e *completionEvent) eofIfLast() error {
	if e.stop {
		return io.EOF
	}
	return nil
}

// deliverEvent delivers the content of an event.
func (d *completionDialect) deliverEvent(p *remote.SubRequest, e *completionEvent) error {
	leg, end := d.planCall(p), engine.NotFinished
	if at := slices.IndexFunc(e.tokens, func(t kv.Token) bool { return d.isStopToken(p, t) }); at >= 0 && !leg.noStop {
		e.tokens, end = e.tokens[:at+1], engine.FinishStop
	}
	total := p.DeliveredTokens(0) + len(e.tokens)
	switch {
	case end != engine.NotFinished:
	case total >= p.MaxTokens:
		end = engine.FinishLength
	case e.stop && e.eos:
		end = engine.FinishStop
	case e.stop && total < leg.tokens:
		end = engine.FinishLength // the context is full
	case e.stop:
		p.ContinueWith(0) // this call was for a part of the tokens
	}
	tokens, probs, err := d.eventTokens(p, e, end)
	if err != nil {
		return err
	}
	if err := p.DeliverTokens(0, tokens, probs, end); err != nil {
		return err
	}
	if end == engine.FinishStop && !e.stop && !slices.Contains(d.eos, lastToken(tokens)) {
		return remote.ErrEnough // the engine would continue
	}
	return e.eofIfLast()
}

// isStopToken reports whether a token ends the choice. Under a schema an EOS token does so even if EOS is to
// be ignored: nothing can follow it.
func (d *completionDialect) isStopToken(p *remote.SubRequest, t kv.Token) bool {
	return p.IsStopToken(t) || p.Request.OutputSchema != nil && slices.Contains(d.eos, t)
}

// eventTokens returns the tokens of an event, with their log-probabilities if requested. It drops the EOS
// token that ends a text under a schema if EOS is to be ignored.
func (d *completionDialect) eventTokens(p *remote.SubRequest, e *completionEvent, end engine.Finish) ([]kv.Token, []engine.Logprob, error) {
	tokens := e.tokens
	probs, err := readLogprobs(p, e, len(tokens))
	if err != nil {
		return nil, nil, err
	}
	if end == engine.FinishStop && p.Request.Stop.IgnoreEOS && len(tokens) > 0 && slices.Contains(d.eos, lastToken(tokens)) {
		tokens = tokens[:len(tokens)-1]
		probs = probs[:min(len(probs), len(tokens))]
	}
	return tokens, probs, nil
}

func lastToken(tokens []kv.Token) kv.Token {
	if len(tokens) == 0 {
		return math.MaxUint32
	}
	return tokens[len(tokens)-1]
}

// readLogprobs reads the log-probabilities of the first n tokens of an event; nil if not requested.
func readLogprobs(p *remote.SubRequest, e *completionEvent, n int) ([]engine.Logprob, error) {
	if p.Request.Logprobs < 0 || n == 0 {
		return nil, nil
	}
	p.Logprobs = p.Logprobs[:0]
	p.Top = slices.Grow(p.Top[:0], n*p.Request.Logprobs) // so that slices of it stay valid
	c := strictjson.NewCursor(e.probs)
	for c.Open('['); c.More(']'); {
		var l engine.Logprob
		from, named := len(p.Top), false
		for c.Open('{'); c.More('}'); {
			switch string(c.Key()) {
			case "id":
				l.Token, named = c.ReadToken(), true
			case "logprob":
				l.Logprob = readLogprob(&c)
			case "top_logprobs":
				readAlternatives(p, &c, from)
			default:
				c.Skip()
			}
		}
		if !named {
			return nil, engine.ContractError("log-probabilities without tokens: llama.cpp names them since 2025; use a newer one", c.Err())
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
		return nil, engine.ContractError("tokens without log-probabilities", c.Err())
	}
	return p.Logprobs, nil
}

// readAlternatives reads the most likely tokens and keeps as many as requested.
func readAlternatives(p *remote.SubRequest, c *strictjson.Cursor, from int) {
	for c.Open('['); c.More(']'); {
		var l engine.TokenLogprob
		for c.Open('{'); c.More('}'); {
			switch string(c.Key()) {
			case "id":
				l.Token = c.ReadToken()
			case "logprob":
				l.Logprob = readLogprob(c)
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
func readLogprob(c *strictjson.Cursor) float32 {
	if c.SkipNull() {
		return -math.MaxFloat32
	}
	return float32(max(min(c.ReadFloat(), 0), -math.MaxFloat32))
}

// decodeEvent reads an event. It appends the tokens to tokens. A progress event has a token 0 that was not
// drawn.
func decodeEvent(data []byte, tokens []kv.Token) (completionEvent, error) {
	e := completionEvent{tokens: tokens, slot: -1, predicted: -1, cached: -1}
	progress := false
	c := strictjson.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "tokens":
			e.tokens = c.ReadTokens(e.tokens)
		case string(key) == "content":
			e.notASCII = slices.ContainsFunc(c.Raw(), func(b byte) bool { return b >= 0x80 || b == '\\' })
		case string(key) == "stop":
			e.stop = c.ReadBool()
		case string(key) == "stop_type":
			e.eos = e.eos || c.ReadString() == "eos"
		case string(key) == "stopped_eos": // before 2025
			e.eos = c.ReadBool() || e.eos
		case string(key) == "id_slot":
			e.slot = readCount(&c)
		case string(key) == "tokens_predicted":
			e.predicted = readCount(&c)
		case string(key) == "prompt_progress":
			progress = true
			e.readCached(&c, "cache")
		case string(key) == "timings":
			e.readCached(&c, "cache_n")
		case string(key) == "completion_probabilities":
			e.probs = c.Raw()
		case string(key) == "error":
			e.isError = true
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
func (e *completionEvent) readCached(c *strictjson.Cursor, name string) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == name && !c.NextIs('-') {
			e.cached = readCount(c)
		} else {
			c.Skip()
		}
	}
}

// readCount reads a count.
func readCount(c *strictjson.Cursor) int { return int(max(min(c.ReadInt(), math.MaxInt32), -1)) }
