package token

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	"penstock/core/kv"
)

// cache remembers how words were merged. A word has one slot, and the last one
// that wanted the slot keeps it; entries never change, so readers take no lock.
// It holds at most cacheSlots words of at most cacheable bytes: about 10 MB when
// every slot holds a word that no merge applied to.
type cache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cached]
}

const (
	cacheSlots = 1 << 14
	cacheable  = 128 // bytes of the longest word that is remembered
)

type cached struct {
	word string
	ids  []kv.Token
}

func newCache() *cache { return &cache{seed: maphash.MakeSeed()} }

func (c *cache) hash(word string) uint64 { return maphash.String(c.seed, word) }

func (c *cache) get(hash uint64, word string) ([]kv.Token, bool) {
	entry := c.slots[hash%cacheSlots].Load()
	if entry == nil || entry.word != word {
		return nil, false
	}
	return entry.ids, true
}

// put stores a copy of both.
func (c *cache) put(hash uint64, word string, ids []kv.Token) {
	c.slots[hash%cacheSlots].Store(&cached{strings.Clone(word), slices.Clone(ids)})
}
