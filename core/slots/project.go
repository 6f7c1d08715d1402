package slots

import (
	"math/bits"

	"penstock/core/kv"
)

// Load returns the load of w now; zero if nothing is active there.
func (t *Table) Load(w kv.Worker) Load {
	if wk := t.workers[w]; wk != nil {
		return t.total(wk)
	}
	return Load{}
}

// Others returns what of the load of w is from other routers.
func (t *Table) Others(w kv.Worker) Share {
	if wk := t.workers[w]; wk != nil {
		return wk.others
	}
	return Share{}
}

// Project returns the load of w as it is, and as it would be were d sent there.
// Nothing is reserved.
func (t *Table) Project(w kv.Worker, d Demand) (now, then Load) {
	named, gains := len(d.Chain), int64(0)
	wk := t.workers[w]
	if wk != nil {
		now = t.total(wk)
		active := prefixOf(d.Chain, wk.refs, 1)
		named -= active
		gains = t.gains(wk, d.Chain[:active])
	}
	then = now
	then.Requests++
	then.PrefillTokens += t.prefill(d)
	then.OutputTokens += d.ExpectedOutput
	more := named + d.PromptTokens/t.cfg.BlockSize - len(d.Chain)
	if gains == 0 {
		then.Blocks += more
	} else {
		then.Blocks = rounded(wk.shared, wk.alone+gains) + more
	}
	return now, then
}

// total is the load of a worker at the time of the table.
func (t *Table) total(wk *worker) Load {
	l := wk.load
	l.Blocks = rounded(wk.shared, wk.alone)
	l.PrefillTokens -= t.passed(wk)
	return l
}

// rounded is the nearest number of blocks.
func rounded(shared int, alone int64) int { return shared + int((alone+whole/2)/whole) }

// passed returns how many tokens of the worker's first prefill its time so far
// accounts for.
func (t *Table) passed(wk *worker) int {
	if wk.first == none {
		return 0
	}
	r := &t.requests[wk.first]
	if r.duration == 0 {
		return 0
	}
	spent := max(0, t.now.Sub(wk.since))
	if spent >= r.duration {
		return r.prefill
	}
	high, low := bits.Mul64(uint64(r.prefill), uint64(spent))
	n, _ := bits.Div64(high, low, uint64(r.duration)) // spent is less, so high is too
	return int(n)
}

// gains returns by how much the weight of the active blocks of a chain grows when
// one more request uses them all: those of one request so far come to weigh whole. On
// a chain they are behind those of more requests, and all of the same request: that of
// the last one, whose chain has all blocks before it.
func (t *Table) gains(wk *worker, active []kv.SeqHash) int64 {
	if wk.fading == 0 || len(active) == 0 {
		return 0
	}
	last := wk.refs[active[len(active)-1]]
	if last.n > 1 {
		return 0
	}
	sole := len(active) - prefixOf(active, wk.refs, 2)
	return int64(sole) * (whole - t.requests[last.who].weight)
}

// prefixOf returns how many blocks of chain at least n requests use. They are a
// prefix of it, since whoever uses a block uses those before it, so a binary search
// finds its end.
func prefixOf(chain []kv.SeqHash, refs map[kv.SeqHash]ref, n int32) int {
	if len(refs) == 0 {
		return 0
	}
	low, high := 0, len(chain)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if refs[chain[mid]].n >= n {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
