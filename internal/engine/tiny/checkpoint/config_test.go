package checkpoint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

func TestDecodeConfig(t *testing.T) {
	for _, test := range []struct {
		name, json string
		want       Config
	}{
		{
			"old spelling",
			`{"architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
			"num_key_value_heads":2,"intermediate_size":96,"vocab_size":128,"max_position_embeddings":512,"rms_norm_eps":1e-05,
			"hidden_act":"silu","rope_theta":500000.0,"torch_dtype":"bfloat16","eos_token_id": [1, 2],
			"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":256,"rope_type":"llama3"}}`,
			Config{
				Architectures: []string{"LlamaForCausalLM"}, HiddenSize: 64, Layers: 2, Heads: 4, KVHeads: 2, Intermediate: 96,
				Facts: Facts{VocabSize: 128, MaxPositions: 512, EOS: []kv.Token{1, 2}}, RMSEps: 1e-5, Activation: "silu",
				Rope: Rope{Theta: 500000, Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 256},
			},
		},
		{
			"new spelling",
			`{"head_dim":16,"rope_parameters":{"rope_theta":10000.0,"rope_type":"linear","factor":2},"tie_word_embeddings":true,
			"attention_bias":true,"mlp_bias":true,"eos_token_id":7,"layer_types":["full_attention"],"sliding_window":9}`,
			Config{
				HeadDim: 16, Rope: Rope{Theta: 10000, Type: "linear", Factor: 2}, TieEmbeddings: true,
				AttentionBias: true, MLPBias: true, Facts: Facts{EOS: []kv.Token{7}}, LayerTypes: []string{"full_attention"}, SlidingWindow: 9,
			},
		},
		{
			"nulls and switches",
			`{"sliding_window":4096,"use_sliding_window":false,"rope_scaling":null,"eos_token_id":null,"num_key_value_heads":null,
			"quantization_config":{"bits":4},"partial_rotary_factor":0.5}`,
			Config{Quantization: "unnamed", Rope: Rope{Partial: 0.5}},
		},
		{
			"keys of an unknown scaling are its own",
			`{"rope_scaling":{"type":"yarn","beta_fast":32,"factor":4}}`,
			Config{Rope: Rope{Type: "yarn", Factor: 4}},
		},
		{
			"a model that sees, older",
			`{"architectures":["Qwen2VLForConditionalGeneration"],"hidden_size":1536,"rope_scaling":{"type":"mrope","mrope_section":[16,24,24]},
			"sliding_window":32768,"use_sliding_window":false,"tie_word_embeddings":true,"image_token_id":151655,"video_token_id":151656,
			"vision_config":{"depth":32,"embed_dim":1280,"mlp_ratio":4,"num_heads":16,"in_chans":3,"hidden_size":1536,"patch_size":14,
			"spatial_merge_size":2,"spatial_patch_size":14,"temporal_patch_size":2}}`,
			Config{
				Architectures: []string{"Qwen2VLForConditionalGeneration"}, HiddenSize: 1536, TieEmbeddings: true,
				Rope: Rope{Type: "mrope", Sections: []int{16, 24, 24}}, ImageToken: ptr(151655), VideoToken: ptr(151656),
				Vision: &Vision{Depth: 32, Dim: 1280, Hidden: 1536, Heads: 16, MLPRatio: 4, Channels: 3, Patch: 14, Merge: 2, Temporal: 2},
			},
		},
		{
			"a model that sees, newer",
			`{"architectures":["Qwen2VLForConditionalGeneration"],"image_token_id":5,"tie_word_embeddings":false,"eos_token_id":8,
			"text_config":{"architectures":["Other"],"hidden_size":32,"eos_token_id":7,"tie_word_embeddings":true,
			"rope_parameters":{"mrope_section":[2,1,1],"rope_theta":10000.0,"rope_type":"default"}},
			"vision_config":{"depth":2,"in_channels":3,"hidden_act":"quick_gelu","rope_parameters":{"rope_theta":10000.0,"rope_type":"axial"}}}`,
			Config{
				Architectures: []string{"Qwen2VLForConditionalGeneration"}, HiddenSize: 32, Facts: Facts{EOS: []kv.Token{8}}, ImageToken: ptr(5),
				Rope:   Rope{Theta: 10000, Type: "default", Sections: []int{2, 1, 1}},
				Vision: &Vision{Depth: 2, Channels: 3, Activation: "quick_gelu", Rope: Rope{Theta: 10000, Type: "axial"}},
			},
		},
		{
			"keys are exact",
			`{"Hidden_Size":64}`,
			Config{},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := decodeConfig([]byte(test.json))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func ptr(t kv.Token) *kv.Token { return &t }

func TestDecodeConfigRefuses(t *testing.T) {
	for _, test := range []struct{ json, want string }{
		{``, "ends in the middle of an object; the file is truncated, fetch it again"},
		{`{"hidden_size":64,"rope_sc`, "the file is truncated"},
		{`{"hidden_size":`, "the file is truncated"},
		{`{"rope_scaling":{"factor":8.0`, "the file is truncated"},
		{`[]`, "want an object"},
		{`{"vision_config":3}`, "vision_config"},
		{`{"vision_config":{"patch_size":[14,14]}}`, "vision_config: patch_size"},
		{`{"vision_config":{"rope_parameters":{"rope_theta":"x"}}}`, "vision_config: rope_theta"},
		{`{"text_config":{"a":1,"a":2}}`, "text_config"},
		{`{"image_token_id":-1}`, "image_token_id"},
		{`{"hidden_size":1,"hidden_size":2}`, `"hidden_size" occurs twice`},
		{`{"hidden_size":"1"}`, "hidden_size"},
		{`{"hidden_size":1.5}`, "hidden_size"},
		{`{"eos_token_id":-1}`, "eos_token_id"},
		{`{"eos_token_id":[4294967296]}`, "eos_token_id"},
		{`{"rope_parameters":{"rope_type":"linear","factors":[1]}}`, `rope_parameters: unknown key "factors"`},
		{`{"rope_parameters":{"full_attention":{"rope_type":"default"}}}`, `unknown key "full_attention"`},
		{`{"rope_scaling":[]}`, "rope_scaling"},
		{`{"quantization_config":7}`, "quantization_config"},
		{`{} {}`, "data after the end"},
	} {
		if _, err := decodeConfig([]byte(test.json)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.json, err, test.want)
		}
	}
}

func TestReadConfigBounds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, configFile, []byte(`{"a":"`+strings.Repeat("x", maxConfig)+`"}`))
	if _, err := ReadConfig(dir); err == nil || !strings.Contains(err.Error(), "bytes, more than the 4194304 that are read") {
		t.Fatalf("got %v", err)
	}
}

func TestReadGeneration(t *testing.T) {
	dir := t.TempDir()
	if got, err := ReadGeneration(dir); err != nil || !cmp.Equal(got, Generation{}) {
		t.Errorf("without a file: %+v, %v", got, err)
	}
	write(t, dir, generationFile, []byte(`{"do_sample":false,"eos_token_id":[3,4],"temperature":0.7,"top_k":20,"max_length":9}`))
	got, err := ReadGeneration(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := Generation{EOS: []kv.Token{3, 4}, DoSample: new(bool), Temperature: new(float64), TopK: new(int)}
	*want.Temperature, *want.TopK = 0.7, 20
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	write(t, dir, generationFile, []byte(`{"top_k":"many"}`))
	if _, err := ReadGeneration(dir); err == nil || !strings.Contains(err.Error(), "generation_config.json: top_k") {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte(`{"eos_token_id":[1],"rope_scaling":{"type":"linear","factor":2},"quantization_config":{}}`))
	f.Add([]byte(`{"eos_token_id":1,"rope_parameters":{"rope_theta":1e4,"rope_type":"llama3"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		decodeConfig(data)
		decodeGeneration(data)
	})
}

// TestEchoesAreBounded: a message quotes only the beginning of the file's value.
func TestEchoesAreBounded(t *testing.T) {
	long := strings.Repeat("7", 1<<20)
	for _, json := range []string{
		`{"hidden_size":` + long + `}`,
		`{"eos_token_id":[` + long + `]}`,
		`{"` + long + `":1,"` + long + `":2}`,
		`{"rope_parameters":{"` + long + `":2}}`,
		`{"rope_parameters":{"factor":` + long + `}}`,
		long,
		`"` + long + `"`,
	} {
		if _, err := decodeConfig([]byte(json)); err == nil || len(err.Error()) > 1000 {
			t.Errorf("%.60s: an error of %d bytes: %.300v", json, len(fmt.Sprint(err)), err)
		}
	}
	for _, header := range []string{
		`{"` + long + `":{}}`,
		`{"a":{"dtype":"` + long + `","shape":[],"data_offsets":[0,0]}}`,
		`{"a":{"dtype":"F32","shape":[` + long + `],"data_offsets":[0,0]}}`,
		`{"a":{"` + long + `":1}}`,
	} {
		if _, err := decodeHeader([]byte(header), 0); err == nil || len(err.Error()) > 1000 {
			t.Errorf("header %.60s: an error of %d bytes: %.300v", header, len(fmt.Sprint(err)), err)
		}
	}
	if _, err := decodeIndex([]byte(`{"weight_map":{"a":` + long + `}}`)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("index: an error of %d bytes: %.300v", len(fmt.Sprint(err)), err)
	}
}
