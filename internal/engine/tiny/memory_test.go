package tiny

import (
	"errors"
	"strings"
	"testing"
)

// An engine is refused before its memory is allocated if it exceeds the limit.
func TestMemoryLimit(t *testing.T) {
	cfg := Config{Vocabulary: Vocabulary{Size: 64}, BlockSize: 16, Blocks: 1 << 24, MemoryLimit: 1 << 40}
	_, err := NewReplicas(t.Context(), cfg, 1000)
	var over *MemoryError
	if !errors.As(err, &over) {
		t.Fatalf("%v, want a *MemoryError", err)
	}
	// 64 KiB for a block; the weights are some MiB.
	for _, want := range []string{"1024000.0 GiB are needed", "1024.0 GiB of memory", "1000 times, 1024.0 GiB", "16777216 blocks of 16 tokens"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	shape := builtinShape(64)
	const embeddings = 12345
	weights, cache := shape.WeightBytes()+embeddings, uint64(4*shape.BlockBytes(16))
	cfg.Blocks = 4
	for limit, fits := range map[uint64]bool{
		0: true, weights + 2*cache: true, weights + 2*cache - 1: false, weights: false, weights - 1: false, 1: false,
	} {
		cfg.MemoryLimit = limit
		if err := checkMemory(&cfg, &shape, 2, embeddings); (err == nil) != fits {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	cfg.MemoryLimit, cfg.Blocks = 1<<63, 1<<24
	if err := checkMemory(&cfg, &shape, 1<<40, 0); err == nil {
		t.Error("a product beyond 64 bits fits")
	}
}

func TestWeightBytes(t *testing.T) {
	shape := smallShape()
	var want uint64
	for _, w := range randomWeights(&shape, 1) {
		want += 4 * uint64(len(w.Data))
	}
	if got := shape.WeightBytes(); got != want {
		t.Errorf("%d bytes, the weights have %d", got, want)
	}
}

// TestEmbeddingMemory: the memory of the embedding cache counts once, and only if the model has encoders.
func TestEmbeddingMemory(t *testing.T) {
	for _, c := range []struct {
		names names
		want  uint64
	}{{nil, 0}, {pads, 12345}} {
		cfg := Config{Vocabulary: vocabulary(), MemoryLimit: 1, EmbeddingCache: new(12345)}
		if c.names != nil {
			cfg.Vocabulary.Names = c.names
		}
		_, err := NewReplicas(t.Context(), cfg, 2)
		if over, ok := errors.AsType[*MemoryError](err); !ok || over.Embeddings != c.want {
			t.Errorf("%d names: %v", len(c.names), err)
		}
	}
}
