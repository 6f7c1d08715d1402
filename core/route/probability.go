package route

import (
	"cmp"
	"math"
	"slices"

	"penstock/core/exact"
	"penstock/core/splitmix"
)

// setProbabilities sets the probability of each candidate under p. Decisions draw from these numbers in all
// modes, so an explanation cannot differ from the decision.
func (r *Router) setProbabilities(p *requestPolicy, cands []scoredCandidate) {
	switch {
	case p.mode == RoundRobin:
		cands[r.nextInTurn(cands)].Probability = 1
	case p.mode == PowerOfTwo:
		r.spreadPowerOfTwo(cands, func(*scoredCandidate) bool { return true })
	case p.mode == LeastLoaded:
		best := cands[0].rank
		for i := range cands {
			if cands[i].rank.compareTo(best) < 0 {
				best = cands[i].rank
			}
		}
		shareEvenly(cands, func(c *scoredCandidate) bool { return c.rank == best })
	case p.mode.UsesCaches() && p.temperature > 0:
		applySoftmax(cands, p.temperature)
	case p.mode.UsesCaches():
		r.spreadNearLeast(cands)
	default:
		shareEvenly(cands, func(*scoredCandidate) bool { return true })
	}
}

// nextInTurn returns the index of the first candidate after the worker chosen last, even if workers were
// added or removed since.
func (r *Router) nextInTurn(cands []scoredCandidate) int {
	for i := range cands {
		if r.targets[cands[i].target].Worker.Compare(r.lastChosen) > 0 {
			return i
		}
	}
	return 0
}

// shareEvenly divides the probability evenly among the candidates for which in is true.
func shareEvenly(cands []scoredCandidate, in func(*scoredCandidate) bool) {
	n := 0
	for i := range cands {
		if in(&cands[i]) {
			n++
		}
	}
	for i := range cands {
		if in(&cands[i]) {
			cands[i].Probability = 1 / float64(n)
		}
	}
}

// applySoftmax spreads the probability by cost: p ~ exp(-cost / (spread*temperature)), where spread is the
// greatest cost less the least. So the temperature has no unit: the cheapest worker is exp(1/temperature)
// times as likely as the dearest, whatever the scale of the costs. Equal costs have equal probabilities.
func applySoftmax(cands []scoredCandidate, temperature float64) {
	least, most := cands[0].Cost, cands[0].Cost
	for i := range cands {
		least, most = min(least, cands[i].Cost), max(most, cands[i].Cost)
	}
	sum := 0.0
	for i := range cands {
		far := 0.0 // distance from the least cost, 0 to 1
		if most > least {
			// Halving is exact, and prevents an overflow in the difference of finite costs.
			far = (float64(cands[i].Cost/2) - float64(least/2)) / (float64(most/2) - float64(least/2))
		}
		cands[i].Probability = exact.Exp(-far / temperature)
		sum += cands[i].Probability
	}
	for i := range cands {
		cands[i].Probability /= sum
	}
}

// spreadNearLeast distributes the probability among the candidates whose cost is nearly the least: with a
// margin to the less loaded of two of them, without one evenly to the equal ones. A router sees the requests
// of other routers late or never; if each took the single best worker, all would take the same.
func (r *Router) spreadNearLeast(cands []scoredCandidate) {
	least := cands[0].Cost
	for i := range cands {
		least = min(least, cands[i].Cost)
	}
	within := float64(math.Abs(least) * r.cfg.NearCost)
	for i := range cands {
		cands[i].Near = cands[i].Cost-least <= within
	}
	if r.cfg.NearCost == 0 {
		shareEvenly(cands, func(c *scoredCandidate) bool { return c.Near })
		return
	}
	r.spreadPowerOfTwo(cands, func(c *scoredCandidate) bool { return c.Near })
}

// spreadPowerOfTwo gives each candidate for which in is true the probability of being the less loaded of two
// different ones drawn uniformly, half of it where both are equally loaded: (2*busier + equal) / (n*(n-1)).
func (r *Router) spreadPowerOfTwo(cands []scoredCandidate, in func(*scoredCandidate) bool) {
	loads := r.ranks[:0]
	for i := range cands {
		if in(&cands[i]) {
			loads = append(loads, cands[i].rank)
		}
	}
	r.ranks = loads
	n := len(loads)
	if n == 1 {
		shareEvenly(cands, in)
		return
	}
	slices.SortFunc(loads, loadRank.compareTo)
	pairs := float64(n) * float64(n-1)
	for i := range cands {
		if !in(&cands[i]) {
			continue
		}
		l := cands[i].rank
		idler, _ := slices.BinarySearchFunc(loads, l, loadRank.compareTo)
		busier, _ := slices.BinarySearchFunc(loads, loadRank{l.blocks, l.requests + 1}, loadRank.compareTo)
		equal := busier - idler - 1
		cands[i].Probability = float64(2*(n-busier)+equal) / pairs
	}
}

func (l loadRank) compareTo(o loadRank) int {
	return cmp.Or(cmp.Compare(l.blocks, o.blocks), cmp.Compare(l.requests, o.requests))
}

// drawCandidate draws one of the candidates by their probabilities. The draw depends only on the seed and the
// number of decisions made, so asking twice gives the same answer.
func (r *Router) drawCandidate(cands []scoredCandidate) int {
	u := uniformAt(r.cfg.Seed, r.decisions)
	sum, last := 0.0, 0
	for i := range cands {
		if cands[i].Probability == 0 {
			continue
		}
		sum, last = sum+cands[i].Probability, i
		if u < sum {
			return i
		}
	}
	return last // the sum may be a rounding error short of 1
}

// uniformAt returns the number in [0, 1) at position count of the stream of seed.
func uniformAt(seed, count uint64) float64 {
	z := splitmix.Mix(seed) + (count+1)*splitmix.Step
	return float64(splitmix.Mix(z)>>11) / (1 << 53)
}
