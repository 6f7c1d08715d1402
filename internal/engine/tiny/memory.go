package tiny

import (
	"fmt"
	"math/bits"

	"penstock/internal/engine/tiny/model"
)

// MemoryError says that engines need more memory than Config.MemoryLimit.
type MemoryError struct {
	Model     string
	Engines   int
	Blocks    int    // of each engine's cache
	Cache     uint64 // bytes of each engine's cache
	Weights   uint64 // bytes, shared by all
	Limit     uint64
	BlockSize int
}

// Error gives both figures.
func (e *MemoryError) Error() string {
	const gib = 1 << 30
	need := float64(e.Weights) + float64(e.Engines)*float64(e.Cache) // it may overflow an integer
	return fmt.Sprintf("tiny model %s: %.1f GiB are needed and there are %.1f GiB of memory: %.1f GiB of weights and, %d times, %.1f GiB of cache for %d blocks of %d tokens",
		e.Model, need/gib, float64(e.Limit)/gib, float64(e.Weights)/gib, e.Engines, float64(e.Cache)/gib, e.Blocks, e.BlockSize)
}

// checkMemory compares what count engines will reserve with the limit. It ignores the memory of intermediate
// results, which is small compared to a cache.
func checkMemory(cfg *Config, shape *model.Config, count int) error {
	e := &MemoryError{
		Model: cfg.Name, Engines: count, Blocks: cfg.Blocks, BlockSize: cfg.BlockSize, Limit: cfg.MemoryLimit,
		Cache: uint64(cfg.Blocks) * uint64(shape.BlockBytes(cfg.BlockSize)), Weights: shape.WeightBytes(),
	}
	over, all := bits.Mul64(e.Cache, uint64(count))
	if cfg.MemoryLimit == 0 || over == 0 && e.Weights <= cfg.MemoryLimit && all <= cfg.MemoryLimit-e.Weights {
		return nil
	}
	return e
}
