package family

import (
	"math"

	"penstock/core/media"
)

// Loader is how an engine turns the file of a video into frames, before the processor of its model
// counts them: which frames it takes, and at what size.
type Loader uint8

// The loaders.
const (
	// AllFrames hands every frame of the file to the processor: the built-in engine.
	AllFrames Loader = iota
	// VLLM takes the first frames of a JPEG sequence as they are, at one frame a second, and samples
	// two frames a second of other files: multimodal/media/video.py and multimodal/video.py of vLLM
	// 0.32 and 0.33.
	VLLM
	// SGLang samples two frames a second and resizes them first: srt/multimodal/processors/qwen_vl.py of
	// SGLang 0.5.23. It takes no JPEG sequences.
	SGLang
	// UnknownLoader is that of other engines: their videos are not counted.
	UnknownLoader
)

// LoaderOf returns the loader of an engine by its name in model cards. Engines without a name are
// this program's own.
func LoaderOf(engine string) Loader {
	switch engine {
	case "", "tiny", "sim":
		return AllFrames
	case "vllm":
		return VLLM
	case "sglang":
		return SGLang
	}
	return UnknownLoader
}

// vllmSequence is how many pictures of a JPEG sequence vLLM takes (num_frames), and vllmSequenceRate
// the frames a second that they count as.
const (
	vllmSequence     = 32
	vllmSequenceRate = 1
)

// loaderSampling is how both engines sample the frames of a file, whatever the checkpoint says.
func loaderSampling() sampling { return sampling{fps: 2, least: 4, most: 768} }

// The sizes to which SGLang resizes the frames of a video, in pixels, each way to a multiple of
// sglangFactor. Above sglangFrames frames the bound of a frame would depend on their number.
const (
	sglangFactor = 28
	sglangLeast  = 128 * sglangFactor * sglangFactor
	sglangMost   = 768 * sglangFactor * sglangFactor
	sglangFrames = 300
)

// clip is a video as a processor is given it.
type clip struct {
	w, h   int64
	frames int64 // that the processor is given
	// of is how many frames the file has, over which the frames are spread evenly, and rate how many it
	// has a second; 0 if that is not known.
	of   int64
	rate float64
	// sampled says that the processor shows all frames: they were sampled already.
	sampled bool
}

// load returns what the loader makes of a video for a processor that wants an even number of frames, or
// any number.
func (l Loader) load(s size, even bool) (clip, *SizeError) {
	switch {
	case l == AllFrames:
		return clip{w: s.w, h: s.h, frames: s.frames, of: s.frames, rate: s.rate}, nil
	case l == VLLM && s.sequence:
		n := min(s.frames, vllmSequence)
		return clip{w: s.w, h: s.h, frames: n, of: n, rate: vllmSequenceRate, sampled: true}, nil
	case l != VLLM && (l != SGLang || s.sequence):
		return clip{}, &SizeError{Reason: media.UnsupportedModel, Detail: "how the model's engine loads such a video is not known here"}
	case s.rate <= 0:
		return clip{}, &SizeError{Reason: media.DimensionsUnknown, Detail: "the frame rate is not known, by which the model's engine samples"}
	}
	if l == SGLang {
		return sglangClip(s)
	}
	of := loaderSampling()
	n := of.count(s.frames, s.rate)
	if even {
		var refused *SizeError
		if n, refused = of.pairs(s); refused != nil {
			return clip{}, refused
		}
		// The indices are multiples of frames/n below frames, so that rounding can add one.
		step := float64(s.frames) / float64(n)
		n = int64(math.Ceil(float64(s.frames) / step))
	}
	return clip{w: s.w, h: s.h, frames: n, of: s.frames, rate: s.rate, sampled: n != s.frames}, nil
}

// pairs returns how many of the frames of a video are sampled: an even number.
func (of *sampling) pairs(s size) (int64, *SizeError) {
	n := max(float64(s.frames)/s.rate*of.fps, float64(of.least))
	n = min(n, float64(min(of.most, s.frames)/2*2))
	if n < 2 {
		return 0, refuse("the video has fewer frames than the model's engine takes")
	}
	return int64(n) / 2 * 2, nil
}

// sglangClip returns what SGLang makes of a file.
func sglangClip(s size) (clip, *SizeError) {
	of := loaderSampling()
	n, refused := of.pairs(s)
	if refused != nil {
		return clip{}, refused
	}
	if n > sglangFrames {
		return clip{}, &SizeError{Reason: media.OverLimit, Detail: "the video is longer than is counted for the model's engine"}
	}
	first := qwenVision{patch: sglangFactor, merge: 1, least: sglangLeast}
	gh, gw, refused := first.grid(s.w, s.h, sglangMost)
	if refused != nil {
		return clip{}, refused
	}
	return clip{w: gw * sglangFactor, h: gh * sglangFactor, frames: n, of: s.frames, rate: s.rate, sampled: true}, nil
}
