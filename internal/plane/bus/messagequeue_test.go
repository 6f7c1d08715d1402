package bus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naiveQueue is the queue without a ring.
type naiveQueue []Message

func (q *naiveQueue) push(m Message) (lost uint64) {
	*q = append(*q, m)
	for {
		size := 0
		for _, m := range *q {
			size += len(m.Data)
		}
		if len(*q) <= QueueMessages && (size <= QueueBytes || len(*q) == 1) {
			return lost
		}
		*q = (*q)[1:]
		lost++
	}
}

func TestQueueAgainstNaive(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		q, naive := newMessageQueue(), naiveQueue{}
		big := make([]byte, QueueBytes/8)
		for step := range 3000 {
			if rng.IntN(100) < 40 && len(naive) > 0 {
				got, ok := q.pop()
				if want := naive[0]; !ok || got.Key != want.Key {
					t.Fatalf("seed %d step %d: popped %q, want %q", seed, step, got.Key, want.Key)
				}
				naive = naive[1:]
				continue
			}
			m := Message{Key: fmt.Sprint(step)}
			if rng.IntN(1+int(seed)*20) == 0 {
				m.Data = big[:rng.IntN(len(big))]
			}
			if got, want := q.push(m), naive.push(m); got != want {
				t.Fatalf("seed %d step %d: lost %d, want %d", seed, step, got, want)
			}
		}
		for _, want := range naive {
			if got, ok := q.pop(); !ok || got.Key != want.Key {
				t.Fatalf("seed %d at the end: popped %q, want %q", seed, got.Key, want.Key)
			}
		}
		if _, ok := q.pop(); ok {
			t.Fatalf("seed %d: more came out than went in", seed)
		}
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	q := newMessageQueue()
	for range 2 * QueueMessages {
		q.push(Message{})
	}
	if n := testing.AllocsPerRun(100, func() {
		q.push(Message{Key: "k"})
		q.pop()
	}); n != 0 {
		t.Errorf("%v allocations per message, want none", n)
	}
}

// A journal keeps exactly the newest messages that fit its bounds.
func TestJournalAgainstNaive(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		j := journal{maxBytes: 20_000, maxAge: time.Minute, first: 1}
		var all []journalEntry
		now := time.Unix(0, 0)
		for step := range 2000 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Second))))
			e := journalEntry{key: fmt.Sprint(step), data: make([]byte, rng.IntN(2000)), at: now}
			all = append(all, e)
			j.appendEntry(e)

			keep, size := len(all), int64(0)
			for keep > 0 && size+all[keep-1].storedSize() <= j.maxBytes && now.Sub(all[keep-1].at) <= j.maxAge {
				keep--
				size += all[keep].storedSize()
			}
			same := slices.EqualFunc(j.entries, all[keep:], func(a, b journalEntry) bool { return a.key == b.key })
			if !same || j.first != uint64(keep+1) || j.lastSeq() != uint64(len(all)) || j.bytes != size {
				t.Fatalf("seed %d step %d: keeps %d from %d with %d bytes, want %d from %d with %d",
					seed, step, len(j.entries), j.first, j.bytes, len(all)-keep, keep+1, size)
			}
			from := uint64(rng.IntN(len(all)+3)) + 1
			_, n, ok := j.entryFrom(from)
			if n != max(from, j.first) || ok != (n <= uint64(len(all))) {
				t.Fatalf("seed %d step %d: at(%d) is %d, %v", seed, step, from, n, ok)
			}
		}
	}
}
