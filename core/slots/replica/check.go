package replica

import "fmt"

// Check reports the first violated invariant: counts and sums equal those of the counted items, reservations
// are in order, and ranges of changes ahead start after a gap.
func (r *Replica) Check() error {
	o := &r.own
	count, sum := 0, uint64(0)
	for i := range o.made {
		e := &o.made[i]
		if i > 0 && o.made[i-1].number >= e.number || e.number > o.seq {
			return fmt.Errorf("replica: check: own reservation %d is out of order", e.number)
		}
		if e.ended {
			continue
		}
		count, sum = count+1, sum+e.hash()
		if v, ok := e.ref.View(); !ok || v.PrefillTokens != e.left || v.OutputTokens != e.grown || v.Worker != e.worker {
			return fmt.Errorf("replica: check: own reservation %d is %+v, its table has %+v", e.number, *e, v)
		}
	}
	bytes := 0
	for i := range o.kept {
		bytes += len(o.kept[i].data)
		if i > 0 && o.kept[i-1].last()+1 != o.kept[i].first {
			return fmt.Errorf("replica: check: the batches kept have a hole before %d", o.kept[i].first)
		}
	}
	if count != o.count || sum != o.sum || bytes != o.bytes || o.sent > len(o.kept) {
		return fmt.Errorf("replica: check: %d reservations, sum %x, %d bytes kept; counted as %d, %x, %d", count, sum, bytes, o.count, o.sum, o.bytes)
	}
	named := 0
	for i, p := range r.peers {
		sum := uint64(0)
		for number, e := range p.entries {
			if e.number != number {
				return fmt.Errorf("replica: check: reservation %d of router %d is found as %d", e.number, p.router, number)
			}
			sum += e.hash()
			named += e.named
			if v, ok := e.ref.View(); ok && (v.PrefillTokens != e.left || v.OutputTokens != e.output || v.Worker != e.worker) {
				return fmt.Errorf("replica: check: reservation %d of router %d is %+v, its table has %+v", number, p.router, *e, v)
			}
		}
		at := p.next
		for _, s := range p.ahead {
			if s.first <= at || s.last < s.first {
				return fmt.Errorf("replica: check: changes %d to %d of router %d are behind no hole", s.first, s.last, p.router)
			}
			at = s.last + 1
		}
		if sum != p.sum || i > 0 && r.peers[i-1].router >= p.router || p.high+1 < at && at > 1 || len(p.ahead) == 0 && len(p.early) > 0 {
			return fmt.Errorf("replica: check: router %d has sum %x, counted as %x, or is out of order", p.router, sum, p.sum)
		}
	}
	if named != r.named || named > r.mostNamed {
		return fmt.Errorf("replica: check: %d named blocks, counted as %d of %d", named, r.named, r.mostNamed)
	}
	return nil
}
