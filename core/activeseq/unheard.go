package activeseq

import (
	"time"

	"penstock/core/kv"
)

const (
	// syncHorizon is the time within which routers learn of each other's reservations: the batching of changes,
	// the plane, and the handling.
	syncHorizon = 10 * time.Millisecond
	// coarrivalDecay is the weight of older bursts for each later one, and adoptedDecay the same for the size of
	// adopted prefills.
	coarrivalDecay = 0.95
	adoptedDecay   = 0.98
	// maxCoarrivals bounds the reservations which count for one burst, such as of a list of all.
	maxCoarrivals = 256
)

// coarrivals learns how many requests other routers send at the same time as this one.
//
// Reservations of routers which serve the same clients come together: a client's requests of one instant are spread
// over all routers. Each then decides before it hears of the others. The reservations made here within syncHorizon
// are a burst, and the adopted ones within twice that from its start belong to it. Over all bursts,
// adopted = ratio * own is fitted through the origin.
type coarrivals struct {
	number       uint64  // of the latest burst
	since        kv.Mono // start of it
	own, adopted float64 // in it
	ownOwn       float64 // sums over earlier bursts, with decay
	ownAdopted   float64
	tokens, seen float64 // decayed sum of the prefill tokens of adopted reservations, and of their number
}

// recordOwn records a reservation which was made here on wk and is expected to take so long to prefill.
func (c *coarrivals) recordOwn(now kv.Mono, wk *workerLoad, prefill time.Duration) {
	if c.own > 0 && now.Sub(c.since) <= syncHorizon {
		c.own++
	} else {
		c.ownOwn = float64(c.ownOwn*coarrivalDecay) + float64(c.own*c.own)
		c.ownAdopted = float64(c.ownAdopted*coarrivalDecay) + float64(c.own*c.adopted)
		c.since, c.own, c.adopted = now, 1, 0
		c.number++
	}
	if wk.burst != c.number {
		wk.burst, wk.burstPrefill = c.number, 0
	}
	wk.burstPrefill += prefill
}

// recordAdopted records a reservation of another router.
func (c *coarrivals) recordAdopted(now kv.Mono, prefillTokens int) {
	c.tokens = float64(c.tokens*adoptedDecay) + float64(prefillTokens)
	c.seen = float64(c.seen*adoptedDecay) + 1
	if c.own > 0 && now.Sub(c.since) <= 2*syncHorizon {
		c.adopted = min(c.adopted+1, maxCoarrivals)
	}
}

// Unheard is what other routers probably reserved at the time of the next reservation here, and what this router has
// not heard of. Routers of one view place alike: what they have placed is like what this router has placed since
// then, and of their next ones only the number is known.
type Unheard struct {
	// Requests are all of them.
	Requests float64
	// Next is the number of those which are placed at the same time as the next one here, and Tokens are their prompt
	// tokens to be computed.
	Next, Tokens float64
	// Mirrored is the number of requests of others for each one which was placed here; see BurstPrefillAt.
	Mirrored float64
}

// UnheardAt returns what other routers probably reserved unheard, for a reservation which is made here at now.
func (t *ReservationTable) UnheardAt(now kv.Mono) Unheard {
	c := &t.coarrivals
	if c.ownOwn == 0 || c.seen == 0 {
		return Unheard{}
	}
	placed, heard := 0.0, 0.0
	if now.Sub(c.since) <= syncHorizon {
		placed, heard = c.own, c.adopted
	}
	ratio := c.ownAdopted / c.ownOwn
	u := Unheard{Requests: max(float64(ratio*(placed+1))-heard, 0)}
	u.Next = min(u.Requests, ratio)
	u.Tokens = u.Next * (c.tokens / c.seen)
	if placed > 0 {
		u.Mirrored = (u.Requests - u.Next) / placed
	}
	return u
}

// BurstPrefillAt returns the expected time of the prefills which were reserved here on w at the time of the next
// reservation, as UnheardAt counts them.
func (t *ReservationTable) BurstPrefillAt(w WorkerRef) time.Duration {
	if w.load.burst != t.coarrivals.number {
		return 0
	}
	return w.load.burstPrefill
}
