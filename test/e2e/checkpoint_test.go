package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"penstock/internal/edge/prep/token"
	"penstock/internal/engine/tiny/model"
)

// checkpoint returns a directory with a small checkpoint, made with the
// transformers library, and the built-in tokenizer's files beside it.
func checkpoint(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../internal/engine/tiny/model/testdata/llama3")); err != nil {
		t.Fatal(err)
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	write(t, filepath.Join(dir, "tokenizer.json"), tokenizer)
	write(t, filepath.Join(dir, "tokenizer_config.json"), tokenizerConfig)
	return dir
}

// brokenCheckpoint is one whose weights end early.
func brokenCheckpoint(t *testing.T) string {
	t.Helper()
	dir := checkpoint(t)
	path := filepath.Join(dir, "model.safetensors")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()/2); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ownCheckpoint writes a checkpoint whose vocabulary is the built-in tokenizer's:
// one layer of random weights.
func ownCheckpoint(t *testing.T) string {
	t.Helper()
	tok, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	shape := model.Config{
		HiddenSize: 32, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 16, Intermediate: 48,
		VocabSize: tok.VocabSize(), MaxPositions: 8192, RopeTheta: 10000, RMSEps: 1e-5,
	}
	header := map[string]any{}
	var data []byte
	random := rand.New(rand.NewPCG(1, 2))
	for _, spec := range shape.Specs() {
		begin, size := len(data), 1
		for _, n := range spec.Shape {
			size *= n
		}
		for range size {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(random.NormFloat64()*0.2)))
		}
		header[spec.Name] = map[string]any{"dtype": "F32", "shape": spec.Shape, "data_offsets": []int{begin, len(data)}}
	}
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	write(t, filepath.Join(dir, "model.safetensors"), append(append(file, head...), data...))
	write(t, filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu",
		"hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"intermediate_size":48,
		"vocab_size":%d,"max_position_embeddings":8192,"rope_theta":10000.0,"rms_norm_eps":1e-5,"tie_word_embeddings":false}`, tok.VocabSize()))
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	write(t, filepath.Join(dir, "tokenizer.json"), tokenizer)
	write(t, filepath.Join(dir, "tokenizer_config.json"), tokenizerConfig)
	return dir
}

func TestServesACheckpoint(t *testing.T) {
	s := start(t, "model-path="+ownCheckpoint(t), "served-model-name=river,stream")
	if !s.ready.Chat {
		t.Error("it is said to have no chat template")
	}
	if s.ready.Model != "river" {
		t.Errorf("model %q, want the first served name", s.ready.Model)
	}
	for _, name := range []string{"river", "stream"} {
		a := s.complete("/v1/completions", map[string]any{"model": name, "prompt": "The water", "max_tokens": 5, "temperature": 0, "ignore_eos": true})
		if a.status != 200 || a.output != 5 {
			t.Errorf("as %s: %+v", name, a)
		}
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
