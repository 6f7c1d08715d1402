package bus_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
)

// The faults of an archive happen, at about their probabilities, and alike for one seed.
func TestFaultyArchive(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 1000)
	story := func(seed uint64) (s struct{ kept, lost, corrupt, short, unlocked int }) {
		inner := bus.NewMemArchive()
		a := bustest.NewFaultyArchive(inner, seed, bustest.ArchiveFaults{Fail: 0.4})
		for i := range 200 {
			name := fmt.Sprint("o", i)
			if err := a.Put(t.Context(), name, data); err != nil {
				if fault.CodeOf(err) != fault.Unavailable {
					t.Fatal(err)
				}
				if _, err := inner.Get(t.Context(), name); err == nil {
					s.kept++
				} else {
					s.lost++
				}
			}
		}
		a.Set(bustest.ArchiveFaults{Corrupt: 0.3, Truncate: 0.3, Lose: 0.3})
		if err := a.Put(t.Context(), "o", data); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			got, err := a.Get(t.Context(), "o")
			switch {
			case err != nil:
				t.Fatal(err)
			case len(got) < len(data):
				s.short++
			case !bytes.Equal(got, data):
				s.corrupt++
			}
			if err := a.Lock(t.Context(), "l", func(ctx context.Context, _ uint64) error { return context.Cause(ctx) }); fault.CodeOf(err) == fault.Conflict {
				s.unlocked++
			}
		}
		return s
	}
	s := story(1)
	for what, n := range map[string]int{"kept": s.kept, "lost": s.lost, "corrupt": s.corrupt, "short": s.short, "unlocked": s.unlocked} {
		if n < 20 || n > 90 {
			t.Errorf("seed 1: %s %d times, want about a third or a fifth of 200", what, n)
		}
	}
	if story(1) != s {
		t.Error("one seed, two stories")
	}
	if story(2) == s {
		t.Error("two seeds, one story")
	}
}

// Span and Purge fail as Publish does; a Purge that failed may have been done.
func TestFaultyBusSpanAndPurge(t *testing.T) {
	inner := bus.NewMemBus()
	b := bustest.WithFaults(inner, 1, bustest.BusFaults{})
	topic := bus.Topic{Name: "t", Durable: true}
	for range 300 {
		if err := b.Publish(t.Context(), topic, "k", nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Set(bustest.BusFaults{Fail: 0.5})
	spans, done, undone := 0, 0, 0
	for below := uint64(2); below < 202; below++ {
		if _, err := b.DescribeTopic(t.Context(), topic); fault.CodeOf(err) == fault.Unavailable {
			spans++
		}
		err := b.Purge(t.Context(), topic, below)
		s, spanErr := inner.DescribeTopic(t.Context(), topic)
		switch {
		case spanErr != nil:
			t.Fatal(spanErr)
		case err == nil && s.First != below:
			t.Fatalf("a purge below %d succeeded and %d is first", below, s.First)
		case err != nil && s.First == below:
			done++
		case err != nil:
			undone++
		}
	}
	if min(done, undone) < 20 || spans < 60 {
		t.Errorf("%d failed purges were done, %d were not, %d spans failed; want about 50, 50 and 100", done, undone, spans)
	}
}
