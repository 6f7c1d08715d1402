package activeseq

import (
	"math/bits"

	"penstock/core/kv"
)

// LoadOf returns the load of w now; zero if nothing is active there.
func (t *ReservationTable) LoadOf(w kv.Worker) Load {
	if wk := t.workers[w]; wk != nil {
		return t.currentLoad(wk)
	}
	return Load{}
}

// OthersShare returns the part of the load of w which other routers reserved.
func (t *ReservationTable) OthersShare(w kv.Worker) LoadShare {
	if wk := t.workers[w]; wk != nil {
		return wk.othersShare
	}
	return LoadShare{}
}

// PrefillQueue is a worker's queue of prefills: engines compute prompts one after another.
type PrefillQueue struct {
	Requests int
	// Tokens counts the prompt tokens of all of them and FirstTokens of the first one, without regard to elapsed time.
	Tokens, FirstTokens int
	// MediaTokens and FirstMedia count the tokens of media among them: they are to be encoded first.
	MediaTokens, FirstMedia int
	// Since is when the first one became the first.
	Since kv.Mono
}

// PrefillQueueOf returns the queue of prefills of w.
func (t *ReservationTable) PrefillQueueOf(w kv.Worker) (q PrefillQueue) {
	if wk := t.workers[w]; wk != nil {
		return t.prefillQueue(wk)
	}
	return q
}

func (t *ReservationTable) prefillQueue(wk *workerLoad) (q PrefillQueue) {
	if wk.prefills == 0 {
		return q
	}
	first := &t.records[wk.firstPrefill]
	return PrefillQueue{
		Requests: wk.prefills, Tokens: wk.load.PrefillTokens, FirstTokens: first.prefillTokens,
		MediaTokens: wk.mediaTokens, FirstMedia: first.mediaTokens, Since: wk.firstSince,
	}
}

// WorkerRef refers to the load of a worker, so that it need not be looked up. It is valid until DropWorker.
type WorkerRef struct{ load *workerLoad }

// RefTo returns a reference to the load of w.
func (t *ReservationTable) RefTo(w kv.Worker) WorkerRef { return WorkerRef{t.ensureWorker(w)} }

// LoadAt is LoadOf by reference.
func (t *ReservationTable) LoadAt(w WorkerRef) Load { return t.currentLoad(w.load) }

// Projection says what sending a request to a worker would do to its load.
type Projection struct {
	Now, Then Load
	// Prefills is the worker's queue of prefills now. QueuedBlocks counts the leading blocks of the demand's chain
	// which are in prompts of that queue: they will be computed before the demand's own prompt.
	// UsedBlocks counts the leading blocks which any active request uses.
	Prefills                 PrefillQueue
	QueuedBlocks, UsedBlocks int
}

// ProjectAt sets p to the load of w as it is, and as it would be if d were sent there. It reserves nothing.
func (t *ReservationTable) ProjectAt(w WorkerRef, d *Demand, p *Projection) {
	var m chainMatch
	p.Now, p.Then = t.projectLoad(w.load, d, &m)
	p.Prefills, p.QueuedBlocks, p.UsedBlocks = t.prefillQueue(w.load), m.queued, m.used
}

// ProjectLoad returns the load of w as it is, and as it would be if d were sent there. It reserves nothing.
func (t *ReservationTable) ProjectLoad(w kv.Worker, d Demand) (now, then Load) {
	var m chainMatch
	return t.projectLoad(t.workers[w], &d, &m)
}

// projectLoad is ProjectLoad for a worker whose load is wk; nil if nothing was ever active there. It sets m to the match
// of d's chain.
func (t *ReservationTable) projectLoad(wk *workerLoad, d *Demand, m *chainMatch) (now, then Load) {
	named, gains := len(d.Chain), int64(0)
	if wk != nil {
		now = t.currentLoad(wk)
		wk.chains.matchChain(d.Chain, m)
		named -= m.used
		gains = t.weightGain(wk, m.sole, m.owner)
	}
	then = now
	then.Requests++
	then.PrefillTokens += t.uncachedTokens(d)
	then.OutputTokens += d.ExpectedOutput
	more := named + d.PromptTokens/t.cfg.BlockSize - len(d.Chain)
	if gains == 0 {
		then.Blocks += more
	} else {
		then.Blocks = roundBlocks(wk.sharedBlocks, wk.soleWeight+gains) + more
	}
	return now, then
}

// currentLoad returns the load of a worker at the table's time.
func (t *ReservationTable) currentLoad(wk *workerLoad) Load {
	l := wk.load
	l.Blocks = roundBlocks(wk.sharedBlocks, wk.soleWeight)
	l.PrefillTokens -= t.elapsedPrefill(wk)
	return l
}

// roundBlocks returns the nearest number of blocks.
func roundBlocks(shared int, alone int64) int { return shared + int((alone+fullWeight/2)/fullWeight) }

// elapsedPrefill returns how many tokens of the worker's first prefill the time since its start accounts for.
func (t *ReservationTable) elapsedPrefill(wk *workerLoad) int {
	if wk.firstPrefill == noIndex {
		return 0
	}
	r := &t.records[wk.firstPrefill]
	if r.expectedPrefill == 0 {
		return 0
	}
	spent := max(0, t.time.Sub(wk.firstSince))
	if spent >= r.expectedPrefill {
		return r.prefillTokens
	}
	high, low := bits.Mul64(uint64(r.prefillTokens), uint64(spent))
	n, _ := bits.Div64(high, low, uint64(r.expectedPrefill)) // spent < duration, so high is less too
	return int(n)
}

// weightGain returns by how much the weight of blocks which only the request at index user uses grows when
// another request starts to use them: shared blocks have full weight.
func (t *ReservationTable) weightGain(wk *workerLoad, sole int, user int32) int64 {
	if wk.fading == 0 || sole == 0 {
		return 0
	}
	return int64(sole) * (fullWeight - t.records[user].blockWeight)
}
