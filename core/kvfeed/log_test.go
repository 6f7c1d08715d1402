package kvfeed

import (
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
)

func mustLog(t testing.TB, cfg LogConfig) *EventLog[uint64] {
	t.Helper()
	l, err := NewEventLog[uint64](cfg, 5)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLogKeeps: for records of any size the last events are kept, at least the configured number and no
// record more than that needs, unless they take too many bytes.
func TestLogKeeps(t *testing.T) {
	for _, tt := range []struct{ events, bytes, perRecord, size, want int }{
		{1024, 1 << 20, 1, 10, 1024},
		{1024, 1 << 20, 256, 10, 4},
		{1024, 1 << 20, 250, 10, 5},
		{1024, 1 << 20, 2000, 10, 1},
		{1024, 1000, 1, 10, 100},
		{1024, 1000, 1, 400, 2},
		{1024, 1000, 1, 1001, 0},
	} {
		l := mustLog(t, LogConfig{Events: tt.events, Bytes: tt.bytes})
		for range 5000 {
			l.AddRecord(tt.perRecord, tt.size, l.Next()) // a record is its first number
		}
		got := l.AppendRecords(nil, 0)
		var want []uint64
		for first := l.Next() - uint64(tt.want*tt.perRecord); first < l.Next(); first += uint64(tt.perRecord) {
			want = append(want, first)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %d records from %v on", tt, len(got), got[:min(1, len(got))])
		}
		if n := cap(l.kept); n > 4*tt.want+64 {
			t.Errorf("%+v: room for %d records", tt, n)
		}
	}
}

func TestLogAppendFrom(t *testing.T) {
	l := mustLog(t, LogConfig{})
	for range 4 {
		l.AddRecord(3, 1, l.Next())
	}
	for from, want := range map[uint64][]uint64{1: {1, 4, 7, 10}, 3: {1, 4, 7, 10}, 4: {4, 7, 10}, 11: {10}, 12: {10}, 13: nil} {
		if got := l.AppendRecords(nil, from); !slices.Equal(got, want) {
			t.Errorf("from %d: %v, want %v", from, got, want)
		}
	}
}

// TestLogAnswers: requests at the same time share an answer, and answers are spaced.
func TestLogAnswers(t *testing.T) {
	const ms = kv.Mono(time.Millisecond)
	l := mustLog(t, LogConfig{Events: 10})
	l.StartDescription(0)
	for range 100 {
		l.AddRecord(1, 1, l.Next())
	}
	check := func(now kv.Mono, due time.Duration, want Answer) {
		t.Helper()
		at, ok := l.Deadline()
		if ok != (due >= 0) || ok && at.Sub(now) > 0 && at.Sub(now) != due || ok && at <= now && due != 0 {
			t.Errorf("at %v: due at %v, %t, want in %v", now, at, ok, due)
		}
		if got := l.NextAnswer(now); got != want {
			t.Errorf("at %v: %+v, want %+v", now, got, want)
		}
	}
	check(0, -1, Answer{})
	l.AddRequest(ResyncRequest{Epoch: 5, From: 97})
	l.AddRequest(ResyncRequest{Epoch: 5, From: 92})
	l.AddRequest(ResyncRequest{Epoch: 5, From: 99})
	check(1*ms, 0, Answer{Repeat: true, From: 92})
	l.AddRequest(ResyncRequest{Epoch: 5, From: 101}) // nothing is missing
	check(2*ms, 49*time.Millisecond, Answer{})
	check(51*ms, 0, Answer{Repeat: true, From: 101})

	// A request which is too old, too new, or for another epoch requires a description, but does not delay
	// the others.
	for _, q := range []ResyncRequest{{}, {Epoch: 5, From: 91 - 1}, {Epoch: 5, From: 102}, {Epoch: 4, From: 95}, {Epoch: 6, From: 95}} {
		l.AddRequest(q)
		check(101*ms, 899*time.Millisecond, Answer{})
		l.AddRequest(ResyncRequest{Epoch: 5, From: 95})
		check(500*ms, 0, Answer{Repeat: true, From: 95})
		check(1000*ms, 0, Answer{Describe: true})
		l.StartDescription(1000 * ms)
		check(2000*ms, -1, Answer{})
		l = mustLog(t, LogConfig{Events: 10})
		l.StartDescription(0)
		for range 100 {
			l.AddRecord(1, 1, l.Next())
		}
	}

	// Requested records may no longer be kept when the answer is due.
	l.AddRequest(ResyncRequest{Epoch: 5, From: 92})
	l.AddRecord(5, 1, l.Next())
	check(10*ms, 0, Answer{})
	check(10*ms, 990*time.Millisecond, Answer{})
	l.AddRequest(ResyncRequest{Epoch: 5, From: 97})
	check(1000*ms, 0, Answer{Describe: true})
	l.StartDescription(1000 * ms)
	check(1000*ms, -1, Answer{})

	// In an epoch without events there is nothing to repeat.
	l = mustLog(t, LogConfig{})
	l.StartDescription(0)
	l.AddRequest(ResyncRequest{Epoch: 5, From: 1})
	check(1000*ms, 0, Answer{Describe: true})
}

func TestLogConfig(t *testing.T) {
	for _, cfg := range []LogConfig{{Events: -1}, {Bytes: -1}, {MinRepeat: -1}, {MinDescribe: -1}} {
		if _, err := NewEventLog[int](cfg, 1); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestLogAddAllocatesLittle(t *testing.T) {
	l := mustLog(t, LogConfig{})
	for range 10000 {
		l.AddRecord(1, 100, 1)
	}
	if allocs := testing.AllocsPerRun(5000, func() { l.AddRecord(1, 100, 1) }); allocs != 0 {
		t.Errorf("%v allocations per record, want 0", allocs)
	}
}
