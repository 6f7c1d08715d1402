package engineevents

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// encoder writes msgpack. With draw it uses any width which can hold a value, not only the shortest.
type encoder struct {
	b    []byte
	draw *rand.Rand
}

// wide returns which of the widths from least to most is used.
func (e *encoder) wide(least, most int) int {
	if e.draw == nil || e.draw.IntN(4) > 0 {
		return least
	}
	return least + e.draw.IntN(most-least+1)
}

func (e *encoder) big(v uint64, n int) {
	for i := n - 1; i >= 0; i-- {
		e.b = append(e.b, byte(v>>(8*i)))
	}
}

func (e *encoder) nil() { e.b = append(e.b, 0xc0) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 0xc3)
	} else {
		e.b = append(e.b, 0xc2)
	}
}

// uint writes a number that is not negative: width 0 is the short form, 1 to 4 are 1 to 8 bytes.
func (e *encoder) uint(v uint64) {
	least := 4
	for i, most := range []uint64{1<<7 - 1, math.MaxUint8, math.MaxUint16, math.MaxUint32} {
		if v <= most {
			least = i
			break
		}
	}
	w := e.wide(least, 4)
	if w == 0 {
		e.b = append(e.b, byte(v))
		return
	}
	e.b = append(e.b, byte(0xcb+w))
	e.big(v, 1<<(w-1))
}

// int writes a number of either sign, a positive one sometimes in a signed format.
func (e *encoder) int(v int64) {
	if v >= 0 && (e.draw == nil || e.draw.IntN(4) > 0) {
		e.uint(uint64(v))
		return
	}
	least := 4
	for i, most := range []int64{1 << 5, 1 << 7, 1 << 15, 1 << 31} {
		if v < most && v >= -most {
			least = i
			break
		}
	}
	if least == 0 && v >= 0 {
		least = 1
	}
	w := e.wide(least, 4)
	if w == 0 {
		e.b = append(e.b, byte(v))
		return
	}
	e.b = append(e.b, byte(0xcf+w))
	e.big(uint64(v), 1<<(w-1))
}

func (e *encoder) float(v float64) {
	e.b = append(e.b, 0xcb)
	e.big(math.Float64bits(v), 8)
}

func (e *encoder) float32(v float32) {
	e.b = append(e.b, 0xca)
	e.big(uint64(math.Float32bits(v)), 4)
}

func (e *encoder) str(s string) { e.bytes(s, 0xa0, 32, 0xd9) }

func (e *encoder) bin(s string) { e.bytes(s, 0, 0, 0xc4) }

func (e *encoder) bytes(s string, fix byte, short int, long byte) {
	least := 3
	switch n := len(s); {
	case n < short:
		least = 0
	case n < 1<<8:
		least = 1
	case n < 1<<16:
		least = 2
	}
	w := e.wide(least, 3)
	if w == 0 {
		e.b = append(e.b, fix|byte(len(s)))
	} else {
		e.b = append(e.b, long+byte(w-1))
		e.big(uint64(len(s)), 1<<(w-1))
	}
	e.b = append(e.b, s...)
}

func (e *encoder) array(n int) { e.container(n, 0x90, 0xdc) }

func (e *encoder) fields(n int) { e.container(n, 0x80, 0xde) }

func (e *encoder) container(n int, fix, wide byte) {
	least := 2
	switch {
	case n < 16:
		least = 0
	case n < 1<<16:
		least = 1
	}
	w := e.wide(least, 2)
	if w == 0 {
		e.b = append(e.b, fix|byte(n))
		return
	}
	e.b = append(e.b, wide+byte(w-1))
	e.big(uint64(n), 2*w)
}

// storeOf writes a batch with one store as vLLM does: the shape of most traffic.
func storeOf(seed uint64, parent uint64, blocks, size int, asMap bool) []byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	var e encoder
	e.array(3)
	e.float(1789095808.83)
	e.array(1)
	head := func(name string) {
		if asMap {
			e.str(name)
		}
	}
	if asMap {
		e.fields(11)
	} else {
		e.array(11)
	}
	head("type")
	e.str("BlockStored")
	head("block_hashes")
	e.array(blocks)
	for range blocks {
		e.b = append(e.b, 0xcf)
		e.b = binary.BigEndian.AppendUint64(e.b, rng.Uint64())
	}
	head("parent_block_hash")
	if parent == 0 {
		e.nil()
	} else {
		e.uint(parent)
	}
	head("token_ids")
	e.array(blocks * size)
	for range blocks * size {
		e.uint(uint64(rng.IntN(152_000)))
	}
	head("block_size")
	e.uint(uint64(size))
	head("lora_id")
	e.nil()
	head("medium")
	e.str("GPU")
	head("lora_name")
	e.nil()
	head("extra_keys")
	e.array(blocks)
	for range blocks {
		e.nil()
	}
	head("group_idx")
	e.uint(0)
	head("kv_cache_spec_kind")
	e.str("full_attention")
	e.nil()
	return e.b
}
