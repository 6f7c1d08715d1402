package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/plane/disco"
)

func identityConfig(dir string, id uint64) *config.Loaded {
	l := &config.Loaded{Config: config.Config{DataDir: dir}, Command: config.Worker}
	l.Fleet.WorkerID = id
	return l
}

// A worker keeps its id in its directory; without a directory each start is another worker.
func TestWorkerIDs(t *testing.T) {
	dir := t.TempDir()
	id := func(dir string, configured uint64) kv.WorkerID {
		t.Helper()
		got, err := workerID(identityConfig(dir, configured))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	kept := id(dir, 0)
	if again := id(dir, 0); again != kept {
		t.Errorf("%d became %d", kept, again)
	}
	if got := id(dir, 7); got != 7 {
		t.Errorf("configured as 7, it is %d", got)
	}
	if again := id(dir, 0); again != kept {
		t.Errorf("a configured id has replaced %d by %d", kept, again)
	}
	seen := map[kv.WorkerID]bool{kept: true}
	for range 1000 {
		got := id("", 0)
		if seen[got] || got < disco.FirstDrawnID || got > kv.MaxWorkerID {
			t.Fatalf("drawn is %d, seen before: %v", got, seen[got])
		}
		seen[got] = true
	}
}

func TestWorkerIDFileUnusable(t *testing.T) {
	for _, contents := range []string{"", "x", "-1", fmt.Sprint(uint64(kv.MaxWorkerID) + 1)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, idFile), []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := workerID(identityConfig(dir, 0)); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%q: %v", contents, err)
		}
	}
	if _, err := workerID(identityConfig(filepath.Join(t.TempDir(), "nothing"), 0)); err == nil || !strings.Contains(err.Error(), "permissions") {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// A router is another instance of each model, and the same after a restart.
func TestModelIDs(t *testing.T) {
	seen := map[kv.WorkerID]string{}
	for router := range kv.WorkerID(20) {
		for m := range 50 {
			model := fmt.Sprint("model-", m)
			id := modelID(router, model)
			if was, ok := seen[id]; ok || id < disco.FirstDrawnID || id > kv.MaxWorkerID || modelID(router, model) != id {
				t.Fatalf("router %d, %s: id %d, which %q has", router, model, id, was)
			}
			seen[id] = fmt.Sprint(router, model)
		}
	}
}

// TestRankIDs: the ranks of a worker have ids of their own.
func TestRankIDs(t *testing.T) {
	if rankID(7, 0) != 7 || rankID(7, 1) == rankID(7, 2) || rankID(7, 1) == rankID(8, 1) {
		t.Error("ranks of a worker are not told apart")
	}
}
