package jinja

import (
	"math"
	"math/big"
	"strconv"
)

// Dict is a mapping which keeps the insertion order of its keys, as Python's does. A key is nil, a bool, a
// number, a string or a tuple of those; equal numbers are one key. It is not safe for concurrent writing.
type Dict struct {
	at   map[any]int // index of each key, once there are many
	keys []any
	vals []any
}

const (
	initialKeys = 4 // initial capacity
	indexedKeys = 8 // more than most dictionaries have
)

// NewDict returns an empty dictionary.
func NewDict() *Dict { return new(Dict) }

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Set sets the value of key; an existing key keeps its place. v is a value as in the package comment.
func (d *Dict) Set(key string, v any) { d.putKey(key, v) }

// Get returns the value of key.
func (d *Dict) Get(key string) (v any, ok bool) { return d.getKey(key) }

// Each calls f with the string keys and their values, in order.
func (d *Dict) Each(f func(key string, v any)) {
	for i, k := range d.keys {
		if key, ok := k.(string); ok {
			f(key, d.vals[i])
		}
	}
}

func (d *Dict) putKey(key, v any) {
	if i := d.findKey(key); i >= 0 {
		d.vals[i] = v
		return
	}
	if d.keys == nil {
		d.keys, d.vals = make([]any, 0, initialKeys), make([]any, 0, initialKeys)
	}
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	switch n := len(d.keys); {
	case d.at != nil:
		d.at[hashableKey(key)] = n - 1
	case n > indexedKeys:
		d.at = make(map[any]int, 2*n)
		for i, k := range d.keys {
			d.at[hashableKey(k)] = i
		}
	}
}

func (d *Dict) getKey(key any) (any, bool) {
	if i := d.findKey(key); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

// findKey returns the index of key, -1 if it is missing.
func (d *Dict) findKey(key any) int {
	if name, ok := key.(string); ok && d.at == nil {
		for i, k := range d.keys {
			if k, ok := k.(string); ok && k == name {
				return i
			}
		}
		return -1
	}
	h := hashableKey(key)
	if d.at != nil {
		if i, ok := d.at[h]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if hashableKey(k) == h {
			return i
		}
	}
	return -1
}

// maxKey bounds the encoded size of a tuple key, whose parts can be nested.
const maxKey = 1 << 16

// These wrap keys which are equal in Python but not in Go.
type (
	noneKey   struct{}
	bigKey    string
	tupleKey  string
	objectKey struct{ v any }
)

// hashableKey returns the form of a key which Go's maps compare as Python does. It throws if the key is not
// hashable in Python.
func hashableKey(key any) any {
	switch k := key.(type) {
	case nil:
		return noneKey{}
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case string, int64:
		return k
	case *big.Int:
		return bigKey(strconv.Itoa(k.Sign()) + string(k.Bytes()))
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k)
		}
		return k
	case *tupleValue:
		text := ""
		for _, item := range k.items {
			h := hashableKey(item)
			s := tupleKeyPart(h)
			text += strconv.Itoa(len(s)) + ":" + s
			if len(text) > maxKey {
				throw("a tuple is too large for a key")
			}
		}
		return tupleKey(text)
	case *groupPair:
		return hashableKey(&tupleValue{[]any{k.grouper, k.list}})
	case *undefinedValue:
		return objectKey{"undefined"}
	case *listValue, *Dict:
		throw("unhashable type: '%s'", typeName(key))
	}
	return objectKey{key}
}

func tupleKeyPart(h any) string {
	switch h := h.(type) {
	case string:
		return "s" + h
	case int64:
		return "i" + strconv.FormatInt(h, 10)
	case bigKey:
		return "b" + string(h)
	case tupleKey:
		return "t" + string(h)
	case float64:
		return "f" + strconv.FormatFloat(h, 'g', -1, 64)
	}
	return "o"
}
