package tiny

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"penstock/core/embcache"
	"penstock/core/media"
	"penstock/internal/engine"
)

// RemoteEncoders has objects encoded by other workers. It is called from several goroutines.
type RemoteEncoders interface {
	// HasEncoders reports whether there is a worker to ask. It does not wait.
	HasEncoders() bool
	// HasHolder reports whether a worker which does not encode for others is believed to have rows. It does not wait.
	HasHolder(key *embcache.RowKey) bool
	// EncodeObject puts the rows of an object into job.Into and returns their grid, see media.EncoderRows. An
	// engine encodes itself what fails.
	EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error)
}

// asksOthers reports whether another worker is asked for rows.
func (s *mediaEncoders) asksOthers(w *rowRequest) bool {
	if s.remote == nil || w.pads == 0 {
		return false
	}
	if s.remote.HasEncoders() {
		return true
	}
	key := s.rows.keyOf(w.object, w.namespace)
	return identifies(&key) && s.remote.HasHolder(&key)
}

// fetchRows has an object encoded by another worker.
func (s *mediaEncoders) fetchRows(ctx context.Context, w *rowRequest, key *embcache.RowKey) (storedRows, error) {
	rows := make([]float32, w.pads*s.rows.width)
	grid, err := s.remote.EncodeObject(ctx, &engine.EncodeJob{
		ID: w.id, Key: *key, Object: w.object, Rows: w.pads, Width: s.rows.width, Into: bytesOf(rows),
	})
	switch {
	case ctx.Err() != nil:
		return storedRows{}, ctx.Err()
	case err != nil:
		return storedRows{}, err
	case !s.fitsGrid(w.object, w.pads, grid):
		return storedRows{}, fmt.Errorf("%d rows of a grid of %v", w.pads, grid)
	}
	swapUnlessLittle(rows)
	return s.rows.storeRows(key, w.object, rows, grid), nil
}

// fitsGrid reports whether a grid can be that of an object with a number of pads.
func (s *mediaEncoders) fitsGrid(o *media.Object, pads int, grid [3]int) bool {
	if known, ok := s.gridOf(o, pads); ok {
		return grid == known
	}
	if o.Kind == media.Audio {
		return grid == [3]int{}
	}
	merge := max(1, s.model.Config().Vision.Merge)
	for _, n := range grid {
		if n < 1 || n > pads*merge {
			return false
		}
	}
	return grid[1]%merge == 0 && grid[2]%merge == 0 && grid[0]*(grid[1]/merge)*(grid[2]/merge) == pads
}

// bytesOf returns the memory of elements.
func bytesOf(rows []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(rows))), elementBytes*len(rows))
}

// littleBytes returns elements as they travel: their own memory where that is little-endian.
func littleBytes(rows []float32) []byte {
	if isLittle() {
		return bytesOf(rows)
	}
	rows = append([]float32{}, rows...)
	swapUnlessLittle(rows)
	return bytesOf(rows)
}

// swapUnlessLittle changes the byte order of elements from little-endian to the machine's, or back.
func swapUnlessLittle(rows []float32) {
	if isLittle() {
		return
	}
	for i, v := range rows {
		rows[i] = math.Float32frombits(bits.ReverseBytes32(math.Float32bits(v)))
	}
}

func isLittle() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }
