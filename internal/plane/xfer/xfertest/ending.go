package xfertest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

func testGoodOnce(t *testing.T, s *setup) {
	src, dst := s.randomBytes(1000), make([]byte, 1000)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	d := passed(t, tr)
	if err := xfer.Write(s.ctx, s.Writer, d, nil, src); err != nil {
		t.Fatal(err)
	}
	err := xfer.Write(s.ctx, s.Writer, d, nil, make([]byte, 1000))
	wantOutcome(t, err, xfer.Unknown)
	if fault.CodeOf(err) != fault.NotFound {
		t.Errorf("the code is %v", fault.CodeOf(err))
	}
	if _, err := tr.Wait(s.ctx); err != nil || !bytes.Equal(src, dst) {
		t.Errorf("a second writer changed the bytes: %v", err)
	}
	s.moveBytes(t, [][]byte{src}, [][]byte{dst}, nil) // the plane goes on
}

// Of two writers with one descriptor, one wins, and the bytes are its own.
func testTwoWriters(t *testing.T, s *setup) {
	const size = 3 * xfer.ChunkSize
	for range 20 {
		dst := make([]byte, size)
		tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
		d := passed(t, tr)
		var both sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			both.Go(func() {
				errs[i] = xfer.Write(s.ctx, s.Writer, d, []byte{byte(i)}, bytes.Repeat([]byte{byte(i + 1)}, size))
			})
		}
		both.Wait()
		r, err := tr.Wait(s.ctx)
		if err != nil {
			t.Fatal(err, errs)
		}
		winner := int(r.Note[0])
		if errs[winner] != nil {
			t.Errorf("the winner got %v", errs[winner])
		}
		wantOutcome(t, errs[1-winner], xfer.Unknown)
		if !bytes.Equal(dst, bytes.Repeat([]byte{byte(winner + 1)}, size)) {
			t.Fatal("bytes of two writers are mixed")
		}
	}
}

// A descriptor of an earlier life of the owner, and one that was not given out.
func testForeignDescriptors(t *testing.T, s *setup) {
	dst := make([]byte, 10)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	for _, c := range []struct {
		at   int // byte of the encoded descriptor
		want xfer.TransferOutcome
	}{{1, xfer.Stale}, {9, xfer.Unknown}} {
		b, err := tr.Descriptor().AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		b[c.at] ^= 0x10
		d, err := xfer.DecodeDescriptor(b)
		if err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, xfer.Write(s.ctx, s.Writer, d, nil, s.randomBytes(10)), c.want)
	}
	if err := xfer.Write(s.ctx, s.Writer, passed(t, tr), nil, s.randomBytes(10)); err != nil {
		t.Error(err)
	}
}

func testWrongSize(t *testing.T, s *setup) {
	for _, size := range []int64{9, 11} {
		dst := make([]byte, 10)
		tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
		d := passed(t, tr)
		d.Size = size
		wantOutcome(t, xfer.Write(s.ctx, s.Writer, d, nil, s.randomBytes(int(size))), xfer.Invalid)
		_, err := tr.Wait(s.ctx)
		wantOutcome(t, err, xfer.Invalid)
		if !bytes.Equal(dst, make([]byte, 10)) {
			t.Error("bytes came")
		}
	}
}

func testTooManyBytes(t *testing.T, s *setup) {
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 10)}})
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, w.Write(make([]byte, 11)), xfer.Invalid)
	if w.Commit(nil) == nil {
		t.Error("it was committed")
	}
	_, err = tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Invalid, xfer.Aborted)
}

func testTooFewBytes(t *testing.T, s *setup) {
	for _, n := range []int{0, 9, xfer.ChunkSize} {
		tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, xfer.ChunkSize+10)}})
		w, err := s.Writer.Open(s.ctx, passed(t, tr))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, w.Commit(nil), xfer.Invalid)
		_, err = tr.Wait(s.ctx)
		wantOutcome(t, err, xfer.Invalid, xfer.Aborted)
	}
}

func testWriterAborts(t *testing.T, s *setup) {
	for _, n := range []int{0, 10, 2 * xfer.ChunkSize} {
		tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 5*xfer.ChunkSize)}})
		w, err := s.Writer.Open(s.ctx, passed(t, tr))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		w.Abort(errors.New("the prefill failed"))
		w.Abort(nil)
		wantOutcome(t, w.Write([]byte{1}), xfer.Aborted)
		wantOutcome(t, w.Commit(nil), xfer.Aborted)
		_, err = tr.Wait(s.ctx)
		wantOutcome(t, err, xfer.Aborted)
		if !strings.Contains(err.Error(), "the prefill failed") {
			t.Errorf("the owner does not learn the reason: %v", err)
		}
	}
}

func testWriterContext(t *testing.T, s *setup) {
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 5*xfer.ChunkSize)}})
	ctx, cancel := context.WithCancel(s.ctx)
	w, err := s.Writer.Open(ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(make([]byte, 2*xfer.ChunkSize)); err != nil {
		t.Fatal(err)
	}
	cancel()
	for { // the bytes may still fit a window
		if err = w.Write(nil); err == nil {
			err = w.Write(make([]byte, 1))
		}
		if err != nil {
			break
		}
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the writer got %v", err)
	}
	if _, err := s.Writer.Open(ctx, passed(t, tr)); err == nil {
		t.Error("it was opened by a context which had ended")
	}
	_, err = tr.Wait(s.ctx)
	if wantOutcome(t, err, xfer.Lost, xfer.Aborted); errors.Is(err, context.Canceled) {
		t.Errorf("the owner's context did not end: %v", err)
	}
}

// startWriting opens tr's transfer and sends n bytes, which arrive.
func (s *setup) startWriting(t *testing.T, in xfer.Incoming, n int) (*xfer.Transfer, xfer.TransferWriter) {
	t.Helper()
	arrived := make(chan struct{})
	in.OnProgress = func(verified int64) {
		if verified == int64(n) {
			close(arrived)
		}
	}
	tr := s.expect(t, in)
	w, err := s.Writer.Open(s.ctx, passed(t, tr))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(bytes.Repeat([]byte{1}, n)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-arrived:
	case <-s.ctx.Done():
		t.Fatalf("%d bytes did not arrive", n)
	}
	return tr, w
}

// finishLate is a writer which goes on after its transfer is over. It must fail, and not change dst.
func finishLate(t *testing.T, w xfer.TransferWriter, n int, dst []byte, want ...xfer.TransferOutcome) {
	t.Helper()
	before := bytes.Clone(dst)
	err := w.Write(bytes.Repeat([]byte{2}, n))
	if err == nil {
		err = w.Commit(nil)
	}
	wantOutcome(t, err, want...)
	if !bytes.Equal(before, dst) {
		t.Error("a writer changed bytes after the transfer was over")
	}
}

func testOwnerAborts(t *testing.T, s *setup) {
	dst := make([]byte, 12*xfer.ChunkSize)
	tr, w := s.startWriting(t, xfer.Incoming{Into: [][]byte{dst}}, 2*xfer.ChunkSize)
	tr.Abort(errors.New("the request was canceled"))
	finishLate(t, w, 10*xfer.ChunkSize, dst, xfer.Aborted)
	_, err := tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Aborted)
	s.moveBytes(t, [][]byte{s.randomBytes(10)}, [][]byte{dst[:10]}, nil)
}

func testOwnerContext(t *testing.T, s *setup) {
	dst := make([]byte, 12*xfer.ChunkSize)
	tr, w := s.startWriting(t, xfer.Incoming{Into: [][]byte{dst}}, 2*xfer.ChunkSize)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := tr.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returned %v", err)
	}
	finishLate(t, w, 10*xfer.ChunkSize, dst, xfer.Aborted)
}

func testAbortBefore(t *testing.T, s *setup) {
	dst := make([]byte, 10)
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{dst}})
	d := passed(t, tr)
	tr.Abort(errors.New("not needed"))
	tr.Abort(errors.New("again"))
	wantOutcome(t, xfer.Write(s.ctx, s.Writer, d, nil, s.randomBytes(10)), xfer.Unknown)
	_, err := tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Aborted)
	if !bytes.Equal(dst, make([]byte, 10)) {
		t.Error("bytes came")
	}
}

// A writer which is silent for its lease, and goes on then.
func testLease(t *testing.T, s *setup) {
	dst := make([]byte, 12*xfer.ChunkSize)
	s.moveBytes(t, [][]byte{s.randomBytes(len(dst))}, [][]byte{dst}, nil) // connecting does not use up the lease
	tr, w := s.startWriting(t, xfer.Incoming{Into: [][]byte{dst}, Lease: 300 * time.Millisecond}, 2*xfer.ChunkSize)
	_, err := tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Expired)
	finishLate(t, w, 10*xfer.ChunkSize, dst, xfer.Expired)
}

func testLeaseUnclaimed(t *testing.T, s *setup) {
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 10)}, Lease: time.Millisecond})
	d := passed(t, tr)
	_, err := tr.Wait(s.ctx)
	wantOutcome(t, err, xfer.Expired)
	wantOutcome(t, xfer.Write(s.ctx, s.Writer, d, nil, make([]byte, 10)), xfer.Unknown)
}

// An owner which ends aborts what is open, and nothing is written to its memory afterwards.
func testOwnerEnds(t *testing.T, s *setup) {
	dst := make([]byte, 12*xfer.ChunkSize)
	tr, w := s.startWriting(t, xfer.Incoming{Into: [][]byte{dst}}, 2*xfer.ChunkSize)
	waiting := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 1)}})
	s.stop()
	for _, tr := range []*xfer.Transfer{tr, waiting} {
		_, err := tr.Wait(s.ctx)
		wantOutcome(t, err, xfer.Aborted)
	}
	finishLate(t, w, 10*xfer.ChunkSize, dst, xfer.Aborted, xfer.Lost)
	if _, err := s.Owner.Expect(xfer.Incoming{Into: [][]byte{dst}}); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a transfer was opened: %v", err)
	}
	if _, err := s.Writer.Open(s.ctx, passed(t, waiting)); err == nil {
		t.Error("the owner is still reached")
	}
}

func testUnreachable(t *testing.T, s *setup) {
	tr := s.expect(t, xfer.Incoming{Into: [][]byte{make([]byte, 1)}})
	d := passed(t, tr)
	d.Endpoints = []xfer.OwnerAddress{{Transport: 200, Address: "of a later build"}}
	if _, err := s.Writer.Open(s.ctx, d); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("%v", err)
	}
	if text := passed(t, tr).String(); strings.Contains(text, "%!") || len(text) > 300 {
		t.Errorf("it prints as %s", text)
	}
}
