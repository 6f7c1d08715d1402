package router

import (
	"bytes"
	stdhex "encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/snapshot"
)

// A restored snapshot encodes to the same bytes.
func TestSnapshotIsWhole(t *testing.T) {
	s := newShelf(t)
	fill(8, 20_000, 3, func(rec *kvfeed.Record) {
		rec.Worker.ID += 100
		s.c.acceptRecord(streamPosition{}, rec)
	})
	s.say(one, storedAs("abc"))
	s.say(one, moved("ab", kv.Pooled, two))
	s.c.skipTo(streamPosition{7, 9})
	_, data := s.c.takeSnapshot(5, 0)
	other := newBenchCache(t)
	h, err := other.restoreSnapshot(data)
	if err != nil || h != (snapshot.Header{StreamID: 7, Seq: 9, Taken: 5}) || other.position() != (streamPosition{7, 9}) {
		t.Fatalf("restored %+v at %+v: %v", h, other.position(), err)
	}
	if _, again := other.takeSnapshot(5, 0); !bytes.Equal(again, data) {
		t.Error("a snapshot of what was restored is another one")
	}
	if err := other.mu.index.Check(); err != nil {
		t.Error(err)
	}
	for i := 0; i < len(data); i += 97 {
		bad := bytes.Clone(data)
		bad[i] ^= 4
		if _, err := other.restoreSnapshot(bad); err == nil {
			t.Fatalf("byte %d was changed: nothing is seen", i)
		}
	}
	if _, again := other.takeSnapshot(5, 0); !bytes.Equal(again, data) {
		t.Error("snapshots that could not be read changed what is known")
	}
}

// A snapshot of build 1 stays readable for ever: all sections, with a pool, two epochs and removed
// blocks. Rewrite it only when the writer's bytes are meant to change, and keep the old file beside it.
func TestSnapshotV1(t *testing.T) {
	const file = "testdata/snapshot-v1.hex"
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(one, moved("ab", kv.Pooled, two))
	s.say(two, storedAs("ab"))
	s.start(three)
	s.say(three, storedAs("abcd"))
	s.say(three, removed("abcd", 1))
	s.c.skipTo(streamPosition{7, 9})
	_, data := s.c.takeSnapshot(1763733000000, 0)
	if *rewriteSnapshot {
		if err := os.WriteFile(file, []byte(stdhex.Dump(data)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kept := undump(t, string(text))
	other := newBenchCache(t)
	if _, err := other.restoreSnapshot(kept); err != nil {
		t.Fatal(err)
	}
	if _, again := other.takeSnapshot(1763733000000, 0); !bytes.Equal(again, data) {
		t.Errorf("what was kept is read as\n%swant\n%s", stdhex.Dump(again), stdhex.Dump(data))
	}
}

var rewriteSnapshot = flag.Bool("rewrite-snapshot", false, "write testdata/snapshot-v1.hex anew")

// undump is the inverse of stdhex.Dump.
func undump(t *testing.T, text string) (data []byte) {
	t.Helper()
	for line := range strings.Lines(text) {
		if len(line) < 60 {
			t.Fatalf("line %q is too short", line)
		}
		b, err := stdhex.DecodeString(strings.ReplaceAll(line[10:58], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, b...)
	}
	return data
}

// FuzzLoadGenerations: the section of pool generations is read as it was written, and anything else is refused.
func FuzzLoadGenerations(f *testing.F) {
	k := cacheContent{generations: map[kv.PoolID]string{0: "a", 3: "bc"}}
	f.Add(k.appendGenerations(nil))
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		k := cacheContent{generations: map[kv.PoolID]string{}}
		if err := k.loadGenerations(data); err != nil {
			return
		}
		if again := k.appendGenerations(nil); !bytes.Equal(again, data) {
			t.Errorf("%x is written as %x", data, again)
		}
	})
}

// The section of workers is read as it was written, and anything else is refused.
func FuzzLoadSources(f *testing.F) {
	k := cacheContent{sources: map[kv.Worker]*eventSource{{ID: 1}: {epoch: 2, blockSize: 16}, {ID: 1, Rank: 3}: {epoch: 5, blockSize: 32}}}
	f.Add(k.appendSources(nil))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		k := cacheContent{sources: map[kv.Worker]*eventSource{}}
		if err := k.loadSources(0, data); err != nil {
			return
		}
		if again := k.appendSources(nil); !bytes.Equal(again, data) {
			t.Errorf("%x is written as %x", data, again)
		}
	})
}
