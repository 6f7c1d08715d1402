package activeseq

import (
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Reserve counts a request against w until Free. It fails with Conflict if the key is already reserved, on
// any worker. The table keeps a copy of the chain. It also frees the reservations which are older than the
// TTL.
func (t *ReservationTable) Reserve(now kv.Mono, key AttemptKey, w kv.Worker, d Demand) error {
	t.ExpireOld(now)
	if _, ok := t.byKey[key]; ok {
		return fault.New(fault.Conflict, "attempt %d of request %.100q is active already; give every attempt its own number", key.Attempt, key.ID)
	}
	if d.PromptTokens < 0 || d.OverlapBlocks < 0 || d.ExpectedOutput < 0 || d.ExpectedPrefill < 0 || len(d.Chain)*t.cfg.BlockSize > d.PromptTokens {
		return fault.New(fault.Internal, "activeseq: reserve: %d prompt tokens do not go with a chain of %d blocks, an overlap of %d and an expected output of %d",
			d.PromptTokens, len(d.Chain), d.OverlapBlocks, d.ExpectedOutput)
	}
	at := t.addReservation(now, Reservation{
		Worker: w, Chain: d.Chain, PromptTokens: d.PromptTokens, PrefillTokens: t.uncachedTokens(&d),
		ExpectedOutput: d.ExpectedOutput, ExpectedPrefill: d.ExpectedPrefill,
	})
	t.records[at].key = key
	if t.records[at].prefillTokens > 0 {
		t.records[at].mediaTokens = max(d.MediaTokens, 0)
		t.records[at].worker.mediaTokens += t.records[at].mediaTokens
	}
	t.records[at].placement = Placement{w, t.time, d.ExpectedFirst, d.HeldMedia}
	t.byKey[key] = at
	t.coarrivals.recordOwn(t.time, t.horizon(), t.records[at].worker, d.ExpectedPrefill)
	if t.cfg.Journal != nil {
		t.records[at].journalNumber = t.cfg.Journal.OnReserved(t.newRef(at))
		t.publications.recordReserved(t.time, t.records[at].journalNumber)
	}
	return nil
}

// AdoptReservation counts a reservation which another router made, until it is freed or its worker is
// dropped. The TTL does not apply: the router which made it expires it and reports that. The table keeps a
// copy of the chain, cut to the prompt.
func (t *ReservationTable) AdoptReservation(now kv.Mono, v Reservation) ReservationRef {
	t.ExpireOld(now)
	v.PromptTokens, v.ExpectedOutput = max(0, v.PromptTokens), max(0, v.ExpectedOutput)
	v.PrefillTokens = min(max(0, v.PrefillTokens), v.PromptTokens)
	v.Chain = v.Chain[:min(len(v.Chain), v.PromptTokens/t.cfg.BlockSize)]
	at := t.addReservation(now, v)
	r := &t.records[at]
	r.adopted = true
	t.coarrivals.recordAdopted(t.time, r.prefillTokens)
	r.worker.othersShare.Requests++
	r.worker.othersShare.PrefillTokens += r.prefillTokens
	t.growOutput(at, v.OutputTokens)
	return t.newRef(at)
}

// addReservation counts a reservation without output, and returns its index.
func (t *ReservationTable) addReservation(now kv.Mono, v Reservation) int32 {
	wk := t.ensureWorker(v.Worker)
	at := t.takeVacant()
	r := &t.records[at]
	r.worker, r.renewed = wk, now
	r.prefillTokens, r.expectedPrefill = v.PrefillTokens, max(0, v.ExpectedPrefill)
	r.chain = append(r.chain[:0], v.Chain...)
	r.unnamedBlocks = v.PromptTokens/t.cfg.BlockSize - len(v.Chain)
	r.promptTokens, r.expectedOutput, r.blockWeight = v.PromptTokens, v.ExpectedOutput, fullWeight
	t.appendNewest(at)
	if r.prefillTokens > 0 {
		t.enqueuePrefill(at)
	}
	t.countChain(wk, at)
	wk.soleWeight += r.blockWeight * int64(r.unnamedBlocks)
	wk.load.Requests++
	wk.load.PrefillTokens += r.prefillTokens
	wk.load.OutputTokens += r.expectedOutput
	return at
}

// ensureWorker returns the load of a worker, which may be new.
func (t *ReservationTable) ensureWorker(w kv.Worker) *workerLoad {
	wk := t.workers[w]
	if wk == nil {
		wk = &workerLoad{id: w, chains: newChainTrie(), firstPrefill: noIndex, lastPrefill: noIndex}
		t.workers[w] = wk
	}
	return wk
}

// countChain counts the request at an index among the users of its blocks.
func (t *ReservationTable) countChain(wk *workerLoad, at int32) {
	r := &t.records[at]
	r.lastRun = noIndex
	for chain := r.chain; len(chain) > 0; {
		var n int
		r.lastRun, n = wk.chains.enterRun(r.lastRun, chain)
		s := &wk.chains.runs[r.lastRun]
		switch s.users {
		case 0:
			r.soleBlocks += n
			wk.soleWeight += r.blockWeight * int64(n)
		case 1:
			owner := &t.records[s.userXor]
			owner.soleBlocks -= n
			wk.soleWeight -= owner.blockWeight * int64(n)
			wk.sharedBlocks += n
		}
		s.users, s.userXor = s.users+1, s.userXor^at
		if r.prefillTokens > 0 {
			s.queued++
		}
		chain = chain[n:]
	}
}

// uncountChain removes the request at an index from the users of its blocks.
func (t *ReservationTable) uncountChain(wk *workerLoad, at int32) {
	r := &t.records[at]
	for place := r.lastRun; place != noIndex; {
		s := &wk.chains.runs[place]
		n, before := len(s.seqs), s.parent
		s.users, s.userXor = s.users-1, s.userXor^at
		switch s.users {
		case 0:
			r.soleBlocks -= n
			wk.soleWeight -= r.blockWeight * int64(n)
			wk.chains.removeRun(place)
		case 1:
			owner := &t.records[s.userXor]
			owner.soleBlocks += n
			wk.soleWeight += owner.blockWeight * int64(n)
			wk.sharedBlocks -= n
		}
		place = before
	}
}

// Prefill is the prefill of a reservation's prompt.
type Prefill struct {
	Worker       kv.Worker
	PromptTokens int
	Tokens       int // still to be computed; 0 once they are
	// IsFirst says that it is the first in its worker's queue, and Since since when.
	IsFirst bool
	Since   kv.Mono
}

// PrefillOf returns the prefill of a reservation; ok is false if the key is not reserved.
func (t *ReservationTable) PrefillOf(key AttemptKey) (p Prefill, ok bool) {
	at, ok := t.byKey[key]
	if !ok {
		return p, false
	}
	return t.prefillAt(at), true
}

func (t *ReservationTable) prefillAt(at int32) Prefill {
	r := &t.records[at]
	return Prefill{r.worker.id, r.promptTokens, r.prefillTokens, r.worker.firstPrefill == at, r.worker.firstSince}
}

// FinishedPrefill is the prefill of an adopted reservation, which its router has reported as done.
type FinishedPrefill struct {
	Prefill
	At kv.Mono // when the report arrived
}

// maxFinished bounds the finished prefills which wait for TakeFinished.
const maxFinished = 256

// noteAdoptedPrefill keeps an adopted prefill which is about to finish for TakeFinished.
func (t *ReservationTable) noteAdoptedPrefill(at int32) {
	if t.records[at].prefillTokens > 0 && len(t.finished) < maxFinished {
		t.finished = append(t.finished, FinishedPrefill{t.prefillAt(at), t.time})
	}
}

// TakeFinished returns the adopted prefills which finished since the last call, in order; the latest ones are
// missing if there were many. The slice is valid until the table changes.
func (t *ReservationTable) TakeFinished() []FinishedPrefill {
	all := t.finished
	t.finished = t.finished[:0]
	return all
}

// AnswerStart is what its user wants to know at the end of an answer about its start. The zero value is none.
type AnswerStart struct {
	At          kv.Mono // of the first token
	Blocks      int     // active on the worker
	PrefilledMs float64 // time which the worker had spent on prefills
}

// Placement says where and when a reservation was made, and when its first token was expected.
type Placement struct {
	Worker        kv.Worker
	At            kv.Mono
	ExpectedFirst time.Duration // after At; 0 if unknown
	HeldMedia     int           // tokens: Demand.HeldMedia
}

// PlacementOf returns the placement of a reservation; ok is false if the key is not reserved.
func (t *ReservationTable) PlacementOf(key AttemptKey) (p Placement, ok bool) {
	at, ok := t.byKey[key]
	if !ok {
		return p, false
	}
	return t.records[at].placement, true
}

// MediaTokensOf returns the tokens of media which a reservation's engine still has to encode. Reservations of other
// routers have none.
func (t *ReservationTable) MediaTokensOf(key AttemptKey) int {
	if at, ok := t.byKey[key]; ok {
		return t.records[at].mediaTokens
	}
	return 0
}

// SetAnswerStart keeps s for AnswerStartOf.
func (t *ReservationTable) SetAnswerStart(key AttemptKey, s AnswerStart) {
	if at, ok := t.byKey[key]; ok {
		t.records[at].answerStart = s
	}
}

// AnswerStartOf returns what SetAnswerStart kept, and the worker; ok is false if the key is not reserved.
func (t *ReservationTable) AnswerStartOf(key AttemptKey) (s AnswerStart, w kv.Worker, ok bool) {
	at, ok := t.byKey[key]
	if !ok {
		return s, w, false
	}
	return t.records[at].answerStart, t.records[at].worker.id, true
}

// MarkPrefilled records that the worker has computed the whole prompt. It reports whether the key is
// reserved; a second call changes nothing. The next prefill of the worker starts at the table's time, so
// AdvanceTime comes first.
func (t *ReservationTable) MarkPrefilled(key AttemptKey) bool {
	at, ok := t.byKey[key]
	if !ok {
		return false
	}
	if r := &t.records[at]; r.prefillTokens > 0 && r.journalNumber > 0 {
		t.cfg.Journal.OnPrefilled(r.journalNumber)
	}
	t.finishPrefill(at)
	return true
}

// finishPrefill removes the rest of a prefill from the load.
func (t *ReservationTable) finishPrefill(at int32) {
	r := &t.records[at]
	if r.prefillTokens == 0 {
		return
	}
	t.dequeuePrefill(at)
	r.worker.chains.finishRuns(r.lastRun)
	r.worker.mediaTokens -= r.mediaTokens
	r.mediaTokens = 0
	r.worker.load.PrefillTokens -= r.prefillTokens
	if r.adopted {
		r.worker.othersShare.PrefillTokens -= r.prefillTokens
	}
	r.prefillTokens = 0
}

// AddOutput records that n more tokens were generated. Each block which they fill counts from then on. It
// reports whether the key is reserved; n below 1 changes nothing.
func (t *ReservationTable) AddOutput(key AttemptKey, n int) bool {
	at, ok := t.byKey[key]
	if !ok || n < 1 {
		return ok
	}
	t.growOutput(at, n)
	if r := &t.records[at]; r.journalNumber > 0 {
		t.cfg.Journal.OnGrown(r.journalNumber, r.outputTokens)
	}
	return true
}

func (t *ReservationTable) growOutput(at int32, n int) {
	if n < 1 {
		return
	}
	r := &t.records[at]
	wk := r.worker
	wk.load.OutputTokens -= r.remainingOutput()
	wk.soleWeight -= r.blockWeight * int64(r.soleBlocks+r.unnamedBlocks)
	r.outputTokens += n
	r.unnamedBlocks = (r.promptTokens+r.outputTokens)/t.cfg.BlockSize - len(r.chain)
	if r.expectedOutput > 0 {
		if r.blockWeight == fullWeight {
			wk.fading++
		}
		r.blockWeight = int64(r.remainingOutput()) * fullWeight / int64(r.expectedOutput)
		if r.blockWeight == fullWeight { // so many tokens are expected that one does not change the weight
			wk.fading--
		}
	}
	wk.soleWeight += r.blockWeight * int64(r.soleBlocks+r.unnamedBlocks)
	wk.load.OutputTokens += r.remainingOutput()
}

// RenewReservation restarts the TTL of a reservation whose request still runs. It reports whether the key is
// reserved.
func (t *ReservationTable) RenewReservation(now kv.Mono, key AttemptKey) bool {
	t.AdvanceTime(now)
	at, ok := t.byKey[key]
	if ok {
		t.renewAt(at)
	}
	return ok
}

// renewAt makes the request at an index the newest.
func (t *ReservationTable) renewAt(at int32) {
	t.unlinkByAge(at)
	t.records[at].renewed = t.time
	t.appendNewest(at)
}

// Free ends a reservation and reports whether there was one.
func (t *ReservationTable) Free(key AttemptKey) bool {
	at, ok := t.byKey[key]
	if ok {
		t.freeAt(at)
	}
	return ok
}

// AppendComputedChain appends to dst the full blocks of a reservation's prompt and returns them with its worker.
// ok is false if there is no such reservation or its prompt is not computed yet.
func (t *ReservationTable) AppendComputedChain(dst []kv.SeqHash, key AttemptKey) (chain []kv.SeqHash, w kv.Worker, ok bool) {
	at, found := t.byKey[key]
	if !found || t.records[at].prefillTokens > 0 {
		return dst, kv.Worker{}, false
	}
	r := &t.records[at]
	return append(dst, r.chain...), r.worker.id, true
}

// DropWorker ends all reservations on w, which was removed, and returns their number.
func (t *ReservationTable) DropWorker(w kv.Worker) int {
	n := 0
	for at := t.oldest; at != noIndex; {
		r := &t.records[at]
		next := r.newer
		if r.worker.id == w {
			t.freeAt(at)
			n++
		}
		at = next
	}
	delete(t.workers, w)
	return n
}

// ExpireOld frees the reservations made here which were not renewed for the TTL, and returns their number. It
// also advances the table's time.
func (t *ReservationTable) ExpireOld(now kv.Mono) int {
	t.AdvanceTime(now)
	n := 0
	for t.oldest != noIndex && now.Sub(t.records[t.oldest].renewed) >= t.cfg.TTL {
		if t.records[t.oldest].adopted {
			t.renewAt(t.oldest)
			continue
		}
		t.expired++
		t.freeAt(t.oldest)
		n++
	}
	return n
}

// remainingOutput returns the number of tokens which are still expected by the hint.
func (r *reservationRecord) remainingOutput() int { return max(0, r.expectedOutput-r.outputTokens) }

// uncachedTokens returns the prompt tokens of d which are not cached.
func (t *ReservationTable) uncachedTokens(d *Demand) int {
	return max(0, d.PromptTokens-d.OverlapBlocks*t.cfg.BlockSize)
}

func (t *ReservationTable) freeAt(at int32) {
	r := &t.records[at]
	wk := r.worker
	if r.journalNumber > 0 {
		t.cfg.Journal.OnFreed(r.journalNumber)
	}
	if r.blockWeight < fullWeight {
		wk.fading--
	}
	t.finishPrefill(at)
	wk.soleWeight -= r.blockWeight * int64(r.unnamedBlocks)
	t.uncountChain(wk, at)
	wk.load.Requests--
	wk.load.OutputTokens -= r.remainingOutput()
	if r.adopted {
		wk.othersShare.Requests--
	} else {
		delete(t.byKey, r.key)
	}
	t.unlinkByAge(at)
	t.makeVacant(at)
}

func (t *ReservationTable) newRef(at int32) ReservationRef {
	return ReservationRef{t, at, t.records[at].generation}
}
