package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"penstock/test/fleet"
)

// flipEvery is the mean number of bytes per flipped bit: a thousand frames of a token each.
const flipEvery = 60_000

// bitFlipper flips random bits in passing bytes. Its zero value flips none.
type flipper struct {
	mu struct {
		sync.Mutex
		random *rand.Rand // nil: nothing is flipped
		every  int        // mean distance in bytes
		left   int        // bytes until the next
		flips  int
	}
}

// startFlipping starts to flip one bit per every bytes on average.
func (f *flipper) start(seed uint64, every int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.random, f.mu.every = rand.New(rand.NewPCG(seed, 2)), every
	f.nextLocked()
}

func (f *flipper) nextLocked() { f.mu.left = f.mu.random.IntN(2*f.mu.every) + 1 }

// flipCount returns how many bits were flipped.
func (f *flipper) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.flips
}

// damageBytes flips bits of b.
func (f *flipper) flip(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.mu.random != nil {
		if f.mu.left > len(b) {
			f.mu.left -= len(b)
			return
		}
		b = b[f.mu.left-1:]
		b[0] ^= 1 << f.mu.random.IntN(8)
		b = b[1:]
		f.mu.flips++
		f.nextLocked()
	}
}

// runBitFlips puts every worker behind a proxy which flips bits between it and the frontend, in plain TCP.
// Responses must be right, and 99 of 100 requests succeed: one which loses its connection more often than a
// request may migrate is refused.
func flipBits(ctx context.Context, e *env, r *result) error {
	var proxies []*proxy
	var failed error
	f, err := e.fleet(ctx, fleet.Config{Workers: 3, Frontends: 1, Each: func(role *fleet.Role) {
		if role.Kind != "worker" {
			return
		}
		p, err := e.proxy(role.RPC)
		failed = errors.Join(failed, err)
		if err == nil {
			proxies = append(proxies, p)
			role.Advertise = p.addr()
		}
	}})
	defer func() {
		for _, p := range proxies {
			p.close()
		}
	}()
	if err = errors.Join(failed, err); err != nil {
		return err
	}
	defer e.end(f, r)
	for i, p := range proxies {
		p.bits.start(e.seed+uint64(i), pick(e, flipEvery, flipEvery/4))
	}
	load := e.load(f.Doors()...)
	load.Limit = pick(e, int64(2000), 100)
	tally, _ := load.Start(ctx, 8).Wait()
	r.count(&tally)
	r.right(&tally)
	flips := 0
	for _, p := range proxies {
		flips += p.bits.count()
	}
	r.figure("bits flipped", float64(flips), "")
	r.figure("answers that moved", float64(tally.Moved), "")
	r.figure("requests that were refused or failed", float64(tally.Refused+tally.Failed), "")
	r.times("longest pause of any stream", &tally.Pause)
	switch answered := tally.Sent - tally.Refused - tally.Failed; {
	case flips == 0:
		r.problem("no bit was flipped: nothing was held")
	case tally.Moved == 0:
		r.problem("%d bits were flipped and no request moved", flips)
	case answered < tally.Sent*99/100:
		r.problem("%d of %d requests were answered: %v", answered, tally.Sent, tally.Errors)
	}
	return nil
}
