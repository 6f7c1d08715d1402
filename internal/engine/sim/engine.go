package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
)

// Engine is a simulated engine. Create it with [New].
//
// Its streams satisfy the contract of engines: the token at a position of a choice is a function of the
// prompt, the seed, the choice and the position, so a stream that moves to another engine of equal numerics
// continues as if it had not moved. Sampling parameters are checked but have no effect, except that a
// temperature above 0 makes the answer depend on the seed. Adapters cost nothing and share no blocks with the
// model. Log-probabilities are invented: the probability halves from one alternative to the next.
type Engine struct {
	*batch.Engine
	computer *computer
	startup  time.Duration
	started  chan struct{}
	ran      atomic.Bool
	pool     *poolAttachment // nil without a pool
}

// Compile-time guards.
var (
	_ engine.Engine        = (*Engine)(nil)
	_ engine.KVSource      = (*Engine)(nil)
	_ engine.LoadSource    = (*Engine)(nil)
	_ engine.BlockProvider = (*Engine)(nil)
	_ engine.BlockReceiver = (*Engine)(nil)
	_ batch.MediaComputer  = (*computer)(nil)
	_ batch.BlockComputer  = (*computer)(nil)
)

// New returns an engine that does nothing until Run, or all problems of cfg.
func New(cfg Config) (*Engine, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	card := engine.Card{
		Name:           cfg.Name,
		Aliases:        cfg.Aliases,
		Engine:         "sim",
		BlockSize:      cfg.BlockSize,
		Blocks:         cfg.Blocks,
		Ranks:          1,
		ContextLength:  min(cfg.ContextLength, cfg.Blocks*cfg.BlockSize),
		VocabSize:      cfg.Vocabulary.Size,
		EOS:            cfg.Vocabulary.EOS,
		Defaults:       engine.Sampling{Temperature: 1},
		Tokenizer:      cfg.Tokenizer,
		Media:          cfg.Media,
		AcceptsObjects: len(cfg.Media) > 0,
		NoPrefixCache:  cfg.Reuse == paged.Off,

		MaxBatchedTokens: cfg.TokenBudget,
	}
	s, err := newScript(&cfg, card.ContextLength)
	if err != nil {
		return nil, err
	}
	card.Numerics = s.numericsID()
	c := &computer{script: s, faults: cfg.MediaFaults, timing: cfg.Timing, blocks: cfg.Blocks, clock: passClock{kind: cfg.Clock}}
	c.timing.Seed = splitmix.Mix(cfg.Timing.Seed + cfg.Worker*splitmix.Step)
	c.layout = engine.KVLayout{BlockSize: cfg.BlockSize, BlockBytes: simTokenBytes * cfg.BlockSize, Type: media.Float32, Order: "simulated", Numerics: card.BlockNumerics()}
	c.openEncoders(&cfg)
	bc := batch.Config{
		Card:        card,
		MaxSeqs:     cfg.MaxSeqs,
		TokenBudget: cfg.TokenBudget,
		MaxWaiting:  cfg.MaxWaiting,
		Reuse:       cfg.Reuse,
		Chunking:    cfg.Chunking,
	}
	if cfg.MoE != (MoE{}) {
		bc.LabelEvents = cfg.MoE.labelBlocks
	}
	var pool *poolAttachment
	if cfg.Pool != nil {
		pool = cfg.Pool.attachWorker(cfg.PoolWorker, cfg.Timing.TransferDuration(cfg.BlockSize))
		bc.SharedMemory = pool
	}
	shell, err := batch.New(bc, c)
	if err != nil {
		return nil, fmt.Errorf("sim config: %w", err)
	}
	if pool != nil {
		pool.setWake(shell.Wake)
	}
	c.wake = shell.Wake
	return &Engine{Engine: shell, computer: c, startup: cfg.Timing.Startup, started: make(chan struct{}), pool: pool}, nil
}

// Run waits for the startup time and then computes until ctx ends; see [engine.Engine]. Earlier calls of
// Generate wait. An engine runs once: a second Run returns a Conflict error.
func (e *Engine) Run(ctx context.Context) error {
	if !e.ran.CompareAndSwap(false, true) {
		return fault.New(fault.Conflict, "sim model %s: the engine ran already; make a new one", e.Card().Name)
	}
	if e.pool != nil {
		defer e.pool.detachWorker()
	}
	starting := time.NewTimer(e.startup)
	defer starting.Stop()
	select {
	case <-starting.C:
		close(e.started)
	case <-ctx.Done():
	}
	e.computer.clock.openSleeper(ctx)
	defer e.computer.clock.closeSleeper()
	defer e.computer.stopTimer()
	return e.Engine.Run(ctx) // if ctx has ended, this releases all requests
}

// EncoderStats returns the figures of the engine's encoder and of its embedding cache.
func (e *Engine) EncoderStats() engine.EncoderStats {
	return engine.EncoderStats{Encoded: e.computer.encoders.Runs.Load(), Cache: e.computer.encoders.Rows.Stats()}
}

// Started is closed when the engine is up. A worker that is called before lets its callers wait.
func (e *Engine) Started() <-chan struct{} { return e.started }

// computer computes nothing and takes the model's time for it; see [batch.Computer].
type computer struct {
	script *answerScript
	faults []MediaFault
	timing Timing
	blocks int
	layout engine.KVLayout

	// Owned by the engine's loop.
	clock    passClock
	passes   uint64
	encoders Encoders
	beside   Timing    // of the encoders, which have a jitter of their own
	origin   time.Time // of the times of encoders
	ready    []paged.RangeID
	timer    *time.Timer // wakes the loop when an object has been encoded; nil before the first one
	wake     func()
}

// StartRequest implements [batch.Computer].
func (c *computer) StartRequest(_ context.Context, req *engine.Request, stops []kv.Token) ([]batch.State, error) {
	if err := failMedia(c.faults, req); err != nil {
		return nil, err
	}
	return c.script.newStates(req, stops), nil
}

// ComputeBatch implements [batch.Computer]. It draws the tokens within the time of the pass, so that drawing
// adds no time.
func (c *computer) ComputeBatch(ctx context.Context, b *batch.Batch) error {
	pass := DescribePass(b.Plan, b.Stats, c.blocks)
	for i := range b.Plan.Work {
		w, ch := &b.Plan.Work[i], b.States[i].(*scriptedChoice)
		if w.Prefill > 0 {
			pass.EncodeMillis += c.encodeInPass(ch.parts, w)
		}
		if w.Sample {
			b.Drawn[i].Logprob, b.Drawn[i].Err = ch.nextToken()
		}
	}
	d := c.timing.PassDuration(&pass, c.passes)
	c.passes++
	return c.clock.waitForPass(ctx, d, b.BackToBack)
}

// simTokenBytes is the size of a token in the bytes which stand for K and V: one element, which is 0.
const simTokenBytes = 4

// BlockLayout implements [batch.BlockComputer]. K and V are not simulated: few bytes without a meaning are moved for them,
// and the time is that of Timing.KV.
func (c *computer) BlockLayout() engine.KVLayout { return c.layout }

// ReadBlocks implements [batch.BlockComputer]. It takes the time of a transfer to another worker.
func (c *computer) ReadBlocks(ctx context.Context, dst []byte, blocks []int32) error {
	clear(dst)
	arrived := time.NewTimer(c.timing.TransferDuration(len(blocks) * c.layout.BlockSize))
	defer arrived.Stop()
	select {
	case <-arrived.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WriteTokens implements [batch.BlockComputer].
func (c *computer) WriteTokens([]int32, int, int, *engine.BlockData) error { return nil }

// openEncoders makes the encoders.
func (c *computer) openEncoders(cfg *Config) {
	c.beside, c.origin = c.timing, time.Now()
	c.beside.Seed = splitmix.Mix(c.timing.Seed + splitmix.Step)
	c.encoders.Timing, c.encoders.Rows = &c.beside, NewRowMemory(cfg.EmbeddingCache)
	c.encoders.SetCount(cfg.Encoders)
}

// encodeInPass encodes what a pass needs of a prompt, if no encoders are beside the passes, and returns how long it
// takes.
func (c *computer) encodeInPass(parts []MediaPart, w *paged.Work) float64 {
	if !c.encoders.EncodesInPass() {
		return 0
	}
	return c.encoders.EncodeInPass(parts, w.Start, w.Start+w.Prefill)
}

// sinceOrigin returns the time of the encoders.
func (c *computer) sinceOrigin() kv.Mono { return kv.Mono(time.Since(c.origin)) }

// UnfinishedRanges implements [batch.MediaComputer].
func (c *computer) UnfinishedRanges(s batch.State) []paged.TokenRange {
	if c.encoders.EncodesInPass() {
		return nil
	}
	return UnfinishedRanges(s.(*scriptedChoice).parts)
}

// StartEncoding implements [batch.MediaComputer].
func (c *computer) StartEncoding(id paged.SeqID, s batch.State, ready int) {
	c.ready = c.encoders.StartSequence(c.sinceOrigin(), id, s.(*scriptedChoice).parts, ready, c.ready)
	c.armTimer()
}

// StopEncoding implements [batch.MediaComputer].
func (c *computer) StopEncoding(id paged.SeqID) {
	c.ready = c.encoders.StopSequence(c.sinceOrigin(), id, c.ready)
	c.armTimer()
}

// AppendEncoded implements [batch.MediaComputer].
func (c *computer) AppendEncoded(dst []paged.RangeID) []paged.RangeID {
	dst = append(dst, c.ready...)
	c.ready = c.ready[:0]
	if _, busy := c.encoders.Deadline(); busy {
		dst = c.encoders.FinishDue(c.sinceOrigin(), dst)
		c.armTimer()
	}
	return dst
}

// armTimer makes the timer wake the loop when the next object has been encoded.
func (c *computer) armTimer() {
	at, busy := c.encoders.Deadline()
	switch {
	case !busy:
		c.stopTimer()
	case c.timer == nil:
		c.timer = time.AfterFunc(at.Sub(c.sinceOrigin()), c.wake)
	default:
		c.timer.Reset(at.Sub(c.sinceOrigin()))
	}
}

func (c *computer) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// mediaParts returns the media objects of a request which have tokens. Without what they show they have no key.
func mediaParts(req *engine.Request) []MediaPart {
	var parts []MediaPart
	for i, m := range req.Media {
		if m.Start >= m.End {
			continue
		}
		p := MediaPart{Start: m.Start, End: m.End}
		if len(req.Objects) == len(req.Media) {
			o := &req.Objects[i]
			p.Kind = o.Kind
			p.Key = embcache.RowKey{Salt: req.Salt.Namespace, Kind: uint8(o.Kind), Digest: o.Key.Digest}
		}
		parts = append(parts, p)
	}
	return parts
}

// MoE is the shape of a mixture-of-experts model. The zero MoE means none: blocks have no labels.
type MoE struct {
	Layers, Experts int
	// Groups is the number of groups of consecutive experts; 0 means no groups.
	Groups int
}

// maxMoE bounds each number of a MoE, far above real models.
const maxMoE = 1 << 20

// isValid reports whether such a model is possible.
func (m MoE) isValid() bool {
	if m == (MoE{}) {
		return true
	}
	return m.Layers >= 1 && m.Layers <= maxMoE && m.Experts >= 1 && m.Experts <= maxMoE && m.Groups >= 0 && m.Groups <= m.Experts
}

// labelBlocks gives each block which is stored, or goes into a pool, an expert. The label is a function of the
// block's hash, so every event of every engine has the same label for a block.
func (m MoE) labelBlocks(events []kv.Event) {
	for i := range events {
		ev := &events[i]
		switch {
		case ev.Kind == kv.Moved && (ev.Move.To == kv.InTransit || ev.Move.To == kv.Pooled):
			ev.Labels = make([]kv.MoELabel, len(ev.Seqs))
			for j, seq := range ev.Seqs {
				ev.Labels[j] = m.labelFor(seq)
			}
			continue
		case ev.Kind != kv.Stored:
			continue
		}
		ev.Labels = make([]kv.MoELabel, len(ev.Blocks))
		name := ev.Parent
		for j, b := range ev.Blocks {
			name = kv.ExtendSeq(name, ev.Start+uint32(j), b)
			ev.Labels[j] = m.labelFor(name)
		}
	}
}

// labelFor returns the label of a block.
func (m MoE) labelFor(name kv.SeqHash) kv.MoELabel {
	h := splitmix.Mix(uint64(name) + splitmix.Step)
	l := kv.MoELabel{
		Has:    kv.HasExpert,
		Layer:  uint32((h >> 32) % uint64(m.Layers)),
		Expert: uint32((h & 0xffffffff) % uint64(m.Experts)),
	}
	if m.Groups > 0 {
		l.Has |= kv.HasGroup
		l.Group = uint32(uint64(l.Expert) * uint64(m.Groups) / uint64(m.Experts))
	}
	return l
}
