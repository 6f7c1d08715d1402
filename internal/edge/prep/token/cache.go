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
// more. It holds at most cacheSlots words of at most cacheable bytes: 48 MB if no
// merge applied to any of them, and about 4 MB of ordinary text.
type cache struct {
	slots [cacheSlots]atomic.Pointer[cached]
}

const (
	cacheSlots = 1 << 16
	cacheable  = 128 // bytes of the longest word that is remembered
)

// cached is one word. Most are short, and then all of it is in one line of the processor's cache.
type cached struct {
	size  uint8 // of word
	count uint8 // of ids
	word  [22]byte
	ids   [4]kv.Token
	long  *longer // what is not as short; word and ids are empty then
}

type longer struct {
	word string
	ids  []kv.Token
}

func hashWord(word string) uint64 { return xxh3.HashString(word) }

func (c *cache) get(hash uint64, word string) ([]kv.Token, bool) {
	for way := range uint64(2) {
		if e := c.slots[hash%cacheSlots^way].Load(); e != nil && e.is(word) {
			if e.long != nil {
				return e.long.ids, true
			}
			return e.ids[:e.count], true
		}
	}
	return nil, false
}

func (e *cached) is(word string) bool {
	if e.long != nil {
		return e.long.word == word
	}
	return string(e.word[:e.size]) == word
}

// put stores a copy of both.
func (c *cache) put(hash uint64, word string, ids []kv.Token) {
	e := &cached{}
	if len(word) <= len(e.word) && len(ids) <= len(e.ids) {
		e.size, e.count = uint8(copy(e.word[:], word)), uint8(copy(e.ids[:], ids))
	} else {
		e.long = &longer{strings.Clone(word), slices.Clone(ids)}
	}
	slot := &c.slots[hash%cacheSlots]
	if slot.Load() != nil {
		// Taken: the other one, if it is free or the hash's top bit says so.
		if other := &c.slots[hash%cacheSlots^1]; other.Load() == nil || hash>>63 == 1 {
			slot = other
		}
	}
	slot.Store(e)
}
