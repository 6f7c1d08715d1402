package trtllm

import (
	"io"
	"math"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// completionEvent is the relevant part of an event of /v1/completions.
type completionEvent struct {
	tokens     []kv.Token
	hasIDs     bool
	hasText    bool // it has text, and so no ids
	finish     string
	stop       kv.Token
	hasStop    bool
	cached     int // -1 if absent
	isError    bool
	choices    int
	otherIndex bool // one of them has an index other than 0
}

// HandleEvent handles an event of a response.
func (d *completionsDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
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
	case e.choices > 1 || e.otherIndex:
		return engine.ContractError("choices which were not asked for", nil)
	case e.hasText && !e.hasIDs:
		return engine.ContractError("text where tokens were asked for", nil)
	}
	if e.cached >= 0 {
		if err := p.ReportCached(e.cached); err != nil {
			return err
		}
	}
	if p.IsFinished() {
		return nil
	}
	switch e.finish {
	case "":
		return p.DeliverTokens(0, e.tokens, nil, earlyFinish(p, e.tokens))
	case "length":
		return p.DeliverTokens(0, e.tokens, nil, engine.FinishLength)
	case "stop":
		return p.DeliverTokens(0, stoppedTokens(p, &e), nil, engine.FinishStop)
	}
	return fault.New(fault.Unavailable, "the engine gave the request up: %s", remote.SanitizeMessage(e.finish))
}

// earlyFinish returns the finish implied by tokens before the engine reports it: a stop token comes with the
// others, the finish_reason may come after them.
func earlyFinish(p *remote.SubRequest, tokens []kv.Token) engine.Finish {
	if len(tokens) > 0 && p.IsStopToken(tokens[len(tokens)-1]) {
		return engine.FinishStop
	}
	return engine.NotFinished
}

// stoppedTokens returns the last tokens of a choice that ended with a stop token. Versions differ in whether
// the stop token is among them.
func stoppedTokens(p *remote.SubRequest, e *completionEvent) []kv.Token {
	tokens := e.tokens
	if !e.hasStop || !p.IsStopToken(e.stop) || len(tokens) > 0 && tokens[len(tokens)-1] == e.stop {
		return tokens
	}
	return append(tokens, e.stop)
}

// decodeEvent reads an event. It appends the tokens to tokens.
func decodeEvent(data []byte, tokens []kv.Token) (completionEvent, error) {
	e := completionEvent{tokens: tokens, cached: -1}
	c := strictjson.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "choices":
			for c.Open('['); c.More(']'); e.choices++ {
				e.readChoice(&c)
			}
		case string(key) == "usage":
			e.readUsage(&c)
		case string(key) == "error":
			e.isError = true
			c.Skip()
		case string(key) == "object":
			e.isError = e.isError || string(c.Raw()) == `"error"`
		default:
			c.Skip()
		}
	}
	return e, c.End()
}

// readChoice reads an element of choices, which should have only one.
func (e *completionEvent) readChoice(c *strictjson.Cursor) {
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "index":
			e.otherIndex = e.otherIndex || c.ReadInt() != 0
		case string(key) == "token_ids":
			e.tokens, e.hasIDs = c.ReadTokens(e.tokens), true
		case string(key) == "text":
			e.hasText = string(c.Raw()) != `""`
		case string(key) == "finish_reason":
			e.finish = c.ReadString()
		case string(key) == "stop_reason" && !c.NextIs('"'):
			e.stop, e.hasStop = c.ReadToken(), true
		default:
			c.Skip()
		}
	}
}

// readUsage reads how many tokens were cached.
func (e *completionEvent) readUsage(c *strictjson.Cursor) {
	for c.Open('{'); c.More('}'); {
		if key := c.Key(); c.SkipNull() {
			continue
		} else if string(key) != "prompt_tokens_details" {
			c.Skip()
			continue
		}
		for c.Open('{'); c.More('}'); {
			switch key := c.Key(); {
			case c.SkipNull():
			case string(key) == "cached_tokens":
				e.cached = int(max(min(c.ReadInt(), math.MaxInt32), -1))
			default:
				c.Skip()
			}
		}
	}
}
