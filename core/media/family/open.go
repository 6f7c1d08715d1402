package family

import (
	"slices"
	"strings"

	"penstock/core/kv"
	"penstock/core/media"
)

// kin is a family in the registry.
type kin struct {
	name string
	// types are the values of model_type that are of it.
	types []string
	// architectures are names of model classes that are of it, if the type is not known.
	architectures []string
	// names are parts of models' names that are of it, lower case, if neither is known.
	names []string
	open  func(*source) *Family
}

// registry returns the families, in the order in which they are asked.
func registry() []kin {
	return []kin{
		{
			name: "qwen2_vl", types: []string{"qwen2_vl"}, architectures: []string{"Qwen2VLForConditionalGeneration"},
			names: []string{"qwen2-vl"}, open: openQwen2,
		},
	}
}

// find returns the family of a model: by its type if that is of one, else by its
// architecture, else by its name, of which the longest part that is of a family decides.
func find(of []kin, modelType string, architectures []string, name string) (kin, bool) {
	for _, k := range of {
		if slices.Contains(k.types, modelType) {
			return k, true
		}
	}
	for _, a := range architectures {
		for _, k := range of {
			if slices.Contains(k.architectures, a) {
				return k, true
			}
		}
	}
	if modelType != "" || len(architectures) > 0 {
		return kin{}, false // another model, whatever it is called
	}
	name = strings.ToLower(name)
	best, length := kin{}, 0
	for _, k := range of {
		for _, part := range k.names {
			if len(part) > length && strings.Contains(name, part) {
				best, length = k, len(part)
			}
		}
	}
	return best, length > 0
}

// Open returns the family of the model that the files are of. Errors are of type
// [*UnsupportedError]: of models without media, of families that are not known, and of
// configurations that say something that is not modelled or leave out what is needed.
func Open(files Files, v Vocabulary) (*Family, error) {
	s := read(files, v)
	modelType := s.text(s.config, "model_type", "")
	architectures := s.texts(s.config, "architectures")
	name := s.text(s.config, "_name_or_path", "")
	if s.err != nil {
		return nil, s.err
	}
	if s.config.missing() {
		return nil, unsupported("the checkpoint has no config.json")
	}
	k, ok := find(registry(), modelType, architectures, name)
	if !ok {
		return nil, unsupported("how models of type %q show media is not known here", modelType)
	}
	f := k.open(s)
	if s.err != nil {
		return nil, s.err
	}
	return finish(k.name, f), nil
}

// finish fills in what follows from the rest.
func finish(name string, f *Family) *Family {
	f.name = name
	for _, m := range f.mediums {
		if m != nil {
			f.marks = append(f.marks, m.placeholder)
		}
	}
	slices.Sort(f.marks)
	f.marks = slices.Compact(f.marks)
	return f
}

// Builtin returns the family of the built-in model: pictures and videos by the rules of
// Qwen2-VL, within small limits, and sounds by those of Qwen2-Audio. Its vocabulary has
// to have the three placeholders.
func Builtin(v Vocabulary) (*Family, error) {
	s := &source{vocabulary: v}
	image, video, audio := s.token("<|image|>"), s.token("<|video|>"), s.token("<|audio|>")
	if s.err != nil {
		return nil, s.err
	}
	eyes := qwenVision{patch: 14, merge: 2, temporal: 2, least: 4 * 28 * 28, most: 256 * 28 * 28}
	return finish("penstock-vision", &Family{mediums: [...]*medium{
		media.Image: {placeholder: image, pad: image, layout: eyes.image(image)},
		media.Video: {placeholder: video, pad: video, layout: eyes.frames(video)},
		media.Audio: {placeholder: audio, pad: audio, layout: hear(audio)},
	}}), nil
}

// hear returns the layout of sounds as Qwen2-Audio has them: 25 tokens a second, and no
// more than 30 seconds. The encoder takes a frame of 160 samples at a time; a convolution
// and the mean of pairs leave a quarter.
func hear(pad kv.Token) func(media.Size) (media.Layout, *SizeError) {
	return func(s media.Size) (media.Layout, *SizeError) {
		mel := min(3000, ceil(s.Samples, 160))
		n := ((mel-1)/2+1-2)/2 + 1
		if mel < 3 { // the quotient is to be rounded down
			return media.Layout{}, &SizeError{Reason: media.SizeRefused, Detail: "the sound is too short to leave a token"}
		}
		return alone(pad, n, [3]int{}), nil
	}
}
