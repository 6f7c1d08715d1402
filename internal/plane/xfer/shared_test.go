package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

// TestSharedConnections: small transfers which share a connection, some of which owners abort, whose leases pass, which
// writers give up, or whose descriptors are used twice or for other sizes. What ended well has the bytes of one writer,
// which was told so unless it gave up; others go on; and no byte changes once its transfer is over.
func TestSharedConnections(t *testing.T) {
	for name, p := range map[string]xfer.Plane{"shm": newShm(t, xfer.Config{}), "tcp": newTCP(t, xfer.TCPConfig{})} {
		t.Run(name, func(t *testing.T) {
			stop := run(t, p)
			ctx := t.Context()
			const goroutines, rounds = 16, 40
			var all sync.WaitGroup
			var total sharedTotals
			for g := range uint64(goroutines) {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(g, 11))
					for i := range uint64(rounds) {
						(&sharedCase{t: t, plane: p, rng: rng, seed: 2 * (g*rounds + i), total: &total}).run(ctx)
					}
				})
			}
			all.Wait()
			stop()
			for _, x := range total.over {
				if !bytes.Equal(x.into, x.after) {
					t.Error("bytes changed after a transfer was over")
				}
			}
			t.Logf("outcomes: %v", total.outcomes)
			for _, o := range []xfer.TransferOutcome{xfer.OK, xfer.Aborted, xfer.Expired, xfer.Invalid} {
				if total.outcomes[o] == 0 {
					t.Errorf("no transfer was %v", o)
				}
			}
			if total.lost > 0 {
				t.Errorf("%d transfers were lost by what happened to others", total.lost)
			}
		})
	}
}

// sharedTotals is what became of all transfers.
type sharedTotals struct {
	sync.Mutex
	outcomes map[xfer.TransferOutcome]int
	over     []*faultyTransfer
	lost     int
}

// sharedCase is one transfer of TestSharedConnections.
type sharedCase struct {
	t     *testing.T
	plane xfer.Plane
	rng   *rand.Rand
	seed  uint64 // of the first writer's bytes; the second's is the next one
	total *sharedTotals
}

func (c *sharedCase) run(ctx context.Context) {
	size := 1 + c.rng.IntN(xfer.ChunkSize)
	if c.rng.IntN(2) == 0 {
		size = 1 + c.rng.IntN(4<<10)
	}
	x := &faultyTransfer{into: make([]byte, size)}
	in := xfer.Incoming{Into: [][]byte{x.into[:size/2], x.into[size/2:]}, Lease: time.Hour}
	kind := c.rng.IntN(8)
	soon := time.Duration(c.rng.IntN(300)) * time.Microsecond
	if kind == 1 {
		in.Lease = time.Millisecond
	}
	var err error
	if x.transfer, err = c.plane.Expect(in); err != nil {
		c.t.Error(err)
		return
	}
	d := x.transfer.Descriptor()
	giveUp, stop := context.WithCancel(ctx)
	defer stop()
	var others sync.WaitGroup
	ended := make(chan error, 1) // of the second writer
	if kind != 3 {
		ended <- errors.New("there is none")
	}
	switch kind {
	case 0:
		others.Go(func() { time.Sleep(soon); x.transfer.Abort(errors.New("not needed")) }) // at any point of its way
	case 1:
		time.Sleep(2 * time.Millisecond * time.Duration(c.rng.IntN(2))) // before or after the lease has passed
	case 2:
		others.Go(func() { time.Sleep(soon); stop() }) // at any point of its way
	case 3:
		others.Go(func() {
			ended <- xfer.Write(ctx, c.plane, d, nil, fillPattern(make([]byte, size), c.seed+1))
		})
	case 4:
		d.Size++
	}
	src := make([]byte, d.Size)
	fillPattern(src, c.seed)
	first := xfer.Write(giveUp, c.plane, d, []byte("note"), src[:d.Size/3], src[d.Size/3:])
	clear(src) // it is the writer's again
	var second error
	if first != nil {
		if second = <-ended; second != nil {
			x.transfer.Abort(first) // the owner hears of it by another plane
		}
	}
	r, err := x.transfer.Wait(ctx)
	x.after = bytes.Clone(x.into)
	others.Wait()
	if first == nil {
		second = <-ended
	}
	good := err == nil
	switch {
	case good && first == nil && (!bytes.Equal(x.after, fillPattern(make([]byte, size), c.seed)) || string(r.Note) != "note"):
		c.t.Error("not the bytes of its writer")
	case good && second == nil && !bytes.Equal(x.after, fillPattern(make([]byte, size), c.seed+1)):
		c.t.Error("not the bytes of its second writer")
	case !good && (first == nil || second == nil):
		c.t.Errorf("a writer was told that it is there, the owner %v", err)
	case good && first != nil && second != nil && kind != 2:
		c.t.Errorf("it is there, and its writer was told %v", first)
	case kind > 4 && !good:
		c.t.Errorf("a transfer to which nothing happened ended with %v and %v", first, err)
	}
	c.total.Lock()
	defer c.total.Unlock()
	if c.total.outcomes == nil {
		c.total.outcomes = map[xfer.TransferOutcome]int{}
	}
	c.total.outcomes[xfer.OutcomeOf(err)]++
	c.total.over = append(c.total.over, x)
	if kind > 2 && fault.CodeOf(first) == fault.Unavailable {
		c.total.lost++
	}
}
