package trtllm

import (
	"io"
	"math"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// completionEvent is the relevant part of an event of /v1/completions.
type piece struct {
	tokens  []kv.Token
	hasIDs  bool
	text    bool // it has text, and so no ids
	finish  string
	stop    kv.Token
	hasStop bool
	cached  int // -1 if absent
	fault   bool
	choices int
	index   bool // one of them has an index other than 0
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
	case e.choices > 1 || e.index:
		return engine.Broken("choices that nobody asked for", nil)
	case e.text && !e.hasIDs:
		return engine.Broken("text where tokens were asked for", nil)
	}
	if e.cached >= 0 {
		if err := p.Cached(e.cached); err != nil {
			return err
		}
	}
	if p.Over() {
		return nil
	}
	switch e.finish {
	case "":
		return p.Deliver(0, e.tokens, nil, d.early(p, e.tokens))
	case "length":
		return p.Deliver(0, e.tokens, nil, engine.FinishLength)
	case "stop":
		return p.Deliver(0, d.stopped(p, &e), nil, engine.FinishStop)
	}
	return fault.New(fault.Unavailable, "the engine gave the request up: %s", remote.Clean(e.finish))
}

// earlyFinish returns the finish implied by tokens before the engine reports it: a stop token comes with the
// others, the finish_reason may come after them.
func (d *dialect) early(p *remote.Part, tokens []kv.Token) engine.Finish {
	if len(tokens) > 0 && d.ends(p, tokens[len(tokens)-1]) {
		return engine.FinishStop
	}
	return engine.NotFinished
}

// stoppedTokens returns the last tokens of a choice that ended with a stop token. Versions differ in whether
// the stop token is among them.
func (d *dialect) stopped(p *remote.Part, e *piece) []kv.Token {
	tokens := e.tokens
	if !e.hasStop || !d.ends(p, e.stop) || len(tokens) > 0 && tokens[len(tokens)-1] == e.stop {
		return tokens
	}
	return append(tokens, e.stop)
}

// isStopToken reports whether a token ends the choice.
func (d *dialect) ends(p *remote.Part, t kv.Token) bool {
	return slices.Contains(p.Request.Stop.Tokens, t) || !p.Request.Stop.IgnoreEOS && slices.Contains(d.eos, t)
}

// decodeEvent reads an event. It appends the tokens to tokens.
func decode(data []byte, tokens []kv.Token) (piece, error) {
	e := piece{tokens: tokens, cached: -1}
	c := remote.NewCursor(data)
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.Null():
		case string(key) == "choices":
			for c.Open('['); c.More(']'); e.choices++ {
				e.choice(&c)
			}
		case string(key) == "usage":
			e.usage(&c)
		case string(key) == "error":
			e.fault = true
			c.Skip()
		case string(key) == "object":
			e.fault = e.fault || string(c.Raw()) == `"error"`
		default:
			c.Skip()
		}
	}
	return e, c.End()
}

// readChoice reads an element of choices, which should have only one.
func (e *piece) choice(c *remote.Cursor) {
	for c.Open('{'); c.More('}'); {
		switch key := c.Key(); {
		case c.Null():
		case string(key) == "index":
			e.index = e.index || c.Int() != 0
		case string(key) == "token_ids":
			e.tokens, e.hasIDs = c.Tokens(e.tokens), true
		case string(key) == "text":
			e.text = string(c.Raw()) != `""`
		case string(key) == "finish_reason":
			e.finish = c.Text()
		case string(key) == "stop_reason" && !c.Is('"'):
			e.stop, e.hasStop = c.Token(), true
		default:
			c.Skip()
		}
	}
}

// readUsage reads how many tokens were cached.
func (e *piece) usage(c *remote.Cursor) {
	for c.Open('{'); c.More('}'); {
		if key := c.Key(); c.Null() {
			continue
		} else if string(key) != "prompt_tokens_details" {
			c.Skip()
			continue
		}
		for c.Open('{'); c.More('}'); {
			switch key := c.Key(); {
			case c.Null():
			case string(key) == "cached_tokens":
				e.cached = int(max(min(c.Int(), math.MaxInt32), -1))
			default:
				c.Skip()
			}
		}
	}
}
