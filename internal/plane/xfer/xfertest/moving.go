package xfertest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

func testSizes(t *testing.T, s *setup) {
	for _, n := range []int{1, 100, xfer.ChunkSize - 1, xfer.ChunkSize, xfer.ChunkSize + 1, 3*xfer.ChunkSize + 7, 11 * xfer.ChunkSize, 2, 19*xfer.ChunkSize - 1} {
		s.moveBytes(t, [][]byte{s.randomBytes(n)}, [][]byte{make([]byte, n)}, []byte("sizes"))
	}
}

// Slices of any size on either side, adjoining ones and empty ones among them.
func testScattered(t *testing.T, s *setup) {
	for _, most := range []int{3, 4 << 10, 40 << 10, 300 << 10} {
		src := s.cut(s.randomBytes(most*20), most)
		dst := s.cut(make([]byte, most*20), most)
		s.moveBytes(t, append(src, nil), append(dst, nil), nil)
	}
	memory, from := make([]byte, 1<<20), s.randomBytes(600<<10)
	runs := xfer.MergeRuns([]xfer.ByteRun{{Offset: 500 << 10, Length: 100 << 10}, {Offset: 600 << 10, Length: 300 << 10}, {Offset: 7, Length: 200 << 10}})
	if len(runs) != 2 {
		t.Errorf("contiguous runs were not merged: %v", runs)
	}
	s.moveBytes(t, [][]byte{from[:1000], from[1000:]}, xfer.SliceRuns(memory, runs), nil)
	if !bytes.Equal(memory[500<<10:900<<10], from[:400<<10]) || memory[900<<10] != 0 || memory[6] != 0 {
		t.Error("the bytes came elsewhere")
	}
}

func testIncremental(t *testing.T, s *setup) {
	src, dst := s.randomBytes(5*xfer.ChunkSize+99), make([]byte, 5*xfer.ChunkSize+99)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.cut(src, 200<<10) {
		if err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(nil); err != nil {
		t.Error(err)
	}
	if err := w.Commit(nil); err != nil {
		t.Fatal(err)
	}
	w.Abort(errors.New("it is over")) // no effect
	if _, err := tr.Wait(s.ctx); err != nil || !bytes.Equal(src, dst) {
		t.Fatalf("%v", err)
	}
	if w.Write([]byte("x")) == nil || w.Commit(nil) == nil {
		t.Error("the writer goes on after Commit")
	}
	tr.Abort(errors.New("it is over")) // no effect
	if _, err := tr.Wait(s.ctx); err != nil {
		t.Error(err)
	}
}

func testNotes(t *testing.T, s *setup) {
	for _, n := range []int{0, 1, xfer.MaxNote, 3} {
		s.moveBytes(t, [][]byte{s.randomBytes(10)}, [][]byte{make([]byte, 10)}, s.randomBytes(n))
	}
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 10)}})
	err := xfer.Write(s.ctx, s.Writer, passed(t, tr), make([]byte, xfer.MaxNote+1), make([]byte, 10))
	wantOutcome(t, err, xfer.Invalid)
	if _, err := tr.Wait(s.ctx); err == nil {
		t.Error("a note which is too long came")
	}
}

// Files, with digests from when they were stored and without.
func testFiles(t *testing.T, s *setup) {
	const before, size = 1000, 5*xfer.ChunkSize + 33
	content := s.randomBytes(before + size)
	name := filepath.Join(t.TempDir(), "block")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	send := func(offset int64, digests []xfer.Digest) ([]byte, error, error) {
		dst := make([]byte, size)
		tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
		w, err := s.Writer.Open(s.ctx, passed(t, tr))
		if err != nil {
			t.Fatal(err)
		}
		written := xfer.WriteFile(w, f, offset, size, digests)
		if written == nil {
			written = w.Commit(nil)
		}
		_, err = tr.Wait(s.ctx)
		return dst, written, err
	}
	good := xfer.ChunkDigests(content[before:])
	for _, digests := range [][]xfer.Digest{nil, good, good[:2]} { // the last ones are of no use
		dst, written, err := send(before, digests)
		if err := errors.Join(written, err); err != nil || !bytes.Equal(dst, content[before:]) {
			t.Errorf("with %d digests: %v", len(digests), err)
		}
	}
	if _, written, err := send(before+1, good); written == nil || err == nil {
		t.Errorf("a file which is too short was sent: %v, %v", written, err)
	}
	// Two parts. The first one ends within a chunk.
	dst := make([]byte, size)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(xfer.WriteFile(w, f, before, 10, nil), xfer.WriteFile(w, f, before+10, size-10, nil), w.Commit(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Wait(s.ctx); err != nil || !bytes.Equal(dst, content[before:]) {
		t.Error(err)
	}
}

// What Write was given belongs to the caller again when it returns.
func testBytesMayChange(t *testing.T, s *setup) {
	src, dst := s.randomBytes(9*xfer.ChunkSize+5), make([]byte, 9*xfer.ChunkSize+5)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 70<<10)
	for at := 0; at < len(src); {
		n := copy(buf, src[at:])
		if err := w.Write(buf[:n]); err != nil {
			t.Fatal(err)
		}
		clear(buf)
		at += n
	}
	if err := w.Commit(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Wait(s.ctx); err != nil || !bytes.Equal(src, dst) {
		t.Fatalf("%v", err)
	}
}

func testProgress(t *testing.T, s *setup) {
	const size = 4*xfer.ChunkSize + 10
	var seen []int64 // by one goroutine; Wait orders it before the reads below
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, size)}, OnProgress: func(n int64) { seen = append(seen, n) }})
	if err := xfer.Write(s.ctx, s.Writer, passed(t, tr), nil, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Wait(s.ctx); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 5 || seen[0] != xfer.ChunkSize || seen[4] != size {
		t.Errorf("progress was %v", seen)
	}
}

func testLimits(t *testing.T, s *setup) {
	for _, in := range []xfer.Incoming{
		{},
		{Into: [][]byte{nil, {}}},
		{Into: [][]byte{{0}}, Lease: -time.Second},
		{Into: [][]byte{{0}}, Lease: time.Microsecond},
		{Into: [][]byte{{0}}, Lease: 100 * 24 * time.Hour},
	} {
		_, err := s.Owner.Expect(in)
		wantOutcome(t, err, xfer.Invalid)
	}
	in := xfer.Incoming{Into: [][]byte{make([]byte, 1)}}
	a := s.expect(t, in)
	s.expect(t, in)
	_, err := s.Owner.Expect(in)
	wantOutcome(t, err, xfer.Overloaded)
	if fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("the code is %v", fault.CodeOf(err))
	}
	a.Abort(errors.New("to make room"))
	s.expect(t, in)
}

// With one connection to an owner, a second transfer waits for the first one.
func testBackPressure(t *testing.T, s *setup) {
	if _, ok := s.Writer.(interface{ Close() error }); !ok {
		return // it has no connections
	}
	a := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 1)}})
	b := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 1)}})
	w, err := s.Writer.Open(s.ctx, passed(t, a))
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(s.ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := s.Writer.Open(short, passed(t, b)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second writer did not wait: %v", err)
	}
	second := make(chan error, 1)
	go func() { second <- xfer.Write(s.ctx, s.Writer, passed(t, b), nil, []byte{2}) }()
	if err := errors.Join(w.Write([]byte{1}), w.Commit(nil)); err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

func testMany(t *testing.T, s *setup) {
	var all sync.WaitGroup
	for i := range 8 {
		src := s.randomBytes(1 + i*90<<10)
		all.Go(func() {
			for n := range 10 {
				dst := make([]byte, len(src))
				tr, err := s.Owner.Expect(xfer.Incoming{Into: [][]byte{dst}})
				if err != nil {
					t.Error(err)
					return
				}
				if err := xfer.Write(s.ctx, s.Writer, passed(t, tr), []byte{byte(n)}, src); err != nil {
					t.Error(err)
					return
				}
				if r, err := tr.Wait(s.ctx); err != nil || r.Note[0] != byte(n) || !bytes.Equal(src, dst) {
					t.Errorf("%+v %v", r, err)
				}
			}
		})
	}
	all.Wait()
}

// reports collects what a plane reports.
type reports struct {
	sync.Mutex
	list []xfer.Report
}

func (r *reports) ObserveTransfer(x xfer.Report) {
	r.Lock()
	defer r.Unlock()
	r.list = append(r.list, x)
}

func (r *reports) bySide(side xfer.Side) (list []xfer.Report) {
	r.Lock()
	defer r.Unlock()
	for _, x := range r.list {
		if x.Side == side {
			list = append(list, x)
		}
	}
	return list
}

func testReports(t *testing.T, s *setup) {
	got := s.cfg.Observer.(*reports)
	s.moveBytes(t, [][]byte{s.randomBytes(1000)}, [][]byte{make([]byte, 1000)}, nil)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 10)}})
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	w.Abort(errors.New("enough"))
	_, err = tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Aborted)
	for _, side := range []xfer.Side{xfer.OwnerSide, xfer.WriterSide} {
		list := got.bySide(side)
		if len(list) != 2 || list[0].Outcome != xfer.OK || list[0].Bytes != 1000 || list[0].Transport == 0 || list[0].Took <= 0 || list[1].Outcome != xfer.Aborted {
			t.Errorf("the %v reported %+v", side, list)
		}
	}
}
