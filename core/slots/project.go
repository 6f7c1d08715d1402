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
		active, sole, who := wk.blocks.match(d.Chain)
		named -= active
		gains = t.gains(wk, sole, who)
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

// gains returns by how much the weight of blocks that one request alone uses grows when
// another one comes to use them: they come to weigh whole.
func (t *Table) gains(wk *worker, sole int, who int32) int64 {
	if wk.fading == 0 || sole == 0 {
		return 0
	}
	return int64(sole) * (whole - t.requests[who].weight)
}
