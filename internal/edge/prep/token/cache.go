package token

import (
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// wordCache caches the ids of words. A word may be in either entry of its line or of the neighbouring line;
// when all are taken, it overwrites one of its own line. A race between writers may lose an entry and nothing
// else. It is safe for concurrent use.
//
// Nearly all words are short and are stored by value: a lookup touches one cache line of the processor and
// follows no pointer. The others are in a second table. Together the tables take at most 4.2 MB, and 6 MB
// more for text of nothing but the longest words.
type wordCache struct {
	lines [cacheLines]cacheLine
	long  [longSlots]atomic.Pointer[longWordIDs]
}

const (
	cacheLines    = 1 << 16 // of two words
	lineShift     = 64 - 16
	longSlots     = 1 << 13
	maxCachedWord = 128 // bytes of the longest cached word
	maxShortWord  = 15  // bytes of the longest word stored by value
	maxShortIDs   = 3   // ids stored by value
	idBits        = 20
	inLongTable   = 1
)

// cacheLine is two words and a version for lock-free readers. A writer makes version odd, writes, and makes
// it the next even number; readers discard what they read while it was odd or changed.
type cacheLine struct {
	version atomic.Uint64
	words   [2]shortWordIDs
	_       uint64
}

// shortWordIDs is a word and its ids: the ids in the lowest 60 bits, their number in the highest two. If the
// number is 0 they are in the other table, and ids is inLongTable.
type shortWordIDs struct {
	low, high atomic.Uint64
	ids       atomic.Uint64
}

// longWordIDs is a word which is not stored by value. It is immutable.
type longWordIDs struct {
	word string
	ids  []kv.Token
}

// shortKey is a word of at most 15 bytes, padded with zeros, with its length in the last byte.
type shortKey struct{ low, high uint64 }

// newShortKey returns the key of text[:n]. The text after it only makes it faster.
func newShortKey(text string, n int) shortKey {
	if len(text) < 16 {
		var padded [16]byte
		copy(padded[:], text)
		return newShortKeyUnpadded(string(padded[:]), n)
	}
	return newShortKeyUnpadded(text, n)
}

// newShortKeyUnpadded is newShortKey for a text of 16 bytes or more.
func newShortKeyUnpadded(text string, n int) shortKey {
	low, high := loadUint64(text), loadUint64(text[8:])
	bits := 8 * uint(n)
	if n < 8 {
		return shortKey{low & (1<<bits - 1), uint64(n) << 56}
	}
	return shortKey{low, high&(1<<(bits-64)-1) | uint64(n)<<56}
}

// loadUint64 returns the first 8 bytes of s, little-endian.
func loadUint64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// spreadHash hashes words so that the highest bits spread them over lines.
func (k shortKey) spreadHash() uint64 {
	high, low := bits.Mul64(k.low^golden, k.high^golden>>1)
	return (high ^ low) * golden
}

// appendCached appends the ids of the word text[:n] to dst if they are cached. The text after the word only
// makes it faster.
func (c *wordCache) appendCached(dst []kv.Token, text string, n int) ([]kv.Token, bool) {
	if n > maxShortWord || n == 0 {
		return c.appendLong(dst, text[:n])
	}
	k := newShortKey(text, n)
	at := k.spreadHash() >> lineShift
	ids := c.lines[at].lookupWord(k)
	if ids == 0 {
		if ids = c.lines[at^1].lookupWord(k); ids == 0 {
			return dst, false
		}
	}
	const mask = 1<<idBits - 1
	switch ids >> 62 {
	case 0:
		return c.appendLong(dst, text[:n])
	case 1:
		return append(dst, kv.Token(ids&mask)), true
	case 2:
		return append(dst, kv.Token(ids&mask), kv.Token(ids>>idBits&mask)), true
	}
	return append(dst, kv.Token(ids&mask), kv.Token(ids>>idBits&mask), kv.Token(ids>>(2*idBits)&mask)), true
}

// lookupWord returns the stored ids of the word, 0 if it is not here.
func (l *cacheLine) lookupWord(k shortKey) uint64 {
	version := l.version.Load()
	i := 0
	if l.words[0].high.Load() != k.high || l.words[0].low.Load() != k.low {
		i = 1
		if l.words[1].high.Load() != k.high || l.words[1].low.Load() != k.low {
			return 0
		}
	}
	ids := l.words[i].ids.Load()
	if version%2 != 0 || l.version.Load() != version {
		return 0
	}
	return ids
}

func (c *wordCache) appendLong(dst []kv.Token, word string) ([]kv.Token, bool) {
	hash := xxh3.HashString(word)
	for way := range uint64(2) {
		if e := c.long[hash%longSlots^way].Load(); e != nil && e.word == word {
			return append(dst, e.ids...), true
		}
	}
	return dst, false
}

// addWord stores copies of both.
func (c *wordCache) addWord(word string, ids []kv.Token) {
	if word == "" {
		return
	}
	packed, ok := packIDs(ids)
	if !ok || len(word) > maxShortWord {
		c.putLong(&longWordIDs{strings.Clone(word), slices.Clone(ids)})
		packed = inLongTable
	}
	if len(word) > maxShortWord {
		return
	}
	k := newShortKey(word, len(word))
	hash := k.spreadHash()
	own, next := &c.lines[hash>>lineShift], &c.lines[hash>>lineShift^1]
	if own.storeWord(k, packed, nil) || next.storeWord(k, packed, nil) {
		return
	}
	own.storeWord(k, packed, &own.words[hash%2])
}

// storeWord stores a word in its own entry, in a free one, or in instead if that is not nil. It reports
// whether it found one. If another goroutine writes here, it stores nothing and returns true.
func (l *cacheLine) storeWord(k shortKey, ids uint64, instead *shortWordIDs) bool {
	version := l.version.Load()
	if version%2 != 0 || !l.version.CompareAndSwap(version, version+1) {
		return true
	}
	e := instead
	for i := range l.words {
		if w := &l.words[i]; w.high.Load() == 0 || w.high.Load() == k.high && w.low.Load() == k.low {
			e = w
			break
		}
	}
	if e != nil {
		e.low.Store(k.low)
		e.high.Store(k.high)
		e.ids.Store(ids)
	}
	l.version.Store(version + 2)
	return e != nil
}

// packIDs packs ids for storing by value, if possible.
func packIDs(ids []kv.Token) (packed uint64, ok bool) {
	if len(ids) == 0 || len(ids) > maxShortIDs {
		return 0, false
	}
	for i, id := range ids {
		if id >= 1<<idBits {
			return 0, false
		}
		packed |= uint64(id) << (i * idBits)
	}
	return packed | uint64(len(ids))<<62, true
}

func (c *wordCache) putLong(e *longWordIDs) {
	hash := xxh3.HashString(e.word)
	slot := &c.long[hash%longSlots]
	if slot.Load() != nil {
		// Taken: the other slot, if it is free or the hash's top bit selects it.
		if other := &c.long[hash%longSlots^1]; other.Load() == nil || hash>>63 == 1 {
			slot = other
		}
	}
	slot.Store(e)
}
