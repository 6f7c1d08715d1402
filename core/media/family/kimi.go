package family

import (
	"math"

	"penstock/core/kv"
	"penstock/core/media"
)

// kimi computes the tokens of Kimi-K2.5: an image is shrunk if too large and padded to whole squares of
// patches. Each square is one token.
type kimi struct {
	patch, merge int64 // pixels, patches
	most         int64 // patches of an image, before padding
	side         int64 // patches of a side
	pad          kv.Token
}

// openKimi creates the family of Kimi-K2.5. Its own checkpoints have the processor's settings in
// media_proc_cfg; checkpoints which transformers wrote have them with the other settings.
func openKimi(s *source) *Family {
	k := &kimi{pad: s.token("<|media_pad|>", "image_token_id", "image_token_index", "media_placeholder_token_id")}
	own := s.object(s.image, "media_proc_cfg")
	if own.missing() {
		size := s.object(s.image, "size")
		s.is(s.image, "do_resize", true)
		k.patch, k.merge = s.number(s.image, "patch_size", 1, 14), s.number(s.image, "merge_size", 1, 2)
		k.most, k.side = s.needed(s.image, "max_patches", 1), s.needed(size, "max_height", 1)
		if s.needed(size, "max_width", 1) != k.side {
			s.fail(size, "max_width", "is another one than max_height")
		}
	} else {
		k.patch, k.merge = s.needed(own, "patch_size", 1), s.needed(own, "merge_kernel_size", 1)
		k.most, k.side = s.needed(own, "in_patch_limit", 1), s.needed(own, "patch_limit_on_one_side", 1)
		if own.has("fixed_output_tokens") {
			s.fail(own, "fixed_output_tokens", "is not modelled")
		}
	}
	if max(k.patch, k.merge) > 1<<10 || k.side > maxSide {
		s.fail(s.image, "patch_size, merge size or limit", "is beyond what is counted")
	}
	return only(media.Image, &medium{placeholder: k.pad, pad: k.pad, layout: k.layout})
}

func (k *kimi) layout(s size) (media.Layout, *SizeError) {
	patches := float64(max(1, s.h/k.patch)) * float64(max(1, s.w/k.patch))
	limit := k.side * k.patch
	scale := min(1, math.Sqrt(float64(k.most)/patches), float64(limit)/float64(s.h), float64(limit)/float64(s.w))
	fit := func(side int64) int64 {
		shrunk := min(max(1, int64(float64(side)*scale)), limit)
		return ceil(shrunk, k.patch*k.merge) * k.merge
	}
	gh, gw := fit(s.h), fit(s.w)
	return alone(k.pad, gh*gw/(k.merge*k.merge), [3]int64{1, gh, gw})
}
