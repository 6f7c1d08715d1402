package route

import (
	"math"

	"penstock/core/kv"
)

// copyShare is the share of what requests have lost at the holders of a prefix for which the prefix is computed at another
// worker. The cost of one request cannot tell: a copy pays for later ones. To buy once what would be rented is
// never worse than twice the best that foresight could do (ski rental); a quarter is slower, because some prefixes are
// soon out of use.
const copyShare = 0.25

// copyTable adds up, by prefix, what requests have lost because they went where it is held. Prefixes which meet at a
// place of the table displace each other.
type copyTable struct {
	losses [2048]prefixLoss
}

type prefixLoss struct {
	prefix kv.SeqHash
	ms     float64
}

func (t *copyTable) lossOf(prefix kv.SeqHash) float64 {
	if l := &t.losses[uint64(prefix)%uint64(len(t.losses))]; l.prefix == prefix {
		return l.ms
	}
	return 0
}

func (t *copyTable) addLoss(prefix kv.SeqHash, ms float64) {
	l := &t.losses[uint64(prefix)%uint64(len(t.losses))]
	switch {
	case l.prefix == prefix:
		l.ms += ms
	case l.ms <= ms:
		*l = prefixLoss{prefix, ms}
	default:
		l.ms /= 2
	}
}

func (t *copyTable) clearLoss(prefix kv.SeqHash) {
	if l := &t.losses[uint64(prefix)%uint64(len(t.losses))]; l.prefix == prefix {
		l.ms = 0
	}
}

// sharedPrefix is the prefix of a request which other requests use too at the worker of least cost.
type sharedPrefix struct {
	prefix kv.SeqHash
	loss   float64 // ms: what the request loses if it goes there
}

// addCopyCredit subtracts from the costs in mode Time what requests have lost at the holders of a prefix, at workers to
// which the prefix would be copied if the request went there. details are the same candidates; nil if they are not
// needed.
func (r *Router) addCopyCredit(p *requestPolicy, q *Query, cands []scoredCandidate, details []Candidate) {
	s := &r.scoring.shared
	*s = sharedPrefix{}
	if len(q.Chain) == 0 || p.bound.ID != 0 {
		return
	}
	holder := &cands[0]
	for i := range cands {
		if cands[i].Cost < holder.Cost {
			holder = &cands[i]
		}
	}
	used := min(holder.used, holder.reuse)
	if used == 0 {
		return
	}
	prefix, least := q.Chain[used-1], math.Inf(1)
	credit := float64(copyShare * r.copies.lossOf(prefix))
	for i := range cands {
		c := &cands[i]
		// It has a better time for answers, nothing queued and room, and most of what it would compute is shared.
		if c.lasting >= holder.lasting || c.prefills > 0 || r.refs[c.target].rates.HasEvicted(r.active.Now()) || c.reuse >= holder.reuse || 2*(used-c.reuse) < holder.reuse-c.reuse {
			continue
		}
		least = min(least, c.lasting)
		c.copies = true
		c.Cost -= credit
		if details != nil {
			details[i].Time.Copy = credit
		}
	}
	if least < holder.lasting {
		*s = sharedPrefix{prefix, holder.lasting - least}
	}
}

// recordCopy records that a request whose candidates were assessed goes to one of them.
func (r *Router) recordCopy(c *scoredCandidate) {
	switch s := &r.scoring.shared; {
	case s.loss == 0:
	case c.copies:
		r.copies.clearLoss(s.prefix)
	default:
		r.copies.addLoss(s.prefix, s.loss)
	}
}
