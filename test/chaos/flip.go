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
type bitFlipper struct {
	mu struct {
		sync.Mutex
		random *rand.Rand // nil: nothing is flipped
		every  int        // mean distance in bytes
		left   int        // bytes until the next
		flips  int
	}
}

// startFlipping starts to flip one bit per every bytes on average.
func (f *bitFlipper) startFlipping(seed uint64, every int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.random, f.mu.every = rand.New(rand.NewPCG(seed, 2)), every
	f.nextLocked()
}

func (f *bitFlipper) nextLocked() { f.mu.left = f.mu.random.IntN(2*f.mu.every) + 1 }

// flipCount returns how many bits were flipped.
func (f *bitFlipper) flipCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.flips
}

// damageBytes flips bits of b.
func (f *bitFlipper) damageBytes(b []byte) {
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
func runBitFlips(ctx context.Context, e *testEnv, r *scenarioResult) error {
	var proxies []*cutProxyConn
	var failed error
	f, err := e.startFleet(ctx, fleet.Config{Workers: 3, Frontends: 1, Each: func(role *fleet.Role) {
		if role.Kind != "worker" {
			return
		}
		p, err := e.startProxy(role.RPC)
		failed = errors.Join(failed, err)
		if err == nil {
			proxies = append(proxies, p)
			role.Advertise = p.listenAddr()
		}
	}})
	defer func() {
		for _, p := range proxies {
			p.closeAll()
		}
	}()
	if err = errors.Join(failed, err); err != nil {
		return err
	}
	defer e.endFleet(f, r)
	for i, p := range proxies {
		p.bits.startFlipping(e.seed+uint64(i), longOrShort(e, flipEvery, flipEvery/4))
	}
	load := e.newLoad(f.ClientRoles()...)
	load.Limit = longOrShort(e, int64(2000), 100)
	tally, _ := load.StartClients(ctx, 8).WaitClients()
	r.addCounts(&tally)
	r.requireRight(&tally)
	flips := 0
	for _, p := range proxies {
		flips += p.bits.flipCount()
	}
	r.addFigure("bits flipped", float64(flips), "")
	r.addFigure("answers that moved", float64(tally.Moved), "")
	r.addFigure("requests that were refused or failed", float64(tally.Refused+tally.Failed), "")
	r.addDurations("longest pause of any stream", &tally.Pause)
	switch answered := tally.Sent - tally.Refused - tally.Failed; {
	case flips == 0:
		r.addProblem("no bit was flipped: nothing was held")
	case tally.Moved == 0:
		r.addProblem("%d bits were flipped and no request moved", flips)
	case answered < tally.Sent*99/100:
		r.addProblem("%d of %d requests were answered: %v", answered, tally.Sent, tally.Errors)
	}
	return nil
}
