package tiny

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/embcache"
	"penstock/core/encode"
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
	runs    *rowRuns
	remote  RemoteEncoders // nil: every object is encoded here
	pool    *encodePool
	// encode computes the rows of an input, see prepareInput. A grid is that of pictures.
	encode func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error)
	// encoded, failed and cancelled count the objects which an encoder had, by their end.
	encoded, failed, cancelled atomic.Uint64
}

// newMediaEncoders returns the encoders of a model. settings are the files with the settings of its media processor.
func newMediaEncoders(cfg *Config, m *model.Model, f *family.Family, c patch.Colours, settings ...[]byte) *mediaEncoders {
	return newEncodersOf(cfg, m, f, c, fingerprintEncoder(m, c, settings))
}

// newEncodersOf returns encoders of a fingerprint.
func newEncodersOf(cfg *Config, m *model.Model, f *family.Family, c patch.Colours, fingerprint string) *mediaEncoders {
	rows := newRowStore(cfg, fingerprint, m.Config().HiddenSize)
	s := &mediaEncoders{model: m, family: f, colours: c, rows: rows, runs: newRowRuns(rows), remote: cfg.Remote}
	s.pool, s.encode = newEncodePool(cfg, s), s.encodeInput
	return s
}

// encodeInput encodes with the model.
func (s *mediaEncoders) encodeInput(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
	if kind == media.Audio {
		return s.model.EncodeAudioBeside(ctx, input, s.pool.yields)
	}
	return s.model.EncodeImageBeside(ctx, input, grid, s.pool.yields)
}

// fingerprintEncoder returns what must be equal for two encoders to make the same rows, see media.EncoderRows: weights,
// numerics and processor settings.
func fingerprintEncoder(m *model.Model, c patch.Colours, settings [][]byte) string {
	h := xxh3.New()
	fmt.Fprintf(h, "%v", c)
	for _, file := range settings {
		fmt.Fprintf(h, " %d ", len(file))
		h.Write(file)
	}
	return fmt.Sprintf("%s-%016x", m.EncoderNumerics(), h.Sum64())
}

// fingerprint returns the encoders' fingerprint, for the model card; "" without any.
func (s *mediaEncoders) fingerprint() string {
	if s == nil {
		return ""
	}
	return s.rows.encoder
}

// EncoderStats returns the figures of the engine's encoders, which all engines made with it share. A
// text-only model has none.
func (e *Engine) EncoderStats() engine.EncoderStats { return e.cpu.encoders.stats() }

// EncodeStats returns the figures of the same encoders' jobs and memory.
func (e *Engine) EncodeStats() engine.EncodeStats { return e.cpu.encoders.encodeStats() }

func (s *mediaEncoders) encodeStats() engine.EncodeStats {
	if s == nil {
		return engine.EncodeStats{}
	}
	return s.pool.stats()
}

func (s *mediaEncoders) stats() engine.EncoderStats {
	if s == nil {
		return engine.EncoderStats{}
	}
	return engine.EncoderStats{Encoded: s.encoded.Load(), Failed: s.failed.Load(), Cancelled: s.cancelled.Load(), Cache: s.rows.stats()}
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

// gridOf returns the grid of an object with the given number of pads, if its size is known without its content.
func (s *mediaEncoders) gridOf(o *media.Object, pads int) (grid [3]int, ok bool) {
	layout, ok := s.layoutBySize(o)
	return layout.Grid, ok && layout.PadCount == pads
}

// layoutBySize returns the layout of an object, if its size is known without its content.
func (s *mediaEncoders) layoutBySize(o *media.Object) (media.Layout, bool) {
	size := o.Size
	dimensions := [...]int{media.Image: 3, media.Video: 4, media.Audio: 1}
	if len(o.Tensor.Shape) == dimensions[o.Kind] {
		size = sizeOf(o, &o.Tensor)
	}
	layout, err := s.family.Layout(o.Kind, size)
	return layout, err == nil && layout.PadCount > 0
}

// objectError is an error about an object, for its client.
func objectError(o *media.Object, format string, args ...any) *fault.Error {
	err := fault.InvalidParam(o.Part, format, args...)
	if o.Part != "" {
		err.Message = "'" + o.Part + "': " + err.Message
	}
	return err
}

// errSizeDiffers is the cause of an error about an object which has another size than its place in the prompt, and
// errUnreachable that of one whose file cannot be had.
var (
	errSizeDiffers = errors.New("tiny: the object has another size than its place")
	errUnreachable = errors.New("tiny: the object's file cannot be had")
)

// failureKindOf returns why an object has no rows.
func failureKindOf(err error) encode.FailureKind {
	switch code := fault.CodeOf(err); {
	case errors.Is(err, errSizeDiffers):
		return encode.SizeDiffers
	case errors.Is(err, errUnreachable):
		return encode.Unreachable
	case code == fault.TooLarge:
		return encode.OutOfMemory
	case code == fault.Invalid, code == fault.MediaFailed:
		return encode.Corrupt
	}
	return encode.EncoderFailed
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

// rowRequest is an object whose rows are wanted.
type rowRequest struct {
	id        string // of the request, for logs
	object    *media.Object
	namespace string
	pads      int // which the prompt has for it; 0 if there is no prompt
	// cachedOnly wants rows which are there or being computed, without reading the object.
	cachedOnly bool
}

// maxParallel bounds the objects which others are asked to encode at the same time.
const maxParallel = 8

// encodedRows returns the rows of an object. The caller gives them back to the store.
func (s *mediaEncoders) encodedRows(ctx context.Context, from *mediaContent, w *rowRequest) (storedRows, error) {
	key := s.rows.keyOf(w.object, w.namespace)
	if r, ok := s.rows.lookupRows(&key, w.pads); ok {
		return r, nil
	}
	return s.missingRows(ctx, from, w, &key)
}

// missingRows is encodedRows for an object which the store did not have.
func (s *mediaEncoders) missingRows(ctx context.Context, from *mediaContent, w *rowRequest, key *embcache.RowKey) (storedRows, error) {
	if !w.cachedOnly {
		return s.pool.encodeOne(ctx, from, w, key)
	}
	own, run := *w, runKey{*key, w.pads}
	var compute func(context.Context) (storedRows, error)
	if s.rows.isBelow(key) || s.rows.shared != nil {
		compute = func(ctx context.Context) (storedRows, error) { return s.findBelow(ctx, &own, &run.RowKey) }
	}
	for identifies(key) {
		r, led, err := s.runs.share(ctx, run, compute)
		if err == nil || led || ctx.Err() != nil || err == errNotCached {
			return r, err
		}
		// What another request has shown could not be encoded.
		if r, ok := s.rows.repeatLookup(&run.RowKey, w.pads); ok {
			return r, nil
		}
	}
	return storedRows{}, errNotCached
}

// findBelow returns the rows of an object from memory or the tiers below it, and fails with errNotCached without them.
func (s *mediaEncoders) findBelow(ctx context.Context, w *rowRequest, key *embcache.RowKey) (storedRows, error) {
	if r, ok := s.rows.repeatLookup(key, w.pads); ok { // a run has ended since the look-up
		return r, nil
	}
	if r, ok := s.raiseRows(ctx, w, key); ok {
		return r, nil
	}
	if s.rows.tiers != nil && ctx.Err() != nil { // the look-up in the tiers was cut short
		return storedRows{}, ctx.Err()
	}
	return storedRows{}, errNotCached
}

// layoutOf returns the layout of a decoded object, which must have the given number of pads, unless that is 0.
func (s *mediaEncoders) layoutOf(o *media.Object, t *media.Tensor, pads int) (media.Layout, error) {
	layout, err := s.family.Layout(o.Kind, sizeOf(o, t))
	var refused *family.SizeError
	switch {
	case errors.As(err, &refused):
		err = objectError(o, "%s", refused.Detail)
	case err != nil:
		err = objectError(o, "%v", err)
	case pads != 0 && layout.PadCount != pads:
		differs := objectError(o, "the prompt has %d tokens for it and it takes %d; is what its URL shows another one by now?", pads, layout.PadCount)
		differs.Err, err = errSizeDiffers, differs
	}
	return layout, err
}

// encodeRows computes one row for each pad of objects of one layout, in one pass of the encoder. The rows of an object
// are as if it were alone: frames attend to themselves, and rows of a sound depend on their own samples.
func (s *mediaEncoders) encodeRows(ctx context.Context, group []decodedItem) (rows []float32, err error) {
	of := &group[0]
	var input []float32
	for i := range group {
		part, err := s.prepareInput(of.object.Kind, &group[i].tensor, &group[i].layout)
		if err != nil {
			return nil, err
		}
		if len(group) == 1 {
			input = part
			break
		}
		if i == 0 {
			input = make([]float32, 0, len(part)*len(group))
		}
		input = append(input, part...)
	}
	grid := of.layout.Grid
	grid[0] *= len(group)
	rows, err = s.encode(ctx, of.object.Kind, input, grid)
	if want := len(group) * of.layout.PadCount * s.model.Config().HiddenSize; err == nil && len(rows) != want {
		return nil, fmt.Errorf("%d elements for %d objects of %d pads of %d", len(rows), len(group), of.layout.PadCount, s.model.Config().HiddenSize)
	}
	return rows, err
}

// prepareInput returns what an encoder takes of an object: patches of a picture or video, or samples.
func (s *mediaEncoders) prepareInput(kind media.Kind, t *media.Tensor, l *media.Layout) ([]float32, error) {
	if kind == media.Audio {
		return s.padSamples(t, l.PadCount), nil
	}
	shape := [4]int{1}
	copy(shape[4-len(t.Shape):], t.Shape)
	v := s.model.Config().Vision
	return patch.CutPatches(t.Data, shape, l.Grid, patch.Shape{Size: v.Patch, Merge: v.Merge, Temporal: v.Temporal}, s.colours)
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
