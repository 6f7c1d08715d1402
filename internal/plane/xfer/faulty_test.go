package xfer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"penstock/internal/plane/xfer"
	"penstock/internal/plane/xfer/xfertest"
)

// fillPattern fills b with bytes which depend on seed and position, and on nothing else.
func fillPattern(b []byte, seed uint64) []byte {
	rng := rand.NewPCG(seed, 7)
	var block [4096]byte
	for at := 0; at < len(b); at += copy(b[at:], block[:]) {
		first := rng.Uint64()
		for i := 0; i < len(block); i += 8 {
			binary.LittleEndian.PutUint64(block[i:], first+uint64(i))
		}
	}
	return b
}

// run runs a plane until the end of the test, or until stop.
func run(t *testing.T, p xfer.Plane) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- p.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// faultyTransfer is one transfer of TestFaultyWriters.
type faultyTransfer struct {
	transfer *xfer.Transfer
	into     []byte
	after    []byte // into, when Wait returned
	over     chan struct{}
}

// TestFaultyWriters: with writers which are late, lost, cut off, paused until the transfer is over or
// use a descriptor twice, a transfer that ended well has the bytes of one writer, and no writer changes a
// byte after a transfer is over.
func TestFaultyWriters(t *testing.T) {
	faults := map[string]xfertest.WriterFaults{
		"cut":    {Cut: 0.5},
		"lost":   {Lose: 0.3},
		"twice":  {Twice: 0.7},
		"paused": {Pause: 0.4},
		"late":   {Late: time.Millisecond, Pause: 0.1, Cut: 0.1},
		"all":    {Cut: 0.1, Twice: 0.3, Pause: 0.1, Late: time.Millisecond},
	}
	for _, plane := range append(transports(), "mem") {
		for name, f := range faults {
			for seed := range uint64(1) {
				t.Run(fmt.Sprintf("%s/%s/%d", plane, name, seed), func(t *testing.T) { testFaults(t, newPlane(t, plane, xfer.Config{}), f, seed) })
			}
		}
	}
}

func testFaults(t *testing.T, p xfer.Plane, f xfertest.WriterFaults, seed uint64) {
	stop := run(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var known sync.Map // encoded descriptor to *faultyTransfer
	key := func(d xfer.Descriptor) string {
		b, err := d.AppendBinary(nil)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	f.Resume = func(d xfer.Descriptor) {
		tr, ok := known.Load(key(d))
		if !ok {
			t.Error("a writer has an unknown descriptor")
			return
		}
		x := tr.(*faultyTransfer)
		x.transfer.Abort(errors.New("the writer is paused")) // as its lease would, later
		<-x.over
	}
	faulty := xfertest.WithFaults(p, seed, f)
	rng := rand.New(rand.NewPCG(seed, 99))
	var all, writers sync.WaitGroup
	const transfers = 24
	list := make([]*faultyTransfer, transfers)
	ended := make([]error, transfers)
	for i := range list {
		src := fillPattern(make([]byte, 1+rng.IntN(6*xfer.ChunkSize)), uint64(i))
		x := &faultyTransfer{into: make([]byte, len(src)), over: make(chan struct{})}
		var err error
		if x.transfer, err = p.Expect(xfer.Incoming{Into: [][]byte{x.into}}); err != nil {
			t.Fatal(err)
		}
		list[i] = x
		d := x.transfer.Descriptor()
		known.Store(key(d), x)
		all.Go(func() {
			defer close(x.over)
			r, err := x.transfer.Wait(ctx)
			ended[i] = err
			x.after = bytes.Clone(x.into)
			switch {
			case err != nil:
			case string(r.Note) == "again":
				if !bytes.Equal(x.after, bytes.Repeat([]byte{0xEE}, len(src))) {
					t.Errorf("transfer %d: not the bytes of its second writer", i)
				}
			case !bytes.Equal(x.after, src) || string(r.Note) != "first":
				t.Errorf("transfer %d: not the bytes of its writer", i)
			}
		})
		writers.Go(func() {
			if err := xfer.Write(ctx, faulty, d, []byte("first"), src); err != nil && f.Twice == 0 {
				x.transfer.Abort(err) // the owner hears of it by another plane
			}
		})
	}
	all.Wait()
	writers.Wait()
	cancel() // ends the lost ones
	faulty.Wait()
	stop()
	good := 0
	for i, x := range list {
		if !bytes.Equal(x.into, x.after) {
			t.Errorf("transfer %d (%v): bytes changed after it was over", i, ended[i])
		}
		if ended[i] == nil {
			good++
		}
	}
	if good == 0 || good == transfers && f.Twice < 0.5 {
		t.Errorf("%d of %d transfers ended well: nothing was tested", good, transfers)
	}
}
