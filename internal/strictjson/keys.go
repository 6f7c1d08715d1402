package strictjson

import (
	"bytes"
	"hash/maphash"
	"strings"

	"penstock/core/fault"
)

// keyStack detects duplicate keys in an object: by comparison while there are few, with a hash
// table beyond that. Objects are nested, so the keys and the tables are stacks which all objects of
// a text share: an object's part starts where it was opened, and grows only while no object within
// it is open.
type keyStack struct {
	all   [][]byte
	table []uint32 // open addressing: 1 + index among the object's keys; 0 is free
	seed  maphash.Seed
}

// keySet is one object's part of the stacks.
type keySet struct {
	base      int // in keyStack.all
	tableBase int
	tableSize int // a power of two, more than twice the number of keys; 0 while there are few
}

const fewKeys = 16

func (k *keyStack) openSet() keySet {
	return keySet{base: len(k.all), tableBase: len(k.table)}
}

// closeSet removes s, which must be the last one open.
func (k *keyStack) closeSet(s keySet) {
	clear(k.all[s.base:])
	k.all = k.all[:s.base]
	k.table = k.table[:s.tableBase]
}

func (k *keyStack) countKeys(s keySet) int { return len(k.all) - s.base }

// addKey adds key to s, which must be the last one open, and reports whether it is new.
func (k *keyStack) addKey(s *keySet, key []byte) bool {
	mine := k.all[s.base:]
	if s.tableSize == 0 {
		for _, have := range mine {
			if bytes.Equal(have, key) {
				return false
			}
		}
	} else if !k.insertSlot(*s, len(mine), key) {
		return false
	}
	if k.all == nil {
		k.all = make([][]byte, 0, fewKeys)
	}
	k.all = append(k.all, key)
	switch n := len(mine) + 1; {
	case s.tableSize == 0 && n == fewKeys:
		k.growTable(s, 4*fewKeys)
	case s.tableSize > 0 && 2*n >= s.tableSize:
		k.growTable(s, 2*s.tableSize)
	}
	return true
}

// insertSlot inserts key with index i, and returns false if it is already present.
func (k *keyStack) insertSlot(s keySet, i int, key []byte) bool {
	table, mine := k.table[s.tableBase:][:s.tableSize], k.all[s.base:]
	mask := uint64(s.tableSize - 1)
	for at := maphash.Bytes(k.seed, key) & mask; ; at = (at + 1) & mask {
		switch have := table[at]; {
		case have == 0:
			table[at] = uint32(i + 1)
			return true
		case bytes.Equal(mine[have-1], key):
			return false
		}
	}
}

// growTable resizes s's table to size and inserts all its keys.
func (k *keyStack) growTable(s *keySet, size int) {
	if k.seed == (maphash.Seed{}) {
		k.seed = maphash.MakeSeed()
	}
	s.tableSize = size
	k.table = append(k.table[:s.tableBase], make([]uint32, size)...)
	for i, key := range k.all[s.base:] {
		k.insertSlot(*s, i, key)
	}
}

// UnknownKeys collects the undefined keys of an object, so that they are reported together. Its
// zero value is empty.
type UnknownKeys struct {
	names   []string // the first keys
	dropped bool     // there were more
}

// Add adds a key.
func (u *UnknownKeys) Add(key string) {
	const most = 16
	if len(u.names) == most {
		u.dropped = true
		return
	}
	u.names = append(u.names, TruncateKey(key))
}

// Err returns an error which names the keys; nil if there are none.
func (u *UnknownKeys) Err() error {
	if len(u.names) == 0 {
		return nil
	}
	names := strings.Join(u.names, ", ")
	if u.dropped {
		names += ", …"
	}
	return fault.InvalidParam(u.names[0], "Unsupported parameter(s): %s", names)
}
