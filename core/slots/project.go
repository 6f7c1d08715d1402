package slots

import (
	"math/bits"

	"penstock/core/kv"
)

// LoadOf returns the load of w now; zero if nothing is active there.
func (t *Table) Load(w kv.Worker) Load {
	if wk := t.workers[w]; wk != nil {
		return t.total(wk)
	}
	return Load{}
}

// OthersShare returns the part of the load of w which other routers reserved.
func (t *Table) Others(w kv.Worker) Share {
	if wk := t.workers[w]; wk != nil {
		return wk.others
	}
	return Share{}
}

// ProjectLoad returns the load of w as it is, and as it would be if d were sent there. It reserves nothing.
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

// currentLoad returns the load of a worker at the table's time.
func (t *Table) total(wk *worker) Load {
	l := wk.load
	l.Blocks = rounded(wk.shared, wk.alone)
	l.PrefillTokens -= t.passed(wk)
	return l
}

// roundBlocks returns the nearest number of blocks.
func rounded(shared int, alone int64) int { return shared + int((alone+whole/2)/whole) }

// elapsedPrefill returns how many tokens of the worker's first prefill the time since its start accounts for.
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
	n, _ := bits.Div64(high, low, uint64(r.duration)) // spent < duration, so high is less too
	return int(n)
}

// weightGain returns by how much the weight of blocks which only the request at index user uses grows when
// another request starts to use them: shared blocks have full weight.
func (t *Table) gains(wk *worker, sole int, who int32) int64 {
	if wk.fading == 0 || sole == 0 {
		return 0
	}
	return int64(sole) * (whole - t.requests[who].weight)
}
