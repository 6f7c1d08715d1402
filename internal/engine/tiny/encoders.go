package tiny

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/patch"
)

// mediaEncoders encodes the media of a model: how many tokens an object takes, how it is prepared, and the
// rows of recently encoded objects. The engines that share a model's weights share it.
type mediaEncoders struct {
	model   *model.Model
	family  *family.Family
	colours patch.Colours
	rows    *rowStore
	// encoded, failed and cancelled count the runs of an encoder by their end.
	encoded, failed, cancelled atomic.Uint64
	// openSem bounds the objects which are held decoded to the number of processors. encodeSem has room for
	// one: objects are encoded one at a time, each on all processors.
	openSem, encodeSem chan struct{}
}

func newMediaEncoders(cfg *Config, m *model.Model, f *family.Family, c patch.Colours) *mediaEncoders {
	return &mediaEncoders{
		model: m, family: f, colours: c, openSem: make(chan struct{}, runtime.GOMAXPROCS(0)), encodeSem: make(chan struct{}, 1),
		rows: newRowStore(cfg, fmt.Sprintf("%s %v", m.Numerics(), c), m.Config().HiddenSize),
	}
}

// EncoderStats are figures of media encoders and of their embedding cache.
type EncoderStats struct {
	Encoded, Failed, Cancelled uint64 // runs of an encoder
	Cache                      embcache.Stats
}

// EncoderStats returns the figures of the engine's encoders, which are those of all engines made with it. A
// text-only model has none.
func (e *Engine) EncoderStats() EncoderStats {
	s := e.cpu.encoders
	if s == nil {
		return EncoderStats{}
	}
	return EncoderStats{Encoded: s.encoded.Load(), Failed: s.failed.Load(), Cancelled: s.cancelled.Load(), Cache: s.rows.stats()}
}

// mediaKinds lists the media which a model accepts, ascending, for its card.
func (s *mediaEncoders) mediaKinds() (names []string) {
	if s == nil {
		return nil
	}
	for _, k := range []media.Kind{media.Audio, media.Image, media.Video} {
		if s.acceptsKind(k) {
			names = append(names, k.String())
		}
	}
	return names
}

// acceptsKind reports whether the model has an encoder and a placeholder for a kind of media.
func (s *mediaEncoders) acceptsKind(k media.Kind) bool {
	shape := s.model.Config()
	able := shape.Vision != (model.Vision{})
	if k == media.Audio {
		able = shape.Audio != (model.Audio{})
	}
	return able && s.family.Supports(k)
}

// preparedMedia are the media objects of a request. release gives their rows back.
type preparedMedia struct {
	placed *model.PlacedMedia
	rows   []storedRows
	store  *rowStore
	// leftOut is the position after the last object that was left out, 0 if none was.
	leftOut int
}

func (p *preparedMedia) release() {
	if p == nil {
		return
	}
	for i := range p.rows {
		p.store.releaseRows(&p.rows[i])
	}
	p.rows = nil
}

// prepareMedia returns the media objects of a request, nil if there are none. It leaves out what is not needed
// if the first cached tokens are in the KV cache. Its errors name the part of the request that is wrong.
func (c *computer) prepareMedia(ctx context.Context, req *engine.Request, cached int) (prepared *preparedMedia, err error) {
	switch {
	case len(req.Objects) == 0 && (len(req.Media) == 0 || c.encoders == nil):
		return nil, nil
	case c.encoders == nil:
		return nil, objectError(&req.Objects[0], "the model takes text alone; leave it out, or ask another model")
	case len(req.Objects) != len(req.Media):
		return nil, fault.InvalidParam("media", "%d media objects for the %d places that the prompt has for them", len(req.Objects), len(req.Media))
	}
	p := &preparedMedia{store: c.encoders.rows}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	objects := make([]model.Object, len(req.Objects))
	for i := range req.Objects {
		o := &req.Objects[i]
		start, pads, err := c.encoders.padRun(o, req.Prompt, req.Media[i])
		if err != nil {
			return nil, err
		}
		if start+pads <= cached {
			if grid, ok := c.encoders.gridOf(o, pads); ok {
				objects[i] = model.Object{Start: start, Count: pads, Grid: grid}
				p.leftOut = max(p.leftOut, start+pads)
				continue
			}
		}
		r, err := c.encoders.encodedRows(ctx, &c.content, o, req.Salt.Namespace, pads)
		if err != nil {
			return nil, err
		}
		p.rows = append(p.rows, r)
		objects[i] = model.Object{Start: start, Rows: r.rows, Grid: r.grid}
	}
	if p.placed, err = c.encoders.model.PlaceMedia(objects); err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Param: "media", Message: "the media objects of the prompt overlap, or are not in its order", Err: err}
	}
	return p, nil
}

// SavesByPrefix implements [batch.PartialComputer]: rows that are not kept need not be computed.
func (c *computer) SavesByPrefix(req *engine.Request) bool {
	return c.encoders != nil && slices.ContainsFunc(req.Objects, func(o media.Object) bool {
		key := c.encoders.rows.keyOf(&o, req.Salt.Namespace)
		return !c.encoders.rows.hasRows(&key)
	})
}

// gridOf returns the grid of an object with the given number of pads, if its size is known without its content.
func (s *mediaEncoders) gridOf(o *media.Object, pads int) (grid [3]int, ok bool) {
	size := o.Size
	dimensions := [...]int{media.Image: 3, media.Video: 4, media.Audio: 1}
	if len(o.Tensor.Shape) == dimensions[o.Kind] {
		size = sizeOf(o, &o.Tensor)
	}
	layout, err := s.family.Layout(o.Kind, size)
	return layout.Grid, err == nil && layout.PadCount == pads
}

// objectError is an error about an object, for its client.
func objectError(o *media.Object, format string, args ...any) *fault.Error {
	err := fault.InvalidParam(o.Part, format, args...)
	if o.Part != "" {
		err.Message = "'" + o.Part + "': " + err.Message
	}
	return err
}

// padRun returns where the rows of an object go: the run of its family's pads in its range.
func (s *mediaEncoders) padRun(o *media.Object, prompt []kv.Token, at kv.Media) (start, n int, err error) {
	pad, ok := s.family.PadToken(o.Kind)
	if !ok || !s.acceptsKind(o.Kind) {
		return 0, 0, objectError(o, "the model takes no media of kind %v", o.Kind)
	}
	for i := at.Start; i < at.End; i++ {
		switch {
		case prompt[i] != pad:
		case n > 0 && start+n != i:
			return 0, 0, objectError(o, "its tokens in the prompt have others among them")
		default:
			start, n = i-n, n+1
		}
	}
	if n == 0 {
		return 0, 0, objectError(o, "the prompt has no tokens that hold its place")
	}
	return start, n, nil
}

// encodedRows returns the rows of an object with the given number of pads in the prompt, for requests of a
// namespace. The caller gives them back to the store.
func (s *mediaEncoders) encodedRows(ctx context.Context, from *mediaContent, o *media.Object, namespace string, pads int) (storedRows, error) {
	key := s.rows.keyOf(o, namespace)
	if r, ok := s.rows.lookupRows(&key, pads); ok {
		return r, nil
	}
	in, err := from.findContent(ctx, o)
	if err != nil {
		return storedRows{}, err
	}
	defer in.release()
	if err := acquireSem(ctx, s.openSem); err != nil {
		return storedRows{}, err
	}
	defer releaseSem(s.openSem)
	t, err := in.decodeTensor(o)
	if err != nil {
		return storedRows{}, err
	}
	size := sizeOf(o, &t)
	layout, err := s.family.Layout(o.Kind, size)
	var refused *family.SizeError
	switch {
	case errors.As(err, &refused):
		return storedRows{}, objectError(o, "%s", refused.Detail)
	case err != nil:
		return storedRows{}, objectError(o, "%v", err)
	case layout.PadCount != pads:
		return storedRows{}, objectError(o, "the prompt has %d tokens for it and it takes %d; is what its URL shows another one by now?", pads, layout.PadCount)
	}
	if err := acquireSem(ctx, s.encodeSem); err != nil {
		return storedRows{}, err
	}
	defer releaseSem(s.encodeSem)
	if r, ok := s.rows.repeatLookup(&key, pads); ok { // encoded while this one waited
		return r, nil
	}
	rows, err := s.encodeRows(ctx, o.Kind, &t, &layout)
	switch {
	case err == nil:
		s.encoded.Add(1)
		return s.rows.storeRows(&key, o, rows, layout.Grid), nil
	case ctx.Err() != nil:
		s.cancelled.Add(1)
		return storedRows{}, ctx.Err()
	default:
		s.failed.Add(1)
		return storedRows{}, &fault.Error{Code: fault.Internal, Message: "the engine failed to encode a media object; report this with the worker's log", Err: err}
	}
}

// encodeRows computes one row for each pad of a layout.
func (s *mediaEncoders) encodeRows(ctx context.Context, kind media.Kind, t *media.Tensor, l *media.Layout) (rows []float32, err error) {
	if kind == media.Audio {
		rows, err = s.model.EncodeAudio(ctx, s.padSamples(t, l.PadCount))
	} else {
		rows, err = s.encodePicture(ctx, t, l.Grid)
	}
	if want := l.PadCount * s.model.Config().HiddenSize; err == nil && len(rows) != want {
		return nil, fmt.Errorf("%d elements for a layout of %d pads of %d", len(rows), l.PadCount, s.model.Config().HiddenSize)
	}
	return rows, err
}

// acquireSem waits for room, releaseSem gives it back.
func acquireSem(ctx context.Context, room chan struct{}) error {
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func releaseSem(room chan struct{}) { <-room }

// encodePicture encodes a picture or video.
func (s *mediaEncoders) encodePicture(ctx context.Context, t *media.Tensor, grid [3]int) ([]float32, error) {
	shape := [4]int{1}
	copy(shape[4-len(t.Shape):], t.Shape)
	v := s.model.Config().Vision
	patches, err := patch.CutPatches(t.Data, shape, grid, patch.Shape{Size: v.Patch, Merge: v.Merge, Temporal: v.Temporal}, s.colours)
	if err != nil {
		return nil, err
	}
	return s.model.EncodeImage(ctx, patches, grid)
}

// padSamples returns as many samples of a sound as the rows take, padded with silence.
func (s *mediaEncoders) padSamples(t *media.Tensor, rows int) []float32 {
	shape := s.model.Config()
	all := make([]float32, rows*shape.Audio.RowSamples())
	for i := range all[:min(len(all), len(t.Data)/4)] {
		all[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return all
}

// sizeOf returns the size of a tensor with the shape of its kind. The rate of a video comes from the object.
func sizeOf(o *media.Object, t *media.Tensor) media.Size {
	switch o.Kind {
	case media.Video:
		return media.Size{Frames: t.Shape[0], Height: t.Shape[1], Width: t.Shape[2], Rate: o.Size.Rate}
	case media.Audio:
		return media.Size{Samples: t.Shape[0]}
	}
	return media.Size{Height: t.Shape[0], Width: t.Shape[1]}
}
