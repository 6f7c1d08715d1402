package frontend

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// newEncoder returns the prompt encoder of a model; nil if there is none.
func (f *Frontend) newEncoder(m *servedModel) prep.Encoder {
	e := f.newTextEncoder(m)
	if e == nil || !m.resolvesMedia() {
		return e
	}
	return routedMediaEncoder{e, &engineEncoder{f: f, model: m}}
}

// newTextEncoder is newEncoder without router processes which resolve media.
func (f *Frontend) newTextEncoder(m *servedModel) prep.Encoder {
	local := prep.LocalEncoder{Pipeline: m.pipeline, Media: f.mediaResolver(m)}
	switch {
	case m.isOpaque() && !m.MakesPrompts():
		return nil
	case f.cfg.Preprocess == PreprocessEngine || m.isOpaque():
		return &engineEncoder{f: f, model: m}
	case m.pipeline == nil:
		return nil
	case m.pipeline.Template == nil && m.MakesPrompts():
		return noTemplateEncoder{boundedEncoder: boundedEncoder{local, f.prompts, f.deps.Tracer}, model: m.Card.Name}
	}
	return boundedEncoder{local, f.prompts, f.deps.Tracer}
}

// noTemplateEncoder is the encoder of a model whose chat template runs on its engines but not here.
type noTemplateEncoder struct {
	boundedEncoder
	model string
}

// EncodeChat implements prep.Encoder.
func (u noTemplateEncoder) EncodeChat(context.Context, *prep.Chat) (prep.Prompt, error) {
	return prep.Prompt{}, fault.New(fault.Unimplemented, "the chat template of the model '%s' cannot be run here, but its engines can run it: start the frontend with --preprocess engine, or send a plain prompt to /v1/completions", u.model)
}

// engineEncoder asks the engines of a model, one worker after another until one answers.
type engineEncoder struct {
	f     *Frontend
	model *servedModel
}

var _ prep.Encoder = (*engineEncoder)(nil)

// EncodeChat implements prep.Encoder.
func (r *engineEncoder) EncodeChat(ctx context.Context, c *prep.Chat) (prep.Prompt, error) {
	if looks := r.f.deps.Media; looks != nil {
		if err := looks.CheckURLs(c); err != nil {
			return prep.Prompt{}, err
		}
	}
	p, err := r.makePrompt(ctx, &engine.PreprocessRequest{Chat: prep.AppendChat(nil, c), Features: c.Features})
	if err != nil || len(c.Media) == 0 || len(p.Media) == len(c.Media) {
		return p, err
	}
	// Tokens without media keys would be the same for any other image.
	p.Free()
	why := media.PlaceholderMismatch
	if r.model.Card.MediaKeys == "" {
		why = media.HashForwardDisabled
	}
	u := prep.NewUnresolvedError(why, c.Media[0].Part, "the engine does not tell how its prompt shows '%s'", c.Media[0].Part)
	return prep.Prompt{TextOnlyReason: u.Reason, TextOnlyError: u.Err}, nil
}

// EncodeText implements prep.Encoder.
func (r *engineEncoder) EncodeText(ctx context.Context, text string, opts prep.EncodeOptions) (prep.Prompt, error) {
	p, err := r.makePrompt(ctx, &engine.PreprocessRequest{Text: text, ParseSpecial: opts.ParseSpecial, AddSpecial: opts.AddSpecial})
	if err == nil && len(p.Media) > 0 {
		return prep.Prompt{}, engine.ContractError("media for a text", nil)
	}
	return p, err
}

// makePrompt returns the prompt that a worker makes.
func (r *engineEncoder) makePrompt(ctx context.Context, req *engine.PreprocessRequest) (prep.Prompt, error) {
	p, err := r.runRequest(ctx, req, promptCost*(len(req.Chat)+len(req.Text)))
	if err != nil {
		return prep.Prompt{}, err
	}
	prompt := prep.Prompt{Tokens: p.answer.Tokens, Media: p.answer.Media, Features: p.answer.Features}
	if p.heldBytes > 0 {
		prompt.Release = p.dropAnswer
	}
	return prompt, nil
}

// runRequest returns a preprocessing task that a worker has completed. It reserves cost bytes of the
// prompt memory meanwhile, as local prompts do.
func (r *engineEncoder) runRequest(ctx context.Context, req *engine.PreprocessRequest, cost int) (*preprocessTask, error) {
	reserved, err := r.f.prompts.Reserve(ctx, int64(cost))
	if err != nil {
		return nil, err
	}
	defer r.f.prompts.Release(reserved)
	req.ID, req.Model = requestIDOf(ctx), r.model.Card.Name
	p := &preprocessTask{f: r.f, model: r.model, request: req}
	if err := r.f.runAttempts(ctx, p, false); err != nil {
		p.dropAnswer()
		return nil, err
	}
	return p, nil
}

// preprocessTask is a text or a conversation whose prompt a worker makes. One goroutine uses it.
type preprocessTask struct {
	f         *Frontend
	model     *servedModel // at the request's arrival; each attempt looks up the current one
	request   *engine.PreprocessRequest
	answer    engine.Preprocessed // its Attempt is 0 until it has arrived
	heldBytes int64               // of the body budget, for the answer's features
}

// featureCopies is the number of copies of a request's features in memory: received, and on the way to
// a worker.
const featureCopies = 2

// reserveFrame takes room for a frame with a piece of features.
func (p *preprocessTask) reserveFrame(n int) error {
	if !p.request.Features {
		return nil
	}
	size := featureCopies * int64(n)
	if !p.f.bodies.TryReserve(size) {
		return p.f.noMemory()
	}
	p.heldBytes += size
	return nil
}

// dropAnswer drops the answer and its memory.
func (p *preprocessTask) dropAnswer() {
	p.f.bodies.Release(p.heldBytes)
	p.heldBytes, p.answer = 0, engine.Preprocessed{}
}

// TokensDelivered implements dispatch.Task.
func (p *preprocessTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (p *preprocessTask) MoveKind() string { return dispatch.MovePreprocess }

// ChooseWorker picks capable workers round-robin: preprocessing is not counted as router load and
// depends on no cache.
func (p *preprocessTask) ChooseWorker(_ context.Context, _ uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := p.f.catalog.currentModel(p.model)
	var able []*catalog.Worker
	for _, w := range m.Workers {
		if canPreprocess(w.Card, p.request) && !slices.Contains(failed, w.ID) {
			able = append(able, w)
		}
	}
	switch {
	case len(able) > 0:
		in := able[(p.f.nextWorker.Add(1)-1)%uint64(len(able))]
		return route.Decision{Worker: kv.Worker{ID: in.ID}, Addr: in.Addr}, nil
	case m.MakesPrompts() || p.request.ResolveMedia:
		return route.Decision{}, fault.New(fault.Unavailable, "no worker of the model '%s' that makes prompts is left: try again later", m.Card.Name)
	case len(m.Workers) == 0:
		return route.Decision{}, fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", m.Card.Name)
	}
	return route.Decision{}, fault.New(fault.Unimplemented, "no engine of the model '%s' makes prompts of texts, which this frontend asks of them: start it with --preprocess local, or send token ids", m.Card.Name)
}

// RunAttempt makes one attempt. It reserves nothing.
func (p *preprocessTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	p.dropAnswer()
	p.request.Attempt = number
	body := engine.AppendPreprocessRequest(nil, p.request)
	limit := p.f.cfg.PreprocessTimeout
	if p.request.ResolveMedia {
		limit = max(limit, resolveTimeout)
	}
	err := dispatch.CallWorker(ctx, p.f.deps.Plane, limit, d, engine.MethodPreprocess, body, func(frame []byte) error {
		if err := p.reserveFrame(len(frame)); err != nil {
			return err
		}
		return p.answer.TakeFrame(frame, number, p.model.Card.VocabSize)
	})
	if p.answer.Attempt != 0 {
		return nil // regardless of the call's error
	}
	return err
}
