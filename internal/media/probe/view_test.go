package probe

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestInsert compares the kept parts with a naive table of bytes.
func TestInsert(t *testing.T) {
	file := make([]byte, 200)
	for i := range file {
		file[i] = byte(i)
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		var parts []filePart
		have := make([]bool, len(file))
		for range 30 {
			from := r.IntN(len(file))
			to := from + r.IntN(min(40, len(file)-from+1))
			parts = insertPart(parts, filePart{int64(from), file[from:to]})
			for i := from; i < to; i++ {
				have[i] = true
			}
			v := fileView{parts: parts, total: -1}
			for i := range file {
				n := 0
				for i+n < len(file) && have[i+n] {
					n++
				}
				if got := v.bytesFrom(int64(i)); !bytes.Equal(got, file[i:i+n]) {
					t.Fatalf("seed %d: %d bytes at %d, want %d", seed, len(got), i, n)
				}
			}
		}
	}
}
