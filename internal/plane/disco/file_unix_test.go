//go:build !windows

package disco

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A file which becomes a named pipe is unreadable. Waiting for its writer would block the watch
// forever.
func TestFileBecomesPipe(t *testing.T) {
	dir := t.TempDir()
	f, err := NewFileRegistry(FileConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := leaseFileName{instanceKey{KindWorker, 1}, 1, "abc"}
	if err := unix.Mkfifo(f.filePath(n), 0o600); err != nil {
		t.Fatal(err)
	}
	// Were it opened, there would be something to read, and an end.
	hold, err := os.OpenFile(f.filePath(n), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.WriteString("what"); err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	defer time.AfterFunc(time.Second, func() { hold.Close() }).Stop()
	if data, err := f.readLeaseFile(n); err == nil || ignoreMissing(err) == nil {
		t.Errorf("read %q, %v from a pipe", data, err)
	}
}

// What others put where a registration is written before it gets its name is
// replaced, and not written through.
func TestFileIsNotWrittenThroughALink(t *testing.T) {
	inDir(t, func(t *testing.T, w *fileWorld) {
		victim := filepath.Join(t.TempDir(), "victim")
		if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := w.process().Register(t.Context(), Instance{Kind: KindWorker, ID: 1, Epoch: 1, Addr: "a"})
		if err != nil {
			t.Fatal(err)
		}
		temp := filepath.Join(w.dir, tempPrefix+l.(*fileLease).file.holder)
		if err := os.Symlink(victim, temp); err != nil {
			t.Fatal(err)
		}
		<-time.After(fileTTL)
		synctest.Wait()
		if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
			t.Errorf("the file that a link led to is %.40q, %v", b, err)
		}
		if err := l.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
