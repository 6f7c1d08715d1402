package zmtp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
)

// TestOutboxAgainstAList pushes and takes at random, beside a list of messages: what
// is taken is what was accepted, in order, and only what the bounds forbid is not.
func TestOutboxAgainstAList(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		o := Options{HighWater: 1 + rng.IntN(200), QueueBytes: 1 + rng.IntN(1<<20)}.withDefaults()
		out := newOutbox(&o)
		var list [][]byte // encoded
		size := func() (n int) {
			for _, m := range list {
				n += len(m)
			}
			return n
		}
		for range 3000 {
			if rng.IntN(40) == 0 {
				c, ok, _ := out.pop()
				if ok != (len(list) > 0) {
					t.Fatalf("seed %d: %d messages wait, pop says %v", seed, len(list), ok)
				}
				if !ok {
					continue
				}
				if want := bytes.Join(list[:c.count], nil); !bytes.Equal(c.buf, want) {
					t.Fatalf("seed %d: a chunk of %d messages is not what was pushed", seed, c.count)
				}
				list = list[c.count:]
				out.recycleChunk(c)
				continue
			}
			m := [][]byte{make([]byte, rng.IntN(300)), make([]byte, []int{0, 10, 2000, 100_000}[rng.IntN(4)])}
			for i := range m[0] {
				m[0][i] = byte(rng.Uint32())
			}
			fits := len(list) == 0 || len(list) < o.HighWater && size()+messageSize(m) <= o.QueueBytes
			if out.push(m) != fits {
				t.Fatalf("seed %d: %d messages with %d bytes wait, one of %d was accepted: %v", seed, len(list), size(), messageSize(m), !fits)
			}
			if fits {
				list = append(list, appendMessage(nil, m))
			}
		}
		out.closeWhenEmpty()
		if out.push(strs("x")) {
			t.Error("a closed outbox takes messages")
		}
		var rest bytes.Buffer
		if err := out.writeQueued(context.Background(), &rest); err != nil || !bytes.Equal(rest.Bytes(), bytes.Join(list, nil)) {
			t.Errorf("seed %d: %v, %d bytes are left of %d", seed, err, rest.Len(), size())
		}
	}
}

// TestControlIsBounded holds that a peer which asks and never reads is not answered
// without end.
func TestControlIsBounded(t *testing.T) {
	o := Options{QueueBytes: 1000}.withDefaults()
	out := newOutbox(&o)
	for range 100_000 {
		if err := out.queueCommand(appendCommand(nil, "PONG", "0123456789")); err != nil {
			t.Fatal(err)
		}
	}
	if out.mu.bytes == 0 || out.mu.bytes > 1000+controlRoom {
		t.Errorf("%d bytes of answers wait", out.mu.bytes)
	}
}
