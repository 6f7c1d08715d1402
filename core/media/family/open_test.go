package family

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
)

// TestRegistry: no configuration matches two families, and every family is found by each of its names.
func TestRegistry(t *testing.T) {
	families := familyRegistry()
	identities := map[identityKey]string{}
	claim := func(key identityKey, k familyEntry) {
		if other, taken := identities[key]; taken {
			t.Errorf("%+v is of %s and %s", key, other, k.name)
		}
		identities[key] = k.name
	}
	names := []string{}
	for _, k := range families {
		if slices.Contains(names, k.name) {
			t.Errorf("%s is there twice", k.name)
		}
		names = append(names, k.name)
		visions := k.visionTypes
		if visions == nil {
			visions = []string{"", "clip_vision_model", "siglip_vision_model", "pixtral", "another"}
		}
		for _, v := range visions {
			for _, of := range k.types {
				claim(identityKey{"type", of, v}, k)
				if got, ok := findFamily(families, modelIdentity{modelType: of, vision: v}); !ok || got.name != k.name {
					t.Errorf("type %s with %q is of %s", of, v, got.name)
				}
			}
			for _, of := range k.architectures {
				claim(identityKey{"architecture", of, v}, k)
				if got, ok := findFamily(families, modelIdentity{modelType: "new", architectures: []string{"X", of}, vision: v}); !ok || got.name != k.name {
					t.Errorf("architecture %s with %q is of %s", of, v, got.name)
				}
			}
		}
		for _, part := range k.names {
			claim(identityKey{"name", part, ""}, k)
			v := append(slices.Clone(k.visionTypes), "")[0]
			if got, ok := findFamily(families, modelIdentity{name: "Org/" + strings.ToUpper(part) + "_Instruct", vision: v}); !ok || got.name != k.name {
				t.Errorf("name %s is of %s", part, got.name)
			}
			if part != strings.ReplaceAll(strings.ToLower(part), "_", "-") {
				t.Errorf("name %s is not in lower case with hyphens", part)
			}
		}
	}
}

type identityKey struct{ by, of, vision string }

// TestStrangers: a model whose name resembles the name of a family does not match it.
func TestStrangers(t *testing.T) {
	for _, id := range []modelIdentity{
		{},
		{modelType: "llama"},
		{modelType: "qwen2", name: "Qwen2-VL-7B"},
		{modelType: "llava_onevision", vision: "siglip_vision_model", architectures: []string{"LlavaOnevisionForConditionalGeneration"}},
		{modelType: "llava", vision: "a new one"},
		{modelType: "gemma3_text"},
		{modelType: "gemma3n"},
		{modelType: "kimi_k2"},
		{modelType: "internvl_chat"},
		{modelType: "qwen3_vl_text"},
		{name: "llava-hf/llava-onevision-qwen2-7b"},
		{name: "google/gemma-3n-E4B-it"},
		{name: "google/gemma-3-1b-it"},
		{name: "moonshotai/Kimi-K2-Instruct"},
		{name: "mistralai/Mistral-Small-24B-Instruct-2501"},
		{name: "Qwen/Qwen2-7B"},
		{name: "Qwen/Qwen3-8B"},
		{name: "meta-llama/Llama-3.2-11B-Vision"},
	} {
		if k, ok := findFamily(familyRegistry(), id); ok {
			t.Errorf("%+v is of %s", id, k.name)
		}
	}
}

// TestUnsupported: uncertain configurations are refused with a reason.
func TestUnsupported(t *testing.T) {
	const limits = `"min_pixels":3136,"max_pixels":12845056`
	vocab := spelling{"<|image_pad|>": 300, "<|video_pad|>": 301}
	for _, c := range []struct{ config, preprocessor, want string }{
		{``, ``, "config.json and preprocessor_config.json are missing"},
		{`[]`, ``, "config.json is no JSON object"},
		{`{"model_type":7}`, ``, "model_type of config.json is no string"},
		{`{"model_type":"llama"}`, ``, `models of type "llama"`},
		{`{"model_type":"qwen2_vl"}`, ``, "shortest_edge of preprocessor_config.json size is missing"},
		{`{"model_type":"qwen2_vl"}`, `{"min_pixels":3136}`, "longest_edge of preprocessor_config.json size is missing"},
		{`{"model_type":"qwen2_vl"}`, `{` + limits + `,"do_resize":false}`, "do_resize of preprocessor_config.json is false"},
		{`{"model_type":"qwen2_vl"}`, `{` + limits + `,"patch_size":0}`, "patch_size of preprocessor_config.json is no whole number"},
		{`{"model_type":"qwen2_vl"}`, `{` + limits + `,"patch_size":2048}`, "beyond what is counted"},
		{`{"model_type":"qwen2_vl","image_token_id":-1}`, `{` + limits + `}`, "image_token_id of config.json"},
		{`{"model_type":"qwen2_vl","image_token_id":4294967296}`, `{` + limits + `}`, "image_token_id of config.json is no token"},
		{`{"model_type":"qwen2_vl"}`, `{` + limits + `,"auto_map":{"AutoImageProcessor":"x.Y"}}`, "auto_map of preprocessor_config.json"},
		{`{"model_type":"internvl_chat"}`, ``, "internvl_chat"},
		{`{"model_type":"llava","vision_config":{"model_type":"clip_vision_model","image_size":336,"patch_size":14},"vision_feature_select_strategy":"some"}`, `{}`, `is "some"`},
		{`{"model_type":"llava","vision_config":{"model_type":"siglip_vision_model","image_size":384,"patch_size":14},"image_token_index":9}`, `{}`, "drops the class's token"},
		{`{"model_type":"llava","vision_config":{"model_type":"clip_vision_model","image_size":336,"patch_size":14},"image_token_index":9}`, `{"crop_size":{"height":224,"width":224}}`, "height of preprocessor_config.json crop_size"},
		{`{"model_type":"kimi_k25","image_token_id":9}`, `{"media_proc_cfg":{"patch_size":14,"merge_kernel_size":2,"in_patch_limit":9,"patch_limit_on_one_side":9,"fixed_output_tokens":4}}`, "fixed_output_tokens"},
		{`{"model_type":"gemma3","mm_tokens_per_image":256,"boi_token_index":1,"eoi_token_index":2,"image_token_index":3}`, `{}`, "two line breaks"},
	} {
		files := CheckpointFiles{Preprocessor: []byte(c.preprocessor)}
		if c.config != "" {
			files.Config = []byte(c.config)
		}
		if c.preprocessor == "" {
			files.Preprocessor = nil
		}
		f, err := Open(files, vocab)
		var unsupported *UnsupportedError
		if f != nil || !errors.As(err, &unsupported) || unsupported.Reason != media.UnsupportedModel || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.config, c.preprocessor, err, c.want)
		}
	}
	if _, err := Open(CheckpointFiles{Config: []byte(`{"model_type":"qwen2_vl"}`), Preprocessor: []byte(`{` + limits + `}`)}, nil); err == nil || !strings.Contains(err.Error(), "<|image_pad|>") {
		t.Errorf("without a vocabulary: %v", err)
	}
	if _, err := Open(CheckpointFiles{Config: make([]byte, maxFile+1)}, nil); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("of a large file: %v", err)
	}
	if _, err := OpenBuiltin(spelling{"<|image|>": 1, "<|video|>": 2}); err == nil || !strings.Contains(err.Error(), "<|audio|>") {
		t.Errorf("%v", err)
	}
}

// TestPart: a problem with videos does not prevent images.
func TestPart(t *testing.T) {
	g := readGolden(t, "testdata/qwen3_vl.json.gz")
	for _, c := range []struct {
		video string
		v     Vocabulary
		want  string
	}{
		{string(g.Files.VideoPreprocessor), nil, "no tokenizer"},
		{`{"size":{"shortest_edge":4096,"longest_edge":25165824},"num_frames":8}`, spelling(g.Vocab), "num_frames"},
		{`{"size":{"shortest_edge":4096,"longest_edge":25165824},"do_sample_frames":false}`, spelling(g.Vocab), "do_sample_frames"},
		{`{"size":{"shortest_edge":4096,"longest_edge":25165824},"max_frames":5000}`, spelling(g.Vocab), "max_frames"},
	} {
		files := g.files()
		files.VideoPreprocessor = []byte(c.video)
		f, err := Open(files, c.v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Layout(media.Image, media.Size{Width: 9, Height: 9}); err != nil || len(f.Placeholders()) != 1 || f.Supports(media.Video) {
			t.Errorf("%v %v", err, f.Placeholders())
		}
		var refused *SizeError
		_, err = f.Layout(media.Video, media.Size{Width: 9, Height: 9, Frames: 9})
		if !errors.As(err, &refused) || refused.Reason != media.UnsupportedModel || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestNested: transformers 5 writes the settings of all processors into one file.
func TestNested(t *testing.T) {
	for _, name := range []string{"qwen2_vl", "qwen3_vl", "llava_next", "mistral3", "qwen2_audio"} {
		g := readGolden(t, filepath.Join("testdata", name+".json.gz"))
		own := map[string]json.RawMessage{}
		if g.Files.Processor != nil {
			own = decoded[map[string]json.RawMessage](t, g.Files.Processor)
		}
		own["image_processor"], own["feature_extractor"] = g.Files.Preprocessor, g.Files.Preprocessor
		if g.Files.VideoPreprocessor != nil {
			own["video_processor"] = g.Files.VideoPreprocessor
		}
		raw, err := json.Marshal(own)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(CheckpointFiles{Config: g.Files.Config, Processor: raw, Preprocessor: []byte(`{"do_resize":false}`)}, spelling(g.Vocab))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := g.open(t)
		for _, c := range g.cases(t)[:50] {
			a, errA := f.Layout(c.kind, c.size)
			b, errB := want.Layout(c.kind, c.size)
			if !slices.Equal(a.Runs, b.Runs) || (errA == nil) != (errB == nil) {
				t.Errorf("%s %+v: %v, want %v", name, c.size, a, b)
			}
		}
	}
}

// TestUnmarked: media which are counted and cannot be found in a prompt have no placeholder.
func TestUnmarked(t *testing.T) {
	phi := readGolden(t, "testdata/phi3_v.json.gz").open(t)
	pad, _ := phi.PadToken(media.Image)
	if p, ok := phi.Placeholder(media.Image); !ok || p != pad || len(phi.Placeholders()) != 1 || !phi.Supports(media.Image) {
		t.Errorf("%d %t %v", p, ok, phi.Placeholders())
	}
	if n, ok := phi.NumberedText(media.Image); !ok || n != (NumberedText{Before: "<|image_", After: "|>"}) {
		t.Errorf("%v %t", n, ok)
	}
	if pad, ok := phi.PadToken(media.Image); !ok || pad != 256 {
		t.Errorf("%d %t", pad, ok)
	}
	named := readGolden(t, "testdata/ultravox.json.gz")
	if p, ok := named.open(t).Placeholder(media.Audio); !ok || p != 256 {
		t.Errorf("%d %t", p, ok)
	}
	f, err := Open(named.files(), spelling{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Placeholder(media.Audio); ok {
		t.Error("a placeholder that is no token")
	}
	if _, ok := f.PadToken(media.Image); ok || f.Supports(media.Image) {
		t.Error("it sees")
	}
}

// TestSizeErrors: impossible sizes, and kinds which a family does not take.
func TestSizeErrors(t *testing.T) {
	f, err := OpenBuiltin(spelling{"<|image|>": 1, "<|video|>": 2, "<|audio|>": 3})
	if err != nil {
		t.Fatal(err)
	}
	images := readGolden(t, "testdata/llava.json.gz").open(t)
	for _, c := range []struct {
		f    *Family
		kind media.Kind
		size media.Size
		want media.Reason
	}{
		{f, media.Image, media.Size{}, media.DimensionsUnknown},
		{f, media.Image, media.Size{Width: -3, Height: 3}, media.DimensionsUnknown},
		{f, media.Image, media.Size{Width: maxSide + 1, Height: 3}, media.OverLimit},
		{f, media.Image, media.Size{Width: 201, Height: 1}, media.SizeRefused},
		{f, media.Video, media.Size{Width: 9, Height: 9}, media.DimensionsUnknown},
		{f, media.Video, media.Size{Width: 9, Height: 9, Frames: maxFrames + 1}, media.OverLimit},
		{f, media.Video, media.Size{Width: 9, Height: 9, Frames: 3, Rate: -1}, media.DimensionsUnknown},
		{f, media.Audio, media.Size{}, media.DimensionsUnknown},
		{f, media.Audio, media.Size{Samples: maxSamples + 1}, media.OverLimit},
		{f, media.Audio, media.Size{Samples: 320}, media.SizeRefused},
		{images, media.Audio, media.Size{Samples: 32000}, media.UnsupportedModel},
		{images, 0, media.Size{Width: 9, Height: 9}, media.UnsupportedModel},
		{images, 200, media.Size{Width: 9, Height: 9}, media.UnsupportedModel},
	} {
		var refused *SizeError
		if _, err := c.f.Layout(c.kind, c.size); !errors.As(err, &refused) || refused.Reason != c.want || refused.Detail == "" || refused.Kind != c.kind {
			t.Errorf("%v %+v: %v, want %s", c.kind, c.size, err, c.want)
		}
	}
}

// TestAllocations: a layout is one slice, for any size; videos with text need one more for the text of each
// pair of frames.
func TestAllocations(t *testing.T) {
	for _, path := range goldens(t) {
		f := readGolden(t, path).open(t)
		for k := media.Image; k <= media.Audio; k++ {
			if !f.Supports(k) {
				continue
			}
			size := media.Size{Width: 4000, Height: 3000, Frames: 480, Rate: 24, Samples: 480000}
			l, err := f.Layout(k, size)
			if err != nil {
				t.Fatal(err)
			}
			limit := 1.0
			if name := f.Name(); (strings.HasPrefix(name, "qwen3") || name == "qwen4_exp") && k == media.Video {
				limit = float64(1 + 4*l.Grid[0])
			}
			if n := testing.AllocsPerRun(10, func() { _, _ = f.Layout(k, size) }); n > limit {
				t.Errorf("%s: %v allocates %v times for %d runs", path, k, n, len(l.Runs))
			}
		}
	}
}

// TestTextIsAskedOnce: the encoder gets the text of each pair of frames once.
func TestTextIsAskedOnce(t *testing.T) {
	g := readGolden(t, "testdata/qwen3_vl.json.gz")
	v := &listener{spelling: spelling(g.Vocab)}
	f, err := Open(g.files(), v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Layout(media.Video, media.Size{Width: 64, Height: 64, Frames: 40, Rate: 10}); err != nil {
		t.Fatal(err)
	}
	// Eight of the forty frames: the first, the last, and evenly spread ones between them.
	if want := []string{"<0.3 seconds>", "<1.4 seconds>", "<2.5 seconds>", "<3.6 seconds>"}; !slices.Equal(v.heard, want) {
		t.Errorf("%q, want %q", v.heard, want)
	}
}

type listener struct {
	spelling
	heard []string
}

func (l *listener) Tokens(text string) []kv.Token {
	l.heard = append(l.heard, text)
	return l.spelling.Tokens(text)
}
