package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"penstock/core/kv"
)

// IdealConfig configures [Ideals].
type IdealConfig struct {
	// BlockSize is in tokens. A cache holds whole blocks.
	BlockSize int
	// Workers are the cluster sizes to compute, each worker with Blocks blocks.
	Workers []int
	Blocks  int
	// MaxBlocks bounds the blocks which one cache tracks; 0 is 8 Mi blocks, 230 MB. A larger cache tracks a
	// sample of the hashes, and its share is an estimate.
	MaxBlocks  int
	Vocabulary Vocabulary
}

const defaultMaxBlocks = 8 << 20

// Ideals returns the best cached share for the requests of source, one Ideal for each number of workers, in
// order. Prompts are served one after another: each is looked up in the cache and then added to it. At most
// all tokens but one count as cached, since an engine computes the last one for its logits. Responses are not
// added. It reads source to its end.
func Ideals(ctx context.Context, source Source, cfg IdealConfig) ([]Ideal, error) {
	cfg.MaxBlocks = cmp.Or(cfg.MaxBlocks, defaultMaxBlocks)
	if cfg.Blocks < 1 {
		return nil, fmt.Errorf("ideal: %d blocks a worker: must be at least 1", cfg.Blocks)
	}
	hasher, err := kv.NewHasher(cfg.BlockSize, kv.Salt{})
	if err != nil {
		return nil, fmt.Errorf("ideal: %w", err)
	}
	all := idealCaches{infinite: newLRUCache(0, cfg.MaxBlocks)}
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
		chain = hasher.AppendSeqHashes(chain[:0], tokens, nil)
		all.servePrompt(chain, max(len(tokens)-1, 0)/cfg.BlockSize)
	}
	out := make([]Ideal, len(cfg.Workers))
	for i, n := range cfg.Workers {
		share := func(blocks int64) float64 {
			return divideOrZero(float64(blocks)*float64(cfg.BlockSize), float64(input))
		}
		out[i] = Ideal{
			Workers:      n,
			BlockSize:    cfg.BlockSize,
			Blocks:       cfg.Blocks,
			Infinite:     Share{share(all.hits), all.infinite.sampleBits > 0},
			SameCapacity: Share{share(all.bounded[i].hits), all.bounded[i].estimated},
		}
	}
	return out, nil
}

// idealCaches are an unbounded cache and several bounded ones.
type idealCaches struct {
	infinite *lruCache
	hits     int64
	bounded  []boundedCache
}

// boundedCache is a cache of capacity blocks. While all blocks so far fit, it shares the unbounded cache;
// after that it has its own.
type boundedCache struct {
	capacity  int
	own       *lruCache
	hits      int64
	estimated bool
}

// servePrompt looks up a prompt's blocks, where only the first usable may count as hits, and adds all of
// them.
func (c *idealCaches) servePrompt(chain []kv.SeqHash, usable int) {
	seen := int64(c.infinite.countHits(chain[:usable]))
	c.hits += seen
	for i := range c.bounded {
		b := &c.bounded[i]
		if b.own == nil && c.infinite.blockCount()+len(chain) > b.capacity {
			b.own = c.infinite.cloneWithCapacity(b.capacity)
		}
		if b.own == nil {
			b.hits += seen
		} else {
			b.hits += int64(b.own.countHits(chain[:usable]))
			b.own.addPrompt(chain)
			b.estimated = b.estimated || b.own.sampleBits > 0
		}
		b.estimated = b.estimated || c.infinite.sampleBits > 0 && b.own == nil
	}
	c.infinite.addPrompt(chain)
}
