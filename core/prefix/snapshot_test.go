package prefix

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// sampled returns an index with everything that a snapshot can contain.
func sampled(t testing.TB) *Index {
	x := mustNew(t, Config{})
	one, two, three := kv.Worker{ID: 1}, kv.Worker{ID: 2, Rank: 1}, kv.Worker{ID: 300}
	ev := stored("", "a/b/c/d", kv.TierDevice)
	ev.Labels = []kv.MoELabel{
		{Has: kv.HasExpert, Layer: 2, Expert: 7},
		{},
		{Has: kv.HasExpert | kv.HasGroup, Layer: 2, Expert: 7, Group: 3},
		{Has: kv.HasExpert, Layer: 2, Expert: 7},
	}
	x.ApplyEvent(one, ev)
	x.ApplyEvent(two, stored("", "a/b", kv.TierDevice))
	x.ApplyEvent(three, stored("", "a/b", kv.TierDevice))
	x.ApplyEvent(three, stored("a", "b/c", kv.TierHost))
	x.ApplyEvent(three, stored("", "x", kv.TierDisk))
	x.SetAccess(9, []kv.Worker{two, {ID: 4}})
	x.DropWorker(kv.Worker{ID: 4}) // it keeps its access
	x.AddToPool(9, []kv.SeqHash{seqOf("a/b/c"), seqOf("x")}, nil)
	x.ApplyEvent(three, kv.Event{Kind: kv.Removed, Tier: kv.TierDisk, Seqs: []kv.SeqHash{seqOf("x")}})
	x.HideWorker(two)
	return x
}

// TestSnapshotBytes compares the encoding with the document, byte by byte.
func TestSnapshotBytes(t *testing.T) {
	datadriven.RunTest(t, "testdata/snapshot.txt", func(t *testing.T, d *datadriven.TestData) string {
		x := mustNew(t, Config{})
		switch d.Cmd {
		case "empty":
		case "sample":
			x = sampled(t)
		case "load": // written by earlier versions
			data, err := hex.DecodeString(strings.Join(strings.Fields(d.Input), ""))
			if err != nil {
				t.Fatal(err)
			}
			if err := x.LoadSnapshot(data); err != nil {
				return err.Error()
			}
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			s := x.Stats()
			fmt.Fprintf(&out, "workers=%d hidden=%d blocks=%d entries=%d pools=%d pooled=%d\n", s.Workers, s.Hidden, s.Blocks, s.Entries, s.Pools, s.Pooled)
			for _, w := range x.AppendWorkers(nil) {
				fmt.Fprintf(&out, "%d.%d holds %d\n", w.ID, w.Rank, x.HeldBlocks(w))
			}
			return out.String()
		default:
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
		}
		var out strings.Builder
		for i, b := range x.AppendSnapshot(nil) {
			sep := " "
			if i%16 == 15 {
				sep = "\n"
			}
			fmt.Fprintf(&out, "%02x%s", b, sep)
		}
		return strings.TrimSpace(out.String()) + "\n"
	})
}

// TestSnapshotSize: blocks held by one worker only take little more than their hashes.
func TestSnapshotSize(t *testing.T) {
	x, _ := fill(t, 8, 0, 20, 500)
	if got := float64(len(x.AppendSnapshot(nil))) / float64(x.Stats().Entries); got > 8.5 {
		t.Errorf("%.2f bytes per block of one worker, want at most 8.5", got)
	}
}

func TestLoadSnapshotRefuses(t *testing.T) {
	good := sampled(t).AppendSnapshot(nil)
	t.Run("what was cut off", func(t *testing.T) {
		for n := range good {
			mustRefuse(t, Config{}, good[:n])
		}
	})
	t.Run("what has more", func(t *testing.T) { mustRefuse(t, Config{}, append(bytes.Clone(good), 0)) })
	t.Run("another version", func(t *testing.T) { mustRefuse(t, Config{}, append([]byte{2}, good[1:]...)) })
	t.Run("more blocks than a worker may hold", func(t *testing.T) { mustRefuse(t, Config{MaxBlocks: 2}, good) })
	t.Run("more memory than the index may take", func(t *testing.T) { mustRefuse(t, Config{MaxBytes: 100}, good) })
	t.Run("an index with something in it", func(t *testing.T) {
		x := sampled(t)
		if err := x.LoadSnapshot(good); err == nil {
			t.Error("it was loaded")
		}
		if again := x.AppendSnapshot(nil); !bytes.Equal(again, good) {
			t.Error("what was in it is gone")
		}
	})
}

// mustRefuse loads data and expects an error and an index like a new one.
func mustRefuse(t *testing.T, cfg Config, data []byte) {
	t.Helper()
	x := mustNew(t, cfg)
	if err := x.LoadSnapshot(data); err == nil {
		t.Fatalf("%d bytes were loaded", len(data))
	}
	empty := x.Stats()
	empty.Counts = Counts{}
	if empty != (Stats{}) {
		t.Fatalf("something is left: %+v", empty)
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

// FuzzLoadSnapshot: any accepted input gives a valid index whose snapshot is the same bytes; any refused
// input leaves nothing behind.
func FuzzLoadSnapshot(f *testing.F) {
	f.Add(sampled(f).AppendSnapshot(nil))
	x, _ := fill(f, 3, 20, 2, 60)
	f.Add(x.AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := Config{MaxBytes: 1 << 20, MaxBlocks: 1000}
		x := mustNew(t, cfg)
		if x.LoadSnapshot(data) != nil {
			mustRefuse(t, cfg, data)
			return
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		if again := x.AppendSnapshot(nil); !bytes.Equal(again, data) {
			t.Fatalf("%x became %x", data, again)
		}
	})
}
