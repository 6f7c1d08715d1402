package vllm

import (
	"bytes"
	"slices"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// generateDialect asks for tokens by /inference/v1/generate, the server's interface for tokens only. It is
// the only one of a server started with --tokens-only; other servers have it only with --enable-scale-out.
// Each call asks for one choice: some versions mix up several choices in a stream.
type generateDialect struct {
	engine *Engine
	pinned []string
}

// BuildCall implements [remote.Dialect].
func (g *generateDialect) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	call.Path, call.Headers = pathGenerate, g.pinned
	b, err := appendHead(call.Large.B, g.engine.upstreamModel(p.Request.Salt.LoRA), p)
	if err != nil {
		return err
	}
	b = append(b, `,"token_ids":`...)
	prompt, generated := p.PromptTokens()
	b = strictjson.AppendTokens(b, prompt, generated)
	if features := p.Request.Features; len(features) > 0 {
		c := strictjson.NewCursor(features)
		if c.Skip(); c.End() != nil || features[0] != '{' {
			return engine.RefuseFeatures(c.Err())
		}
		// Features include the media's positions in the prompt. Output appended to the prompt does not move
		// them.
		b = append(append(slices.Grow(b, len(features)+(1<<10)), `,"features":`...), features...)
	}
	b = append(b, `,"sampling_params":{"n":1,"detokenize":false`...)
	b = appendSampling(b, p)
	if n := p.Request.Logprobs; n >= 0 {
		b = remote.AppendIntField(b, "logprobs", int64(n))
	}
	if g := p.Request.OutputSchema; g != nil {
		// The schema is a string here.
		b = append(b, `,"structured_outputs":{"json":`...)
		b = append(strictjson.AppendString(b, g.Schema), '}')
	}
	call.Large.B = append(b, '}', '}')
	return nil
}

// HandleEvent implements [remote.Dialect].
func (g *generateDialect) HandleEvent(p *remote.SubRequest, data []byte) error {
	return handleChunk(p, data, tokenLogprobs)
}

// readTokenLogprobs reads {"content":[{"token_id":5,"logprob":-0.1,"top_logprobs":[{"token_id":5,"logprob":-0.1}]}]};
// older versions name tokens "token":"token_id:5".
func readTokenLogprobs(c *strictjson.Cursor, p *remote.SubRequest) {
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) != "content" {
			c.Skip()
			continue
		}
		if c.SkipNull() {
			continue
		}
		for c.Open('['); c.More(']'); {
			p.Logprobs = append(p.Logprobs, engine.Logprob{})
			l := &p.Logprobs[len(p.Logprobs)-1]
			from := len(p.Top)
			for c.Open('{'); c.More('}'); {
				switch string(c.Key()) {
				case "logprob":
					l.Logprob = clampLogprob(c.ReadFloat())
				case "top_logprobs":
					if c.SkipNull() {
						continue
					}
					for c.Open('['); c.More(']'); {
						p.Top = append(p.Top, readAlternative(c))
					}
				default:
					c.Skip()
				}
			}
			setTop(p, l, from)
		}
	}
}

// readAlternative reads one alternative token.
func readAlternative(c *strictjson.Cursor) (t engine.TokenLogprob) {
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "token_id":
			t.Token = toToken(c.ReadInt())
		case "token":
			t.Token = parseTokenName(c, bytes.Trim(c.Raw(), `"`))
		case "logprob":
			t.Logprob = clampLogprob(c.ReadFloat())
		default:
			c.Skip()
		}
	}
	return t
}
