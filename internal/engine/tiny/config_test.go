package tiny

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"

	"github.com/google/go-cmp/cmp"
)

func TestConfigReportsEveryProblem(t *testing.T) {
	cfg := Config{BlockSize: 1, Blocks: -1, MaxContext: 1, MaxSeqs: -2, TokenBudget: -3, MaxWaiting: -1, Layers: -1, EmbeddingCache: new(-1), Vocabulary: Vocabulary{Size: 1, EOS: []kv.Token{1}}}
	cfg.EnsureDefaults()
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, problem := range []string{"block size", "blocks is -1", "context", "running", "budget", "waiting", "layers", "embedding cache of -1", "vocabulary", "end-of-sequence"} {
		if !strings.Contains(err.Error(), problem) {
			t.Errorf("nothing about %q in:\n%v", problem, err)
		}
	}
	if _, err := New(t.Context(), Config{}); err == nil {
		t.Error("a built-in model without a vocabulary")
	}
}

func TestConfigDefaults(t *testing.T) {
	cfg := Config{ModelPath: "/models/llama/"}
	cfg.EnsureDefaults()
	want := Config{
		ModelPath: "/models/llama/", Name: "llama", Tokenizer: engine.TokenizerRef{Kind: "dir", Dir: "/models/llama/"},
		BlockSize: 16, MaxSeqs: 32, TokenBudget: 256, MaxWaiting: 256, EmbeddingCache: new(64 << 20),
		Encode: EncodeConfig{MaxJobs: 32, Threads: 4, Batch: 8, BatchWait: 5 * time.Millisecond, Timeout: time.Minute, CPUBudget: 16e9, StagingBudget: 4e9},
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Error(diff)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	cfg = Config{MemoryLimit: 32e9}
	cfg.EnsureDefaults()
	if cfg.Encode.CPUBudget != 8e9 || cfg.Encode.StagingBudget != 2e9 {
		t.Errorf("budgets on a machine of 32 GB: %d and %d", cfg.Encode.CPUBudget, cfg.Encode.StagingBudget)
	}
}

// TestCheckpoint writes the small model as a checkpoint, serves it, and expects the tokens of the model in
// memory.
func TestCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "small")
	writeCheckpoint(t, dir, map[string]any{
		"eos_token_id": []int{7, 8, 4000}, "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05,
	})
	e, err := New(t.Context(), Config{ModelPath: dir, Blocks: 120, BlockSize: 4, MaxSeqs: 16, TokenBudget: 48, Mask: []kv.Token{0, 1, 2, 8}, Aliases: []string{"alias"}})
	if err != nil {
		t.Fatal(err)
	}
	reference := small(t, func(c *Config) { c.Text = nil })
	want := engine.Card{
		Name: "small", Aliases: []string{"alias"}, Engine: "tiny", BlockSize: 4, Blocks: 120, Ranks: 1, ContextLength: 320, VocabSize: 96,
		EOS: []kv.Token{7, 8}, Numerics: reference.Card().Numerics, Tokenizer: engine.TokenizerRef{Kind: "dir", Dir: dir},
		Defaults: engine.Sampling{Temperature: 0.6, TopK: 20, TopP: 0.95, RepetitionPenalty: 1.05}, MaxBatchedTokens: 48,
	}
	if diff := cmp.Diff(want, e.Card()); diff != "" {
		t.Errorf("card (-want +got)\n%s", diff)
	}
	req := within(96, greedy(1, 30, 20))
	a := enginetest.MustGenerate(t, enginetest.Start(t, e), e, req)
	b := enginetest.MustGenerate(t, enginetest.Start(t, reference), reference, req)
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("from disk and from memory (-memory +disk)\n%s", diff)
	}
}

func TestCheckpointErrors(t *testing.T) {
	if _, err := New(t.Context(), Config{ModelPath: filepath.Join(t.TempDir(), "nothing")}); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestImpossibleDefaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "small")
	writeCheckpoint(t, dir, map[string]any{"top_p": 7})
	if _, err := New(t.Context(), Config{ModelPath: dir}); err == nil || !strings.Contains(err.Error(), "top_p") {
		t.Errorf("top_p of 7 in generation_config.json: %v", err)
	}
}

// writeCheckpoint writes the small model's weights as F32 safetensors.
func writeCheckpoint(t *testing.T, dir string, generation map[string]any) {
	t.Helper()
	shape := smallShape()
	weights := randomWeights(&shape, 1)
	header := map[string]any{}
	var data []byte
	for _, name := range weights.Names() {
		w := weights[name]
		begin := len(data)
		for _, v := range w.Data {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		header[name] = map[string]any{"dtype": "F32", "shape": w.Shape, "data_offsets": []int{begin, len(data)}}
	}
	encode := func(v any) []byte {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	head := encode(header)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_act": "silu", "hidden_size": shape.HiddenSize, "num_hidden_layers": shape.Layers,
		"num_attention_heads": shape.Heads, "num_key_value_heads": shape.KVHeads, "head_dim": shape.HeadDim, "intermediate_size": shape.Intermediate,
		"vocab_size": shape.VocabSize, "max_position_embeddings": shape.MaxPositions, "rope_theta": shape.RopeTheta, "rms_norm_eps": shape.RMSEps,
		"tie_word_embeddings": false, "eos_token_id": 5,
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"model.safetensors": append(file, data...), "config.json": encode(config), "generation_config.json": encode(generation),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
