package family

import (
	"math"

	"penstock/core/media"
)

// Loader says how an engine turns a video file into frames before the model's processor counts them: which
// frames it takes, and at what size.
type Loader uint8

// The loaders.
const (
	// AllFrames passes every frame of the file to the processor: the built-in engine.
	AllFrames Loader = iota
	// VLLM takes the first frames of a JPEG sequence unchanged, at one frame a second, and samples two
	// frames a second of other files: multimodal/media/video.py and multimodal/video.py of vLLM 0.32 and
	// 0.33.
	VLLM
	// SGLang samples two frames a second and resizes them first: srt/multimodal/processors/qwen_vl.py of
	// SGLang 0.5.23. It takes no JPEG sequences.
	SGLang
	// UnknownLoader stands for other engines: their videos cannot be computed.
	UnknownLoader
)

// LoaderForEngine returns the loader of an engine by its name in model cards. An engine without a name is
// the built-in one.
func LoaderForEngine(engine string) Loader {
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

// vllmSequenceFrames is the number of images of a JPEG sequence which vLLM takes (num_frames), and
// vllmSequenceRate their assumed frames per second.
const (
	vllmSequenceFrames = 32
	vllmSequenceRate   = 1
)

// engineSampling returns how both engines sample the frames of a file, whatever the checkpoint says.
func engineSampling() sampling { return sampling{fps: 2, minFrames: 4, maxFrames: 768} }

// The sizes to which SGLang resizes video frames, in pixels, each side to a multiple of sglangFactor. Above
// sglangMaxFrames frames the bound of a frame would depend on their number.
const (
	sglangFactor    = 28
	sglangMinPixels = 128 * sglangFactor * sglangFactor
	sglangMaxPixels = 768 * sglangFactor * sglangFactor
	sglangMaxFrames = 300
)

// loadedVideo is a video as the processor receives it.
type loadedVideo struct {
	w, h   int64
	frames int64 // passed to the processor
	// fileFrames is the number of frames in the file, over which the frames are spread evenly. rate is the
	// file's frames per second; 0 if unknown.
	fileFrames int64
	rate       float64
	// sampled says that the frames are sampled already and the processor shows all of them.
	sampled bool
}

// loadVideo returns what the loader makes of a video, for a processor which needs an even number of frames,
// or any number.
func (l Loader) loadVideo(s mediaSize, even bool) (loadedVideo, *SizeError) {
	switch {
	case l == AllFrames:
		return loadedVideo{w: s.w, h: s.h, frames: s.frames, fileFrames: s.frames, rate: s.rate}, nil
	case l == VLLM && s.sequence:
		n := min(s.frames, vllmSequenceFrames)
		return loadedVideo{w: s.w, h: s.h, frames: n, fileFrames: n, rate: vllmSequenceRate, sampled: true}, nil
	case l != VLLM && (l != SGLang || s.sequence):
		return loadedVideo{}, &SizeError{Reason: media.UnsupportedModel, Detail: "how the model's engine loads such a video is not known here"}
	case s.rate <= 0:
		return loadedVideo{}, &SizeError{Reason: media.DimensionsUnknown, Detail: "the frame rate is not known, by which the model's engine samples"}
	}
	if l == SGLang {
		return loadSGLang(s)
	}
	of := engineSampling()
	n := of.countFrames(s.frames, s.rate)
	if even {
		var refused *SizeError
		if n, refused = of.countEven(s); refused != nil {
			return loadedVideo{}, refused
		}
		// The indices are multiples of frames/n below frames, so rounding can add one.
		step := float64(s.frames) / float64(n)
		n = int64(math.Ceil(float64(s.frames) / step))
	}
	return loadedVideo{w: s.w, h: s.h, frames: n, fileFrames: s.frames, rate: s.rate, sampled: n != s.frames}, nil
}

// countEven returns the number of sampled frames of a video, which is even.
func (of *sampling) countEven(s mediaSize) (int64, *SizeError) {
	n := max(float64(s.frames)/s.rate*of.fps, float64(of.minFrames))
	n = min(n, float64(min(of.maxFrames, s.frames)/2*2))
	if n < 2 {
		return 0, refuseSize("the video has fewer frames than the model's engine takes")
	}
	return int64(n) / 2 * 2, nil
}

// loadSGLang returns what SGLang makes of a file.
func loadSGLang(s mediaSize) (loadedVideo, *SizeError) {
	of := engineSampling()
	n, refused := of.countEven(s)
	if refused != nil {
		return loadedVideo{}, refused
	}
	if n > sglangMaxFrames {
		return loadedVideo{}, &SizeError{Reason: media.OverLimit, Detail: "the video is longer than is counted for the model's engine"}
	}
	first := qwenVision{patch: sglangFactor, merge: 1, minPixels: sglangMinPixels}
	gh, gw, refused := first.imageGrid(s.w, s.h, sglangMaxPixels)
	if refused != nil {
		return loadedVideo{}, refused
	}
	return loadedVideo{w: gw * sglangFactor, h: gh * sglangFactor, frames: n, fileFrames: s.frames, rate: s.rate, sampled: true}, nil
}
