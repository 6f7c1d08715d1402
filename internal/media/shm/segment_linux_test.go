package shm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// lendIn tells a process of the tests to lend in that directory until it is killed.
const lendIn = "PENSTOCK_SHM_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(lendIn); dir != "" {
		lendForever(dir)
	}
	goleak.VerifyTestMain(m)
}

// lendForever lends the same bytes twice, says under which names, and waits.
func lendForever(dir string) {
	l, err := NewLender(Config{Dir: dir})
	for range 2 {
		var e *Lease
		if err == nil {
			e, err = l.Lend([]byte("of a process that dies"), time.Hour)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(e.Name())
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // the parent ends it
	os.Exit(1)
}

// dir is a directory for segments, which must be empty when the test ends.
func dir(t *testing.T) string {
	t.Helper()
	d := t.TempDir()
	t.Cleanup(func() { empty(t, d) })
	return d
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func lender(t *testing.T, cfg Config) *Lender {
	t.Helper()
	l, err := NewLender(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if n, bytes := l.Usage(); n != 0 || bytes != 0 {
			t.Errorf("%d leases of %d bytes are left", n, bytes)
		}
	})
	return l
}

// descriptors returns how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// faults reports whether f touches memory that it must not.
func faults(f func()) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	f()
	return false
}

func TestLease(t *testing.T) {
	d := dir(t)
	before := descriptors(t)
	l := lender(t, Config{Dir: d})
	data := bytes.Repeat([]byte("picture"), 10000)
	e, err := l.Lend(data, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenIn(d, e.Name(), len(data))
	if err != nil || !bytes.Equal(m.Bytes(), data) {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(d, e.Name())); err != nil || st.Mode() != 0o400 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if n, bytes := l.Usage(); n != 1 || bytes != int64(len(data)) {
		t.Errorf("%d leases of %d bytes", n, bytes)
	}
	if !faults(func() { m.Bytes()[0] = 1 }) || !faults(func() { e.segment.Bytes()[0] = 1 }) {
		t.Error("what is lent can be written to")
	}
	if err := errors.Join(e.Release(), e.Release()); err != nil {
		t.Error(err)
	}
	empty(t, d)
	if !bytes.Equal(m.Bytes(), data) {
		t.Error("who has opened it lost it")
	}
	if _, err := OpenIn(d, e.Name(), len(data)); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d files are open, %d before", n, before)
	}
}

// TestDeadline: a lease which is not released expires, and can still be released.
func TestDeadline(t *testing.T) {
	d := dir(t)
	synctest.Test(t, func(t *testing.T) {
		l := lender(t, Config{Dir: d})
		a, err := l.Lend([]byte("short"), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Lend([]byte("long"), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // in virtual time
		synctest.Wait()
		if _, err := OpenIn(d, a.Name(), 5); !errors.Is(err, ErrGone) {
			t.Errorf("%v", err)
		}
		m, err := OpenIn(d, b.Name(), 4)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Close(), a.Release()); err != nil {
			t.Error(err)
		}
		if n, bytes := l.Usage(); n != 1 || bytes != 4 {
			t.Errorf("%d leases of %d bytes", n, bytes)
		}
	}) // and Close ends the other one
}

func TestClosed(t *testing.T) {
	d := dir(t)
	l := lender(t, Config{Dir: d})
	e, err := l.Lend([]byte("x"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), l.Close(), e.Release()); err != nil {
		t.Error(err)
	}
	empty(t, d)
	if _, err := l.Lend([]byte("x"), time.Hour); !errors.Is(err, errClosed) {
		t.Errorf("%v", err)
	}
}

func TestLimits(t *testing.T) {
	d := dir(t)
	l := lender(t, Config{Dir: d, MaxBytes: 100, MaxLeases: 3})
	a, err := l.Lend(make([]byte, 60), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lend(make([]byte, 41), time.Hour); !errors.Is(err, ErrFull) {
		t.Errorf("above the bytes: %v", err)
	}
	for range 2 {
		if _, err := l.Lend(make([]byte, 1), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Lend(make([]byte, 1), time.Hour); !errors.Is(err, ErrFull) {
		t.Errorf("above the leases: %v", err)
	}
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lend(make([]byte, 90), time.Hour); err != nil {
		t.Errorf("after a release: %v", err)
	}
	if _, err := l.Lend(nil, time.Hour); err == nil {
		t.Error("nothing was lent")
	}
	for _, cfg := range []Config{{Prefix: "a/b"}, {MaxBytes: -1}, {MaxLeases: -1}} {
		if _, err := NewLender(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if _, err := NewLender(Config{Dir: filepath.Join(d, "none")}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

// TestOpenRefuses: what is no segment that was lent to us.
func TestOpenRefuses(t *testing.T) {
	d := t.TempDir()
	path := func(name string) string { return filepath.Join(d, "penstock-"+name) }
	write := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte("1234"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("good", 0o400)
	write("open", 0o444)
	write("writable", 0o600)
	if err := errors.Join(os.Symlink(path("good"), path("link")), os.Mkdir(path("dir"), 0o700), syscall.Mkfifo(path("pipe"), 0o400)); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string]string{"open": "not to us alone", "writable": "not lent yet", "link": "too many levels", "dir": "no regular file", "pipe": "no regular file", "none": "no such segment"} {
		if _, err := OpenIn(d, "penstock-"+name, 4); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, size := range []int{3, 5, 0, -1, math.MaxInt} {
		if _, err := OpenIn(d, "penstock-good", size); err == nil {
			t.Errorf("a size of %d is taken", size)
		}
	}
	m, err := OpenIn(d, "penstock-good", 4)
	if err != nil || string(m.Bytes()) != "1234" {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if n, err := Sweep(d); n != 3 || err != nil {
		t.Errorf("%d were swept, %v", n, err) // good, open and writable: regular files without a live lender
	}
	if _, err := os.Lstat(path("link")); err != nil {
		t.Error("a link was swept")
	}
}

// TestDeath: what a process that was killed leaves is swept, not before.
func TestDeath(t *testing.T) {
	d := dir(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), lendIn+"="+d)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var names []string
	for len(names) < 2 && lines.Scan() {
		names = append(names, lines.Text())
	}
	if n, err := Sweep(d); n != 0 || err != nil {
		t.Errorf("%d segments of a living process were swept, %v", n, err)
	}
	for _, name := range names {
		m, err := OpenIn(d, name, len("of a process that dies"))
		if err != nil || string(m.Bytes()) != "of a process that dies" {
			t.Fatal(name, err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	_ = child.Process.Kill()
	_ = child.Wait() // it was killed
	_ = in.Close()
	own := lender(t, Config{Dir: d}) // sweeps
	if len(names) != 2 {
		t.Errorf("the process lent %v", names)
	}
	empty(t, d)
	if _, err := own.Lend([]byte("x"), time.Hour); err != nil {
		t.Error(err)
	}
}

// TestSweepers: what is being made is not swept, however the two meet, and no lease is lost.
func TestSweepers(t *testing.T) {
	d := dir(t)
	l := lender(t, Config{Dir: d})
	stop := make(chan struct{})
	var sweepers, lenders sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := Sweep(d); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 4 {
		lenders.Go(func() {
			for n := range 100 {
				data := fmt.Appendf(nil, "%d of %d", n, i)
				e, err := l.Lend(data, time.Hour)
				if err != nil {
					t.Error(err)
					return
				}
				m, err := OpenIn(d, e.Name(), len(data))
				if err != nil || !bytes.Equal(m.Bytes(), data) {
					t.Error(err)
					return
				}
				if err := errors.Join(m.Close(), e.Release()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	lenders.Wait()
	close(stop)
	sweepers.Wait()
}

// TestCreate: a segment of one's own can be written to until it is sealed, and is not opened
// before.
func TestCreate(t *testing.T) {
	d := dir(t)
	s, err := createIn(d, "a-b", 10)
	if err != nil {
		t.Fatal(err)
	}
	if copy(s.Bytes(), "0123456789") != 10 || !strings.HasPrefix(s.Name(), "penstock-a-b-") {
		t.Errorf("%s has %d bytes", s.Name(), len(s.Bytes()))
	}
	if _, err := OpenIn(d, s.Name(), 10); err == nil {
		t.Error("it was opened before it was lent")
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	m, err := OpenIn(d, s.Name(), 10)
	if err != nil || string(m.Bytes()) != "0123456789" {
		t.Fatal(err)
	}
	if err := errors.Join(m.Close(), s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := createIn(d, "a", 0); err == nil {
		t.Error("a segment of nothing was made")
	}
	if huge := math.MaxInt; huge > math.MaxInt32 { // of 32 bits every size can be had
		if _, err := createIn(d, "a", huge); !errors.Is(err, ErrFull) {
			t.Errorf("a segment that no system has: %v", err)
		}
	}
}

func BenchmarkLend(b *testing.B) {
	l, err := NewLender(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 3*1024*1024)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		e, err := l.Lend(data, time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		m, err := OpenIn(l.cfg.Dir, e.Name(), len(data))
		if err == nil {
			err = errors.Join(m.Close(), e.Release())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}
