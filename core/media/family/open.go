package family

import (
	"slices"
	"strings"

	"penstock/core/media"
)

// familyEntry is a family in the registry.
type familyEntry struct {
	name string
	// types are the values of model_type of the family. visionTypes, if set, are the values of
	// vision_config's model_type. One of them is required too: LLaVA wraps several encoders.
	types, visionTypes []string
	// architectures are names of model classes of the family, used if the type is unknown.
	architectures []string
	// names are parts of the names of its models, in lower case and with hyphens, used if there is nothing
	// else.
	names []string
	open  func(*configSource) *Family
	// ownProcessor says that the family's processors are code of its checkpoints, which the rules here
	// reproduce. If other checkpoints contain such code, it can compute any count.
	ownProcessor bool
}

// familyRegistry returns the families in the order of lookup.
func familyRegistry() []familyEntry {
	return []familyEntry{
		{
			name: "qwen3_5", types: []string{"qwen3_5", "qwen3_5_moe"}, names: []string{"qwen3.5", "qwen3.6"}, open: openQwen3,
			architectures: []string{"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"},
		},
		{
			name: "qwen4_exp", types: []string{"qwen4_exp"}, names: []string{"qwen4-exp"}, open: openQwen3,
			architectures: []string{"Qwen4ExpForConditionalGeneration"},
		},
		{
			name: "qwen3_vl", types: []string{"qwen3_vl", "qwen3_vl_moe"}, names: []string{"qwen3-vl"}, open: openQwen3,
			architectures: []string{"Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"},
		},
		{
			name: "qwen2_5_vl", types: []string{"qwen2_5_vl"}, names: []string{"qwen2.5-vl", "qwen2-5-vl"}, open: openQwen2,
			architectures: []string{"Qwen2_5_VLForConditionalGeneration"},
		},
		{
			name: "qwen2_vl", types: []string{"qwen2_vl"}, names: []string{"qwen2-vl"}, open: openQwen2,
			architectures: []string{"Qwen2VLForConditionalGeneration"},
		},
		{
			name: "llava_next", types: []string{"llava_next"}, visionTypes: llavaEncoders(), names: []string{"llava-next", "llava-v1.6", "llava-1.6"}, open: openLlavaNext,
			architectures: []string{"LlavaNextForConditionalGeneration"},
		},
		{
			name: "llava", types: []string{"llava", "vipllava"}, visionTypes: llavaEncoders(), names: []string{"llava-v1.5", "llava-1.5", "vip-llava"}, open: openLlava,
			architectures: []string{"LlavaForConditionalGeneration", "VipLlavaForConditionalGeneration"},
		},
		{
			name: "pixtral", types: []string{"llava", "mistral3", "mistral_large4"}, visionTypes: []string{"pixtral"},
			names: []string{"pixtral", "mistral-small-3.1", "mistral-small-3.2", "mistral-large-4"}, open: openPixtral,
			architectures: []string{"LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration", "MistralLarge4ForConditionalGeneration"},
		},
		{
			name: "phi3_v", types: []string{"phi3_v"}, names: []string{"phi-3-vision", "phi-3.5-vision"}, open: openPhi3, ownProcessor: true,
			architectures: []string{"Phi3VForCausalLM"},
		},
		{
			name: "llama4", types: []string{"llama4"}, names: []string{"llama-4", "llama4"}, open: openLlama4,
			architectures: []string{"Llama4ForConditionalGeneration"},
		},
		{
			name: "kimi_k25", types: []string{"kimi_k25"}, names: []string{"kimi-k2.5", "kimi-k25"}, open: openKimi, ownProcessor: true,
			architectures: []string{"KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"},
		},
		{
			name: "gemma3", types: []string{"gemma3"}, names: []string{"gemma-3-4b", "gemma-3-12b", "gemma-3-27b"}, open: openGemma3,
			architectures: []string{"Gemma3ForConditionalGeneration"},
		},
		{
			name: "internvl", types: []string{"internvl"}, open: openInternVL,
			architectures: []string{"InternVLForConditionalGeneration"},
		},
		{
			name: "qwen2_audio", types: []string{"qwen2_audio"}, names: []string{"qwen2-audio"}, open: openQwen2Audio,
			architectures: []string{"Qwen2AudioForConditionalGeneration"},
		},
		{
			name: "ultravox", types: []string{"ultravox"}, names: []string{"ultravox"}, open: openUltravox, ownProcessor: true,
			architectures: []string{"UltravoxModel", "UltravoxForConditionalGeneration"},
		},
	}
}

// llavaEncoders returns the vision encoders of LLaVA models whose tokens are known.
func llavaEncoders() []string { return []string{"clip_vision_model", "siglip_vision_model"} }

// modelIdentity is what a configuration says about its model.
type modelIdentity struct {
	modelType, vision string
	architectures     []string
	name              string
}

// findFamily returns the family of a model: by its type, otherwise by its architecture, otherwise, if both
// are missing, by the longest matching part of its name.
func findFamily(of []familyEntry, id modelIdentity) (familyEntry, bool) {
	sees := func(k familyEntry) bool { return len(k.visionTypes) == 0 || slices.Contains(k.visionTypes, id.vision) }
	for _, k := range of {
		if slices.Contains(k.types, id.modelType) && sees(k) {
			return k, true
		}
	}
	for _, a := range id.architectures {
		for _, k := range of {
			if slices.Contains(k.architectures, a) && sees(k) {
				return k, true
			}
		}
	}
	if id.modelType != "" || len(id.architectures) > 0 {
		return familyEntry{}, false // another model, whatever its name
	}
	name := strings.ReplaceAll(strings.ToLower(id.name), "_", "-")
	best, length := familyEntry{}, 0
	for _, k := range of {
		for _, part := range k.names {
			if len(part) > length && strings.Contains(name, part) && sees(k) {
				best, length = k, len(part)
			}
		}
	}
	return best, length > 0
}

// Open returns the family of the model of the files, for an engine which adds no settings. Errors are of
// type [*UnsupportedError]: for models without media, for unknown families, and for configurations with
// unmodelled settings or missing values.
func Open(files CheckpointFiles, v Vocabulary) (*Family, error) { return OpenFor(files, Serving{}, v) }

// OpenFor is Open for an engine with settings of its own.
func OpenFor(files CheckpointFiles, as Serving, v Vocabulary) (*Family, error) {
	s := readFiles(files, v)
	s.serving = as
	s.applyArgs(as.ProcessorArgs)
	id := modelIdentity{
		modelType: s.getText(s.config, "model_type", ""), vision: s.getText(s.getObject(s.config, "vision_config"), "model_type", ""),
		architectures: s.getTexts(s.config, "architectures"), name: s.getText(s.config, "_name_or_path", ""),
	}
	if s.err != nil {
		return nil, s.err
	}
	if s.config.isMissing() {
		return nil, newUnsupported("config.json and preprocessor_config.json are missing beside tokenizer.json")
	}
	k, ok := findFamily(familyRegistry(), id)
	if !ok {
		return nil, newUnsupported("it is not known here whether and how models of type %.60q show media", id.modelType)
	}
	if !k.ownProcessor {
		s.requireLibraryProcessor(s.image)
		s.requireLibraryProcessor(s.audio)
		s.requireLibraryProcessor(s.processor)
	}
	f := k.open(s)
	if s.err == nil {
		s.checkArgs(f)
	}
	if s.err != nil {
		return nil, s.err
	}
	return finishFamily(k.name, f), nil
}

// finishFamily sets the fields which follow from the others.
func finishFamily(name string, f *Family) *Family {
	f.name = name
	for _, m := range f.rules {
		if m != nil && !m.noPlaceholder {
			f.placeholders = append(f.placeholders, m.placeholder)
		}
	}
	slices.Sort(f.placeholders)
	f.placeholders = slices.Compact(f.placeholders)
	return f
}

// OpenBuiltin returns the family of the built-in model: images and videos by the rules of Qwen2-VL within
// small limits, and sounds by the rules of Qwen2-Audio. Its vocabulary must have the three placeholders.
func OpenBuiltin(v Vocabulary) (*Family, error) { return OpenBuiltinFor(Serving{}, v) }

// OpenBuiltinFor is OpenBuiltin for an engine with settings of its own.
func OpenBuiltinFor(as Serving, v Vocabulary) (*Family, error) {
	s := &configSource{vocabulary: v, serving: as}
	image, video, audio := s.findToken("<|image|>"), s.findToken("<|video|>"), s.findToken("<|audio|>")
	s.image = s.parseObject("the built-in model", []byte(`{"min_pixels":3136,"max_pixels":200704}`))
	s.video = s.image
	s.applyArgs(as.ProcessorArgs)
	pictures, frames := s.readQwenVision(s.image, 14), s.readQwenVision(s.video, 14)
	frames.loader = as.Loader
	f := &Family{rules: [...]*mediaRules{
		media.Image: {placeholder: image, pad: image, layout: pictures.imageLayout(image)},
		media.Video: {placeholder: video, pad: video, layout: frames.frameLayout(video)},
		media.Audio: {placeholder: audio, pad: audio, layout: qwen2AudioLayout(audio)},
	}}
	if s.err == nil {
		s.checkArgs(f)
	}
	if s.err != nil {
		return nil, s.err
	}
	return finishFamily("penstock-vision", f), nil
}
