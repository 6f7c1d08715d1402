package frontend

import (
	"context"

	"penstock/core/fault"
	"penstock/core/media"
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
	prompt := prep.Prompt{Tokens: p.Answer.Tokens, Media: p.Answer.Media, Features: p.Answer.Features}
	if p.heldBytes > 0 {
		prompt.Release = p.releaseMemory
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
	if m := r.f.catalog.currentModel(r.model); len(m.Workers) > 0 && !m.MakesPrompts() && !req.ResolveMedia {
		return nil, fault.New(fault.Unimplemented, "no engine of the model '%s' makes prompts of texts, which this frontend asks of them: start it with --preprocess local, or send token ids", m.Card.Name)
	}
	p := &preprocessTask{f: r.f}
	p.Request, p.Workers, p.Vocabulary = *req, r.f.catalog.latestWorkers(r.model), r.model.Card.VocabSize
	p.StartAttempt, p.HoldMemory = p.releaseMemory, p.holdMemory
	if err := r.f.dispatcher.Preprocess(ctx, &p.Preprocessing, 1); err != nil {
		p.releaseMemory()
		return nil, err
	}
	return p, nil
}

// preprocessTask is a text or a conversation whose prompt a worker makes, with the memory of its answer. One
// goroutine uses it.
type preprocessTask struct {
	dispatch.Preprocessing
	f         *Frontend
	heldBytes int64 // of the body budget, for the answer's features
}

// featureCopies is the number of copies of a request's features in memory: received, and on the way to
// a worker.
const featureCopies = 2

// holdMemory takes room for a frame with a piece of features.
func (p *preprocessTask) holdMemory(n int) error {
	if !p.Request.Features {
		return nil
	}
	size := featureCopies * int64(n)
	if !p.f.bodies.TryReserve(size) {
		return p.f.noMemory()
	}
	p.heldBytes += size
	return nil
}

// releaseMemory drops the answer and its memory.
func (p *preprocessTask) releaseMemory() {
	p.f.bodies.Release(p.heldBytes)
	p.heldBytes, p.Answer = 0, engine.Preprocessed{}
}
