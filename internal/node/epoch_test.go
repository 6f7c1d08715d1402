package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A later incarnation has a higher epoch, whatever the clock says.
func TestEpochsGrow(t *testing.T) {
	dir := t.TempDir()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var last uint64
	for i, now := range []time.Time{noon, noon, noon.Add(-time.Hour), noon.Add(time.Millisecond), noon.Add(time.Minute), noon.AddDate(-50, 0, 0)} {
		epoch, err := nextEpoch(dir, now)
		if err != nil {
			t.Fatal(err)
		}
		if epoch <= last || epoch < uint64(now.UnixMilli()) {
			t.Errorf("life %d: epoch %d after %d, at %d", i, epoch, last, now.UnixMilli())
		}
		last = epoch
	}
	if want := uint64(noon.Add(time.Minute).UnixMilli()) + 1; last != want {
		t.Errorf("the last epoch is %d, want %d: a right clock is followed", last, want)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left behind are %v, %v", files, err)
	}
	if epoch, err := nextEpoch("", noon); err != nil || epoch != uint64(noon.UnixMilli()) {
		t.Errorf("without a directory: %d, %v", epoch, err)
	}
}

func TestEpochFileUnusable(t *testing.T) {
	for _, contents := range []string{"", "yesterday", "-1", "18446744073709551615", strings.Repeat("9", 1000)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, epochFile), []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := nextEpoch(dir, time.Now()); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%.20q: %v", contents, err)
		}
	}
	if _, err := nextEpoch(filepath.Join(t.TempDir(), "nothing"), time.Now()); err == nil || !strings.Contains(err.Error(), "permissions") {
		t.Errorf("a directory that is not there: %v", err)
	}
}
