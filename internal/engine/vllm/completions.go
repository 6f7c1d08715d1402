package vllm

import (
	"bytes"
	"io"
	"math"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// completionsDialect asks for tokens by /v1/completions, whose prompt may be token ids and which returns
// token ids on request (return_token_ids, vLLM 0.10.2).
type completionsDialect struct {
	engine *Engine
	pinned []string
}

// BuildCall implements [remote.Dialect].
func (c *completionsDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	call.Path, call.Headers = pathCompletions, c.pinned
	b, err := appendHead(call.Large.B, c.engine.upstreamModel(p.Request.Salt.LoRA), p)
	if err != nil {
		return err
	}
	b = append(b, `,"return_token_ids":true,"prompt":`...)
	prompt, generated := p.PromptTokens()
	b = strictjson.AppendTokens(b, prompt, generated)
	if n := len(p.Choices); n > 1 {
		b = remote.AppendIntField(b, "n", int64(n))
	}
	b = appendSampling(b, p)
	if n := p.Request.Logprobs; n >= 0 {
		b = remote.AppendIntField(b, "logprobs", int64(n))
		b = append(b, `,"return_tokens_as_token_ids":true`...)
	}
	if g := p.Request.OutputSchema; g != nil {
		b = append(b, `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":`...)
		b = append(append(b, g.Schema...), '}', '}')
	}
	call.Large.B = append(b, '}')
	return nil
}

// HandleEvent implements [remote.Dialect].
func (c *completionsDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
	return handleChunk(p, data, completionLogprobs)
}

// logprobFormat is how a path writes log-probabilities. It is not a function, so that the cursor of an event
// stays on the stack.
type logprobFormat int

const (
	completionLogprobs logprobFormat = iota // see readCompletionLogprobs
	tokenLogprobs                           // see readTokenLogprobs
)

func (f logprobFormat) readLogprobs(c *strictjson.Cursor, p *remote.SubRequest) {
	if f == tokenLogprobs {
		readTokenLogprobs(c, p)
	} else {
		readCompletionLogprobs(c, p)
	}
}

// doneMarker is the data of a stream's last event.
const doneMarker = "[DONE]"

// handleChunk reads a chunk of either path, or an answer which is no stream: choices with token ids, the usage at the end,
// what a prefill leg hands over, or an error.
func handleChunk(p *remote.SubRequest, data []byte, logprobs logprobFormat) error {
	if string(data) == doneMarker {
		return io.EOF
	}
	if p.Request.Logprobs < 0 {
		if choice, tokens, ok := p.Template.MatchTokens(data, p.Tokens[:0]); ok {
			p.Tokens = tokens
			return p.DeliverTokens(choice, tokens, nil, engine.NotFinished)
		}
	}
	c := strictjson.NewCursor(data)
	cached, plain, choice := engine.CachedUnknown, true, noChoice
	p.Template.Reset()
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "choices":
			plain = plain && choice == noChoice // it appears once
			var err error
			if choice, err = readChoices(&c, p, logprobs); err != nil {
				return err
			}
		case "usage":
			if !c.SkipNull() {
				cached, plain = readCachedTokens(&c), false
			}
		case "kv_transfer_params":
			if c.SkipNull() {
				continue
			}
			if err := p.SetHandoff(c.Raw()); err != nil {
				return err
			}
		case "error":
			if !c.SkipNull() {
				return remote.StreamError(data)
			}
		default:
			c.Skip()
		}
	}
	if c.End() != nil {
		return engine.ContractError("an event that is no JSON of its API", c.Err())
	}
	if plain && choice >= 0 {
		p.Template.Learn(data, choice)
	}
	if cached >= 0 {
		return p.ReportCached(cached)
	}
	return nil
}

// noChoice stands for the index of a chunk's choice if there is not exactly one unfinished choice.
const noChoice = -1

// readChoices reads the choices of a chunk and delivers each. If there is exactly one and it is not finished,
// its index is returned.
func readChoices(c *strictjson.Cursor, p *remote.SubRequest, logprobs logprobFormat) (only int, err error) {
	only = noChoice
	if c.SkipNull() {
		return only, nil
	}
	n := 0
	for c.Open('['); c.More(']'); n++ {
		index := int64(0)
		var reason []byte
		p.Tokens, p.Logprobs, p.Top = p.Tokens[:0], p.Logprobs[:0], p.Top[:0]
		ids := false
		for c.Open('{'); c.More('}'); {
			switch string(c.Key()) {
			case "index":
				index = c.ReadInt()
			case "token_ids":
				if !c.SkipNull() {
					from := c.Pos()
					p.Tokens, ids = c.ReadTokens(p.Tokens), true
					p.Template.MarkIDs(from, c.Pos())
				}
			case "text":
				from := c.Pos()
				c.Skip()
				p.Template.MarkText(from, c.Pos())
			case "finish_reason":
				reason = c.Raw()
			case "logprobs":
				if !c.SkipNull() && p.Request.Logprobs >= 0 {
					logprobs.readLogprobs(c, p)
				}
			default:
				c.Skip()
			}
		}
		if c.Err() != nil {
			return only, engine.ContractError("an event that is no JSON of its API", c.Err())
		}
		finish, err := parseFinish(reason)
		if err != nil {
			return only, err
		}
		if !ids && finish == engine.NotFinished {
			continue // an old version returns only text: the missing tokens show at the end
		}
		if err := p.DeliverTokens(int(index), p.Tokens, alignLogprobs(p), finish); err != nil {
			return only, err
		}
		if only = noChoice; n == 0 && finish == engine.NotFinished {
			only = int(index)
		}
	}
	if n != 1 {
		only = noChoice
	}
	return only, nil
}

// alignLogprobs returns the log-probabilities of p.Tokens, each with its token's id.
func alignLogprobs(p *remote.SubRequest) []engine.Logprob {
	if p.Request.Logprobs < 0 {
		return nil
	}
	for i := range min(len(p.Tokens), len(p.Logprobs)) {
		p.Logprobs[i].Token = p.Tokens[i]
	}
	return p.Logprobs
}

// readCompletionLogprobs reads {"token_logprobs":[-0.1],"tokens":["token_id:5"],"top_logprobs":[{"token_id:5":-0.1}]}.
func readCompletionLogprobs(c *strictjson.Cursor, p *remote.SubRequest) {
	grow := func(i int) *engine.Logprob {
		for len(p.Logprobs) <= i {
			p.Logprobs = append(p.Logprobs, engine.Logprob{})
		}
		return &p.Logprobs[i]
	}
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "token_logprobs":
			i := 0
			for c.Open('['); c.More(']'); i++ {
				if !c.SkipNull() {
					grow(i).Logprob = clampLogprob(c.ReadFloat())
				}
			}
		case "top_logprobs":
			if c.SkipNull() {
				continue
			}
			i := 0
			for c.Open('['); c.More(']'); i++ {
				readTop(c, p, grow(i))
			}
		default:
			c.Skip()
		}
	}
}

// readTop reads the alternatives of one token: {"token_id:5":-0.1,…}.
func readTop(c *strictjson.Cursor, p *remote.SubRequest, l *engine.Logprob) {
	if c.SkipNull() {
		return
	}
	from := len(p.Top)
	for c.Open('{'); c.More('}'); {
		t := parseTokenName(c, c.Key())
		p.Top = append(p.Top, engine.TokenLogprob{Token: t, Logprob: clampLogprob(c.ReadFloat())})
	}
	setTop(p, l, from)
}

// setTop sets the alternatives of l to the entries of p.Top at from and after it.
func setTop(p *remote.SubRequest, l *engine.Logprob, from int) {
	n := p.Request.Logprobs
	if n == 0 || len(p.Top) == from {
		p.Top = p.Top[:from]
		return
	}
	l.Top = sortTop(p.Top[from:], n)
}

// parseTokenName parses "token_id:17", by which the engine names the tokens of log-probabilities.
func parseTokenName(c *strictjson.Cursor, name []byte) kv.Token {
	id, ok := bytes.CutPrefix(name, []byte("token_id:"))
	inner := strictjson.NewCursor(id)
	token := inner.ReadToken()
	if !ok || inner.End() != nil {
		c.Fail()
		return 0
	}
	return token
}

// clampLogprob returns v as a valid log-probability: not above 0, nor infinite.
func clampLogprob(v float64) float32 { return float32(max(min(v, 0), -math.MaxFloat32)) }

// readCachedTokens returns the cached tokens of {"prompt_tokens_details":{"cached_tokens":96},…}.
func readCachedTokens(c *strictjson.Cursor) int {
	cached := engine.CachedUnknown
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) != "prompt_tokens_details" {
			c.Skip()
			continue
		}
		if c.SkipNull() {
			continue
		}
		for c.Open('{'); c.More('}'); {
			switch key := c.Key(); {
			case string(key) != "cached_tokens":
				c.Skip()
			case !c.SkipNull():
				cached = int(min(c.ReadInt(), math.MaxInt32))
			}
		}
	}
	return cached
}

// toToken returns n as a token id; an invalid n becomes an id outside every vocabulary.
func toToken(n int64) kv.Token {
	if n < 0 || n > math.MaxUint32 {
		return math.MaxUint32
	}
	return kv.Token(n)
}
