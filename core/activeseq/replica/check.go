package replica

import "fmt"

// Check reports the first violated invariant: counts and sums equal the counted items', reservations
// are in order, and ranges of changes ahead start after a gap.
func (r *Replica) Check() error {
	o := &r.local
	count, sum := 0, uint64(0)
	for i := range o.reservations {
		e := &o.reservations[i]
		if i > 0 && o.reservations[i-1].number >= e.number || e.number > o.lastSeq {
			return fmt.Errorf("replica: check: own reservation %d is out of order", e.number)
		}
		if e.ended {
			continue
		}
		count, sum = count+1, sum+e.digestHash()
		if v, ok := e.ref.Reservation(); !ok || v.PrefillTokens != e.prefillTokens || v.OutputTokens != e.localOutput || v.Worker != e.worker {
			return fmt.Errorf("replica: check: own reservation %d is %+v, its table has %+v", e.number, *e, v)
		}
	}
	bytes := 0
	for i := range o.keptBatches {
		bytes += len(o.keptBatches[i].data)
		if i > 0 && o.keptBatches[i-1].lastSeq()+1 != o.keptBatches[i].first {
			return fmt.Errorf("replica: check: the batches kept have a hole before %d", o.keptBatches[i].first)
		}
	}
	if count != o.activeCount || sum != o.hashSum || bytes != o.keptBytes || o.sentBatches > len(o.keptBatches) {
		return fmt.Errorf("replica: check: %d reservations, sum %x, %d bytes kept; counted as %d, %x, %d", count, sum, bytes, o.activeCount, o.hashSum, o.keptBytes)
	}
	named := 0
	for i, p := range r.peers {
		sum := uint64(0)
		for number, e := range p.reservations {
			if e.number != number {
				return fmt.Errorf("replica: check: reservation %d of router %d is found as %d", e.number, p.router, number)
			}
			sum += e.digestHash()
			named += e.namedBlocks
			if v, ok := e.ref.Reservation(); ok && (v.PrefillTokens != e.prefillTokens || v.OutputTokens != e.publishedOutput || v.Worker != e.worker) {
				return fmt.Errorf("replica: check: reservation %d of router %d is %+v, its table has %+v", number, p.router, *e, v)
			}
		}
		at := p.nextSeq
		for _, s := range p.ahead {
			if s.first <= at || s.last < s.first {
				return fmt.Errorf("replica: check: changes %d to %d of router %d are behind no hole", s.first, s.last, p.router)
			}
			at = s.last + 1
		}
		if sum != p.hashSum || i > 0 && r.peers[i-1].router >= p.router || p.highSeq+1 < at && at > 1 || len(p.ahead) == 0 && len(p.early) > 0 {
			return fmt.Errorf("replica: check: router %d has sum %x, counted as %x, or is out of order", p.router, sum, p.hashSum)
		}
	}
	if named != r.namedBlocks || named > r.maxNamed {
		return fmt.Errorf("replica: check: %d named blocks, counted as %d of %d", named, r.namedBlocks, r.maxNamed)
	}
	return nil
}
