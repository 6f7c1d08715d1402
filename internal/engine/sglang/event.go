package sglang

import (
	"io"
	"math"
	"slices"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// generateEvent is the relevant part of an event of /generate. Its slices are memory of the SubRequest, and
// the event's own bytes.
type generateEvent struct {
	ids                      []kv.Token
	completionTokens, cached int // -1 if absent
	finish                   finishReason
	message                  string
	status                   int
	matched                  kv.Token
	hasMatched, isError      bool
	logprobs, top            []byte // unparsed arrays
}

// finishReason is finish_reason.type.
type finishReason uint8

const (
	finishNone finishReason = iota
	finishStop
	finishLength
	finishAbort
)

// HandleEvent handles an event of a response: all tokens of the choice so far, or the new ones.
func (d *generateDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
	if string(data) == "[DONE]" {
		return io.EOF
	}
	e, err := decodeEvent(data, p.Tokens[:0])
	p.Tokens = e.ids[:0]
	switch {
	case err != nil:
		return engine.ContractError("an answer that cannot be read", err)
	case e.isError:
		return remote.StreamError(data)
	case e.finish == finishAbort:
		return abortError(&e)
	}
	if e.cached >= 0 {
		if err := p.ReportCached(e.cached); err != nil {
			return err
		}
	}
	if p.IsFinished() {
		return nil
	}
	have := p.DeliveredTokens(0)
	ids, ok := e.newTokens(have)
	if !ok {
		return engine.ContractError("tokens with a gap before them", nil)
	}
	end := engine.NotFinished
	switch {
	case e.finish == finishLength:
		end = engine.FinishLength
	case e.finish == finishStop:
		end = engine.FinishStop
		if e.hasMatched && p.Request.Logprobs < 0 && !endsWith(p, ids, e.matched) {
			ids = append(ids, e.matched) // versions differ in whether it is among the tokens
		}
	}
	if p.Request.Logprobs >= 0 {
		if err := d.readLogprobs(p, &e, len(ids)); err != nil {
			return err
		}
	}
	return p.DeliverTokens(0, ids, p.Logprobs, end)
}

// endsWith reports whether token is the last of ids or, if ids is empty, of the tokens delivered before.
func endsWith(p *remote.SubRequest, ids []kv.Token, token kv.Token) bool {
	if len(ids) > 0 {
		return ids[len(ids)-1] == token
	}
	last, ok := p.LastToken()
	return ok && last == token
}

// abortError returns the error for a response that the engine aborted.
func abortError(e *generateEvent) error {
	if e.status >= 400 && e.status < 500 {
		said := strictjson.AppendString([]byte(`{"error":{"message":`), e.message)
		said = strconv.AppendInt(append(said, `,"code":`...), int64(e.status), 10)
		return remote.StreamError(append(said, "}}"...))
	}
	return fault.New(fault.Unavailable, "the engine gave the request up: %s", remote.SanitizeMessage(e.message))
}

// newTokens returns the ids of e after the first have. Streams repeat all tokens from the start unless the
// server was configured otherwise; the event's count of tokens so far tells which it is. ok is false if
// neither fits.
func (e *generateEvent) newTokens(have int) (ids []kv.Token, ok bool) {
	n := len(e.ids)
	switch {
	case e.completionTokens < 0:
		return e.ids, true
	case n == e.completionTokens && n >= have:
		return e.ids[have:], true
	case have+n == e.completionTokens, n == 0:
		return e.ids, true
	}
	return nil, false
}

// readLogprobs reads the log-probabilities of the last n tokens: they are the last of the event, whether it
// has all tokens or the new ones.
func (d *generateDialect) readLogprobs(p *remote.SubRequest, e *generateEvent, n int) error {
	p.Logprobs, p.Top = p.Logprobs[:0], p.Top[:0]
	if n == 0 {
		return nil
	}
	c := strictjson.NewCursor(e.logprobs)
	for c.Open('['); c.More(']'); {
		token, v := readLogprobPair(&c)
		p.Logprobs = append(p.Logprobs, engine.Logprob{Token: token, Logprob: v})
	}
	if c.Err() != nil || len(p.Logprobs) < n {
		return engine.ContractError("tokens without log-probabilities", c.Err())
	}
	skip := len(p.Logprobs) - n
	p.Logprobs = slices.Delete(p.Logprobs, 0, skip)
	if p.Request.Logprobs == 0 {
		return nil
	}
	return readAlternatives(p, e.top, n)
}

// readAlternatives reads the most likely alternatives for each of the last n tokens.
func readAlternatives(p *remote.SubRequest, data []byte, n int) error {
	total := 0
	c := strictjson.NewCursor(data)
	for c.Open('['); c.More(']'); c.Skip() {
		total++
	}
	if c.Err() != nil || total < n {
		return engine.ContractError("tokens without alternatives", c.Err())
	}
	p.Top = slices.Grow(p.Top, n*p.Request.Logprobs) // so that slices of it stay valid
	c = strictjson.NewCursor(data)
	c.Open('[')
	for i := 0; c.More(']'); i++ {
		if i < total-n || c.SkipNull() {
			if i < total-n {
				c.Skip()
			}
			continue
		}
		from := len(p.Top)
		for c.Open('['); c.More(']'); {
			token, v := readLogprobPair(&c)
			if len(p.Top)-from < p.Request.Logprobs {
				p.Top = append(p.Top, engine.TokenLogprob{Token: token, Logprob: v})
			}
		}
		p.Logprobs[i-(total-n)].Top = p.Top[from:len(p.Top):len(p.Top)]
	}
	if c.Err() != nil {
		return engine.ContractError("alternatives that cannot be read", c.Err())
	}
	return nil
}

// readLogprobPair reads [log-probability, token, text].
func readLogprobPair(c *strictjson.Cursor) (token kv.Token, logprob float32) {
	i := 0
	for c.Open('['); c.More(']'); i++ {
		switch {
		case i == 0 && !c.SkipNull():
			logprob = clampLogprob(c.ReadFloat())
		case i == 1:
			token = c.ReadToken()
		case i > 1:
			c.Skip()
		}
	}
	return token, logprob
}

// clampLogprob returns v as a valid log-probability: not above 0, nor infinite.
func clampLogprob(v float64) float32 {
	return float32(max(min(v, 0), -math.MaxFloat32))
}

// decodeEvent reads an event. It appends the tokens to ids.
func decodeEvent(data []byte, ids []kv.Token) (generateEvent, error) {
	e := generateEvent{ids: ids, completionTokens: -1, cached: -1}
	c := strictjson.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "output_ids":
			if !c.SkipNull() {
				e.ids = c.ReadTokens(e.ids)
			}
		case "meta_info":
			e.readMetaInfo(&c)
		case "error":
			if !c.SkipNull() {
				e.isError = true
				c.Skip()
			}
		default:
			c.Skip()
		}
	}
	return e, c.End()
}

// readMetaInfo reads meta_info.
func (e *generateEvent) readMetaInfo(c *strictjson.Cursor) {
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "completion_tokens":
			e.completionTokens = int(min(c.ReadInt(), math.MaxInt32))
		case string(key) == "cached_tokens":
			e.cached = int(min(c.ReadInt(), math.MaxInt32))
		case string(key) == "finish_reason":
			e.readFinishReason(c)
		case string(key) == "output_token_logprobs":
			e.logprobs = c.Raw()
		case string(key) == "output_top_logprobs":
			e.top = c.Raw()
		default:
			c.Skip()
		}
	}
}

// readFinishReason reads finish_reason.
func (e *generateEvent) readFinishReason(c *strictjson.Cursor) {
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "type":
			switch c.ReadString() {
			case "stop":
				e.finish = finishStop
			case "length":
				e.finish = finishLength
			default:
				e.finish = finishAbort
			}
		case string(key) == "matched" && !c.NextIs('"') && !c.NextIs('['):
			e.matched, e.hasMatched = c.ReadToken(), true
		case string(key) == "message":
			e.message = c.ReadString()
		case string(key) == "status_code":
			e.status = int(min(c.ReadInt(), 999))
		default:
			c.Skip()
		}
	}
}
