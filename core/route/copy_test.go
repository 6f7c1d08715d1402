package route

import (
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// TestCopyTable: losses add up by prefix. Of two prefixes which meet in the table the one which loses more stays.
func TestCopyTable(t *testing.T) {
	var c copyTable
	other := kv.SeqHash(5 + len(c.losses))
	c.addLoss(5, 10)
	c.addLoss(5, 20)
	c.addLoss(6, 1)
	if got := c.lossOf(5); got != 30 {
		t.Errorf("%g ms are lost, want 30", got)
	}
	for range 3 {
		c.addLoss(other, 8) // halves the other one's until it is less
	}
	if a, b := c.lossOf(5), c.lossOf(other); a != 0 || b != 8 {
		t.Errorf("%g and %g ms are lost of prefixes which meet, want 0 and 8", a, b)
	}
	c.clearLoss(5)
	c.clearLoss(6)
	if a, b := c.lossOf(other), c.lossOf(6); a != 8 || b != 0 {
		t.Errorf("%g and %g ms are left, want 8 and 0", a, b)
	}
}

// TestCopyCredit: what requests lost at the holders of a prefix makes a worker cheaper which would answer faster, has
// nothing queued and room, and lacks most of what it would compute only because it is not the holder. A request which
// goes there clears the loss; one which does not adds to it.
func TestCopyCredit(t *testing.T) {
	const loss, prefix = 400, 80
	for _, c := range []struct {
		name   string
		change func(r *Router, p *requestPolicy, holder, other *scoredCandidate)
		copies bool
	}{
		{"a copy", func(*Router, *requestPolicy, *scoredCandidate, *scoredCandidate) {}, true},
		{"nothing is faster there", func(_ *Router, _ *requestPolicy, h, o *scoredCandidate) { o.lasting = h.lasting }, false},
		{"a prefill is queued", func(_ *Router, _ *requestPolicy, _, o *scoredCandidate) { o.prefills = 1 }, false},
		{"blocks are evicted", func(r *Router, _ *requestPolicy, _, o *scoredCandidate) { r.refs[o.target].rates.RecordEviction(0, 1) }, false},
		{"it holds as much", func(_ *Router, _ *requestPolicy, h, o *scoredCandidate) { h.used, o.reuse = h.reuse, h.reuse }, false},
		{"most is the request's own history", func(_ *Router, _ *requestPolicy, h, _ *scoredCandidate) { h.reuse = 161 }, false},
		{"half is shared", func(_ *Router, _ *requestPolicy, h, _ *scoredCandidate) { h.reuse = 160 }, true},
		{"no other request uses it", func(_ *Router, _ *requestPolicy, h, _ *scoredCandidate) { h.used = 0 }, false},
		{"a session", func(_ *Router, p *requestPolicy, _, _ *scoredCandidate) { p.bound.ID = 1 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			active, err := activeseq.New(activeseq.Config{BlockSize: 16})
			if err != nil {
				t.Fatal(err)
			}
			r := mustRouter(t, Config{Mode: Time}, active)
			if err := r.SetWorkers([]Target{{Worker: kv.Worker{ID: 1}, BlockSize: 16}, {Worker: kv.Worker{ID: 2}, BlockSize: 16}}); err != nil {
				t.Fatal(err)
			}
			q := &Query{Chain: make([]kv.SeqHash, 200)}
			for i := range q.Chain {
				q.Chain[i] = kv.SeqHash(i + 1)
			}
			cands := []scoredCandidate{{Cost: 150, lasting: 10, target: 1}, {Cost: 100, lasting: 20, used: prefix, reuse: 100}}
			other, holder := &cands[0], &cands[1]
			details := make([]Candidate, 2)
			var p requestPolicy
			c.change(r, &p, holder, other)
			r.copies.addLoss(prefix, loss)
			r.addCopyCredit(&p, q, cands, details)
			want := 0.0
			if c.copies {
				want = copyShare * loss
			}
			if other.Cost != 150-want || other.copies != c.copies || details[0].Time.Copy != want || holder.Cost != 100 || holder.copies {
				t.Errorf("%+v, %+v, a credit of %g: want %g", other, holder, details[0].Time.Copy, want)
			}
			if want = loss; c.copies {
				want += holder.lasting - other.lasting
			}
			r.recordCopy(holder)
			if got := r.copies.lossOf(prefix); got != want {
				t.Errorf("%g ms are lost after a request at the holder, want %g", got, want)
			}
			if r.recordCopy(other); c.copies && r.copies.lossOf(prefix) != 0 {
				t.Errorf("%g ms are lost after a copy", r.copies.lossOf(prefix))
			}
		})
	}
}
