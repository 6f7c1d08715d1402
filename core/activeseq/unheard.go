package activeseq

import (
	"time"

	"penstock/core/kv"
)

const (
	// syncHorizon bounds the time within which routers learn of each other's reservations: the batching of changes,
	// the plane, and the handling. It is horizonDelays times the usual time until they do, if that is known: within it
	// come decisions which were made at the same time, and no later ones, which are heard of in time.
	syncHorizon   = 10 * time.Millisecond
	horizonDelays = 2
	// coarrivalDecay is the weight of older bursts for each later one, and adoptedDecay the same for the size of
	// adopted prefills.
	coarrivalDecay = 0.95
	adoptedDecay   = 0.98
	// maxCoarrivals bounds the reservations which count for one burst, such as of a list of all.
	maxCoarrivals = 256
	// rateSpan is the time over which the usual rate of others' reservations is measured; twice that at most.
	rateSpan = 5 * time.Second
)

// coarrivals learns how many requests other routers send at the same time as this one.
//
// Reservations of routers which serve the same clients come together: a client's requests of one instant are spread
// over all routers. Each then decides before it hears of the others. The requests which arrive here within a burst's
// length are a burst, and the adopted reservations within the horizon more belong to it, less the usual number in
// such a time. Over all bursts, adopted = ratio * own is fitted through the origin.
type coarrivals struct {
	number       uint64        // of the latest burst
	since        kv.Mono       // start of it
	horizon      time.Duration // at its start
	length       time.Duration // that, and more if its requests are held
	own, adopted float64       // in it
	ownOwn       float64       // sums over earlier bursts, with decay
	ownAdopted   float64
	tokens, seen float64 // decayed sum of the prefill tokens of adopted reservations, and of their number
	usual        arrivalRate
}

// arrivalRate measures a rate over the last 5 to 10 s.
type arrivalRate struct {
	since       kv.Mono
	count, past float64       // since then, and in the span before
	pastSpan    time.Duration // 0 at first
}

func (r *arrivalRate) addArrival(now kv.Mono) {
	r.advanceTime(now)
	r.count++
}

func (r *arrivalRate) advanceTime(now kv.Mono) {
	if span := now.Sub(r.since); span >= rateSpan {
		r.past, r.pastSpan = r.count, span
		r.since, r.count = now, 0
	}
}

// expectedIn returns the usual number of arrivals in a time; 0 until it is known.
func (r *arrivalRate) expectedIn(now kv.Mono, d time.Duration) float64 {
	r.advanceTime(now)
	if r.pastSpan == 0 {
		return 0
	}
	return float64((r.count+r.past)*float64(d)) / float64(r.pastSpan+now.Sub(r.since))
}

// openBurst starts a burst unless one lasts. Routers learn of each other within the horizon.
func (c *coarrivals) openBurst(now kv.Mono, horizon time.Duration) {
	if c.number > 0 && now.Sub(c.since) <= c.length {
		return
	}
	more := c.adopted - c.usual.expectedIn(now, c.length+c.horizon)
	c.ownOwn = float64(c.ownOwn*coarrivalDecay) + float64(c.own*c.own)
	c.ownAdopted = float64(c.ownAdopted*coarrivalDecay) + float64(c.own*more)
	c.since, c.horizon, c.length, c.own, c.adopted = now, horizon, horizon, 0, 0
	c.number++
}

// ratio returns how many requests the others send for each one of a burst here.
func (c *coarrivals) ratio() float64 {
	if c.ownOwn == 0 || c.seen == 0 {
		return 0
	}
	return max(c.ownAdopted/c.ownOwn, 0)
}

// recordOwn records a reservation which was made here on wk and is expected to take so long to prefill.
func (c *coarrivals) recordOwn(now kv.Mono, horizon time.Duration, wk *workerLoad, prefill time.Duration) {
	c.openBurst(now, horizon)
	c.own++
	if wk.burst != c.number {
		wk.burst, wk.burstPrefill = c.number, 0
	}
	wk.burstPrefill += prefill
}

// recordAdopted records a reservation of another router.
func (c *coarrivals) recordAdopted(now kv.Mono, prefillTokens int) {
	c.tokens = float64(c.tokens*adoptedDecay) + float64(prefillTokens)
	c.seen = float64(c.seen*adoptedDecay) + 1
	c.usual.addArrival(now)
	if c.number > 0 && now.Sub(c.since) <= c.length+c.horizon {
		c.adopted = min(c.adopted+1, maxCoarrivals)
	}
}

// Burst is the present burst of requests.
type Burst struct {
	Number uint64
	Since  kv.Mono
	// Ratio is the number of requests which other routers get at the same time for each one here, and Tokens are the
	// prompt tokens to be computed of a usual one.
	Ratio, Tokens float64
}

// BurstAt returns the burst to which a request belongs which arrives at now; it may be the first of it.
func (t *ReservationTable) BurstAt(now kv.Mono) Burst {
	t.AdvanceTime(now)
	c := &t.coarrivals
	c.openBurst(t.time, t.horizon())
	b := Burst{Number: c.number, Since: c.since, Ratio: c.ratio()}
	if c.seen > 0 {
		b.Tokens = c.tokens / c.seen
	}
	return b
}

// IsBurst reports whether the burst of a number lasts at now.
func (t *ReservationTable) IsBurst(now kv.Mono, number uint64) bool {
	return number > 0 && t.coarrivals.number == number && now.Sub(t.coarrivals.since) <= t.coarrivals.length
}

// ExtendBurst says that the requests of the present burst are held for so long.
func (t *ReservationTable) ExtendBurst(d time.Duration) {
	t.coarrivals.length = t.coarrivals.horizon + d
}

// horizon returns the time within which other routers learn of what is reserved here now, and this one of theirs.
func (t *ReservationTable) horizon() time.Duration {
	if d := t.SyncDelay(); d > 0 {
		return min(horizonDelays*d, syncHorizon)
	}
	return syncHorizon
}

// Unheard is what other routers probably reserved at the time of the next reservation here, and what this router has
// not heard of. Routers of one view place alike: what they have placed is like what this router has placed since
// then, and of their next ones only the number is known.
type Unheard struct {
	// Requests are all of them.
	Requests float64
	// Next is the number of requests which are placed at the same time as the next one here, and Tokens are their prompt
	// tokens to be computed.
	Next, Tokens float64
	// Mirrored is the number of requests of others for each one which was placed here; see BurstPrefillAt.
	Mirrored float64
}

// UnheardAt returns what other routers probably reserved unheard, for a reservation which is made here at now. Only a
// share of the others places at the same time.
func (t *ReservationTable) UnheardAt(now kv.Mono, share float64) Unheard {
	c := &t.coarrivals
	ratio := float64(c.ratio() * share)
	if ratio == 0 {
		return Unheard{}
	}
	placed, heard := 0.0, 0.0
	if now.Sub(c.since) <= c.length {
		placed, heard = c.own, float64(c.adopted*share)
	}
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
