package tiny

import (
	"context"
	"math"
	"sync"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/sample"
)

// computer computes and samples; see [batch.Computer].
type computer struct {
	card *engine.Card
	mask []kv.Token
	// grammars are the compiled schemas in use; nil without structured output.
	grammars *grammarCache
	encoders *mediaEncoders // nil if the model is text-only
	content  mediaContent

	reuse   paged.Switch // of the KV cache's prefixes
	wake    func()       // the loop
	changes struct {
		sync.Mutex
		of []*shownMedia // whose requests are ready or have failed
	}

	// Used only by the engine's loop.
	shown   map[paged.SeqID]*shownMedia // of sequences which need rows
	failed  []batch.FailedSequence
	forward forwarder
	cache   *model.Cache
	sampler *sample.Sampler
	work    []model.Work
	logits  [][]float32 // one row for each sequence that samples
	allowed []uint64    // by a grammar, as bits
}

// forwarder computes one batch; *model.Model implements it.
type forwarder interface {
	Forward(c *model.Cache, work []model.Work) error
}

// choiceState is the computer's state of one choice, or of one embedding.
type choiceState struct {
	sampler    *sample.Choice
	constraint *constraint // nil if the text is unconstrained
	sum        []float64   // of the last hidden states; nil except for an embedding
	shown      *shownMedia // nil without media; the choices share it
	tokens     int         // with which it starts: the prompt and what was generated before
}

// Compile-time guards.
var (
	_ batch.HeldState = (*choiceState)(nil)
)

// Release implements [batch.HeldState].
func (c *choiceState) Release() { c.shown.release() }

// IsFinished implements [batch.State].
func (c *choiceState) IsFinished() bool { return c.constraint != nil && c.constraint.isComplete() }

// StartRequest implements [batch.Computer]. It encodes nothing.
func (c *computer) StartRequest(ctx context.Context, req *engine.Request, stops []kv.Token) (states []batch.State, err error) {
	if req.Salt.LoRA != "" {
		return nil, fault.New(fault.Unimplemented, "this engine serves no adapters; ask for the base model")
	}
	rules, err := c.grammars.openSchema(req.OutputSchema)
	if err != nil {
		return nil, err
	}
	shown, err := c.prepareMedia(ctx, req)
	if err != nil {
		return nil, err
	}
	states = make([]batch.State, req.Choices)
	for i := range states {
		if req.Done != nil && req.Done[i] {
			continue
		}
		var before []kv.Token
		if req.Generated != nil {
			before = req.Generated[i]
		}
		s := &choiceState{shown: shown, tokens: len(req.Prompt) + len(before)}
		if rules != nil {
			s.constraint = newConstraint(rules, stops, drawableTokens(stops, c.mask, c.card.VocabSize), req.Stop.MinTokens)
			if err := s.constraint.resumeText(before); err != nil {
				return nil, err
			}
		}
		s.sampler = sample.NewChoice(sample.Params{
			Sampling:  req.Sampling,
			Choice:    i,
			Stops:     stops,
			MinTokens: req.Stop.MinTokens,
			Logprobs:  req.Logprobs,
		}, req.Prompt, before)
		states[i] = s
	}
	return states, nil
}

// ComputeBatch implements [batch.Computer].
func (c *computer) ComputeBatch(_ context.Context, b *batch.Batch) error {
	c.prepareWork(b)
	defer clear(c.work) // else it keeps rows which are given up
	if err := c.computePass(); err != nil {
		return err
	}
	for i := range b.Plan.Work {
		s := b.States[i].(*choiceState)
		if w := &b.Plan.Work[i]; s.shown != nil {
			s.shown.finishTokens(w.ID, w.Start+len(w.Tokens))
		}
		if !b.Plan.Work[i].Sample || s.sum != nil {
			continue
		}
		d := &b.Drawn[i]
		d.Logprob, d.Err = c.drawToken(s, c.work[i].Logits)
	}
	return nil
}

// computePass computes the work, before encoders.
func (c *computer) computePass() error {
	if c.encoders != nil {
		c.encoders.pool.passes.Add(1)
		defer c.encoders.pool.passes.Add(-1)
	}
	return c.forward.Forward(c.cache, c.work)
}

// prepareWork turns the plan into work for the model, with a row of logits for each sequence that samples,
// and the sum for each embedding.
func (c *computer) prepareWork(b *batch.Batch) {
	c.work = c.work[:0]
	rows := 0
	for i := range b.Plan.Work {
		w := &b.Plan.Work[i]
		s := b.States[i].(*choiceState)
		work := model.Work{Tokens: w.Tokens, Start: w.Start, Blocks: w.Blocks}
		if s.shown != nil {
			work.Media = s.shown.placed
		}
		switch sum := s.sum; {
		case sum != nil:
			if w.Start == 0 { // at the start, or again after a preemption
				clear(sum)
			}
			work.Sum = sum
		case w.Sample:
			if rows == len(c.logits) {
				c.logits = append(c.logits, make([]float32, c.card.VocabSize))
			}
			work.Logits = c.logits[rows]
			rows++
		}
		c.work = append(c.work, work)
	}
}

// drawToken samples a choice's next token, one that its grammar allows.
func (c *computer) drawToken(s *choiceState, logits []float32) (engine.Logprob, error) {
	if s.constraint == nil {
		return c.sampler.Next(s.sampler, logits, nil)
	}
	allowed, err := s.constraint.allowedTokens(c.allowed, s.sampler.Position())
	if err != nil {
		return engine.Logprob{}, err
	}
	c.allowed = allowed
	token, err := c.sampler.Next(s.sampler, logits, allowed)
	if err == nil {
		err = s.constraint.acceptToken(token.Token)
	}
	return token, err
}

// Embed returns the embedding of one prompt; see [engine.Embedder]. Its errors are Generate's.
func (e *Engine) Embed(ctx context.Context, req *engine.EmbedRequest) ([]float32, error) {
	c := &choiceState{sum: make([]float64, e.hidden)}
	if err := e.Prefill(ctx, req, c); err != nil {
		return nil, err
	}
	return normalizeVector(c.sum)
}

// normalizeVector scales a vector to length 1 and rounds it once. The sum of hidden states therefore serves
// as well as their mean.
func normalizeVector(sum []float64) ([]float32, error) {
	var squares float64
	for _, v := range sum {
		squares += float64(v * v) // rounded separately, on every architecture
	}
	length := math.Sqrt(squares)
	if !(length > 0) || math.IsInf(length, 0) {
		return nil, fault.New(fault.Internal, "the model's hidden states of this input have no direction; is the checkpoint damaged?")
	}
	vector := make([]float32, len(sum))
	for i, v := range sum {
		vector[i] = float32(v / length)
	}
	return vector, nil
}

// BlockLayout implements [batch.BlockComputer].
func (c *computer) BlockLayout() engine.KVLayout {
	shape := c.cache.Model().Config()
	return engine.KVLayout{
		BlockSize: c.card.BlockSize, BlockBytes: shape.BlockBytes(c.card.BlockSize), Type: media.Float32, Order: model.BlockOrder, Numerics: c.card.BlockNumerics(),
	}
}

// ReadBlocks implements [batch.BlockComputer].
func (c *computer) ReadBlocks(ctx context.Context, dst []byte, blocks []int32) error {
	size := len(dst) / max(len(blocks), 1)
	for i, b := range blocks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.cache.ReadBlock(dst[i*size:][:size], b)
	}
	return nil
}

// WriteTokens implements [batch.BlockComputer].
func (c *computer) WriteTokens(blocks []int32, start, end int, b *engine.BlockData) error {
	size := b.Layout.BlockSize
	return c.cache.WriteTokens(blocks, start, end, &model.BlockBytes{Size: size, First: b.First * size, Data: b.Bytes})
}
