package python

import (
	"io"
	"math"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// event is the relevant part of what a function yields.
type event struct {
	tokens  []kv.Token
	finish  string
	cached  int // -1 if absent
	isError bool
}

// HandleEvent handles an event of a response.
func (d *functionDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
	if string(data) == "[DONE]" {
		return io.EOF
	}
	e, err := decodeEvent(data, p.Tokens[:0])
	p.Tokens = e.tokens[:0]
	switch {
	case err != nil:
		return engine.ContractError("an answer that cannot be read", err)
	case e.isError && p.IsFinished():
		return io.EOF // the answer is whole
	case e.isError:
		return remote.StreamError(data)
	}
	if e.cached >= 0 {
		if err := p.ReportCached(e.cached); err != nil {
			return err
		}
	}
	if p.IsFinished() {
		return nil
	}
	finish, known := finishes[e.finish]
	if !known {
		return fault.New(fault.Unavailable, "the function gave the request up: %s", remote.SanitizeMessage(e.finish))
	}
	if at := findStop(p, e.tokens); at >= 0 {
		e.tokens, finish = e.tokens[:at+1], engine.FinishStop
	}
	if finish == engine.NotFinished && p.DeliveredTokens(0)+len(e.tokens) >= p.MaxTokens {
		finish = engine.FinishLength
	}
	if err := p.DeliverTokens(0, e.tokens, nil, finish); err != nil {
		return err
	}
	if e.finish == "" && finish != engine.NotFinished {
		return remote.ErrEnough // it yields more than was asked for: the end of the connection cancels it
	}
	return nil
}

// finishes are the values of finish_reason with which an answer goes on or ends well.
var finishes = map[string]engine.Finish{
	"": engine.NotFinished, "stop": engine.FinishStop, "eos": engine.FinishStop, "length": engine.FinishLength,
}

// findStop returns the index of the first token which ends the choice, -1 if none does: functions need not know stop
// tokens. Before the least number of tokens none does.
func findStop(p *remote.SubRequest, tokens []kv.Token) int {
	first := min(max(p.MinTokens-p.DeliveredTokens(0), 0), len(tokens))
	if at := slices.IndexFunc(tokens[first:], p.IsStopToken); at >= 0 {
		return first + at
	}
	return -1
}

// decodeEvent reads an event. It appends the tokens to tokens, and skips members which it does not know.
func decodeEvent(data []byte, tokens []kv.Token) (event, error) {
	e := event{tokens: tokens, cached: -1}
	c := strictjson.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.SkipNull():
		case string(key) == "token_ids":
			e.tokens = c.ReadTokens(e.tokens[:len(tokens)])
		case string(key) == "finish_reason":
			e.finish = c.ReadString()
		case string(key) == "cached_tokens":
			e.cached = int(max(min(c.ReadInt(), math.MaxInt32), -1))
		case string(key) == "error":
			e.isError = true
			c.Skip()
		default:
			c.Skip()
		}
	}
	return e, c.End()
}
