package xfer

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSendFile: over TCP without TLS the kernel sends files, and the owner refuses one whose bytes
// are not those of its digests.
func TestSendFile(t *testing.T) {
	if !canSendFile {
		return
	}
	p, ctx := runTCP(t, TCPConfig{}), t.Context()
	name := filepath.Join(t.TempDir(), "block")
	content := make([]byte, 3*ChunkSize+5)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digests := ChunkDigests(content)
	for _, want := range []TransferOutcome{OK, Corrupt} {
		tr, err := p.Expect(Incoming{Into: [][]byte{make([]byte, len(content))}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.Open(ctx, tr.Descriptor())
		if err != nil {
			t.Fatal(err)
		}
		if w.(*laneWriter).sendsFiles(int64(len(content)), digests) == nil {
			t.Error("the kernel does not send the file")
		}
		err = WriteFile(w, f, 0, int64(len(content)), digests)
		if err == nil {
			err = w.Commit(nil)
		}
		if OutcomeOf(err) != want {
			t.Errorf("the writer got %v, not %v", err, want)
		}
		if _, err := tr.Wait(ctx); OutcomeOf(err) != want {
			t.Errorf("the owner got %v, not %v", err, want)
		}
		// The second time a stored byte has changed.
		if err := os.WriteFile(name, append([]byte{1}, content[1:]...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
