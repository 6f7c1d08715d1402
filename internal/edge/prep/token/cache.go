package token

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// cache remembers how words were merged. A word may be in either slot of its
// pair; when both are taken, one is overwritten. Entries never change, so that
// readers take no lock, and a race between writers costs a word its place and no
// more. It holds at most cacheSlots words of at most cacheable bytes: 12 MB if no
// merge applied to any of them, and about 2 MB of ordinary text.
type cache struct {
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

func hashWord(word string) uint64 { return xxh3.HashString(word) }

func (c *cache) get(hash uint64, word string) ([]kv.Token, bool) {
	for way := range uint64(2) {
		entry := c.slots[hash%cacheSlots^way].Load()
		if entry != nil && entry.word == word {
			return entry.ids, true
		}
	}
	return nil, false
}

// put stores a copy of both.
func (c *cache) put(hash uint64, word string, ids []kv.Token) {
	slot := &c.slots[hash%cacheSlots]
	if slot.Load() != nil {
		// Taken: the other one, if it is free or the hash's top bit says so.
		if other := &c.slots[hash%cacheSlots^1]; other.Load() == nil || hash>>63 == 1 {
			slot = other
		}
	}
	slot.Store(&cached{strings.Clone(word), slices.Clone(ids)})
}
