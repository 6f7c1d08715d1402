package xfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

// Slots of a region: how far a writer may be ahead of its owner, in chunks. All of them fit the L2
// cache of a core.
const (
	regionSlots = 4
	regionSize  = regionSlots * ChunkSize
	// takenEvery is after how many chunks the owner returns slots.
	takenEvery = regionSlots / 4
	// ringBytes is the size of the ring through which the frames of one direction go.
	ringBytes = 64 << 10
)

var errNoSharedMemory = errors.New("shared memory is not available on this system")

// regionHeader is the payload of REGION.
type regionHeader struct {
	size, slots uint32
	generation  uint64
}

func appendRegion(dst []byte, h regionHeader) []byte {
	start := len(dst)
	dst = beginFrame(dst, frameRegion)
	dst = binary.LittleEndian.AppendUint32(dst, h.size)
	dst = binary.LittleEndian.AppendUint32(dst, h.slots)
	dst = binary.LittleEndian.AppendUint64(dst, h.generation)
	return endFrame(dst, start)
}

// decodeRegion decodes a REGION: at least one slot, each of one chunk.
func decodeRegion(b []byte) (h regionHeader, err error) {
	if len(b) < 16 {
		return h, errShortFrame("REGION", b)
	}
	h.size, h.slots = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	h.generation = binary.LittleEndian.Uint64(b[8:])
	if h.slots == 0 || h.slots > 1<<12 || h.size != h.slots*ChunkSize {
		return h, fmt.Errorf("a REGION of %d bytes in %d slots", h.size, h.slots)
	}
	return h, nil
}

// bulkWork bounds how many goroutines copy chunks of bulk transfers at the same time, to all
// processors but one. Otherwise goroutines of a few bulk transfers keep all processors busy, and the
// runtime looks for bytes of other connections only every 10 ms.
type bulkWork chan struct{}

func newBulkWork() bulkWork { return make(bulkWork, max(runtime.GOMAXPROCS(0)-1, 1)) }

// isBulk reports whether a transfer of size is more than fits a region.
func isBulk(size uint64) bool { return size > regionSize }

// do calls f, when it is its turn.
func (b bulkWork) do(size uint64, f func() error) error {
	if !isBulk(size) {
		return f()
	}
	b <- struct{}{}
	defer func() { <-b }()
	return f()
}
