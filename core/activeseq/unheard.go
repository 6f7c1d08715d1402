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
	since        kv.Mono // start of the latest burst
	own, adopted float64 // in it
	ownOwn       float64 // sums over earlier bursts, with decay
	ownAdopted   float64
	tokens, seen float64 // decayed sum of the prefill tokens of adopted reservations, and of their number
}

// recordOwn records a reservation which was made here.
func (c *coarrivals) recordOwn(now kv.Mono) {
	if c.own > 0 && now.Sub(c.since) <= syncHorizon {
		c.own++
		return
	}
	c.ownOwn = float64(c.ownOwn*coarrivalDecay) + float64(c.own*c.own)
	c.ownAdopted = float64(c.ownAdopted*coarrivalDecay) + float64(c.own*c.adopted)
	c.since, c.own, c.adopted = now, 1, 0
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
// not heard of.
type Unheard struct {
	Requests float64
	// Tokens are their prompt tokens to be computed.
	Tokens float64
}

// UnheardAt returns what other routers probably reserved unheard, for a reservation which is made here at now.
func (t *ReservationTable) UnheardAt(now kv.Mono) Unheard {
	c := &t.coarrivals
	if c.ownOwn == 0 || c.seen == 0 {
		return Unheard{}
	}
	own, heard := 1.0, 0.0
	if now.Sub(c.since) <= syncHorizon {
		own, heard = c.own+1, c.adopted
	}
	n := max(float64(c.ownAdopted/c.ownOwn*own)-heard, 0)
	return Unheard{Requests: n, Tokens: n * (c.tokens / c.seen)}
}
