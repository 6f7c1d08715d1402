package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// tokenPace is how often an engine has a token for a stream.
const tokenPace = 40 * time.Millisecond

// warmUp is the time which is not counted, after each stream had its first frame. maxStart is the longest wait for
// those first frames.
const (
	warmUp   = 500 * time.Millisecond
	maxStart = time.Minute
)

// streamPlane is one of the two transports.
type streamPlane interface {
	// serveStreams serves until stdin ends, and first prints its address.
	serveStreams(told func(addr string) error, until <-chan struct{}, stream func(send func([]byte) error) error) error
	// dialStreams returns a function to open streams, all on one connection.
	dialStreams(addr string) (open func(ctx context.Context, recv func([]byte) error) error, err error)
}

func lookupPlane(name string) (streamPlane, error) {
	switch name {
	case "tcp":
		return tcpPlane{}, nil
	case "grpc":
		return grpcPlane{}, nil
	}
	return nil, errors.New("no such plane: " + name)
}

// runServer is the serving process. It prints its address, then what it has used so far for each line that it reads,
// until its input ends.
func runServer(c benchCell) error {
	p, err := lookupPlane(c.Plane)
	if err != nil {
		return err
	}
	says := json.NewEncoder(os.Stdout)
	until := make(chan struct{})
	var tokens atomic.Uint64
	go func() {
		defer close(until)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			used := resourcesSpent()
			used.Tokens = tokens.Load()
			if says.Encode(used) != nil {
				return
			}
		}
	}()
	return p.serveStreams(func(addr string) error { return says.Encode(addr) }, until, func(send func([]byte) error) error {
		sendDeltas(c.Load, func(frame []byte) error {
			tokens.Add(1)
			return send(frame)
		})
		return nil
	})
}

// sendDeltas sends deltas, each with its send time, until the caller has enough.
func sendDeltas(load string, send func([]byte) error) {
	delta := engine.Delta{Attempt: 1, Tokens: []kv.Token{128_000, 77, 1_234, 90_210, 3, 41, 512, 70_000}}
	var tick <-chan time.Time
	if load == "paced" {
		time.Sleep(rand.N(tokenPace)) // spreads the streams over one step, as engines do not step together
		t := time.NewTicker(tokenPace)
		defer t.Stop()
		tick = t.C
	}
	frame := make([]byte, 0, 64)
	for n := 0; ; n++ {
		if tick != nil {
			<-tick
		}
		delta.Pos = n
		frame = binary.LittleEndian.AppendUint64(frame[:0], uint64(time.Now().UnixNano()))
		if err := send(engine.AppendDelta(frame, &delta)); err != nil {
			return // the caller has enough
		}
	}
}

// runCaller is the calling process. It calls mark when it begins to measure, and again when it ends.
func runCaller(c benchCell, addr string, mark func() error) (cellResult, error) {
	p, err := lookupPlane(c.Plane)
	if err != nil {
		return cellResult{}, err
	}
	open, err := p.dialStreams(addr)
	if err != nil {
		return cellResult{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var (
		callers   sync.WaitGroup
		starting  = newCountdown(c.Streams)
		measuring atomic.Bool
		counts    = make([]callCounter, c.Streams)
		failed    atomic.Pointer[error]
	)
	for i := range c.Streams {
		callers.Go(func() {
			var begun bool
			err := open(ctx, func(frame []byte) error {
				if !begun {
					begun = true
					starting.countDown()
				}
				if measuring.Load() {
					counts[i].tokens++
					counts[i].latency.addDuration(time.Duration(time.Now().UnixNano() - int64(binary.LittleEndian.Uint64(frame))))
				}
				return nil
			})
			if ctx.Err() == nil {
				failed.Store(&err)
				cancel()
			}
		})
	}
	select {
	case <-starting.done:
		waitFor(ctx, warmUp)
	case <-time.After(maxStart):
	case <-ctx.Done():
	}
	started := starting.left.Load() == 0
	if err := mark(); err != nil {
		return cellResult{}, err
	}
	before, start := resourcesSpent(), time.Now()
	measuring.Store(true)
	waitFor(ctx, c.For)
	measuring.Store(false)
	r := cellResult{Took: time.Since(start), Client: resourcesSpent().subtractUsage(before)}
	if err := mark(); err != nil {
		return r, err
	}
	cancel()
	callers.Wait()
	if err := failed.Load(); err != nil {
		return r, *err
	}
	if !started {
		return r, fmt.Errorf("%d streams had no frame after %s", starting.left.Load(), maxStart)
	}
	var all octaveHistogram
	for i := range counts {
		r.Tokens += counts[i].tokens
		all.mergeCounts(&counts[i].latency)
	}
	if r.Tokens == 0 {
		return r, fmt.Errorf("no frame came within %s", c.For)
	}
	r.Client.Tokens = r.Tokens
	r.P50, r.P99 = all.quantileMicros(0.5), all.quantileMicros(0.99)
	return r, nil
}

// countdown closes done when countDown was called as often as it was made for.
type countdown struct {
	left atomic.Int64
	done chan struct{}
}

func newCountdown(n int) *countdown {
	c := &countdown{done: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) countDown() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

type callCounter struct {
	tokens  uint64
	latency octaveHistogram
}

func waitFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
