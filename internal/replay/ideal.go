package replay

import (
	"context"
	"errors"
	"fmt"
	"io"

	"penstock/core/kv"
)

// IdealConfig is what the ideals are asked for.
type IdealConfig struct {
	// BlockSize is in tokens. A cache holds whole blocks.
	BlockSize int
	// Workers are the numbers of workers to answer for, each with Blocks blocks.
	Workers []int
	Blocks  int
	// MostBlocks bounds what one cache keeps track of; 0 is 8 Mi blocks, 230 MB. A
	// cache of more of them keeps track of a sample, a part of all hashes, and its share
	// is an estimate.
	MostBlocks int
	Vocabulary Vocabulary
}

const defaultMostBlocks = 8 << 20

// Ideals returns what caches could give for the requests of source, one Ideal for
// each number of workers, in order: prompts come one after another, each is held
// against the cache and then put into it. At most all tokens but one count as
// cached, since an engine computes the last one to have its logits. Answers are not put in.
// It reads source to its end.
func Ideals(ctx context.Context, source Source, cfg IdealConfig) ([]Ideal, error) {
	if cfg.MostBlocks == 0 {
		cfg.MostBlocks = defaultMostBlocks
	}
	if cfg.Blocks < 1 {
		return nil, fmt.Errorf("ideal: %d blocks a worker: must be at least 1", cfg.Blocks)
	}
	hasher, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	if err != nil {
		return nil, fmt.Errorf("ideal: %w", err)
	}
	all := idealCaches{infinite: newLRU(0, cfg.MostBlocks)}
	for _, n := range cfg.Workers {
		if n < 1 {
			return nil, fmt.Errorf("ideal: %d workers: must be at least 1", n)
		}
		all.bounded = append(all.bounded, boundedCache{capacity: n * cfg.Blocks})
	}
	var (
		r      Request
		tokens []kv.Token
		chain  []kv.SeqHash
		input  int64
	)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := source.Next(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		tokens = AppendTokens(tokens[:0], &r, cfg.Vocabulary)
		input += int64(len(tokens))
		chain = hasher.Chain(chain[:0], tokens, nil)
		all.serve(chain, max(len(tokens)-1, 0)/cfg.BlockSize)
	}
	out := make([]Ideal, len(cfg.Workers))
	for i, n := range cfg.Workers {
		share := func(blocks int64) float64 { return ratio(float64(blocks)*float64(cfg.BlockSize), float64(input)) }
		out[i] = Ideal{
			Workers:      n,
			BlockSize:    cfg.BlockSize,
			Blocks:       cfg.Blocks,
			Infinite:     Share{share(all.hits), all.infinite.skip > 0},
			SameCapacity: Share{share(all.bounded[i].hits), all.bounded[i].estimated},
		}
	}
	return out, nil
}

// idealCaches are an unbounded cache and bounded ones beside it.
type idealCaches struct {
	infinite *lru
	hits     int64
	bounded  []boundedCache
}

// boundedCache is a cache of so many blocks. As long as all blocks there ever were
// fit, it is the unbounded one; then it becomes one of its own.
type boundedCache struct {
	capacity  int
	own       *lru
	hits      int64
	estimated bool
}

// serve holds a prompt's blocks against the caches, the first usable of which may
// count, and puts them all in.
func (c *idealCaches) serve(chain []kv.SeqHash, usable int) {
	seen := int64(c.infinite.hits(chain[:usable]))
	c.hits += seen
	for i := range c.bounded {
		b := &c.bounded[i]
		if b.own == nil && c.infinite.size()+len(chain) > b.capacity {
			b.own = c.infinite.clone(b.capacity)
		}
		if b.own == nil {
			b.hits += seen
		} else {
			b.hits += int64(b.own.hits(chain[:usable]))
			b.own.put(chain)
			b.estimated = b.estimated || b.own.skip > 0
		}
		b.estimated = b.estimated || c.infinite.skip > 0 && b.own == nil
	}
	c.infinite.put(chain)
}
