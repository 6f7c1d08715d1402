package reload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/fixturetest"
)

func write(t *testing.T, path, contents string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// TestRun follows a file through its changes, good and bad. Time is virtual.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "\xef\xbb\xbfone")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of used and out, since virtual time orders nothing for the race detector
		var used []string
		files, err := Open("letters", func(contents [][]byte) error {
			if bytes.HasPrefix(contents[0], []byte("bad")) {
				return errors.New("it is bad")
			}
			mu.Lock()
			defer mu.Unlock()
			used = append(used, string(contents[0]))
			return nil
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- files.Run(ctx, slog.New(slog.NewTextHandler(locked{&mu, &out}, nil))) }()
		looks := func(n int) { // virtual time: each look is over before the next
			<-time.After(time.Duration(n) * PollInterval)
			synctest.Wait()
		}
		expect := func(when, want string, lines int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(used, " "); got != want {
				t.Errorf("%s: used %q, want %q", when, got, want)
			}
			if n := strings.Count(out.String(), "\n"); n != lines {
				t.Errorf("%s: logged %d lines, want %d:\n%s", when, n, lines, &out)
			}
		}
		looks(3)
		expect("unchanged", "one", 0)
		write(t, path, "tw") // it is being written
		looks(1)
		write(t, path, "two")
		looks(1)
		expect("not settled", "one", 0)
		looks(1)
		expect("settled", "one two", 1)
		write(t, path, "bad")
		looks(5)
		expect("bad", "one two", 2)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		looks(5)
		expect("gone", "one two", 3)
		write(t, path, "two")
		looks(2)
		expect("as before", "one two", 4)
		write(t, path, "three")
		looks(2)
		expect("new", "one two three", 5)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	large, refused := filepath.Join(dir, "large"), filepath.Join(dir, "refused")
	write(t, large, strings.Repeat("x", maxFile+1))
	write(t, refused, "x")
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "nothing"), "letters: "},
		{dir, "is not a file"},
		{large, "larger than"},
		{refused, "letters: no"},
	} {
		if _, err := Open("letters", func([][]byte) error { return errors.New("no") }, c.path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
}

// pair returns a certificate and its key, in PEM.
func pair(t *testing.T, name string, until time.Time) (cert, key string) {
	t.Helper()
	p := fixturetest.NewPair(t, fixturetest.CertOptions{Name: name, Until: until})
	return string(p.Cert), string(p.Key)
}

// TestCertificate: a new pair takes the place of the old one; half of one does not,
// nor one whose time is over.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	certPath, keyPath := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	tomorrow := time.Now().Add(24 * time.Hour)
	certA, keyA := pair(t, "a", tomorrow)
	certB, keyB := pair(t, "b", tomorrow)
	old, oldKey := pair(t, "old", time.Now().Add(-time.Hour))
	write(t, certPath, certA)
	write(t, keyPath, keyA)
	c, err := OpenCertificate(certPath, keyPath)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	expect := func(want string) {
		t.Helper()
		c.pollFiles(log)
		c.pollFiles(log)
		if got, err := c.Get(nil); err != nil || got.Leaf.Subject.CommonName != want {
			t.Errorf("%v is in use, %v, want %s", got.Leaf.Subject, err, want)
		}
	}
	expect("a")
	write(t, certPath, certB)
	expect("a")
	write(t, keyPath, keyB)
	expect("b")
	write(t, certPath, old)
	write(t, keyPath, oldKey)
	expect("b")
	if text := out.String(); !strings.Contains(text, "the certificate ended at") || strings.Contains(text, "PRIVATE") {
		t.Errorf("logged %s", text)
	}
	if _, err := OpenCertificate(certPath, keyPath); err == nil {
		t.Error("a certificate whose time is over was opened")
	}
}
