package paged

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// twin is a naive scheduler of the same policy: slices with linear search, prefixes compared as whole
// strings, nothing cached which can be recomputed. It has no physical blocks, only their number.
type twin struct {
	cfg     Config
	running []*twinSeq // by age, as the others
	paused  []*twinSeq
	kept    []*twinSeq // with Hold, and computed
	waiting []*twinSeq
	added   int
	cache   []*twinBlock // registered blocks, in order of registration
	clock   int
	events  []string // one per block
	stats   Stats
}

type twinSeq struct {
	Sequence
	tokens   []kv.Token
	table    []*twinBlock
	computed int
	planned  int
	goal     int
	due      bool
	sealed   bool
	ran      bool
	cached   int
	fetched  int
	age      int
	finished []bool // of Unfinished
	fetches  bool   // it is in the batch only to fetch
	until    int    // where the tokens end which are to be imported; 0 if none are
}

type twinBlock struct {
	path       string // the whole prefix, with salt and media
	seq        kv.SeqHash
	registered bool
	released   int // when the last holder released it
}

func (w *twin) limit() int { return min(w.cfg.MaxContext, w.cfg.Blocks*w.cfg.BlockSize) }

func (w *twin) find(id SeqID) *twinSeq {
	for _, q := range slices.Concat(w.running, w.paused, w.kept, w.waiting) {
		if q.ID == id {
			return q
		}
	}
	return nil
}

func (w *twin) add(seq Sequence) bool {
	fresh := 0
	for _, q := range w.waiting {
		if !q.ran {
			fresh++
		}
	}
	n := len(seq.Tokens)
	if n == 0 || seq.Prompt < 1 || seq.Prompt > n || n >= w.limit() || w.find(seq.ID) != nil || fresh >= w.cfg.MaxWaiting {
		return false
	}
	for _, r := range seq.Unfinished {
		if r.Start < 0 || r.Start >= r.End || r.End > n {
			return false
		}
	}
	if e := seq.TransferEnd; e < 0 || e >= n || e%w.cfg.BlockSize != 0 || e > 0 && seq.Hold && !seq.LateTransfer {
		return false
	}
	w.added++
	w.waiting = append(w.waiting, &twinSeq{
		Sequence: seq, tokens: slices.Clone(seq.Tokens), goal: n, age: w.added, finished: make([]bool, len(seq.Unfinished)), until: seq.TransferEnd,
	})
	return true
}

// imports says whether tokens of q up to end can be imported now.
func (w *twin) imports(q *twinSeq, end int) bool {
	return q != nil && slices.Contains(w.paused, q) && end%w.cfg.BlockSize == 0 && end > q.computed && end <= q.until
}

func (w *twin) importTokens(id SeqID, end int) bool {
	q := w.find(id)
	if !w.imports(q, end) {
		return false
	}
	before := q.computed
	q.computed = end
	w.stats.ImportedTokens += uint64(end - before)
	w.register(q, before/w.cfg.BlockSize)
	return true
}

func (w *twin) finishTransfer(id SeqID) bool {
	q := w.find(id)
	if q == nil || q.until <= q.computed+q.fetched {
		return false
	}
	q.until = 0
	return true
}

func (w *twin) awaitTransfer(id SeqID, end int) bool {
	q := w.find(id)
	if q == nil || !slices.Contains(w.waiting, q) || w.cfg.Reuse == Off || q.Reuse == Off || q.Hold || q.until > 0 ||
		end <= 0 || end >= len(q.tokens) || end%w.cfg.BlockSize != 0 {
		return false
	}
	q.TransferEnd, q.until, q.LateTransfer = end, end, true
	return true
}

func (w *twin) finish(id SeqID, index int) bool {
	q := w.find(id)
	if q == nil || index < 0 || index >= len(q.finished) || q.finished[index] {
		return false
	}
	q.finished[index] = true
	return true
}

func (w *twin) reopen(id SeqID) bool {
	q := w.find(id)
	return slices.Contains(w.waiting, q) && q.reopen()
}

// reopen makes all ranges unfinished again, if there are any which can be.
func (q *twinSeq) reopen() bool {
	if !q.Reopens || len(q.Unfinished) == 0 {
		return false
	}
	q.finished = make([]bool, len(q.Unfinished))
	return true
}

// holders are the sequences with blocks, growing the ones which are not kept.
func (w *twin) holders() []*twinSeq { return byAge(slices.Concat(w.running, w.paused, w.kept)) }
func (w *twin) growing() []*twinSeq { return byAge(slices.Concat(w.running, w.paused)) }

func byAge(all []*twinSeq) []*twinSeq {
	slices.SortFunc(all, func(a, b *twinSeq) int { return a.age - b.age })
	return all
}

// encoding says whether q still needs a range when its first ready tokens need nothing, and how many of the tokens
// after them can be computed.
func (w *twin) encoding(q *twinSeq, ready int) (needs bool, can int) {
	if q.until > ready {
		return true, 0
	}
	if len(q.Unfinished) == 0 {
		return false, len(q.tokens) - ready
	}
	for p := ready; p < len(q.tokens); p++ {
		for i, r := range q.Unfinished {
			if !q.finished[i] && r.Start <= p && p < r.End {
				if w.cfg.Chunking == Off {
					return true, 0
				}
				return true, can
			}
		}
		can++
	}
	return false, can
}

// can is how many tokens of q can be computed now.
func (w *twin) can(q *twinSeq) int {
	_, n := w.encoding(q, q.computed+q.fetched)
	return n
}

func (w *twin) needs(q *twinSeq) bool {
	needs, _ := w.encoding(q, q.computed+q.fetched)
	return needs
}

// dispensable are the holders which are encoding, newest first.
func (w *twin) dispensable() (all []*twinSeq) {
	for _, q := range w.growing() {
		if w.needs(q) {
			all = append(all, q)
		}
	}
	slices.Reverse(all)
	return all
}

// dispensableFor are the ones which give up their blocks for the admission of q.
func (w *twin) dispensableFor(q *twinSeq) []*twinSeq {
	return slices.DeleteFunc(w.dispensable(), func(v *twinSeq) bool { return v.until > v.computed+v.fetched && v.age < q.age })
}

// sole is how many blocks only these sequences hold, except some.
func (w *twin) sole(of []*twinSeq, except []*twinBlock) int {
	var all []*twinBlock
	for _, q := range of {
		for _, b := range q.table {
			others := slices.ContainsFunc(w.holders(), func(o *twinSeq) bool { return !slices.Contains(of, o) && slices.Contains(o.table, b) })
			if !others && !slices.Contains(all, b) && !slices.Contains(except, b) {
				all = append(all, b)
			}
		}
	}
	return len(all)
}

func (w *twin) held(b *twinBlock) int {
	n := 0
	for _, q := range w.holders() {
		for _, have := range q.table {
			if have == b {
				n++
			}
		}
	}
	return n
}

func (w *twin) used() int {
	var distinct []*twinBlock
	for _, q := range w.holders() {
		for _, b := range q.table {
			if !slices.Contains(distinct, b) {
				distinct = append(distinct, b)
			}
		}
	}
	return len(distinct)
}

func (w *twin) idle() (idle []*twinBlock) {
	for _, b := range w.cache {
		if w.held(b) == 0 {
			idle = append(idle, b)
		}
	}
	return idle
}

// take makes room for one more held block.
func (w *twin) take() *twinBlock {
	idle := w.idle()
	if w.used()+len(idle) == w.cfg.Blocks {
		oldest := slices.MinFunc(idle, func(a, b *twinBlock) int { return a.released - b.released })
		w.cache = slices.DeleteFunc(w.cache, func(b *twinBlock) bool { return b == oldest })
		w.events = append(w.events, fmt.Sprintf("removed %x", oldest.seq))
		w.stats.Evictions++
	}
	return &twinBlock{}
}

func (w *twin) release(q *twinSeq) {
	for i := len(q.table) - 1; i >= 0; i-- {
		b := q.table[i]
		q.table = q.table[:i]
		if w.held(b) == 0 {
			w.clock++
			b.released = w.clock
		}
	}
	q.computed, q.planned, q.fetched, q.due, q.sealed, q.fetches = 0, 0, 0, false, false, false
}

func (w *twin) remove(id SeqID) bool {
	q := w.find(id)
	if q == nil {
		return false
	}
	w.release(q)
	same := func(o *twinSeq) bool { return o == q }
	w.running = slices.DeleteFunc(w.running, same)
	w.paused = slices.DeleteFunc(w.paused, same)
	w.kept = slices.DeleteFunc(w.kept, same)
	w.waiting = slices.DeleteFunc(w.waiting, same)
	return true
}

// path writes out everything on which K and V of the first n blocks depend.
func (w *twin) path(q *twinSeq, n int) string {
	end := n * w.cfg.BlockSize
	s := fmt.Sprintf("%q %v", q.Salt, q.tokens[:end])
	for _, m := range canonicalMedia(q.Media) {
		if m.Start < end && m.End > 0 {
			s += fmt.Sprint(m)
		}
	}
	return s
}

func (w *twin) chain(q *twinSeq) []kv.SeqHash {
	h, err := kv.NewHasher(w.cfg.BlockSize, q.Salt)
	if err != nil {
		panic(err)
	}
	return h.AppendSeqHashes(nil, q.tokens, q.Media)
}

func (w *twin) named(seq kv.SeqHash) *twinBlock {
	for _, b := range w.cache {
		if b.seq == seq {
			return b
		}
	}
	return nil
}

func (w *twin) resume() {
	for _, q := range slices.Clone(w.paused) {
		if w.can(q) > 0 && len(w.running) < w.cfg.MaxSeqs {
			w.paused = slices.DeleteFunc(w.paused, func(o *twinSeq) bool { return o == q })
			w.running = byAge(append(w.running, q))
		}
	}
}

func (w *twin) step(out *Step) {
	*out = Step{}
	for _, q := range w.running {
		q.planned = 0
	}
	w.resume()
	budget, short := w.cfg.TokenBudget, false
	room := func(q *twinSeq) int {
		return (len(q.table)+w.cfg.Blocks-w.used())*w.cfg.BlockSize - q.computed - q.fetched
	}
	give := func(q *twinSeq, n int) {
		for len(q.table)*w.cfg.BlockSize < q.computed+q.fetched+n {
			b := w.take()
			q.table = append(q.table, b)
		}
		q.planned = n
		budget -= n
	}
	preempt := func(v *twinSeq) {
		budget += v.planned
		w.remove(v.ID)
		if len(v.tokens) >= w.limit() {
			out.Failed = append(out.Failed, v.ID)
			return
		}
		v.goal = len(v.tokens)
		w.waiting = byAge(append(w.waiting, v))
		if i := slices.IndexFunc(out.Reserved, func(r Reservation) bool { return r.ID == v.ID }); i >= 0 {
			out.Reserved = slices.Delete(out.Reserved, i, i+1)
			return
		}
		v.reopen()
		v.until = 0
		short = short || !w.needs(v)
		w.stats.Preemptions++
		out.Preempted = append(out.Preempted, v.ID)
	}
	for _, q := range slices.Clone(w.running) {
		wants := len(q.tokens) < w.limit() && w.can(q) == 1
		for wants && slices.Contains(w.running, q) && room(q) < 1 {
			if of := w.dispensable(); len(of) > 0 {
				preempt(of[0])
			} else {
				all := w.growing()
				preempt(all[len(all)-1])
			}
		}
		switch {
		case !slices.Contains(w.running, q):
		case len(q.tokens) >= w.limit():
			out.Failed = append(out.Failed, q.ID)
			w.remove(q.ID)
		case w.can(q) == 1:
			give(q, 1)
		}
	}
	w.resume()
	for _, q := range slices.Clone(w.running) {
		n := w.can(q)
		if !slices.Contains(w.running, q) || n == 0 || q.planned > 0 || budget == 0 {
			continue
		}
		if w.cfg.Chunking == Off && n > budget { // nothing after it
			budget = 0
			break
		}
		part := min(n, budget)
		for of := w.dispensable(); len(of) > 0 && room(q) < part; of = w.dispensable() {
			preempt(of[0])
		}
		give(q, min(part, room(q)))
	}
	for _, q := range slices.Clone(w.waiting) {
		if short || budget == 0 {
			break
		}
		if slices.Contains(out.Preempted, q.ID) {
			continue
		}
		place := len(w.running) < w.cfg.MaxSeqs
		if !place && !w.needs(q) {
			break
		}
		var hits []*twinBlock
		if w.cfg.Reuse == On && q.Reuse == On {
			for i, seq := range w.chain(q) {
				b := w.named(seq)
				if b == nil || b.path != w.path(q, i+1) || (i+1)*w.cfg.BlockSize >= len(q.tokens) {
					break
				}
				hits = append(hits, b)
			}
		}
		fetch := 0
		if w.cfg.Remote != nil && w.cfg.Reuse == On && q.Reuse == On {
			for i, seq := range w.chain(q) {
				if i < len(hits) {
					continue
				}
				if (i+1)*w.cfg.BlockSize >= len(q.tokens) || w.named(seq) != nil || !w.cfg.Remote.Has(seq) {
					break
				}
				fetch++
			}
		}
		ready := (len(hits) + fetch) * w.cfg.BlockSize
		needs, n := w.encoding(q, ready)
		if q.LateTransfer && q.until > ready {
			needs, _ = w.encoding(q, q.until)
		}
		if !place && fetch > 0 && !needs {
			break
		}
		if !place && fetch > 0 {
			continue
		}
		if w.cfg.Chunking == Off && n > budget {
			break
		}
		lacks := func() int { // blocks, as if q had its hits
			need := w.cfg.blocksFor(len(q.tokens)) - len(hits)
			if slices.ContainsFunc(w.growing(), func(o *twinSeq) bool { return !w.needs(o) }) {
				need += w.cfg.Blocks / 100
			}
			q.table = hits
			w.running = append(w.running, q)
			need -= w.cfg.Blocks - w.used()
			q.table = nil
			w.running = w.running[:len(w.running)-1]
			return need
		}
		if of := w.dispensableFor(q); !needs && lacks() > 0 && lacks() <= w.sole(of, hits) {
			for ; lacks() > 0; of = of[1:] {
				preempt(of[0])
			}
			place = len(w.running) < w.cfg.MaxSeqs
		}
		if lacks() > 0 {
			if needs {
				if q.Reopens && q.until == 0 {
					out.PassedOver = append(out.PassedOver, PassedSequence{ID: q.ID, Ready: ready})
				}
				continue
			}
			break
		}
		w.waiting = slices.DeleteFunc(w.waiting, func(o *twinSeq) bool { return o == q })
		q.table = hits
		w.running = byAge(append(w.running, q))
		q.computed = len(hits) * w.cfg.BlockSize
		for range fetch {
			b := w.take()
			q.table = append(q.table, b)
		}
		q.fetched = fetch * w.cfg.BlockSize
		w.stats.FetchedTokens += uint64(q.fetched)
		if !q.ran {
			q.ran = true
			q.cached = min(q.computed+q.fetched, q.Prompt)
			w.stats.PromptTokens += uint64(q.Prompt)
			w.stats.CachedTokens += uint64(q.cached)
		}
		if len(q.Unfinished) > 0 || q.TransferEnd > 0 {
			out.Reserved = append(out.Reserved, Reservation{ID: q.ID, Ready: ready})
			for len(q.table) < w.cfg.blocksFor(len(q.tokens)) {
				b := w.take()
				q.table = append(q.table, b)
			}
		}
		if !place || n == 0 && fetch == 0 {
			w.running = slices.DeleteFunc(w.running, func(o *twinSeq) bool { return o == q })
			w.paused = byAge(append(w.paused, q))
			continue
		}
		q.fetches = n == 0
		give(q, min(n, budget))
	}
	for _, q := range w.running {
		if q.planned > 0 || q.fetches {
			start := q.computed + q.fetched
			end := start + q.planned
			out.Work = append(out.Work, Work{
				ID: q.ID, Start: start, Tokens: q.tokens[start:end],
				Blocks:  make([]int32, w.cfg.blocksFor(end)),
				Prefill: min(q.planned, max(0, q.goal-start)),
				Sample:  end == len(q.tokens) && !q.Hold, Cached: q.cached, Fetched: q.fetched,
			})
		}
	}
}

func (w *twin) commit(sampled []SampledToken) {
	for _, q := range slices.Clone(w.running) {
		before, worked := q.computed/w.cfg.BlockSize, q.planned > 0 || q.fetches
		if worked {
			for p := q.computed + q.fetched; p < q.computed+q.fetched+q.planned; p++ {
				if p < q.Prompt {
					w.stats.ComputedTokens++
				}
			}
			q.computed += q.fetched + q.planned
			q.fetched = 0
			q.due = q.computed == len(q.tokens)
		}
		q.planned, q.fetches = 0, false
		if worked && w.needs(q) && w.can(q) == 0 {
			w.running = slices.DeleteFunc(w.running, func(o *twinSeq) bool { return o == q })
			w.paused = byAge(append(w.paused, q))
		}
		if worked && q.Hold && q.due {
			q.due = false
			w.running = slices.DeleteFunc(w.running, func(o *twinSeq) bool { return o == q })
			w.kept = byAge(append(w.kept, q))
		}
		w.register(q, before)
	}
	for _, t := range sampled {
		if q := w.find(t.ID); q != nil && q.due {
			q.tokens = append(q.tokens, t.Token)
			q.due = false
		}
	}
}

// register registers the computed blocks of q from block i on.
func (w *twin) register(q *twinSeq, i int) {
	if w.cfg.Reuse == Off || q.Reuse == Off {
		return
	}
	chain := w.chain(q)
	for ; i < q.computed/w.cfg.BlockSize && !q.sealed; i++ {
		path := w.path(q, i+1)
		switch b := w.named(chain[i]); {
		case b == nil:
			b = q.table[i]
			b.registered, b.seq, b.path = true, chain[i], path
			w.cache = append(w.cache, b)
			w.events = append(w.events, fmt.Sprintf("stored %x", chain[i]))
		case b.path == path:
			q.table[i] = b
		default:
			q.sealed = true
			w.stats.Collisions++
		}
	}
}

func (w *twin) clear() int {
	n := len(w.cache)
	w.cache = nil
	for _, q := range w.holders() {
		q.sealed = true
	}
	w.events = []string{"cleared"}
	return n
}

func (w *twin) figures() Stats {
	st := w.stats
	st.Running, st.Waiting, st.Held = len(w.running), len(w.waiting)+len(w.paused), len(w.kept)
	for _, q := range slices.Concat(w.running, w.paused, w.waiting) {
		if w.needs(q) {
			st.Encoding++
		} else if slices.Contains(w.running, q) {
			st.Active++
		}
	}
	for _, q := range w.paused {
		st.ReservedBlocks += len(q.table) - w.cfg.blocksFor(q.computed)
	}
	st.UsedBlocks, st.CachedBlocks = w.used(), len(w.idle())
	st.FreeBlocks = w.cfg.Blocks - st.UsedBlocks - st.CachedBlocks
	for _, q := range slices.Concat(w.running, w.paused, w.waiting) {
		st.PrefillTokens += max(0, q.goal-max(q.computed+q.fetched, q.until))
	}
	return st
}
