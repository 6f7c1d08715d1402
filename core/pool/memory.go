package pool

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// Words are the words of a pool. They have 8 bytes, in the byte order of the machine, and each access is atomic and
// sequentially consistent. Offsets are in bytes, multiples of 8, and within the memory.
type Words interface {
	Load(at int) uint64
	Store(at int, v uint64)
	CompareAndSwap(at int, old, v uint64) bool
}

// Data is the memory of the blocks. Copies are not atomic. An error means that this memory cannot be accessed, such as
// that of a truncated file.
type Data interface {
	CopyOut(dst []byte, at int) error
	CopyIn(at int, src []byte) error
}

// Memory is the bytes of a pool, which other processes may change at any time. A shell provides it.
type Memory struct {
	Size  int // bytes
	Words Words
	Data  Data
}

// mappedBytes is memory which is mapped into this process.
type mappedBytes []byte

// MapBytes returns memory which is mapped into this process. b begins at a multiple of 8 and has a multiple of 8 bytes.
func MapBytes(b []byte) (Memory, error) {
	if len(b) == 0 || len(b)%8 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		return Memory{}, errors.New("pool: the memory is empty, or its address or size is no multiple of 8")
	}
	m := mappedBytes(b)
	return Memory{Size: len(b), Words: m, Data: m}, nil
}

func (m mappedBytes) wordAt(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(m[at : at+8])))
}

// Load implements [Words].
func (m mappedBytes) Load(at int) uint64 { return m.wordAt(at).Load() }

// Store implements [Words].
func (m mappedBytes) Store(at int, v uint64) { m.wordAt(at).Store(v) }

// CompareAndSwap implements [Words].
func (m mappedBytes) CompareAndSwap(at int, old, v uint64) bool {
	return m.wordAt(at).CompareAndSwap(old, v)
}

// CopyOut implements [Data].
func (m mappedBytes) CopyOut(dst []byte, at int) error {
	copy(dst, m[at:at+len(dst)])
	return nil
}

// CopyIn implements [Data].
func (m mappedBytes) CopyIn(at int, src []byte) error {
	copy(m[at:at+len(src)], src)
	return nil
}
