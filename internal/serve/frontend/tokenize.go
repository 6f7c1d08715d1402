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
func (f *Frontend) serveText(name string, d apiDialect, serve func(*apiCall, context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &apiCall{f: f, r: r, metrics: f.metrics.unknown, id: w.Header().Get("X-Request-Id"), record: recordOf(r.Context())}
		d.setRequestID(w, c.id)
		c.answer = &answerWriter{w: w, controller: http.NewResponseController(w), timeout: f.cfg.WriteTimeout, refuse: d.refuse}
		defer c.releaseBody()
		defer c.releaseMedia()
		defer c.leaveKey()
		f.inflight.Add(1)
		f.metrics.inflight.Inc()
		defer f.inflight.Add(-1)
		defer f.metrics.inflight.Dec()

		err := bounded.RecoverPanic(func() error {
			if err := c.admitRequest(); err != nil {
				return err
			}
			ctx, cancel := c.requestContext()
			defer cancel()
			return serve(c, ctx)
		})
		status := http.StatusOK
		if err != nil {
			c.answer.sendError(err)
			status = fault.CodeOf(err).Class().Status
		}
		c.metrics.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
		if status == http.StatusInternalServerError {
			f.deps.Log.Error("request failed", "request", c.id, "endpoint", name, "model", c.model, "error", err)
		}
		c.fillRecord(err)
	}
}

// serveTokenize answers POST /tokenize: the tokens that a worker would get for a prompt or a conversation.
func (c *apiCall) serveTokenize(ctx context.Context) error {
	req, err := decodeBody(c, openai.DecodeTokenize)
	if err != nil {
		return err
	}
	find := c.f.catalog.findEncodable
	if req.Strings {
		find = c.f.catalog.findDecodable
	}
	m, err := c.findModel(find, req.Chat.Model)
	if err != nil {
		return err
	}
	if err := m.checkMedia(&req.Chat); err != nil {
		return err
	}
	req.Chat.Owner = c.mediaOwner(req.Chat.CacheSalt)
	prompt, err := m.encodeRequest(ctx, req)
	if err == nil {
		c.keepMedia(&prompt)
		err = requireMedia(ctx, &prompt)
	}
	if err != nil {
		return err
	}
	tokens := prompt.Tokens
	out := openai.Tokenized{Tokens: tokens, ContextLength: m.Card.ContextLength}
	size := len(tokens) * tokenBytes
	if req.Strings {
		out.Text = func(dst []byte, t kv.Token) []byte {
			dst, _ = m.pipeline.Tokenizer.AppendBytes(dst, t)
			return dst
		}
		size += stringBytes * textLength(m, tokens)
	}
	return c.sendBounded(size, func() []byte { return openai.AppendTokenized(nil, &out) })
}

// serveCountTokens answers POST /v1/messages/count_tokens: the length of a conversation's prompt.
func (c *apiCall) serveCountTokens(ctx context.Context) error {
	q, err := decodeBody(c, anthropic.DecodeCount)
	if err != nil {
		return err
	}
	m, err := c.findModel(c.f.catalog.findEncodable, q.Model)
	if err != nil {
		return err
	}
	if err := m.checkMedia(q); err != nil {
		return err
	}
	q.Owner = c.mediaOwner(q.CacheSalt)
	prompts, err := m.makePrompts(ctx, q)
	if err == nil {
		c.keepMedia(&prompts[0])
		err = requireMedia(ctx, &prompts[0])
	}
	if err != nil {
		return err
	}
	return c.answer.sendWhole(append(anthropic.AppendCount(nil, len(prompts[0].Tokens)), '\n'))
}

func (m *servedModel) encodeRequest(ctx context.Context, req *openai.TokenizeRequest) (p prep.Prompt, err error) {
	if len(req.Chat.Messages) > 0 {
		p, err = m.encoder.EncodeChat(ctx, m.chatOf(&req.Chat))
	} else {
		p, err = m.encoder.EncodeText(ctx, req.Prompt, prep.EncodeOptions{ParseSpecial: true, AddSpecial: req.AddSpecial})
	}
	if err != nil && ctx.Err() != nil {
		return prep.Prompt{}, contextError(ctx)
	}
	return p, err
}

// serveDetokenize answers POST /detokenize: the text of tokens, including special ones.
func (c *apiCall) serveDetokenize(context.Context) error {
	req, err := decodeBody(c, openai.DecodeDetokenize)
	if err != nil {
		return err
	}
	m, err := c.findModel(c.f.catalog.findDecodable, req.Model)
	if err != nil {
		return err
	}
	if err := m.checkTokens("tokens", req.Tokens); err != nil {
		return err
	}
	size := textLength(m, req.Tokens)
	if size > int(c.f.cfg.MaxBodyBytes) {
		return fault.InvalidParam("tokens", "'tokens' stand for a text of %d bytes; the limit is %d", size, c.f.cfg.MaxBodyBytes)
	}
	return c.sendBounded(size*(1+stringBytes), func() []byte {
		d := m.pipeline.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: true})
		var text []byte
		for _, t := range req.Tokens {
			text = d.Push(text, t)
		}
		return openai.AppendDetokenized(nil, d.Flush(text))
	})
}

// findModel returns the model that a request names, if find finds it and the call's key allows it, and
// sets it in the call's metrics.
func (c *apiCall) findModel(find func(name string) (*servedModel, error), name string) (*servedModel, error) {
	m, err := find(name)
	if err = c.checkAllowed(name, m, err); err != nil {
		return nil, err
	}
	c.model, c.metrics = m.Card.Name, m.metrics
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
func (c *apiCall) sendBounded(size int, body func() []byte) error {
	if !c.f.bodies.TryReserve(int64(size)) {
		return c.f.noMemory()
	}
	defer c.f.bodies.Release(int64(size))
	return c.answer.sendWhole(append(body(), '\n'))
}

// textLength is the number of bytes of the tokens' text.
func textLength(m *servedModel, tokens []kv.Token) int {
	n := 0
	var text []byte
	for _, t := range tokens {
		text, _ = m.pipeline.Tokenizer.AppendBytes(text[:0], t)
		n += len(text)
	}
	return n
}
