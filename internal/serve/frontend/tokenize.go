package frontend

import (
	"context"
	"net/http"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/edge/anthropic"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
)

// serveText serves an endpoint that converts between text and tokens without a worker. Its calls count
// as requests in progress.
func (f *Frontend) text(name string, d dialect, serve func(*call, context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{f: f, r: r, metrics: f.metrics.unknown, id: w.Header().Get("X-Request-Id"), visit: visitOf(r.Context())}
		d.name(w, c.id)
		c.answer = &answer{w: w, control: http.NewResponseController(w), timeout: f.cfg.WriteTimeout, refuse: d.refuse}
		defer c.release()
		defer c.giveBack()
		defer c.leave()
		f.inflight.Add(1)
		f.metrics.inflight.Inc()
		defer f.inflight.Add(-1)
		defer f.metrics.inflight.Dec()

		err := bounded.Contain(func() error {
			if err := c.admit(); err != nil {
				return err
			}
			ctx, cancel := c.context()
			defer cancel()
			return serve(c, ctx)
		})
		status := http.StatusOK
		if err != nil {
			c.answer.fail(err)
			status = fault.Of(err).Class().Status
		}
		c.metrics.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
		if status == http.StatusInternalServerError {
			f.deps.Log.Error("request failed", "request", c.id, "endpoint", name, "model", c.model, "error", err)
		}
		c.note(err)
	}
}

// serveTokenize answers POST /tokenize: the tokens that a worker would get for a prompt or a conversation.
func (c *call) tokenize(ctx context.Context) error {
	req, err := decoded(c, openai.DecodeTokenize)
	if err != nil {
		return err
	}
	find := c.f.catalog.encodes
	if req.Strings {
		find = c.f.catalog.find
	}
	m, err := c.find(find, req.Chat.Model)
	if err != nil {
		return err
	}
	if err := m.sees(&req.Chat); err != nil {
		return err
	}
	req.Chat.Owner = c.owner(req.Chat.CacheSalt)
	prompt, err := m.encodeRequest(ctx, req)
	if err == nil {
		c.borrow(&prompt)
		err = unseen(ctx, &prompt)
	}
	if err != nil {
		return err
	}
	tokens := prompt.Tokens
	out := openai.Tokenized{Tokens: tokens, ContextLength: m.card.ContextLength}
	size := len(tokens) * tokenBytes
	if req.Strings {
		out.Text = func(dst []byte, t kv.Token) []byte {
			dst, _ = m.pipe.Tokenizer.AppendBytes(dst, t)
			return dst
		}
		size += stringBytes * textLen(m, tokens)
	}
	return c.within(size, func() []byte { return openai.AppendTokenized(nil, &out) })
}

// serveCountTokens answers POST /v1/messages/count_tokens: the length of a conversation's prompt.
func (c *call) countTokens(ctx context.Context) error {
	q, err := decoded(c, anthropic.DecodeCount)
	if err != nil {
		return err
	}
	m, err := c.find(c.f.catalog.encodes, q.Model)
	if err != nil {
		return err
	}
	if err := m.sees(q); err != nil {
		return err
	}
	q.Owner = c.owner(q.CacheSalt)
	prompts, err := m.prompts(ctx, q)
	if err == nil {
		c.borrow(&prompts[0])
		err = unseen(ctx, &prompts[0])
	}
	if err != nil {
		return err
	}
	return c.answer.whole(append(anthropic.AppendCount(nil, len(prompts[0].Tokens)), '\n'))
}

func (m *model) encodeRequest(ctx context.Context, req *openai.TokenizeRequest) (p prep.Prompt, err error) {
	if len(req.Chat.Messages) > 0 {
		p, err = m.encoder.EncodeChat(ctx, m.conversation(&req.Chat))
	} else {
		p, err = m.encoder.EncodeText(ctx, req.Prompt, prep.EncodeOptions{ParseSpecial: true, AddSpecial: req.AddSpecial})
	}
	if err != nil && ctx.Err() != nil {
		return prep.Prompt{}, ended(ctx)
	}
	return p, err
}

// serveDetokenize answers POST /detokenize: the text of tokens, including special ones.
func (c *call) detokenize(context.Context) error {
	req, err := decoded(c, openai.DecodeDetokenize)
	if err != nil {
		return err
	}
	m, err := c.find(c.f.catalog.find, req.Model)
	if err != nil {
		return err
	}
	if err := m.known("tokens", req.Tokens); err != nil {
		return err
	}
	size := textLen(m, req.Tokens)
	if size > int(c.f.cfg.MaxBodyBytes) {
		return fault.Param("tokens", "'tokens' stand for a text of %d bytes; the limit is %d", size, c.f.cfg.MaxBodyBytes)
	}
	return c.within(size*(1+stringBytes), func() []byte {
		d := m.pipe.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
		var text []byte
		for _, t := range req.Tokens {
			text = d.Push(text, t)
		}
		return openai.AppendDetokenized(nil, d.Flush(text))
	})
}

// findModel returns the model that a request names, if find finds it and the call's key allows it, and
// sets it in the call's metrics.
func (c *call) find(find func(name string) (*model, error), name string) (*model, error) {
	m, err := find(name)
	if err = c.allowed(name, m, err); err != nil {
		return nil, err
	}
	c.model, c.metrics = m.card.Name, m.metrics
	return m, nil
}

// Upper bounds of the answers, in bytes: a token as a number, with its comma and the quotes and comma
// of its text; a byte of text in JSON.
const (
	tokenBytes  = 14
	stringBytes = 6
)

// sendBounded sends the body that the function makes, of at most size bytes, which count against the
// budget of all bodies meanwhile.
func (c *call) within(size int, body func() []byte) error {
	if !c.f.bodies.Take(int64(size)) {
		return c.f.noMemory()
	}
	defer c.f.bodies.Give(int64(size))
	return c.answer.whole(append(body(), '\n'))
}

// textLength is the number of bytes of the tokens' text.
func textLen(m *model, tokens []kv.Token) int {
	n := 0
	var text []byte
	for _, t := range tokens {
		text, _ = m.pipe.Tokenizer.AppendBytes(text[:0], t)
		n += len(text)
	}
	return n
}
