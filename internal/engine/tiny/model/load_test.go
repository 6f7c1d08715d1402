package model

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

func TestLoadInfo(t *testing.T) {
	m, info, err := Load(t.Context(), "testdata/llama3")
	if err != nil {
		t.Fatal(err)
	}
	cfg := m.Config()
	if cfg.Heads != 4 || cfg.KVHeads != 2 || cfg.HeadDim != 8 || cfg.RopeScaling.Type != "llama3" || cfg.MaxPositions != 256 {
		t.Errorf("got %+v", cfg)
	}
	if !slices.Equal(info.Config.EOS, []kv.Token{2, 3}) || !slices.Equal(info.Generation.EOS, []kv.Token{2, 3}) {
		t.Errorf("end tokens are %v and %v", info.Config.EOS, info.Generation.EOS)
	}
	g := info.Generation
	if g.DoSample == nil || !*g.DoSample || *g.Temperature != 0.6 || *g.TopK != 20 || *g.TopP != 0.9 || *g.RepetitionPenalty != 1.1 || g.MinP != nil {
		t.Errorf("got %+v", g)
	}
	if _, info, err = Load(t.Context(), "testdata/llama-bf16"); err != nil || !slices.Equal(info.Config.EOS, []kv.Token{2}) {
		t.Errorf("end tokens are %v (%v)", info.Config.EOS, err)
	}
}

// TestLoadRefuses changes one field of a good config.json at a time.
func TestLoadRefuses(t *testing.T) {
	rope := func(pairs ...any) map[string]any {
		m := map[string]any{"rope_theta": 10000.0}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	for _, test := range []struct {
		name  string
		key   string
		value any
		want  string
	}{
		{"architecture", "architectures", []string{"MambaForCausalLM"}, `architecture "MambaForCausalLM" is not supported; supported are LlamaForCausalLM`},
		{"no architecture", "architectures", nil, "want one"},
		{"activation", "hidden_act", "gelu", `hidden_act "gelu"`},
		{"yarn", "rope_parameters", rope("rope_type", "yarn", "factor", 4.0, "beta_fast", 32), `rope scaling "yarn" is not supported; supported are linear and llama3`},
		{"unknown rope key", "rope_parameters", rope("rope_type", "default", "sections", 1), `rope_parameters: unknown key "sections"`},
		{"partial rotation", "rope_parameters", rope("rope_type", "default", "partial_rotary_factor", 0.5), "partial_rotary_factor 0.5"},
		{"incomplete llama3", "rope_parameters", rope("rope_type", "llama3", "factor", 8.0), "llama3 rope scaling needs"},
		{"attention bias", "attention_bias", true, "attention_bias"},
		{"mlp bias", "mlp_bias", true, "mlp_bias"},
		{"quantised", "quantization_config", map[string]any{"quant_method": "awq"}, "quantization_config (awq)"},
		{"window", "sliding_window", 128, "setting max_position_embeddings to 128"},
		{"layer types", "layer_types", []string{"full_attention", "sliding_attention"}, `layer 1 is of type "sliding_attention"`},
		{"no epsilon", "rms_norm_eps", nil, "RMSEps is 0"},
		{"wrong shape", "intermediate_size", 80, "has shape [72 32], its configuration says [80 32]"},
		{"wrong type", "hidden_size", "wide", "hidden_size"},
		{"tied", "tie_word_embeddings", true, ""},
		{"whole window", "sliding_window", 256, ""},
		{"older default", "num_key_value_heads", nil, "[16 32], its configuration says [32 32]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := changed(t, "testdata/llama3", test.key, test.value)
			_, _, err := Load(t.Context(), dir)
			switch {
			case test.want == "" && err != nil:
				t.Fatalf("got %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
}

// changed copies a fixture and sets a key of its config.json; nil removes it.
func changed(t *testing.T, from, key string, value any) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"model.safetensors", "config.json"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "config.json" {
			var cfg map[string]any
			if err := json.Unmarshal(data, &cfg); err != nil {
				t.Fatal(err)
			}
			cfg[key] = value
			if value == nil {
				delete(cfg, key)
			}
			if data, err = json.Marshal(cfg); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadWithoutFiles(t *testing.T) {
	if _, _, err := Load(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Fatalf("got %v, want one about config.json", err)
	}
}

// stopping are weights during whose loading the caller cancels.
type stopping struct {
	Tensors
	after int // tensors
	stop  context.CancelFunc
}

func (s *stopping) Tensor(name string) (Tensor, error) {
	if s.after--; s.after == 0 {
		s.stop()
	}
	return s.Tensors.Tensor(name)
}

func TestLoadingEndsWithContext(t *testing.T) {
	cfg := shapes["grouped"]
	ctx, stop := context.WithCancel(t.Context())
	w := &stopping{Tensors: randomWeights(cfg, 1), after: 1, stop: stop}
	if _, err := New(ctx, cfg, w); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped at the first weight: %v", err)
	}
	if perLayer := (len(cfg.Specs()) - 2) / cfg.Layers; w.after < -perLayer {
		t.Errorf("%d more weights were read, of %d in a layer", -w.after, perLayer)
	}
	if _, _, err := Load(ctx, "testdata/llama3"); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped before: %v", err)
	}
}
