package family

import (
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
	least, most            int64 // pixels: of an image, of a frame, or of a whole video
	cap                    int64 // for videos: max_video_tokens if that bounds the pixels of a frame, else 0
	sampling               sampling
	loader                 Loader // for videos
}

// sampling says which frames of a video are shown.
type sampling struct {
	fps         float64 // frames per second
	least, most int64   // frames
}

// qwenRatio is the largest ratio of the sides of an image.
const qwenRatio = 200

// qwenFrames bounds the frames of a video: with sides of maxSide, and ratios up to qwenRatio, the number of
// pixels still is below 2^53.
const qwenFrames = 1 << 12

// readQwenVision reads how a processor cuts images or videos. The bounds of the pixels are min_pixels and
// max_pixels, or else shortest_edge and longest_edge of size, which are numbers of pixels despite their
// names.
func (s *source) qwenVision(o object, patch int64) qwenVision {
	s.is(o, "do_resize", true)
	q := qwenVision{
		patch: s.number(o, "patch_size", 1, patch), merge: s.number(o, "merge_size", 1, 2), temporal: s.number(o, "temporal_patch_size", 1, 2),
	}
	if max(q.patch, q.merge, q.temporal) > 1<<10 || q.patch*q.merge > 1<<10 {
		s.fail(o, "patch_size, merge_size or temporal_patch_size", "is beyond what is counted")
	}
	size := s.object(o, "size")
	q.least, q.most = s.either(o, "min_pixels", size, "shortest_edge"), s.either(o, "max_pixels", size, "longest_edge")
	return q
}

// requireEither returns a whole number of one object, or else of another.
func (s *source) either(o object, key string, or object, other string) int64 {
	if o.has(key) {
		return s.needed(o, key, 1)
	}
	return s.needed(or, other, 1)
}

// openQwen2 creates the families of Qwen2-VL and Qwen2.5-VL.
func openQwen2(s *source) *Family {
	image := s.token("<|image_pad|>", "image_token_id")
	f := only(media.Image, &medium{placeholder: image, pad: image, layout: s.qwenVision(s.image, 14).image(image)})
	s.optional(f, media.Video, func() *medium {
		s.ofTheLibrary(s.video)
		pad, v := s.token("<|video_pad|>", "video_token_id"), s.qwenVision(s.video, 14)
		v.cap, v.loader = s.capped(s.video, 128000), s.serving.Loader
		s.is(s.video, "do_sample_frames", false)
		return &medium{placeholder: pad, pad: pad, layout: v.frames(pad)}
	})
	return f
}

// videoTokenCap returns the bound for the tokens of a video or a frame, 0 if it is off.
func (s *source) capped(o object, def int64) int64 {
	n := s.number(o, "max_video_tokens", 1, def)
	if !s.flag(o, "cap_pixels_per_frame", false) {
		return 0
	}
	if n > 1<<24 {
		s.fail(o, "max_video_tokens", "is above %d", 1<<24)
	}
	return n
}

// openQwen3 creates the families of Qwen3-VL and Qwen3.5. A video alternates text and pads, so it is only
// taken if the vocabulary can encode text.
func openQwen3(s *source) *Family {
	image := s.token("<|image_pad|>", "image_token_id")
	f := only(media.Image, &medium{placeholder: image, pad: image, layout: s.qwenVision(s.image, 16).image(image)})
	s.optional(f, media.Video, func() *medium {
		s.ofTheLibrary(s.video)
		v := &qwenVideo{
			qwenVision: s.qwenVision(s.video, 16), encode: s.encoder(), pad: s.token("<|video_pad|>", "video_token_id"),
			start: s.token("<|vision_start|>", "vision_start_token_id"), end: s.token("<|vision_end|>", "vision_end_token_id"),
		}
		v.cap, v.loader = s.capped(s.video, 768), s.serving.Loader
		v.sampling = sampling{fps: s.real(s.video, "fps", 2), least: s.number(s.video, "min_frames", 1, 4), most: s.number(s.video, "max_frames", 1, 768)}
		if v.sampling.most > qwenFrames {
			s.fail(s.video, "max_frames", "is above %d", qwenFrames)
		}
		s.is(s.video, "do_sample_frames", true)
		if s.video.has("num_frames") {
			s.fail(s.video, "num_frames", "is not modelled")
		}
		return &medium{placeholder: v.pad, pad: v.pad, layout: v.layout}
	})
	return f
}

// imageGrid returns the patches across the height and the width of an image.
//
// The arithmetic is that of smart_resize in transformers' image_processing_qwen2_vl.py, operation by
// operation: it divides integers into correctly rounded float64, and so does this.
func (q *qwenVision) grid(w, h, most int64) (gh, gw int64, refused *SizeError) {
	if max(w, h) > qwenRatio*min(w, h) {
		return 0, 0, thin(w, h, qwenRatio)
	}
	factor := q.patch * q.merge
	hBar, wBar := nearest(h, factor), nearest(w, factor)
	switch {
	case hBar*wBar > most:
		beta := math.Sqrt(float64(h*w) / float64(most))
		hBar, wBar = shrunk(h, beta, factor), shrunk(w, beta, factor)
	case hBar*wBar < q.least:
		beta := math.Sqrt(float64(q.least) / float64(h*w))
		hBar, wBar = grown(h, beta, factor), grown(w, beta, factor)
	}
	return q.patches(hBar, wBar)
}

// patchCounts returns the patches across sides which are multiples of the factor. A side can be 0 if the
// bounds allow an image without pixels.
func (q *qwenVision) patches(hBar, wBar int64) (gh, gw int64, refused *SizeError) {
	if hBar <= 0 || wBar <= 0 {
		return 0, 0, refuse("nothing would be left of the picture")
	}
	return hBar / q.patch, wBar / q.patch, nil
}

// roundToMultiple rounds side to a multiple of factor, halves to even ones.
func nearest(side, factor int64) int64 {
	return int64(math.RoundToEven(float64(side)/float64(factor))) * factor
}

func shrunk(side int64, beta float64, factor int64) int64 {
	return max(factor, int64(math.Floor(float64(side)/beta/float64(factor)))*factor)
}

func grown(side int64, beta float64, factor int64) int64 {
	return int64(math.Ceil(float64(side)*beta/float64(factor))) * factor
}

// imageLayout returns the layout of images.
func (q qwenVision) image(pad kv.Token) func(size) (media.Layout, *SizeError) {
	return func(s size) (media.Layout, *SizeError) {
		gh, gw, refused := q.grid(s.w, s.h, q.most)
		if refused != nil {
			return media.Layout{}, refused
		}
		return alone(pad, gh*gw/(q.merge*q.merge), [3]int64{1, gh, gw})
	}
}

// frameLayout returns the layout of videos whose frames are images.
func (q qwenVision) frames(pad kv.Token) func(size) (media.Layout, *SizeError) {
	return func(s size) (media.Layout, *SizeError) {
		c, refused := q.loader.load(s, true)
		if refused != nil {
			return media.Layout{}, refused
		}
		most := q.most
		if q.cap > 0 {
			// Each frame's even share of the pixels of the token cap, nine tenths of them.
			factor := q.patch * q.merge
			total := int64(float64(q.cap*factor*factor) * 0.9)
			most = max(min(most, total*q.temporal/c.frames), int64(float64(q.least)*1.05))
		}
		gh, gw, refused := q.grid(c.w, c.h, most)
		if refused != nil {
			return media.Layout{}, refused
		}
		gt := ceil(c.frames, q.temporal)
		return alone(pad, gt*gh*gw/(q.merge*q.merge), [3]int64{gt, gh, gw})
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
const defaultRate = 24

func (v *qwenVideo) layout(s size) (media.Layout, *SizeError) {
	c, refused := v.loader.load(s, false)
	if refused != nil {
		return media.Layout{}, refused
	}
	if c.rate == 0 {
		c.rate = defaultRate
	}
	n := c.frames
	if !c.sampled {
		n = v.sampling.count(c.frames, c.rate)
	}
	gh, gw, refused := v.grid(n, c.w, c.h)
	if refused != nil {
		return media.Layout{}, refused
	}
	gt, each := ceil(n, v.temporal), gh*gw/(v.merge*v.merge)
	if gt*each > maxTokens {
		return media.Layout{}, tooMany()
	}
	l := media.Layout{Runs: make([]media.Run, 0, 12*gt), Pads: int(gt * each), Grid: patches([3]int64{gt, gh, gw})}
	for i := range gt {
		for _, t := range v.encode(v.time(i, n, c.of, c.rate)) {
			l.Runs = append(l.Runs, media.Run{Token: t, Count: 1})
		}
		l.Runs = append(l.Runs, times(v.start, 1), times(v.pad, each), times(v.end, 1))
	}
	return l, nil
}

// countFrames returns how many frames of a video are shown.
func (s *sampling) count(frames int64, rate float64) int64 {
	n := float64(frames) / rate * s.fps
	return min(max(int64(min(n, float64(s.most))), s.least), s.most, frames)
}

// groupTime returns the text before the i-th group of frames, with n of `frames` frames shown: the mean
// time of the group's first and last frame.
func (v *qwenVideo) time(i, n, frames int64, rate float64) string {
	first := v.at(i*v.temporal, n, frames) / rate
	last := v.at(min((i+1)*v.temporal, n)-1, n, frames) / rate
	return "<" + strconv.FormatFloat((first+last)/2, 'f', 1, 64) + " seconds>"
}

// frameIndex returns the index of the i-th of n frames which are spread evenly over all.
func (v *qwenVideo) at(i, n, frames int64) float64 {
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
func (v *qwenVideo) grid(n, w, h int64) (gh, gw int64, refused *SizeError) {
	factor, most := v.patch*v.merge, v.most
	if v.cap > 0 {
		most = n * max(min(v.cap*factor*factor, most/n), int64(float64(v.least)*1.05))
	}
	if n < v.temporal {
		return 0, 0, refuse("the video has fewer frames than the model takes at a time")
	}
	if h < factor || w < factor {
		scale := max(float64(factor)/float64(h), float64(factor)/float64(w))
		h, w = int64(float64(h)*scale), int64(float64(w)*scale)
	}
	if max(w, h) > qwenRatio*min(w, h) {
		return 0, 0, thin(w, h, qwenRatio)
	}
	hBar, wBar, tBar := nearest(h, factor), nearest(w, factor), nearest(n, v.temporal)
	switch {
	case tBar*hBar*wBar > most:
		beta := math.Sqrt(float64(n*h*w) / float64(most))
		hBar, wBar = shrunk(h, beta, factor), shrunk(w, beta, factor)
	case tBar*hBar*wBar < v.least:
		beta := math.Sqrt(float64(v.least) / float64(n*h*w))
		hBar, wBar = grown(h, beta, factor), grown(w, beta, factor)
	}
	return v.patches(hBar, wBar)
}

// ceilDiv returns a/b rounded up, for a >= 0.
func ceil(a, b int64) int64 { return (a + b - 1) / b }
