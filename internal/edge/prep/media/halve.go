package media

import (
	"context"

	"penstock/core/encode"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/media/pixel"
)

// maxHalvedInline bounds the tensor of a halved object which is sent with each attempt: half of what all objects of a
// request may have. Larger ones are lent.
const maxHalvedInline = 16 << 20

// resolveHalved resolves an object which was too large for an encoder as a smaller one. Engines cannot fetch that, so its
// tensor is sent or lent, whatever the model's transfer mode.
func (m modelResolver) resolveHalved(ctx context.Context, f *family.Family, p *prep.Media, o *media.Object, held *releaseList) error {
	file, release, err := m.loadFile(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return m.withSlot(ctx, func() error {
		t, free, err := m.decodeTensor(ctx, file, o)
		if err != nil {
			return err
		}
		for range p.Halvings {
			if !halveTokens(f, o, &t) {
				free()
				return tooLargeError(p)
			}
		}
		o.Key = pixel.ContentKey(o.Kind, &t)
		switch {
		case len(t.Data) <= maxHalvedInline:
			held.addRelease(free)
			o.Tensor = t
		case !m.lendTensor(&t, free, o, held):
			free()
			return tooLargeError(p)
		}
		return nil
	})
}

// halveTokens halves an object until it has fewer tokens, and reports whether it could: processors resize, so that the
// next smaller one may have as many.
func halveTokens(f *family.Family, o *media.Object, t *media.Tensor) bool {
	before, err := f.Layout(o.Kind, o.Size)
	if err != nil {
		return false
	}
	for pixel.HalveObject(o.Kind, t, &o.Size) {
		after, err := f.Layout(o.Kind, o.Size)
		if err != nil {
			return false
		}
		if after.PadCount < before.PadCount {
			return true
		}
	}
	return false
}

// tooLargeError says that an object cannot be made small enough.
func tooLargeError(p *prep.Media) error {
	err := prep.NewUnresolvedError(media.SizeRefused, p.Part, "'%s' is too large for the encoder, and cannot be made smaller here: send a smaller one", p.Part)
	err.Kind = encode.OutOfMemory
	return err
}
