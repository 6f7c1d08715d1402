package activeseq

import (
	"time"

	"penstock/core/kv"
)

const (
	// maxPublications bounds the reservations which are followed until they are known to be published.
	maxPublications = 256
	// A delay which is longer than usual becomes half of the usual one at once, a shorter one a part of it.
	delayFall = 16
)

// publications follows own reservations from their making until the journal's plane has brought them back: the other
// routers then know of them too.
type publications struct {
	pending []publication // ascending; at most maxPublications
	delay   time.Duration // the usual time until they are back; 0 if they are not
}

type publication struct {
	number uint64 // of the journal
	at     kv.Mono
}

func (p *publications) recordReserved(now kv.Mono, number uint64) {
	p.expireOld(now)
	if len(p.pending) < maxPublications {
		p.pending = append(p.pending, publication{number, now})
	}
}

// expireOld forgets changes which are not back within twice syncHorizon: the plane loses messages, or brings none back.
func (p *publications) expireOld(now kv.Mono) {
	n := 0
	for n < len(p.pending) && now.Sub(p.pending[n].at) > 2*syncHorizon {
		n++
	}
	if n > 0 {
		p.delay = 0
		p.pending = p.pending[:copy(p.pending, p.pending[n:])]
	}
}

// MarkPublished records that the journal's plane has brought back the reservations made here up to a number.
func (t *ReservationTable) MarkPublished(now kv.Mono, number uint64) {
	t.AdvanceTime(now)
	p := &t.publications
	n := 0
	for n < len(p.pending) && p.pending[n].number <= number {
		delay := max(t.time.Sub(p.pending[n].at), 1)
		switch {
		case p.delay == 0:
			p.delay = delay
		case delay > p.delay:
			p.delay += (delay - p.delay) / 2
		default:
			p.delay -= (p.delay - delay) / delayFall
		}
		n++
	}
	p.pending = p.pending[:copy(p.pending, p.pending[n:])]
}

// SyncDelay returns the time after which other routers know of a reservation made here; 0 if that is not known.
func (t *ReservationTable) SyncDelay() time.Duration {
	t.publications.expireOld(t.time)
	return t.publications.delay
}
