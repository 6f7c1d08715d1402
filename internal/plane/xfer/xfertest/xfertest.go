// Package xfertest is the conformance suite of transfer planes, and a wrapper which injects faults.
// The suite relies only on the contract: no fake time, no knowledge of the transport.
package xfertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/internal/plane/xfer"
)

// Ends are the planes of an owner and of a writer: of two processes, or of one.
type Ends struct{ Owner, Writer xfer.Plane }

// Run tests the planes that open returns. Each part opens its own; open registers their cleanup with
// t.Cleanup. The suite runs the owner's plane.
func Run(t *testing.T, open func(t *testing.T, cfg xfer.Config) Ends) {
	parts := []struct {
		name string
		cfg  xfer.Config
		test func(*testing.T, *setup)
	}{
		{"sizes", xfer.Config{}, testSizes},
		{"scattered", xfer.Config{}, testScattered},
		{"incremental", xfer.Config{}, testIncremental},
		{"notes", xfer.Config{}, testNotes},
		{"files", xfer.Config{}, testFiles},
		{"bytes may change", xfer.Config{}, testBytesMayChange},
		{"descriptor is good once", xfer.Config{}, testGoodOnce},
		{"two writers", xfer.Config{}, testTwoWriters},
		{"foreign descriptors", xfer.Config{}, testForeignDescriptors},
		{"wrong size", xfer.Config{}, testWrongSize},
		{"too many bytes", xfer.Config{}, testTooManyBytes},
		{"too few bytes", xfer.Config{}, testTooFewBytes},
		{"writer aborts", xfer.Config{}, testWriterAborts},
		{"writer's context", xfer.Config{}, testWriterContext},
		{"owner aborts", xfer.Config{}, testOwnerAborts},
		{"owner's context", xfer.Config{}, testOwnerContext},
		{"abort before a writer", xfer.Config{}, testAbortBefore},
		{"lease", xfer.Config{}, testLease},
		{"lease without a writer", xfer.Config{}, testLeaseUnclaimed},
		{"progress", xfer.Config{}, testProgress},
		{"limits", xfer.Config{Transfers: 2}, testLimits},
		{"back-pressure", xfer.Config{Lanes: 1}, testBackPressure},
		{"few connections", xfer.Config{Serve: 2}, testMany},
		{"many transfers", xfer.Config{}, testMany},
		{"reports", xfer.Config{Observer: &reports{}}, testReports},
		{"owner ends", xfer.Config{}, testOwnerEnds},
		{"unreachable", xfer.Config{}, testUnreachable},
	}
	for _, p := range parts {
		p.cfg.Handshake, p.cfg.Silence = limit, limit
		t.Run(p.name, func(t *testing.T) {
			p.test(t, startOwner(t, p.cfg, open(t, p.cfg)))
		})
	}
}

// setup is an owner which runs, and a writer.
type setup struct {
	Ends
	ctx  context.Context // of the part; it ends before the owner
	cfg  xfer.Config
	stop func() // ends the owner's Run and waits for it
	rng  *rand.Rand
}

// limit bounds every wait of the suite. No part comes near it, nor one of a plane to its own limits.
const limit = 10 * time.Minute

func startOwner(t *testing.T, cfg xfer.Config, e Ends) *setup {
	t.Helper()
	if _, err := e.Owner.Expect(xfer.Incoming{Into: [][]byte{make([]byte, 1)}}); err == nil {
		t.Error("a transfer was opened before the plane ran")
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- e.Owner.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	s := &setup{Ends: e, cfg: cfg, rng: rand.New(rand.NewPCG(1, 2))}
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(s.stop)
	var end context.CancelFunc
	s.ctx, end = context.WithTimeout(context.Background(), limit)
	t.Cleanup(end)
	return s
}

// randomBytes returns n random bytes.
func (s *setup) randomBytes(n int) []byte {
	b := make([]byte, n)
	for at := 0; at < n; at += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], s.rng.Uint64())
		copy(b[at:], word[:])
	}
	return b
}

// expect opens a transfer.
func (s *setup) expect(t *testing.T, in xfer.Incoming) *xfer.Transfer {
	t.Helper()
	tr, err := s.Owner.Expect(in)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// passed returns the descriptor of a transfer as it arrives in another process.
func passed(t *testing.T, tr *xfer.Transfer) xfer.Descriptor {
	t.Helper()
	b, err := tr.Descriptor().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := xfer.DecodeDescriptor(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// cut divides b into pieces of at most n bytes, each a memory of its own.
func (s *setup) cut(b []byte, n int) (pieces [][]byte) {
	for len(b) > 0 {
		k := min(1+s.rng.IntN(n), len(b))
		pieces = append(pieces, bytes.Clone(b[:k]))
		b = b[k:]
	}
	return pieces
}

// moveBytes transfers src into the pieces of dst, which must get its bytes.
func (s *setup) moveBytes(t *testing.T, src, dst [][]byte, note []byte) {
	t.Helper()
	tr := s.expect(t, xfer.Incoming{Into: dst})
	if err := xfer.Write(s.ctx, s.Writer, passed(t, tr), note, src...); err != nil {
		t.Fatal(err)
	}
	r, err := tr.Wait(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Join(src, nil)
	if !bytes.Equal(bytes.Join(dst, nil), want) {
		t.Fatalf("%d bytes came damaged", len(want))
	}
	if r.Bytes != int64(len(want)) || r.Digest != xfer.DigestOf(src...) || !bytes.Equal(r.Note, note) || r.Transport == 0 {
		t.Errorf("the receipt is %+v", r)
	}
	if tr.Progress() != r.Bytes {
		t.Errorf("progress is %d of %d", tr.Progress(), r.Bytes)
	}
}

// wantOutcome checks that err is a failure of one of the given kinds.
func wantOutcome(t *testing.T, err error, want ...xfer.TransferOutcome) {
	t.Helper()
	got := xfer.OutcomeOf(err)
	for _, o := range want {
		if err != nil && got == o {
			return
		}
	}
	t.Errorf("the outcome is %v (%v), not %v", got, err, want)
}
