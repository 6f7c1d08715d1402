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
	running []*twinSeq
	waiting []*twinSeq
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
}

type twinBlock struct {
	path       string // the whole prefix, with salt and media
	seq        kv.SeqHash
	registered bool
	released   int // when the last holder released it
}

func (w *twin) limit() int { return min(w.cfg.MaxContext, w.cfg.Blocks*w.cfg.BlockSize) }

func (w *twin) find(id SeqID) *twinSeq {
	for _, q := range slices.Concat(w.running, w.waiting) {
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
	w.waiting = append(w.waiting, &twinSeq{Sequence: seq, tokens: slices.Clone(seq.Tokens), goal: n})
	return true
}

func (w *twin) held(b *twinBlock) int {
	n := 0
	for _, q := range w.running {
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
	for _, q := range w.running {
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
	q.computed, q.planned, q.fetched, q.due, q.sealed = 0, 0, 0, false, false
}

func (w *twin) remove(id SeqID) bool {
	q := w.find(id)
	if q == nil {
		return false
	}
	w.release(q)
	same := func(o *twinSeq) bool { return o == q }
	w.running = slices.DeleteFunc(w.running, same)
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

func (w *twin) step(out *Step) {
	*out = Step{}
	for _, q := range w.running {
		q.planned = 0
	}
	budget := w.cfg.TokenBudget
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
	for _, q := range slices.Clone(w.running) {
		wants := len(q.tokens) < w.limit() && len(q.tokens)-q.computed-q.fetched == 1
		for wants && slices.Contains(w.running, q) && room(q) < 1 {
			v := w.running[len(w.running)-1]
			w.remove(v.ID)
			if len(v.tokens) >= w.limit() {
				out.Failed = append(out.Failed, v.ID)
				continue
			}
			v.goal = len(v.tokens)
			w.waiting = slices.Insert(w.waiting, 0, v)
			w.stats.Preemptions++
			out.Preempted = append(out.Preempted, v.ID)
		}
		switch {
		case !slices.Contains(w.running, q):
		case len(q.tokens) >= w.limit():
			out.Failed = append(out.Failed, q.ID)
			w.remove(q.ID)
		case len(q.tokens)-q.computed-q.fetched == 1:
			give(q, 1)
		}
	}
	for _, q := range w.running {
		n := len(q.tokens) - q.computed - q.fetched
		if n <= 1 || budget == 0 {
			continue
		}
		give(q, min(n, budget, room(q)))
		if q.planned < n { // no sequence after it
			budget = 0
		}
	}
	for len(out.Preempted) == 0 && budget > 0 && len(w.waiting) > 0 && len(w.running) < w.cfg.MaxSeqs {
		q := w.waiting[0]
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
		n := len(q.tokens) - (len(hits)+fetch)*w.cfg.BlockSize
		if w.cfg.Chunking == Off && n > budget {
			break
		}
		q.table = hits
		w.running = append(w.running, q)
		need := w.cfg.blocksFor(len(q.tokens)) - len(hits)
		if len(w.running) > 1 {
			need += w.cfg.Blocks / 100
		}
		if need > w.cfg.Blocks-w.used() {
			q.table = nil
			w.running = w.running[:len(w.running)-1]
			break
		}
		w.waiting = w.waiting[1:]
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
		give(q, min(n, budget))
	}
	for _, q := range w.running {
		if q.planned > 0 {
			start := q.computed + q.fetched
			end := start + q.planned
			out.Work = append(out.Work, Work{
				ID: q.ID, Start: start, Tokens: q.tokens[start:end],
				Blocks:  make([]int32, w.cfg.blocksFor(end)),
				Prefill: min(q.planned, max(0, q.goal-start)),
				Sample:  end == len(q.tokens), Cached: q.cached, Fetched: q.fetched,
			})
		}
	}
}

func (w *twin) commit(sampled []SampledToken) {
	for _, q := range w.running {
		before := q.computed / w.cfg.BlockSize
		if q.planned > 0 {
			q.computed += q.fetched + q.planned
			q.fetched = 0
			q.due = q.computed == len(q.tokens)
		}
		q.planned = 0
		if w.cfg.Reuse == Off || q.Reuse == Off {
			continue
		}
		chain := w.chain(q)
		for i := before; i < q.computed/w.cfg.BlockSize && !q.sealed; i++ {
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
	for _, t := range sampled {
		if q := w.find(t.ID); q != nil && q.due {
			q.tokens = append(q.tokens, t.Token)
			q.due = false
		}
	}
}

func (w *twin) clear() int {
	n := len(w.cache)
	w.cache = nil
	for _, q := range w.running {
		q.sealed = true
	}
	w.events = []string{"cleared"}
	return n
}

func (w *twin) figures() Stats {
	st := w.stats
	st.Running, st.Waiting = len(w.running), len(w.waiting)
	st.UsedBlocks, st.CachedBlocks = w.used(), len(w.idle())
	st.FreeBlocks = w.cfg.Blocks - st.UsedBlocks - st.CachedBlocks
	for _, q := range slices.Concat(w.running, w.waiting) {
		st.PrefillTokens += max(0, q.goal-q.computed-q.fetched)
	}
	return st
}
