package xfer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// runSharedRegion runs a region until the test ends, or the returned function is called.
func runSharedRegion(t *testing.T, cfg SharedRegionConfig) (*SharedRegion, func()) {
	t.Helper()
	r, err := NewSharedRegion(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// openSharedRegion opens a region, whose owner may not listen yet.
func openSharedRegion(t *testing.T, r *SharedRegion) *RegionView {
	t.Helper()
	wait := backoff.Backoff{Min: 1e6, Max: 1e7}
	for {
		v, err := OpenRegion(t.Context(), r.Addr())
		if err == nil {
			return v
		}
		if wait.Wait(t.Context()) != nil {
			t.Fatal(err)
		}
	}
}

func countNotes(r *SharedRegion) (n int) {
	r.VisitNotes(func([]byte) { n++ })
	return n
}

// TestSharedRegion: a reader waits for the memory, sees what the owner writes and cannot write it; the owner sees its
// notes. Each learns of the other's end, and what a closed region shows is zero.
func TestSharedRegion(t *testing.T) {
	r, stop := runSharedRegion(t, SharedRegionConfig{})
	opened := make(chan *RegionView)
	go func() { opened <- openSharedRegion(t, r) }()
	const size = 3 * 4096
	own, err := r.Allocate(size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Allocate(size); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("a second time: %v", err)
	}
	copy(own, "rows")
	v := <-opened
	if len(v.Bytes) != size || len(v.Notes) != NotesSize || !bytes.HasPrefix(v.Bytes, []byte("rows")) {
		t.Fatalf("%d bytes, %d of notes: %q", len(v.Bytes), len(v.Notes), v.Bytes[:4])
	}
	copy(own[size-4:], "last")
	if got := string(v.Bytes[size-4:]); got != "last" {
		t.Errorf("the owner wrote later: %q", got)
	}
	if err := unix.Mprotect(v.Bytes, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("a reader can write the region")
	}
	copy(v.Notes, "a lease")
	seen := ""
	r.VisitNotes(func(notes []byte) { seen = string(notes[:7]) })
	if seen != "a lease" {
		t.Errorf("the owner sees the notes %q", seen)
	}
	if err := r.Lock(); err != nil && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) {
		t.Errorf("locked: %v", err)
	}
	v.Close()
	if err := backoff.Poll(t.Context(), 1e6, func() bool { return countNotes(r) == 0 }); err != nil {
		t.Error(err)
	}
	v = openSharedRegion(t, r)
	stop()
	v.Await(t.Context()) // its owner has ended
	if string(v.Bytes[:4]) != "rows" || own[0] != 0 {
		t.Errorf("after the end: the reader sees %q, the owner %q", v.Bytes[:4], own[:4])
	}
	v.Close()
	v.Close()
}

// TestSharedRegionRefuses: more readers than the bound, an address of another host, one of no process, and contexts
// which end are errors.
func TestSharedRegionRefuses(t *testing.T) {
	r, _ := runSharedRegion(t, SharedRegionConfig{Readers: 1})
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		for {
			_, err := OpenRegion(ctx, r.Addr()) // there is no memory yet
			if ctx.Err() != nil || !errors.Is(err, unix.ECONNREFUSED) {
				waiting <- err
				return
			}
		}
	}()
	cancel()
	if err := <-waiting; err == nil {
		t.Error("a region without memory was opened")
	}
	if _, err := r.Allocate(4096); err != nil {
		t.Fatal(err)
	}
	v := openSharedRegion(t, r)
	if _, err := OpenRegion(t.Context(), r.Addr()); err == nil || !strings.Contains(err.Error(), "1 processes read the region") {
		t.Errorf("a second reader: %v", err)
	}
	v.Close()
	openSharedRegion(t, r).Close() // there is room again
	_, name, _ := strings.Cut(r.Addr(), "/")
	for addr, want := range map[string]fault.Code{
		"0000000000000000/" + name: fault.Unavailable, "": fault.Unavailable, "x": fault.Unavailable, name: fault.Unavailable,
	} {
		if _, err := OpenRegion(t.Context(), addr); fault.CodeOf(err) != want {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if _, err := OpenRegion(t.Context(), r.Addr()+"0"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("of no process: %v", err)
	}
}

// TestHostileSharedRegion: what is no region is refused, and its files are closed.
func TestHostileSharedRegion(t *testing.T) {
	file := func(size, seals int) int {
		fd, b, err := newSealedMemory(size, unix.PROT_READ, seals)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Munmap(b)
		return fd
	}
	region, notes := file(4096, sharedSeals), file(NotesSize, regionSeals)
	loose, small := file(4096, unix.F_SEAL_GROW), file(100, regionSeals)
	good := appendShared(nil, sharedHeader{sharedVersion, 4096, NotesSize})
	before := findOpenFiles(t)
	for name, c := range map[string]struct {
		bytes []byte
		files []int
		want  string
	}{
		"another version": {appendShared(nil, sharedHeader{9, 4096, NotesSize}), []int{region, notes}, "version 9"},
		"no bytes":        {appendShared(nil, sharedHeader{sharedVersion, 0, NotesSize}), []int{region, notes}, "of 0 bytes"},
		"too many bytes":  {appendShared(nil, sharedHeader{sharedVersion, 1 << 60, NotesSize}), []int{region, notes}, "bytes"},
		"fewer bytes":     {appendShared(nil, sharedHeader{sharedVersion, 8192, NotesSize}), []int{region, notes}, "4096 bytes"},
		"other notes":     {appendShared(nil, sharedHeader{sharedVersion, 4096, 1}), []int{region, notes}, "1 of notes"},
		"one file":        {good, []int{region}, "1 files"},
		"three files":     {good, []int{region, notes, notes}, "3 files"},
		"many files":      {good, []int{region, notes, notes, notes}, "4 files"},
		"not sealed":      {good, []int{loose, notes}, "seals"},
		"small notes":     {good, []int{region, small}, "100 bytes"},
		"another frame":   {appendTaken([]byte(magic), 1), []int{region, notes}, "type 7"},
		"a short frame":   {endFrame(beginFrame([]byte(magic), frameShared), len(magic)), []int{region, notes}, "SHARED of 0"},
		"refused":         {appendVerdict([]byte(magic), frameOutcome, errors.New("no")), nil, "refuses"},
		"no magic":        {[]byte("pensxfex"), []int{region, notes}, "not a Penstock"},
		"nothing":         {nil, nil, "EOF"},
	} {
		left, right := unixPair(t)
		if len(c.bytes) > 0 {
			if _, _, err := left.WriteMsgUnix(c.bytes, unix.UnixRights(c.files...), nil); err != nil {
				t.Fatal(err)
			}
		}
		left.Close()
		if v, err := receiveRegionView(right); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
		right.Close()
	}
	if after := findOpenFiles(t); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
	for _, fd := range []int{region, notes, loose, small} {
		_ = unix.Close(fd)
	}
}

func findOpenFiles(t *testing.T) (n int) {
	t.Helper()
	for fd := range 1024 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			n++
		}
	}
	return n
}

// unixPair returns two connected sockets.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.Listen("unix", "@penstock-test-"+strings.ReplaceAll(t.Name(), "/", "-"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return dialled.(*net.UnixConn), accepted.(*net.UnixConn)
}

// FuzzShared: any payload of a SHARED is refused, or within bounds.
func FuzzShared(f *testing.F) {
	f.Add([]byte{1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeShared(b)
		if err == nil && (h.size == 0 || h.size > maxSharedRegion || h.notes != NotesSize) {
			t.Errorf("%+v", h)
		}
	})
}
