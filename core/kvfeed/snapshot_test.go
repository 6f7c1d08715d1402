package kvfeed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"penstock/core/kv"
)

// pictured returns a tracker with a feed in each state.
func pictured(t testing.TB) *Tracker {
	tr := mustTracker(t, Config{})
	accept := func(w kv.Worker, epoch, first uint64, kinds ...kv.EventKind) {
		r := &Record{Worker: w, Epoch: epoch, First: first}
		for _, k := range kinds {
			r.Events = append(r.Events, kv.Event{Kind: k})
		}
		tr.AcceptRecord(0, r)
	}
	accept(kv.Worker{ID: 1}, 7, 1, kv.Cleared, kv.Stored)
	accept(kv.Worker{ID: 1, Rank: 2}, 7, 1, kv.Cleared)
	accept(kv.Worker{ID: 1, Rank: 2}, 7, 9, kv.Stored)
	accept(kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, 1<<60, 1, kv.Cleared)
	tr.RejectForeign(0, kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, 1<<40)
	return tr
}

// TestSnapshotIsReadForEver: the bytes are from an earlier build.
func TestSnapshotIsReadForEver(t *testing.T) {
	text, err := os.ReadFile("testdata/snapshot-v1.hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if now := pictured(t).AppendSnapshot(nil); !bytes.Equal(now, data) {
		t.Errorf("it is written as\n%x\nolder builds know\n%x", now, data)
	}
	tr := mustTracker(t, Config{})
	if err := tr.LoadSnapshot(5, data); err != nil {
		t.Fatal(err)
	}
	if again := tr.AppendSnapshot(nil); !bytes.Equal(again, data) {
		t.Errorf("%x became %x", data, again)
	}
}

// TestSnapshotGoesOn: a tracker which loads a snapshot gives the same verdicts as the original one.
func TestSnapshotGoesOn(t *testing.T) {
	for _, r := range []*Record{
		{Worker: kv.Worker{ID: 1}, Epoch: 7, First: 3, Events: []kv.Event{{Kind: kv.Stored}}},
		{Worker: kv.Worker{ID: 1}, Epoch: 7, First: 2, Events: []kv.Event{{Kind: kv.Stored}}},
		{Worker: kv.Worker{ID: 1}, Epoch: 6, First: 3, Events: []kv.Event{{Kind: kv.Stored}}},
		{Worker: kv.Worker{ID: 1}, Epoch: 8, First: 1, Events: []kv.Event{{Kind: kv.Cleared}}},
		{Worker: kv.Worker{ID: 1, Rank: 2}, Epoch: 7, First: 2, Events: make([]kv.Event, 8)},
		{Worker: kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, Epoch: 1 << 60, First: 1<<40 - 1, Events: []kv.Event{{Kind: kv.Cleared}}},
		{Worker: kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, Epoch: 1 << 60, First: 1 << 40, Events: []kv.Event{{Kind: kv.Cleared}}},
	} {
		one, other := pictured(t), mustTracker(t, Config{})
		if err := other.LoadSnapshot(0, one.AppendSnapshot(nil)); err != nil {
			t.Fatal(err)
		}
		want, got := one.AcceptRecord(1e10, r), other.AcceptRecord(1e10, r)
		if got != want {
			t.Errorf("%+v: %+v, want %+v", r, got, want)
		}
		if !bytes.Equal(one.AppendSnapshot(nil), other.AppendSnapshot(nil)) {
			t.Errorf("%+v: the trackers went apart", r)
		}
	}
}

func TestSnapshotsThatCannotBeRead(t *testing.T) {
	good := pictured(t).AppendSnapshot(nil)
	edit := func(at int, b byte) []byte {
		data := bytes.Clone(good)
		data[at] = b
		return data
	}
	for name, data := range map[string][]byte{
		"nothing":                 nil,
		"a part":                  good[:len(good)-1],
		"a row too many":          append(bytes.Clone(good), make([]byte, snapshotRow)...),
		"another version":         edit(0, 2),
		"small rows":              edit(2, snapshotRow-1),
		"more rows than bytes":    edit(6, 1),
		"very many rows":          edit(7, 255),
		"a state that is not":     edit(8+12, 3),
		"live, with a loss":       edit(8+13, flagLost),
		"live, and missing some":  edit(8+32, 200),
		"no next number":          edit(8+24, 0),
		"a worker out of order":   edit(8, 2),
		"a worker id that is not": edit(8+7, 0xff),
	} {
		tr := mustTracker(t, Config{})
		if err := tr.LoadSnapshot(0, data); err == nil {
			t.Errorf("%s was read", name)
		}
		if len(tr.feeds) != 0 {
			t.Errorf("%s: %d feeds are left", name, len(tr.feeds))
		}
	}
	tr := mustTracker(t, Config{})
	if err := tr.LoadSnapshot(0, edit(0, 2)); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	if err := pictured(t).LoadSnapshot(0, good); err == nil {
		t.Error("a tracker that follows workers took a snapshot")
	}
}

// TestSnapshotGrows: later versions may make rows longer.
func TestSnapshotGrows(t *testing.T) {
	good := pictured(t).AppendSnapshot(nil)
	long := append([]byte(nil), good[:snapshotHeader]...)
	long[2] += 4
	for rows := good[snapshotHeader:]; len(rows) > 0; rows = rows[snapshotRow:] {
		long = append(append(long, rows[:snapshotRow]...), 1, 2, 3, 4)
	}
	tr := mustTracker(t, Config{})
	if err := tr.LoadSnapshot(0, long); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(tr.AppendSnapshot(nil), good) {
		t.Error("longer rows are read otherwise")
	}
}

func FuzzLoadSnapshot(f *testing.F) {
	f.Add(pictured(f).AppendSnapshot(nil))
	f.Add(mustTracker(f, Config{}).AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := mustTracker(t, Config{})
		if tr.LoadSnapshot(0, data) != nil {
			return
		}
		if err := tr.Check(); err != nil {
			t.Fatal(err)
		}
		again := mustTracker(t, Config{})
		if err := again.LoadSnapshot(0, tr.AppendSnapshot(nil)); err != nil {
			t.Fatal(err)
		}
		for _, h := range tr.AppendHealth(nil) {
			if other, ok := again.HealthOf(h.Worker); !ok || other != h {
				t.Fatalf("%+v became %+v", h, other)
			}
		}
		tr.DueRequests(1, nil)
		tr.GiveUpRepairs(1<<50, nil)
		if err := tr.Check(); err != nil {
			t.Fatal(err)
		}
	})
}
