package family

import (
	"penstock/core/kv"
	"penstock/core/media"
)

// The front end of Whisper, which all audio families here share: one spectrum frame per hop of 160 samples
// at 16 kHz, in chunks of 30 seconds.
const (
	hop     = 160
	chunk   = 30 * 16000
	mostMel = chunk / hop
)

// openQwen2Audio creates the family of Qwen2-Audio.
func openQwen2Audio(s *source) *Family {
	s.whisper(s.audio)
	pad := s.token("<|AUDIO|>", "audio_token_id", "audio_token_index")
	return only(media.Audio, &medium{placeholder: pad, pad: pad, layout: hear(pad)})
}

// checkWhisper refuses a front end whose parameters differ from Whisper's.
func (s *source) whisper(o object) {
	for _, c := range []struct {
		key  string
		want int64
	}{{"sampling_rate", 16000}, {"hop_length", hop}, {"chunk_length", 30}} {
		if s.number(o, c.key, 1, c.want) != c.want {
			s.fail(o, c.key, "is another one than %d, which is not modelled", c.want)
		}
	}
	if o.missing() {
		s.fail(o, "feature extractor", "is missing")
	}
}

// qwen2AudioLayout returns the layout of sounds in Qwen2-Audio: 25 tokens a second, at most 30 seconds. A
// convolution and the mean of pairs leave a quarter of the frames.
func hear(pad kv.Token) func(size) (media.Layout, *SizeError) {
	return func(s size) (media.Layout, *SizeError) {
		mel := min(mostMel, ceil(s.samples, hop))
		if mel < 3 {
			return media.Layout{}, refuse("the sound is too short to leave a token")
		}
		return alone(pad, ((mel-1)/2+1-2)/2+1, [3]int64{})
	}
}

// openUltravox creates the family of Ultravox: sounds of any length, in chunks of 30 seconds. The encoder's
// halving and the projector's stacking determine the frames per token. The placeholder of its prompts is a
// token in some of its vocabularies only; the others have no placeholder.
func openUltravox(s *source) *Family {
	s.whisperIfSaid(s.audio)
	each := 2 * s.needed(s.config, "stack_factor", 1)
	pad := s.token("<|audio|>", "audio_token_id", "audio_token_index")
	m := &medium{unmarked: true, pad: pad, layout: func(s size) (media.Layout, *SizeError) {
		whole, rest := s.samples/chunk, s.samples%chunk
		n := whole * ceil(mostMel, each)
		if rest > 0 {
			n += ceil(max(2, ceil(rest, hop)), each)
		}
		return alone(pad, n, [3]int64{})
	}}
	if s.vocabulary != nil {
		if t, ok := s.vocabulary.ID("<|audio|>"); ok {
			m.unmarked, m.placeholder = false, t
		}
	}
	return only(media.Audio, m)
}

// checkWhisperIfPresent is checkWhisper for checkpoints which name their front end instead of including its
// settings.
func (s *source) whisperIfSaid(o object) {
	if !o.missing() {
		s.whisper(o)
	}
}
