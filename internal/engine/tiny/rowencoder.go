package tiny

import (
	"context"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
)

// RowEncoder encodes media for other workers, and generates nothing: it has the model's encoders and an embedding
// cache of its own, and no KV cache. Create it with [Open].
type RowEncoder struct {
	card     engine.Card
	encoders *mediaEncoders // nil if the model is text-only
	content  mediaContent
}

// Compile-time guards.
var (
	_ engine.Engine       = (*RowEncoder)(nil)
	_ engine.LoadSource   = (*RowEncoder)(nil)
	_ engine.MediaEncoder = (*RowEncoder)(nil)
)

// newRowEncoder makes a RowEncoder around a network.
func newRowEncoder(cfg *Config, n *network) *RowEncoder {
	e := &RowEncoder{card: newCard(cfg, n, n.model.Config().MaxPositions), content: newContent(cfg)}
	e.card.Blocks = 0
	if of := n.encoders; of != nil {
		own := *cfg
		own.Remote = nil
		e.encoders = newEncodersOf(&own, of.model, of.family, of.colours, of.rows.encoder)
	}
	return e
}

// Card describes the model.
func (e *RowEncoder) Card() engine.Card { return e.card }

// Run returns when ctx ends and the encoders have stopped.
func (e *RowEncoder) Run(ctx context.Context) error {
	wait := func() error {
		<-ctx.Done()
		return nil
	}
	if e.encoders == nil {
		return wait()
	}
	return e.encoders.pool.runUser(wait)
}

// Generate is Unimplemented.
func (e *RowEncoder) Generate(context.Context, *engine.Request, func(*engine.Delta) error) error {
	return fault.New(fault.Unimplemented, "this engine encodes media and generates nothing")
}

// Load returns the objects which are being encoded and wait for it as running and waiting.
func (e *RowEncoder) Load() engine.Load {
	if e.encoders == nil {
		return engine.Load{}
	}
	running, waiting := e.encoders.pool.countJobs()
	return engine.Load{Running: running, Waiting: waiting}
}

// EncodeLoad implements [engine.MediaEncoder].
func (e *RowEncoder) EncodeLoad() int {
	l := e.Load()
	return l.Running + l.Waiting
}

// EmbeddingSource returns the encoder's embedding cache; nil if it keeps nothing.
func (e *RowEncoder) EmbeddingSource() engine.EmbeddingSource { return e.encoders.source() }

// EncoderStats returns the figures of the encoders and of their embedding cache.
func (e *RowEncoder) EncoderStats() engine.EncoderStats { return e.encoders.stats() }

// EncodeStats returns the figures of the encoders' jobs and memory.
func (e *RowEncoder) EncodeStats() engine.EncodeStats { return e.encoders.encodeStats() }

// EncodeObject implements [engine.MediaEncoder].
func (e *RowEncoder) EncodeObject(ctx context.Context, req *engine.EncodeRequest, o *media.Object) (*engine.EncodedObject, error) {
	s := e.encoders
	if err := s.checkRequest(req, o); err != nil {
		return nil, err
	}
	w := &rowRequest{id: req.ID, object: o, namespace: req.Namespace, cachedOnly: req.CachedOnly}
	key := s.rows.keyOf(o, req.Namespace)
	if req.CachedOnly && !s.rows.hasRows(&key) && !s.rows.isBelow(&key) && !s.runs.has(runKey{key, 0}) {
		// Only other workers of the host may have them. If they do not, the look-up counts when it comes with the object.
		r, err := s.missingRows(ctx, &e.content, w, &key)
		if err != nil {
			return nil, err
		}
		return s.answerRows(&r, true), nil
	}
	r, cached := s.rows.lookupRows(&key, 0)
	if !cached {
		var err error
		if r, err = s.missingRows(ctx, &e.content, w, &key); err != nil {
			return nil, err
		}
	}
	return s.answerRows(&r, cached || r.raised), nil
}

// checkRequest returns why rows that another worker asks for are not made here.
func (s *mediaEncoders) checkRequest(req *engine.EncodeRequest, o *media.Object) error {
	switch {
	case s == nil || !s.acceptsKind(o.Kind):
		return objectError(o, "the model takes no media of kind %v", o.Kind)
	case req.Encoder != "" && req.Encoder != s.rows.encoder:
		return fault.New(fault.Conflict, "encode: rows of %.200q are not made here, but of %.200q", req.Encoder, s.rows.encoder)
	}
	return nil
}

// answerRows returns rows for another worker, which gives them back.
func (s *mediaEncoders) answerRows(r *storedRows, cached bool) *engine.EncodedObject {
	own := *r
	return &engine.EncodedObject{
		Rows: media.EncoderRows{
			Shape: []int{len(own.rows) / s.rows.width, s.rows.width}, Type: media.Float32, Grid: own.grid, Encoder: s.rows.encoder,
			Data: littleBytes(own.rows),
		},
		Cached:  cached,
		Release: func() { s.rows.releaseRows(&own) },
	}
}

var _ engine.RowHolder = (*Engine)(nil)

// HeldRows implements [engine.RowHolder]. It joins look-ups in the tiers alone, and no computation: that might wait for the
// worker which asks.
func (e *Engine) HeldRows(ctx context.Context, req *engine.EncodeRequest, o *media.Object) (*engine.EncodedObject, error) {
	s := e.cpu.encoders
	if err := s.checkRequest(req, o); err != nil {
		return nil, err
	}
	key := s.rows.keyOf(o, req.Namespace)
	r, ok := s.rows.repeatLookup(&key, 0) // the look-up counts where it was made
	switch {
	case ok:
	case !s.rows.isBelow(&key):
		return nil, errNotCached
	default:
		var err error
		if r, err = s.missingRows(ctx, &e.cpu.content, &rowRequest{id: req.ID, object: o, namespace: req.Namespace, cachedOnly: true}, &key); err != nil {
			return nil, err
		}
	}
	return s.answerRows(&r, true), nil
}
