package ucx

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestWindowOrders: messages which come in any order are taken in theirs.
func TestWindowOrders(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var out sendWindow
	var in receiveWindow[uint64]
	var flying []uint64
	const messages = 5000
	for in.taken < messages {
		if size := 1 + rng.IntN(maxMessage); out.sent < messages && out.room() >= size && rng.IntN(2) == 0 {
			flying = append(flying, out.add(size))
		}
		if len(flying) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(flying))
			n := flying[i]
			if err := in.accept(n, n, out.sizes[n%windowMessages]); err != nil {
				t.Fatal(err)
			}
			flying[i] = flying[len(flying)-1]
			flying = flying[:len(flying)-1]
		}
		if n, ok := in.first(); ok && rng.IntN(2) == 0 {
			if n != in.taken {
				t.Fatalf("message %d instead of %d", n, in.taken)
			}
			in.pop()
			if rng.IntN(4) == 0 {
				if err := out.takenBy(in.taken); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := out.takenBy(in.taken); err != nil || out.bytes != 0 || in.bytes != 0 {
		t.Errorf("%d and %d bytes are left: %v", out.bytes, in.bytes, err)
	}
}

// TestWindowRefuses: a peer which sends a message twice, or more than the window, is found.
func TestWindowRefuses(t *testing.T) {
	var in receiveWindow[int]
	if err := in.accept(1, 0, 10); err != nil {
		t.Fatal(err)
	}
	for number, size := range map[uint64]int{1: 10, windowMessages: 1, 2: windowBytes} {
		if in.accept(number, 0, size) == nil {
			t.Errorf("message %d of %d bytes was accepted", number, size)
		}
	}
	if err := in.finish(2); err != nil {
		t.Fatal(err)
	}
	if in.finish(3) == nil || in.accept(2, 0, 1) == nil {
		t.Error("the stream goes on after its end")
	}
	if list := in.drain(); len(list) != 1 || in.bytes != 0 {
		t.Errorf("%d messages and %d bytes were left", len(list), in.bytes)
	}
	var out sendWindow
	out.add(5)
	if out.takenBy(2) == nil {
		t.Error("more was taken than sent")
	}
}

// FuzzMessages: no row of messages makes an end keep more than the window, or count wrong.
func FuzzMessages(f *testing.F) {
	seed := func(size uint16, list ...messageHeader) (b []byte) {
		for _, h := range list {
			b = append(b, make([]byte, headerSize)...)
			h.put(b[len(b)-headerSize:])
			b = binary.LittleEndian.AppendUint16(b, size)
		}
		return b
	}
	f.Add(seed(5, messageHeader{1, 0, messageData}, messageHeader{1, 1, messageData}))
	f.Add(seed(0, messageHeader{1, 3, messageTaken}, messageHeader{1, 0, messageEnd}, messageHeader{1, 0, messageClose}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in receiveWindow[int]
		var out sendWindow
		for range 3 {
			out.add(7)
		}
		for len(b) >= headerSize+2 {
			size := int(binary.LittleEndian.Uint16(b[headerSize:])) * 3
			h, err := decodeHeader(b[:headerSize], size)
			b = b[headerSize+2:]
			if err != nil {
				return
			}
			switch h.kind {
			case messageData:
				err = in.accept(h.number, size, size)
			case messageTaken:
				err = out.takenBy(h.number)
			case messageEnd, messageClose:
				err = in.finish(h.number)
			}
			if err != nil {
				return
			}
			waiting := 0
			for _, slot := range in.slots {
				waiting += slot.size
			}
			if waiting != in.bytes || in.bytes > windowBytes || out.bytes < 0 || out.taken > out.sent {
				t.Fatalf("%d bytes wait, counted as %d; %d of %d were taken", waiting, in.bytes, out.taken, out.sent)
			}
			if in.isOver() && in.bytes > 0 {
				t.Fatal("bytes wait after the end")
			}
			if size, ok := in.first(); ok && h.number%3 == 0 && in.pop() != size {
				t.Fatal("another size")
			}
		}
	})
}
