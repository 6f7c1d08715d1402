package family

import (
	"cmp"
	"math"
	"strconv"

	"penstock/core/kv"
	"penstock/core/media"
)

// qwenVision computes the patches of the Qwen models since Qwen2-VL: an image is resized to whole multiples
// of merge patches in each direction, within bounds for the number of pixels. Each merge by merge square of
// patches is one token. In videos, temporal frames share their tokens; the last frame is repeated to
// complete a group.
type qwenVision struct {
	patch, merge, temporal int64 // pixels, patches, frames
	minPixels, maxPixels   int64 // pixels: of an image, of a frame, or of a whole video
	tokenCap               int64 // for videos: max_video_tokens if that bounds the pixels of a frame, else 0
	sampling               sampling
	loader                 Loader // for videos
}

// sampling says which frames of a video are shown.
type sampling struct {
	fps                  float64 // frames per second
	minFrames, maxFrames int64   // frames
}

// qwenRatio is the largest ratio of the sides of an image.
const qwenRatio = 200

// qwenFrames bounds the frames of a video: with sides of maxSide, and ratios up to qwenRatio, the number of
// pixels still is below 2^53.
const qwenFrames = 1 << 12

// readQwenVision reads how a processor cuts images or videos. The bounds of the pixels are min_pixels and
// max_pixels, or else shortest_edge and longest_edge of size, which are numbers of pixels despite their
// names.
func (s *configSource) readQwenVision(o jsonObject, patch int64) qwenVision {
	s.requireFlag(o, "do_resize", true)
	q := qwenVision{
		patch: s.getNumber(o, "patch_size", 1, patch), merge: s.getNumber(o, "merge_size", 1, 2), temporal: s.getNumber(o, "temporal_patch_size", 1, 2),
	}
	if max(q.patch, q.merge, q.temporal) > 1<<10 || q.patch*q.merge > 1<<10 {
		s.failKey(o, "patch_size, merge_size or temporal_patch_size", "is beyond what is counted")
	}
	size := s.getObject(o, "size")
	q.minPixels, q.maxPixels = s.requireEither(o, "min_pixels", size, "shortest_edge"), s.requireEither(o, "max_pixels", size, "longest_edge")
	return q
}

// requireEither returns a whole number of one object, or else of another.
func (s *configSource) requireEither(o jsonObject, key string, or jsonObject, other string) int64 {
	if o.has(key) {
		return s.requireNumber(o, key, 1)
	}
	return s.requireNumber(or, other, 1)
}

// openQwen2 creates the families of Qwen2-VL and Qwen2.5-VL.
func openQwen2(s *configSource) *Family {
	image := s.findToken("<|image_pad|>", "image_token_id")
	f := newSingleFamily(media.Image, &mediaRules{placeholder: image, pad: image, layout: s.readQwenVision(s.image, 14).imageLayout(image)})
	s.addOptional(f, media.Video, func() *mediaRules {
		s.requireLibraryProcessor(s.video)
		pad, v := s.findToken("<|video_pad|>", "video_token_id"), s.readQwenVision(s.video, 14)
		v.tokenCap, v.loader = s.videoTokenCap(s.video, 128000), s.serving.Loader
		s.requireFlag(s.video, "do_sample_frames", false)
		return &mediaRules{placeholder: pad, pad: pad, layout: v.frameLayout(pad)}
	})
	return f
}

// videoTokenCap returns the bound for the tokens of a video or a frame, 0 if it is off.
func (s *configSource) videoTokenCap(o jsonObject, def int64) int64 {
	n := s.getNumber(o, "max_video_tokens", 1, def)
	if !s.getFlag(o, "cap_pixels_per_frame", false) {
		return 0
	}
	if n > 1<<24 {
		s.failKey(o, "max_video_tokens", "is above %d", 1<<24)
	}
	return n
}

// openQwen3 creates the families of Qwen3-VL and Qwen3.5. A video alternates text and pads, so it is only
// taken if the vocabulary can encode text.
func openQwen3(s *configSource) *Family {
	image := s.findToken("<|image_pad|>", "image_token_id")
	f := newSingleFamily(media.Image, &mediaRules{placeholder: image, pad: image, layout: s.readQwenVision(s.image, 16).imageLayout(image)})
	s.addOptional(f, media.Video, func() *mediaRules {
		s.requireLibraryProcessor(s.video)
		v := &qwenVideo{
			qwenVision: s.readQwenVision(s.video, 16), encode: s.findEncoder(), pad: s.findToken("<|video_pad|>", "video_token_id"),
			start: s.findToken("<|vision_start|>", "vision_start_token_id"), end: s.findToken("<|vision_end|>", "vision_end_token_id"),
		}
		v.tokenCap, v.loader = s.videoTokenCap(s.video, 768), s.serving.Loader
		v.sampling = sampling{fps: s.getReal(s.video, "fps", 2), minFrames: s.getNumber(s.video, "min_frames", 1, 4), maxFrames: s.getNumber(s.video, "max_frames", 1, 768)}
		if v.sampling.maxFrames > qwenFrames {
			s.failKey(s.video, "max_frames", "is above %d", qwenFrames)
		}
		s.requireFlag(s.video, "do_sample_frames", true)
		if s.video.has("num_frames") {
			s.failKey(s.video, "num_frames", "is not modelled")
		}
		return &mediaRules{placeholder: v.pad, pad: v.pad, layout: v.videoLayout}
	})
	return f
}

// imageGrid returns the patches across the height and the width of an image.
//
// The arithmetic is that of smart_resize in transformers' image_processing_qwen2_vl.py, operation by
// operation: it divides integers into correctly rounded float64, and so does this.
func (q *qwenVision) imageGrid(w, h, most int64) (gh, gw int64, refused *SizeError) {
	if max(w, h) > qwenRatio*min(w, h) {
		return 0, 0, refuseThin(w, h, qwenRatio)
	}
	factor := q.patch * q.merge
	hBar, wBar := roundToMultiple(h, factor), roundToMultiple(w, factor)
	switch {
	case hBar*wBar > most:
		beta := math.Sqrt(float64(h*w) / float64(most))
		hBar, wBar = shrinkSide(h, beta, factor), shrinkSide(w, beta, factor)
	case hBar*wBar < q.minPixels:
		beta := math.Sqrt(float64(q.minPixels) / float64(h*w))
		hBar, wBar = growSide(h, beta, factor), growSide(w, beta, factor)
	}
	return q.patchCounts(hBar, wBar)
}

// patchCounts returns the patches across sides which are multiples of the factor. A side can be 0 if the
// bounds allow an image without pixels.
func (q *qwenVision) patchCounts(hBar, wBar int64) (gh, gw int64, refused *SizeError) {
	if hBar <= 0 || wBar <= 0 {
		return 0, 0, refuseSize("nothing would be left of the picture")
	}
	return hBar / q.patch, wBar / q.patch, nil
}

// roundToMultiple rounds side to a multiple of factor, halves to even ones.
func roundToMultiple(side, factor int64) int64 {
	return int64(math.RoundToEven(float64(side)/float64(factor))) * factor
}

func shrinkSide(side int64, beta float64, factor int64) int64 {
	return max(factor, int64(math.Floor(float64(side)/beta/float64(factor)))*factor)
}

func growSide(side int64, beta float64, factor int64) int64 {
	return int64(math.Ceil(float64(side)*beta/float64(factor))) * factor
}

// imageLayout returns the layout of images.
func (q qwenVision) imageLayout(pad kv.Token) func(mediaSize) (media.Layout, *SizeError) {
	return func(s mediaSize) (media.Layout, *SizeError) {
		gh, gw, refused := q.imageGrid(s.w, s.h, q.maxPixels)
		if refused != nil {
			return media.Layout{}, refused
		}
		return singleRunLayout(pad, gh*gw/(q.merge*q.merge), [3]int64{1, gh, gw})
	}
}

// frameLayout returns the layout of videos whose frames are images.
func (q qwenVision) frameLayout(pad kv.Token) func(mediaSize) (media.Layout, *SizeError) {
	return func(s mediaSize) (media.Layout, *SizeError) {
		c, refused := q.loader.loadVideo(s, true)
		if refused != nil {
			return media.Layout{}, refused
		}
		most := q.maxPixels
		if q.tokenCap > 0 {
			// Each frame's even share of the pixels of the token cap, nine tenths of them.
			factor := q.patch * q.merge
			total := int64(float64(q.tokenCap*factor*factor) * 0.9)
			most = max(min(most, total*q.temporal/c.frames), int64(float64(q.minPixels)*1.05))
		}
		gh, gw, refused := q.imageGrid(c.w, c.h, most)
		if refused != nil {
			return media.Layout{}, refused
		}
		gt := ceilDiv(c.frames, q.temporal)
		return singleRunLayout(pad, gt*gh*gw/(q.merge*q.merge), [3]int64{gt, gh, gw})
	}
}

// qwenVideo computes the tokens of videos in the Qwen models since Qwen3-VL: the time of each pair of
// frames as text, then the pair between start and end tokens. The bounds of the pixels apply to the whole
// video.
type qwenVideo struct {
	qwenVision
	pad, start, end kv.Token
	encode          func(string) []kv.Token
}

// defaultFrameRate is the assumed rate of a video without one, in frames per second.
const defaultFrameRate = 24

func (v *qwenVideo) videoLayout(s mediaSize) (media.Layout, *SizeError) {
	c, refused := v.loader.loadVideo(s, false)
	if refused != nil {
		return media.Layout{}, refused
	}
	c.rate = cmp.Or(c.rate, defaultFrameRate)
	n := c.frames
	if !c.sampled {
		n = v.sampling.countFrames(c.frames, c.rate)
	}
	gh, gw, refused := v.videoGrid(n, c.w, c.h)
	if refused != nil {
		return media.Layout{}, refused
	}
	gt, each := ceilDiv(n, v.temporal), gh*gw/(v.merge*v.merge)
	if gt*each > maxTokens {
		return media.Layout{}, refuseTooMany()
	}
	l := media.Layout{Runs: make([]media.TokenRun, 0, 12*gt), PadCount: int(gt * each), Grid: toGrid([3]int64{gt, gh, gw})}
	for i := range gt {
		for _, t := range v.encode(v.groupTime(i, n, c.fileFrames, c.rate)) {
			l.Runs = append(l.Runs, media.TokenRun{Token: t, Count: 1})
		}
		l.Runs = append(l.Runs, newRun(v.start, 1), newRun(v.pad, each), newRun(v.end, 1))
	}
	return l, nil
}

// countFrames returns how many frames of a video are shown.
func (s *sampling) countFrames(frames int64, rate float64) int64 {
	n := float64(frames) / rate * s.fps
	return min(max(int64(min(n, float64(s.maxFrames))), s.minFrames), s.maxFrames, frames)
}

// groupTime returns the text before the i-th group of frames, with n of `frames` frames shown: the mean
// time of the group's first and last frame.
func (v *qwenVideo) groupTime(i, n, frames int64, rate float64) string {
	first := v.frameIndex(i*v.temporal, n, frames) / rate
	last := v.frameIndex(min((i+1)*v.temporal, n)-1, n, frames) / rate
	return "<" + strconv.FormatFloat((first+last)/2, 'f', 1, 64) + " seconds>"
}

// frameIndex returns the index of the i-th of n frames which are spread evenly over all.
func (v *qwenVideo) frameIndex(i, n, frames int64) float64 {
	if i == n-1 {
		return float64(frames - 1)
	}
	exact := float64(i) * (float64(frames-1) / float64(n-1))
	if v.loader == SGLang {
		return math.Floor(exact)
	}
	return math.RoundToEven(exact)
}

// videoGrid returns the patches across the height and the width of each of n frames, as smart_resize of
// transformers' video_processing_qwen3_vl.py.
func (v *qwenVideo) videoGrid(n, w, h int64) (gh, gw int64, refused *SizeError) {
	factor, most := v.patch*v.merge, v.maxPixels
	if v.tokenCap > 0 {
		most = n * max(min(v.tokenCap*factor*factor, most/n), int64(float64(v.minPixels)*1.05))
	}
	if n < v.temporal {
		return 0, 0, refuseSize("the video has fewer frames than the model takes at a time")
	}
	if h < factor || w < factor {
		scale := max(float64(factor)/float64(h), float64(factor)/float64(w))
		h, w = int64(float64(h)*scale), int64(float64(w)*scale)
	}
	if max(w, h) > qwenRatio*min(w, h) {
		return 0, 0, refuseThin(w, h, qwenRatio)
	}
	hBar, wBar, tBar := roundToMultiple(h, factor), roundToMultiple(w, factor), roundToMultiple(n, v.temporal)
	switch {
	case tBar*hBar*wBar > most:
		beta := math.Sqrt(float64(n*h*w) / float64(most))
		hBar, wBar = shrinkSide(h, beta, factor), shrinkSide(w, beta, factor)
	case tBar*hBar*wBar < v.minPixels:
		beta := math.Sqrt(float64(v.minPixels) / float64(n*h*w))
		hBar, wBar = growSide(h, beta, factor), growSide(w, beta, factor)
	}
	return v.patchCounts(hBar, wBar)
}

// ceilDiv returns a/b rounded up, for a >= 0.
func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
