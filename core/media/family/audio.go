package family

import (
	"penstock/core/kv"
	"penstock/core/media"
)

// The front end of Whisper, which all audio families here share: one spectrum frame per hop of 160 samples
// at 16 kHz, in chunks of 30 seconds.
const (
	hopSamples   = 160
	chunkSamples = 30 * 16000
	maxMelFrames = chunkSamples / hopSamples
)

// openQwen2Audio creates the family of Qwen2-Audio.
func openQwen2Audio(s *configSource) *Family {
	s.checkWhisper(s.audio)
	pad := s.findToken("<|AUDIO|>", "audio_token_id", "audio_token_index")
	return newSingleFamily(media.Audio, &mediaRules{placeholder: pad, pad: pad, layout: qwen2AudioLayout(pad)})
}

// checkWhisper refuses a front end whose parameters differ from Whisper's.
func (s *configSource) checkWhisper(o jsonObject) {
	for _, c := range []struct {
		key  string
		want int64
	}{{"sampling_rate", 16000}, {"hop_length", hopSamples}, {"chunk_length", 30}} {
		if s.getNumber(o, c.key, 1, c.want) != c.want {
			s.failKey(o, c.key, "differs from %d, which is not modelled", c.want)
		}
	}
	if o.isMissing() {
		s.failKey(o, "feature extractor", "is missing")
	}
}

// qwen2AudioLayout returns the layout of sounds in Qwen2-Audio: 25 tokens a second, at most 30 seconds. A
// convolution and the mean of pairs leave a quarter of the frames.
func qwen2AudioLayout(pad kv.Token) func(mediaSize) (media.Layout, *SizeError) {
	return func(s mediaSize) (media.Layout, *SizeError) {
		mel := min(maxMelFrames, ceilDiv(s.samples, hopSamples))
		if mel < 3 {
			return media.Layout{}, refuseSize("the sound is too short to leave a token")
		}
		return singleRunLayout(pad, ((mel-1)/2+1-2)/2+1, [3]int64{})
	}
}

// openUltravox creates the family of Ultravox: sounds of any length, in chunks of 30 seconds. The encoder's
// halving and the projector's stacking determine the frames per token. The placeholder of its prompts is a
// token in some of its vocabularies only; the others have no placeholder.
func openUltravox(s *configSource) *Family {
	s.checkWhisperIfPresent(s.audio)
	each := 2 * s.requireNumber(s.config, "stack_factor", 1)
	pad := s.findToken("<|audio|>", "audio_token_id", "audio_token_index")
	m := &mediaRules{noPlaceholder: true, pad: pad, layout: func(s mediaSize) (media.Layout, *SizeError) {
		whole, rest := s.samples/chunkSamples, s.samples%chunkSamples
		n := whole * ceilDiv(maxMelFrames, each)
		if rest > 0 {
			n += ceilDiv(max(2, ceilDiv(rest, hopSamples)), each)
		}
		return singleRunLayout(pad, n, [3]int64{})
	}}
	if s.vocabulary != nil {
		if t, ok := s.vocabulary.ID("<|audio|>"); ok {
			m.noPlaceholder, m.placeholder = false, t
		}
	}
	return newSingleFamily(media.Audio, m)
}

// checkWhisperIfPresent is checkWhisper for checkpoints which name their front end instead of including its
// settings.
func (s *configSource) checkWhisperIfPresent(o jsonObject) {
	if !o.isMissing() {
		s.checkWhisper(o)
	}
}
