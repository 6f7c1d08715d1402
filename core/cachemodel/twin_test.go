package cachemodel

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/kv"
)

// model is the interface of both models.
type model interface {
	StartRequest(*EngineRequest, []kv.Event) (Prediction, []kv.Event)
	ReportCached(Ticket, int, []kv.Event) []kv.Event
	AppendTokens(Ticket, []kv.Token, []kv.Event) []kv.Event
	FinishRequest(Ticket, []kv.Event) []kv.Event
	AbortRequest(Ticket, []kv.Event) []kv.Event
	Clear([]kv.Event) []kv.Event
	Describe([]kv.Event) []kv.Event
	Len() int
	Check() error
}

var (
	_ model = (*SlotModel)(nil)
	_ model = (*PagedModel)(nil)
)

// believed applies events to a set, and reports events which repeat known state.
func believed(t *testing.T, set map[kv.SeqHash]bool, events []kv.Event) {
	t.Helper()
	for _, e := range events {
		switch e.Kind {
		case kv.Cleared:
			clear(set)
		case kv.Stored:
			if e.Start > 0 && !set[e.Parent] {
				t.Fatalf("blocks stored after one that is not there: %+v", e)
			}
			if len(e.Blocks) == 0 {
				t.Fatal("nothing was stored")
			}
			seq := e.Parent
			for i, b := range e.Blocks {
				seq = kv.ExtendSeq(seq, e.Start+uint32(i), b)
				if set[seq] {
					t.Fatalf("stored twice: %+v", e)
				}
				set[seq] = true
			}
		case kv.Removed:
			for _, seq := range e.Seqs {
				if !set[seq] {
					t.Fatalf("removed what is not there: %+v", e)
				}
				delete(set, seq)
			}
		}
	}
}

// agree compares a model with the set made from its events and with its twin.
func agree(t *testing.T, m model, set, twin map[kv.SeqHash]bool, what string) {
	t.Helper()
	if err := m.Check(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !maps.Equal(set, twin) {
		t.Fatalf("%s: the events left %d blocks, the twin has %d", what, len(set), len(twin))
	}
	if m.Len() != len(twin) {
		t.Fatalf("%s: %d blocks, the twin has %d", what, m.Len(), len(twin))
	}
	described := map[kv.SeqHash]bool{}
	believed(t, described, m.Describe(nil))
	if !maps.Equal(described, twin) {
		t.Fatalf("%s: described as %d blocks, the twin has %d", what, len(described), len(twin))
	}
}

// draw creates requests which share prefixes.
type draw struct{ *rand.Rand }

func (d draw) request() *EngineRequest {
	r := &EngineRequest{Salt: kv.Salt{Namespace: []string{"", "", "x"}[d.IntN(3)]}}
	// A few prefixes, cut anywhere, each with its own endings.
	stem := d.IntN(3)
	for i := range d.IntN(30) {
		r.Tokens = append(r.Tokens, kv.Token(100*stem+i/7*d.IntN(2)))
	}
	r.Tokens = append(r.Tokens, d.tokens(1+d.IntN(6))...)
	if d.IntN(4) == 0 {
		start := d.IntN(len(r.Tokens))
		r.Media = []kv.Media{{Hash: uint64(d.IntN(2)), Start: start, End: start + 3}}
	}
	return r
}

func (d draw) tokens(n int) []kv.Token {
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = kv.Token(d.IntN(2))
	}
	return tokens
}

// prefixes returns the hashes of the full blocks of the first n tokens, computed naively.
func prefixes(size int, r *EngineRequest, n int) []kv.SeqHash {
	h, err := kv.NewHasher(size, r.Salt)
	if err != nil {
		panic(err)
	}
	return h.AppendSeqHashes(nil, r.Tokens[:n], r.Media)
}

// twinBlocks is the naive twin of PagedModel: lists with linear search.
type twinBlocks struct {
	size, capacity int
	clock          int
	blocks         []*twinBlock
	open           []*twinRequest
	parents        map[kv.SeqHash]kv.SeqHash // which prefix extends which, for all prefixes so far
}

type twinBlock struct {
	seq   kv.SeqHash
	depth int
	left  int
}

type twinRequest struct {
	ticket   Ticket
	r        EngineRequest
	prompt   int
	found    int
	began    int
	computed bool
	full     bool
	path     []*twinBlock
}

func (w *twinBlocks) find(seq kv.SeqHash) *twinBlock {
	for _, b := range w.blocks {
		if b.seq == seq {
			return b
		}
	}
	return nil
}

func (w *twinBlocks) used(b *twinBlock) bool {
	return slices.ContainsFunc(w.open, func(q *twinRequest) bool { return slices.Contains(q.path, b) })
}

// evict removes the unused block which was released first, deep ones first.
func (w *twinBlocks) evict() bool {
	var idle []*twinBlock
	for _, b := range w.blocks {
		if !w.used(b) {
			idle = append(idle, b)
		}
	}
	if len(idle) == 0 {
		return false
	}
	victim := slices.MinFunc(idle, func(a, b *twinBlock) int {
		return cmp.Or(cmp.Compare(a.left, b.left), cmp.Compare(b.depth, a.depth))
	})
	w.blocks = slices.DeleteFunc(w.blocks, func(b *twinBlock) bool { return b == victim })
	return true
}

func (w *twinBlocks) begin(t Ticket, r *EngineRequest) int {
	w.clock++
	q := &twinRequest{ticket: t, r: *r, prompt: len(r.Tokens), began: w.clock}
	q.r.Tokens = slices.Clone(r.Tokens)
	for _, seq := range prefixes(w.size, r, len(r.Tokens)) {
		b := w.find(seq)
		if b == nil {
			break
		}
		q.path = append(q.path, b)
	}
	q.found = min(len(q.path)*w.size, (len(r.Tokens)-1)/w.size*w.size)
	w.open = append(w.open, q)
	return q.found
}

// extend stores the blocks of the first n tokens.
func (w *twinBlocks) extend(q *twinRequest, n int) {
	seqs := prefixes(w.size, &q.r, n)
	for len(q.path) < len(seqs) && !q.full {
		depth := len(q.path)
		b := w.find(seqs[depth])
		if b == nil {
			if len(w.blocks) >= w.capacity && !w.evict() {
				q.full = true
				return
			}
			b = &twinBlock{seq: seqs[depth], depth: depth}
			w.blocks = append(w.blocks, b)
		}
		q.path = append(q.path, b)
	}
}

func (w *twinBlocks) compute(q *twinRequest) {
	w.extend(q, max(q.prompt, len(q.r.Tokens)-1))
	q.computed = true
}

func (w *twinBlocks) report(q *twinRequest, cached int) {
	if cached >= q.found {
		w.extend(q, min(cached, q.prompt))
		return
	}
	q.found = cached
	// Everything which follows, unless a request used it since.
	root := q.path[cached/w.size]
	beneath := map[kv.SeqHash]bool{root.seq: true}
	for changed := true; changed; {
		changed = false
		for _, b := range w.blocks {
			if p, ok := w.parents[b.seq]; ok && beneath[p] && !beneath[b.seq] {
				beneath[b.seq], changed = true, true
			}
		}
	}
	w.blocks = slices.DeleteFunc(w.blocks, func(b *twinBlock) bool {
		return b != root && beneath[b.seq] && !w.used(b) && b.left < q.began
	})
}

func (w *twinBlocks) end(q *twinRequest) {
	w.clock++
	w.open = slices.DeleteFunc(w.open, func(o *twinRequest) bool { return o == q })
	for _, b := range q.path {
		b.left = w.clock
	}
	w.shrink()
}

func (w *twinBlocks) shrink() {
	for len(w.blocks) > w.capacity && w.evict() {
	}
}

func (w *twinBlocks) set() map[kv.SeqHash]bool {
	set := map[kv.SeqHash]bool{}
	for _, b := range w.blocks {
		set[b.seq] = true
	}
	return set
}

func (w *twinBlocks) remember(r *EngineRequest) {
	seqs := prefixes(w.size, r, len(r.Tokens))
	for i := 1; i < len(seqs); i++ {
		w.parents[seqs[i]] = seqs[i-1]
	}
}

func TestBlocksTwin(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			d := draw{rand.New(rand.NewPCG(seed, 1))}
			w := &twinBlocks{size: 2 + d.IntN(3), capacity: 4 + d.IntN(40), parents: map[kv.SeqHash]kv.SeqHash{}}
			m, err := NewPagedModel(PagedConfig{BlockSize: w.size, Capacity: w.capacity, MaxRequests: 8})
			if err != nil {
				t.Fatal(err)
			}
			set := map[kv.SeqHash]bool{}
			for step := range 600 {
				var events []kv.Event
				op := d.IntN(20)
				what := fmt.Sprintf("step %d, op %d", step, op)
				var q *twinRequest
				if len(w.open) > 0 {
					q = w.open[d.IntN(len(w.open))]
				}
				switch {
				case op < 6 && len(w.open) < 8:
					r := d.request()
					w.remember(r)
					var begun Prediction
					begun, events = m.StartRequest(r, nil)
					if want := w.begin(begun.Ticket, r); begun.Cached != want || begun.Ticket == 0 || begun.Slot != -1 {
						t.Fatalf("%s: %+v, the twin found %d tokens", what, begun, want)
					}
				case op == 18 && d.IntN(20) == 0:
					events = m.Clear(nil)
					w.blocks, w.open = nil, nil
				case q == nil:
				case op < 11:
					more := d.tokens(1 + d.IntN(8))
					events = m.AppendTokens(q.ticket, more, nil)
					w.compute(q)
					q.r.Tokens = append(q.r.Tokens, more...)
					w.remember(&q.r)
					w.compute(q)
				case op < 14:
					cached := d.IntN(q.prompt)
					events = m.ReportCached(q.ticket, cached, nil)
					w.report(q, cached)
				case op < 17:
					events = m.FinishRequest(q.ticket, nil)
					w.compute(q)
					w.end(q)
				default:
					events = m.AbortRequest(q.ticket, nil)
					w.end(q)
					if got := m.FinishRequest(q.ticket, nil); len(got) != 0 {
						t.Fatalf("%s: a ticket that ended changes something", what)
					}
				}
				believed(t, set, events)
				agree(t, m, set, w.set(), what)
			}
		})
	}
}

// twinSlots is the naive twin of SlotModel: it keeps only the sequences.
type twinSlots struct {
	size, context int
	clock         int
	slots         []twinSlot
	open          []*twinSlotRequest
}

type twinSlot struct {
	r    EngineRequest
	busy *twinSlotRequest
	used int
}

type twinSlotRequest struct {
	ticket   Ticket
	r        EngineRequest
	slot     int
	computed bool
}

// common counts the leading tokens which are equal, with equal media.
func common(a, b *EngineRequest) int {
	if a.Salt != b.Salt {
		return 0
	}
	n := 0
	for n < len(a.Tokens) && n < len(b.Tokens) && a.Tokens[n] == b.Tokens[n] {
		begins := func(r *EngineRequest) (m []kv.Media) {
			for _, o := range r.Media {
				if o.Start == n {
					m = append(m, o)
				}
			}
			return m
		}
		if !slices.Equal(begins(a), begins(b)) {
			break
		}
		n++
	}
	return n
}

func (w *twinSlots) pick(r *EngineRequest) (int, int) {
	best, at := 0, -1
	for i, s := range w.slots {
		n := common(&s.r, r)
		if s.busy == nil && n > best && float64(n) > 0.1*float64(len(r.Tokens)) {
			best, at = n, i
		}
	}
	if at >= 0 {
		return at, best
	}
	for i, s := range w.slots {
		if s.busy == nil && (at < 0 || s.used <= w.slots[at].used) {
			at = i
		}
	}
	if at >= 0 {
		best = common(&w.slots[at].r, r)
	}
	return at, best
}

func (w *twinSlots) begin(t Ticket, r *EngineRequest) (slot, cached int) {
	q := &twinSlotRequest{ticket: t, r: *r, slot: -1}
	q.r.Tokens = slices.Clone(r.Tokens)
	if !slices.ContainsFunc(w.open, func(q *twinSlotRequest) bool { return q.slot < 0 }) {
		q.slot, cached = w.pick(r)
	}
	if q.slot >= 0 {
		w.slots[q.slot].busy = q
		cached = min(cached, len(r.Tokens)-1)
	}
	w.open = append(w.open, q)
	return q.slot, cached
}

func (w *twinSlots) place(q *twinSlotRequest, at int) {
	if at == q.slot {
		return
	}
	if q.slot >= 0 {
		w.slots[q.slot].busy = nil
	}
	if o := w.slots[at].busy; o != nil {
		o.slot = -1
	}
	w.slots[at].busy, q.slot = q, at
}

func (w *twinSlots) compute(q *twinSlotRequest) {
	q.computed = true
	if q.slot < 0 {
		if at, _ := w.pick(&q.r); at >= 0 {
			w.place(q, at)
		}
	}
}

func (w *twinSlots) end(q *twinSlotRequest) {
	w.open = slices.DeleteFunc(w.open, func(o *twinSlotRequest) bool { return o == q })
	if q.slot < 0 {
		return
	}
	s := &w.slots[q.slot]
	w.clock++
	n := len(q.r.Tokens) - 1
	if !q.computed {
		n = common(&s.r, &q.r)
	}
	s.r, s.used, s.busy = q.r, w.clock, nil
	s.r.Tokens = s.r.Tokens[:n]
	s.r.Media = slices.DeleteFunc(slices.Clone(s.r.Media), func(m kv.Media) bool { return m.Start >= n })
}

func (w *twinSlots) set() map[kv.SeqHash]bool {
	set := map[kv.SeqHash]bool{}
	for _, s := range w.slots {
		if s.busy == nil {
			for _, seq := range prefixes(w.size, &s.r, len(s.r.Tokens)) {
				set[seq] = true
			}
		}
	}
	return set
}

func TestSlotsTwin(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			d := draw{rand.New(rand.NewPCG(seed, 2))}
			w := &twinSlots{size: 2 + d.IntN(3), context: 64, slots: make([]twinSlot, 1+d.IntN(5))}
			m, err := NewSlotModel(SlotConfig{BlockSize: w.size, Slots: len(w.slots), Context: w.context})
			if err != nil {
				t.Fatal(err)
			}
			set := map[kv.SeqHash]bool{}
			for step := range 600 {
				var events []kv.Event
				op := d.IntN(20)
				what := fmt.Sprintf("step %d, op %d", step, op)
				var q *twinSlotRequest
				if len(w.open) > 0 {
					q = w.open[d.IntN(len(w.open))]
				}
				switch {
				case op < 6 && len(w.open) < 8:
					r := d.request()
					var begun Prediction
					begun, events = m.StartRequest(r, nil)
					slot, cached := w.begin(begun.Ticket, r)
					if begun.Slot != slot || begun.Cached != cached || begun.Ticket == 0 {
						t.Fatalf("%s: %+v, the twin has slot %d and %d tokens", what, begun, slot, cached)
					}
				case op == 19 && d.IntN(20) == 0:
					events = m.Clear(nil)
					w.open, w.slots = nil, make([]twinSlot, len(w.slots))
				case q == nil:
				case op < 10:
					more := d.tokens(1 + d.IntN(8))
					events = m.AppendTokens(q.ticket, more, nil)
					w.compute(q)
					q.r.Tokens = append(q.r.Tokens, more...)
					q.r.Tokens = q.r.Tokens[:min(len(q.r.Tokens), w.context)]
				case op < 13:
					at := d.IntN(len(w.slots))
					events = m.ReportSlot(q.ticket, at, nil)
					w.place(q, at)
				case op < 14:
					events = m.ReportCached(q.ticket, d.IntN(5), nil)
				case op < 17:
					events = m.FinishRequest(q.ticket, nil)
					w.compute(q)
					w.end(q)
				default:
					events = m.AbortRequest(q.ticket, nil)
					w.end(q)
				}
				believed(t, set, events)
				agree(t, m, set, w.set(), what)
			}
		})
	}
}
