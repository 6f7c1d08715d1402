package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
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

// warmUp returns the time which is not counted: queues must fill first, which takes a while in a flood over
// grpc-go.
func warmUp(load string) time.Duration {
	if load == "flood" {
		return 1500 * time.Millisecond
	}
	return 500 * time.Millisecond
}

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

// runServer is the serving process.
func runServer(c benchCell) error {
	p, err := lookupPlane(c.Plane)
	if err != nil {
		return err
	}
	says := json.NewEncoder(os.Stdout)
	until := make(chan struct{})
	go func() {
		defer close(until)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var tokens atomic.Uint64
	before := resourcesSpent()
	err = p.serveStreams(func(addr string) error { return says.Encode(addr) }, until, func(send func([]byte) error) error {
		n, err := sendDeltas(c.Load, send)
		tokens.Add(n)
		return err
	})
	if err != nil {
		return err
	}
	used := resourcesSpent().subtractUsage(before)
	used.Tokens = tokens.Load()
	return says.Encode(used)
}

// sendDeltas sends deltas, each with its send time, until the caller has enough, and returns their number.
func sendDeltas(load string, send func([]byte) error) (n uint64, err error) {
	delta := engine.Delta{Attempt: 1, Tokens: []kv.Token{128_000, 77, 1_234, 90_210, 3, 41, 512, 70_000}}
	var tick <-chan time.Time
	if load == "paced" {
		time.Sleep(rand.N(tokenPace)) // spreads the streams over one step, as engines do not step together
		t := time.NewTicker(tokenPace)
		defer t.Stop()
		tick = t.C
	}
	frame := make([]byte, 0, 64)
	for ; ; n++ {
		if tick != nil {
			<-tick
		}
		delta.Pos = int(n)
		frame = binary.LittleEndian.AppendUint64(frame[:0], uint64(time.Now().UnixNano()))
		if err := send(engine.AppendDelta(frame, &delta)); err != nil {
			return n, nil // the caller has enough
		}
	}
}

// runCaller is the calling process.
func runCaller(c benchCell, addr string) (cellResult, error) {
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
		measuring atomic.Bool
		counts    = make([]callCounter, c.Streams)
		failed    atomic.Pointer[error]
	)
	for i := range c.Streams {
		callers.Go(func() {
			err := open(ctx, func(frame []byte) error {
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
	waitFor(ctx, warmUp(c.Load))
	before, start := resourcesSpent(), time.Now()
	measuring.Store(true)
	waitFor(ctx, c.For)
	measuring.Store(false)
	r := cellResult{Took: time.Since(start), Client: resourcesSpent().subtractUsage(before)}
	cancel()
	callers.Wait()
	if err := failed.Load(); err != nil {
		return r, *err
	}
	var all octaveHistogram
	for i := range counts {
		r.Tokens += counts[i].tokens
		all.mergeCounts(&counts[i].latency)
	}
	r.Client.Tokens = r.Tokens
	r.P50, r.P99 = all.quantileMicros(0.5), all.quantileMicros(0.99)
	return r, nil
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
