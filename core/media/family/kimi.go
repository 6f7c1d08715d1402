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
func openKimi(s *configSource) *Family {
	k := &kimi{pad: s.findToken("<|media_pad|>", "image_token_id", "image_token_index", "media_placeholder_token_id")}
	own := s.getObject(s.image, "media_proc_cfg")
	if own.isMissing() {
		size := s.getObject(s.image, "size")
		s.requireFlag(s.image, "do_resize", true)
		k.patch, k.merge = s.getNumber(s.image, "patch_size", 1, 14), s.getNumber(s.image, "merge_size", 1, 2)
		k.most, k.side = s.requireNumber(s.image, "max_patches", 1), s.requireNumber(size, "max_height", 1)
		if s.requireNumber(size, "max_width", 1) != k.side {
			s.failKey(size, "max_width", "differs from max_height")
		}
	} else {
		k.patch, k.merge = s.requireNumber(own, "patch_size", 1), s.requireNumber(own, "merge_kernel_size", 1)
		k.most, k.side = s.requireNumber(own, "in_patch_limit", 1), s.requireNumber(own, "patch_limit_on_one_side", 1)
		if own.has("fixed_output_tokens") {
			s.failKey(own, "fixed_output_tokens", "is not modelled")
		}
	}
	if max(k.patch, k.merge) > 1<<10 || k.side > maxSide {
		s.failKey(s.image, "patch_size, merge size or limit", "is beyond what is counted")
	}
	return newSingleFamily(media.Image, &mediaRules{placeholder: k.pad, pad: k.pad, layout: k.imageLayout})
}

func (k *kimi) imageLayout(s mediaSize) (media.Layout, *SizeError) {
	patches := float64(max(1, s.h/k.patch)) * float64(max(1, s.w/k.patch))
	limit := k.side * k.patch
	scale := min(1, math.Sqrt(float64(k.most)/patches), float64(limit)/float64(s.h), float64(limit)/float64(s.w))
	fit := func(side int64) int64 {
		shrunk := min(max(1, int64(float64(side)*scale)), limit)
		return ceilDiv(shrunk, k.patch*k.merge) * k.merge
	}
	gh, gw := fit(s.h), fit(s.w)
	return singleRunLayout(k.pad, gh*gw/(k.merge*k.merge), [3]int64{1, gh, gw})
}
