package config

import (
	"fmt"

	"penstock/core/kv"
	"penstock/internal/plane/xfer/pool"
)

// KVPool is a pool of KV blocks which workers of one host share.
type KVPool struct {
	ID   kv.PoolID
	Path string
	Size int // bytes
}

// poolUnit is what the size of a pool is a multiple of: memory is mapped in pages.
const poolUnit = 4 << 10

// SharedPool returns the pool of the workers of this process, nil if they have none. The tree must be valid.
func (c *Config) SharedPool() *KVPool {
	p, _ := c.parsePool() // validated before
	return p
}

// parsePool returns the pool, nil if there is none, or what is wrong with the setting.
func (c *Config) parsePool() (*KVPool, error) {
	if c.Engine.Pool == "" {
		return nil, nil
	}
	id, path, text, err := pool.SplitSpec(c.Engine.Pool)
	if err != nil {
		return nil, err
	}
	size, err := ParseByteSize(text)
	switch {
	case err != nil:
		return nil, err
	case size < poolUnit || size%poolUnit != 0 || ByteSize(int(size)) != size:
		return nil, fmt.Errorf("%.40q is no size of a pool: write a multiple of 4KiB, for example 2GiB", text)
	}
	return &KVPool{ID: id, Path: path, Size: int(size)}, nil
}

// checkPool checks the pool of KV blocks.
func (p *problems) checkPool(c *Config) {
	pool, err := c.parsePool()
	switch {
	case err != nil:
		p.report("pool", err.Error())
	case pool != nil && c.EngineKind() != EngineTiny:
		p.report("pool", fmt.Sprintf("only engine tiny uses a pool of KV blocks, and the engine is %s: leave it out", c.EngineKind()))
	}
}
