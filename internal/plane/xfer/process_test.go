//go:build linux

package xfer_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/internal/plane/xfer"
)

// Sizes of the tests with processes: rounds, each with a process and transfers at the same time.
const (
	killRounds     = 16
	roundTransfers = 32
)

// roundResult is what became of the transfers of a round: how many ended well and not.
type roundResult struct{ good, bad int }

// TestKilled: 1,024 transfers for each transport, of writers and of owners which are killed at a
// random byte. What ended well is right, and nothing is left behind.
func TestKilled(t *testing.T) {
	for _, transport := range transports() {
		t.Run(transport, func(t *testing.T) {
			useOnce(t, transport)
			before := findLeftovers(t)
			p, err := openPlane(transport)
			if err != nil {
				t.Fatal(err)
			}
			stop := run(t, p)
			rng := rand.New(rand.NewPCG(5, 5))
			var writers, owners roundResult
			for range killRounds {
				killWriter(t, p, transport, rng, &writers)
				killOwner(t, p, transport, rng, &owners)
			}
			stop()
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if after := findLeftovers(t); after != before {
				t.Errorf("before: %+v, after: %+v", before, after)
			}
			t.Logf("writers killed: %+v, owners killed: %+v", writers, owners)
			for _, r := range []roundResult{writers, owners} {
				if r.good == 0 || r.bad < killRounds/2 || r.good+r.bad != killRounds*roundTransfers {
					t.Errorf("%+v: the kills hit nothing, or everything", r)
				}
			}
		})
	}
}

// useOnce has a plane run and end: UCX keeps two descriptors as long as the process lives.
func useOnce(t *testing.T, transport string) {
	t.Helper()
	p, err := openPlane(transport)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// randomSize returns the size of a transfer.
func randomSize(rng *rand.Rand) int { return 1 + rng.IntN(3*xfer.ChunkSize) }

// killWriter has a process write to this one, which kills it when a random byte has come.
func killWriter(t *testing.T, p xfer.Plane, transport string, rng *rand.Rand, result *roundResult) {
	t.Helper()
	c := startChild(t, "writer "+transport)
	list := make([]*faultyTransfer, roundTransfers)
	var total int64
	for i := range list {
		list[i] = &faultyTransfer{into: make([]byte, randomSize(rng))}
		total += int64(len(list[i].into))
	}
	var left atomic.Int64 // bytes until the kill
	left.Store(1 + rng.Int64N(total))
	for i, x := range list {
		var last int64
		// If leases passed, the bytes until the kill would not come.
		tr, err := p.Expect(xfer.Incoming{Into: [][]byte{x.into}, Lease: time.Hour, OnProgress: func(n int64) {
			if left.Add(last-n) <= 0 {
				_ = c.cmd.Process.Kill()
			}
			last = n
		}})
		if err != nil {
			t.Fatal(err)
		}
		x.transfer = tr
		b, err := tr.Descriptor().AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		c.send("%d %x", i, b)
	}
	_ = c.cmd.Wait() // it was killed
	for i, x := range list {
		x.transfer.Abort(errors.New("the writer is dead")) // if it had not begun it
		_, err := x.transfer.Wait(t.Context())
		if err != nil {
			result.bad++
			continue
		}
		result.good++
		if !bytes.Equal(x.into, fillPattern(make([]byte, len(x.into)), uint64(i))) {
			t.Errorf("transfer %d ended well with other bytes", i)
		}
	}
}

// killOwner writes to a process which kills itself when a random byte of one transfer has come.
func killOwner(t *testing.T, p xfer.Plane, transport string, rng *rand.Rand, result *roundResult) {
	t.Helper()
	c := startChild(t, "owner "+transport)
	victim := rng.IntN(roundTransfers)
	for i := range roundTransfers {
		size, kill := randomSize(rng), 0
		if i == victim {
			kill = 1 + rng.IntN(size)
		}
		c.send("%d %d %d", i, size, kill)
	}
	var writers sync.WaitGroup
	errs := make([]error, roundTransfers)
	started := 0
	for started < roundTransfers && c.out.Scan() {
		var seed uint64
		var text string
		if n, _ := fmt.Sscanf(c.out.Text(), "descriptor %d %s", &seed, &text); n != 2 {
			continue // an outcome
		}
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		d, err := xfer.DecodeDescriptor(b)
		if err != nil {
			t.Fatal(err)
		}
		started++
		writers.Go(func() {
			errs[seed] = xfer.Write(t.Context(), p, d, nil, fillPattern(make([]byte, d.Size), seed))
		})
	}
	for c.out.Scan() {
		if strings.Contains(c.out.Text(), "corrupt") {
			t.Error("a transfer ended well with other bytes")
		}
	}
	_ = c.cmd.Wait() // it was killed
	writers.Wait()
	result.bad += roundTransfers - started
	for _, err := range errs {
		if err == nil {
			result.good++
		} else {
			result.bad++
		}
	}
	result.good -= roundTransfers - started // those have no error either
}

// TestPausedWriter: a process is stopped at a random point of its transfers, its leases pass, its
// memory is used for other transfers, and it goes on: it changes nothing.
func TestPausedWriter(t *testing.T) {
	for _, transport := range transports() {
		t.Run(transport, func(t *testing.T) {
			p, err := openPlane(transport)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			run(t, p)
			rng := rand.New(rand.NewPCG(6, 6))
			expired := 0
			for range 3 {
				expired += pauseWriter(t, p, transport, rng)
			}
			if expired == 0 {
				t.Error("no writer was paused in a transfer")
			}
			t.Logf("%d transfers expired", expired)
		})
	}
}

// pauseWriter returns how many transfers expired.
func pauseWriter(t *testing.T, p xfer.Plane, transport string, rng *rand.Rand) (expired int) {
	t.Helper()
	const transfers = 12
	c := startChild(t, "writer "+transport)
	var left atomic.Int64
	left.Store(rng.Int64N(transfers * 4 * xfer.ChunkSize))
	ctx := t.Context()
	list := make([]*faultyTransfer, transfers)
	for i := range list {
		x := &faultyTransfer{into: make([]byte, 8*xfer.ChunkSize)}
		var last int64
		tr, err := p.Expect(xfer.Incoming{Into: [][]byte{x.into}, Lease: 500 * time.Millisecond, OnProgress: func(n int64) {
			if left.Add(last-n) <= 0 {
				_ = c.cmd.Process.Signal(syscall.SIGSTOP)
			}
			last = n
		}})
		if err != nil {
			t.Fatal(err)
		}
		x.transfer, list[i] = tr, x
		b, err := tr.Descriptor().AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		c.send("%d %x", i, b)
	}
	good := make([]bool, transfers)
	for i, x := range list {
		_, err := x.transfer.Wait(ctx)
		good[i] = err == nil
		if xfer.OutcomeOf(err) == xfer.Expired {
			expired++
		}
		if good[i] && !bytes.Equal(x.into, fillPattern(make([]byte, len(x.into)), uint64(i))) {
			t.Errorf("transfer %d ended well with other bytes", i)
		}
		// The owner uses the memory for something else.
		fillPattern(x.into, uint64(1000+i))
	}
	d, err := p.Expect(xfer.Incoming{Into: [][]byte{make([]byte, 8*xfer.ChunkSize)}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := xfer.Write(ctx, p, d.Descriptor(), nil, make([]byte, 8*xfer.ChunkSize)); err != nil {
		t.Error(err)
	}
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.in.Close()
	for c.out.Scan() {
		var seed int
		var outcome string
		if _, err := fmt.Sscan(c.out.Text(), &seed, &outcome); err != nil {
			t.Fatal(err)
		}
		if outcome == "ok" && !good[seed] {
			t.Errorf("transfer %d is over for its owner and good for its writer", seed)
		}
	}
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	for i, x := range list {
		if !bytes.Equal(x.into, fillPattern(make([]byte, len(x.into)), uint64(1000+i))) {
			t.Errorf("transfer %d: a paused writer changed memory", i)
		}
	}
	return expired
}
