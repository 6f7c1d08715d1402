package worker

import (
	"encoding/binary"
	"testing"
)

// FuzzZMQRequest: a client which reaches the port can send anything.
func FuzzZMQRequest(f *testing.F) {
	f.Add([]byte{}, binary.BigEndian.AppendUint64(nil, 7), 2)
	f.Add([]byte("x"), []byte{}, 3)
	f.Fuzz(func(t *testing.T, one, two []byte, n int) {
		all := [][]byte{one, two, one}
		frames := all[:min(max(n, 0), len(all))]
		from, ok := decodeZMQRequest(frames)
		if want := len(frames) == 2 && len(one) == 0 && len(two) == 8; ok != want || ok && from != binary.BigEndian.Uint64(two) {
			t.Errorf("%q: %d, %t", frames, from, ok)
		}
	})
}
