package feed_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
)

// held is a worker's cache: what each held prefix ends in.
type held map[kv.SeqHash]link

type link struct {
	parent kv.SeqHash
	start  uint32
	block  kv.BlockHash
}

// apply is what an event means, in the plainest form.
func (h held) apply(ev kv.Event) {
	switch ev.Kind {
	case kv.Stored:
		parent := ev.Parent
		for i, b := range ev.Blocks {
			start := ev.Start + uint32(i)
			seq := kv.Extend(parent, start, b)
			h[seq] = link{parent, start, b}
			parent = seq
		}
	case kv.Removed:
		for _, seq := range ev.Seqs {
			delete(h, seq)
		}
	case kv.Cleared:
		clear(h)
	}
}

// sorted returns the held prefixes, shortest first.
func (h held) sorted() []kv.SeqHash {
	return slices.SortedFunc(maps.Keys(h), func(a, b kv.SeqHash) int {
		return cmp.Or(cmp.Compare(h[a].start, h[b].start), cmp.Compare(a, b))
	})
}

// publisher is a model worker: a cache that changes at random, and the events
// that it published with what they added up to after each.
type publisher struct {
	rng     *rand.Rand
	id      kv.Worker
	epoch   uint64
	next    uint64
	cache   held
	told    held
	history map[uint64]map[uint64]held // epoch, sequence number: what was told
	batch   []kv.Event
	send    func([]byte)
}

// start begins a new life with an empty cache.
func (p *publisher) start() {
	p.epoch++
	p.next, p.cache, p.told, p.batch = 1, held{}, held{}, nil
	p.history[p.epoch] = map[uint64]held{}
	p.emit(kv.Event{Kind: kv.Cleared})
	p.flush()
}

func (p *publisher) emit(ev kv.Event) { p.batch = append(p.batch, ev) }

func (p *publisher) flush() {
	r := &feed.Record{Worker: p.id, Epoch: p.epoch, First: p.next, BlockSize: 16, Events: p.batch}
	for _, ev := range p.batch {
		p.told.apply(ev)
		p.history[p.epoch][p.next] = maps.Clone(p.told)
		p.next++
	}
	p.batch = nil
	p.send(feed.AppendRecord(nil, r))
}

// change does something to the cache and says so.
func (p *publisher) change() {
	keys := p.cache.sorted()
	ev := kv.Event{Kind: kv.Stored}
	switch n := p.rng.IntN(20); {
	case n == 0:
		ev = kv.Event{Kind: kv.Cleared}
	case n < 8 && len(keys) > 0:
		// Of any block, so that holes and blocks after holes come about.
		ev = kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{keys[p.rng.IntN(len(keys))]}}
	default:
		if len(keys) > 0 && p.rng.IntN(3) > 0 {
			ev.Parent = keys[p.rng.IntN(len(keys))]
			ev.Start = p.cache[ev.Parent].start + 1
		}
		for range 1 + p.rng.IntN(3) {
			ev.Blocks = append(ev.Blocks, kv.BlockHash(1+p.rng.IntN(5)))
		}
	}
	p.cache.apply(ev)
	p.emit(ev)
	if p.rng.IntN(2) == 0 {
		p.flush()
	}
}

// resync describes the whole cache again.
func (p *publisher) resync() {
	p.flush()
	p.emit(kv.Event{Kind: kv.Cleared})
	for _, seq := range p.cache.sorted() {
		l := p.cache[seq]
		p.emit(kv.Event{Kind: kv.Stored, Start: l.start, Parent: l.parent, Blocks: []kv.BlockHash{l.block}})
		if p.rng.IntN(4) == 0 {
			p.flush()
		}
	}
	p.flush()
}

// wire loses, repeats and delays messages while it is bad.
type wire struct {
	rng   *rand.Rand
	bad   bool
	queue [][]byte
	past  [][]byte // what was sent lately
}

func (w *wire) send(data []byte) {
	copies := 1
	if w.bad {
		switch n := w.rng.IntN(20); {
		case n < 2:
			copies = 0
		case n < 5:
			copies = 2
		}
	}
	for range copies {
		w.queue = append(w.queue, data)
	}
	if w.bad && w.rng.IntN(20) == 0 && len(w.past) > 0 {
		w.queue = append(w.queue, w.past[w.rng.IntN(len(w.past))])
	}
	w.past = append(w.past, data)
	w.past = w.past[max(0, len(w.past)-50):]
}

// receive takes one of the oldest messages; the oldest one when the wire is good.
func (w *wire) receive() ([]byte, bool) {
	if len(w.queue) == 0 {
		return nil, false
	}
	i := 0
	if w.bad && w.rng.IntN(8) == 0 {
		i = w.rng.IntN(min(4, len(w.queue)))
	}
	data := w.queue[i]
	w.queue = slices.Delete(w.queue, i, i+1)
	return data, true
}

// world is a few workers, one wire, and a router's side of it.
type world struct {
	t       *testing.T
	seed    uint64
	now     kv.Mono
	wire    *wire
	workers []*publisher
	tracker *feed.Tracker
	index   *prefix.Index
	record  feed.Record
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	tracker, err := feed.NewTracker(feed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	index, err := prefix.New(prefix.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, seed: seed, wire: &wire{rng: rng, bad: true}, tracker: tracker, index: index}
	for i := range 3 {
		p := &publisher{
			rng: rng, id: kv.Worker{ID: 10, Rank: uint32(i)}, send: w.wire.send,
			history: map[uint64]map[uint64]held{},
		}
		p.start()
		w.workers = append(w.workers, p)
	}
	return w
}

func (w *world) publisher(id kv.Worker) *publisher {
	return w.workers[slices.IndexFunc(w.workers, func(p *publisher) bool { return p.id == id })]
}

// ask carries a request for a resync to its worker, if it is not lost.
func (w *world) ask(id kv.Worker) {
	if !w.wire.bad || w.wire.rng.IntN(3) > 0 {
		w.publisher(id).resync()
	}
}

// deliver passes one message through the tracker to the index, and then compares
// every worker's entries with what that worker had told.
func (w *world) deliver() bool {
	data, ok := w.wire.receive()
	if !ok {
		return false
	}
	if err := feed.DecodeRecord(&w.record, data); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	r := &w.record
	v := w.tracker.Accept(w.now, r)
	if v.Drop {
		w.index.Drop(r.Worker)
	}
	if v.Outcome == feed.Apply {
		for _, ev := range r.Events[v.Skip:] {
			w.index.Apply(r.Worker, ev)
		}
	}
	if v.Resync {
		w.ask(r.Worker)
	}
	w.check()
	return true
}

func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	for _, id := range w.tracker.Due(w.now, nil) {
		w.ask(id)
	}
}

func (w *world) check() {
	if err := w.tracker.Check(); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	for _, p := range w.workers {
		got := w.index.AppendBlocks(nil, p.id)
		h, known := w.tracker.Health(p.id)
		if !known || h.State == feed.Doubt {
			if len(got) > 0 {
				w.t.Fatalf("seed %d: the index has %d blocks of worker %v, which is in doubt", w.seed, len(got), p.id)
			}
			continue
		}
		want := p.history[h.Epoch][h.LastSeq]
		if len(got) != len(want) {
			w.t.Fatalf("seed %d: worker %v at %d: %d blocks, was told %d", w.seed, p.id, h.LastSeq, len(got), len(want))
		}
		for _, b := range got {
			if _, ok := want[b.Seq]; !ok {
				w.t.Fatalf("seed %d: worker %v at %d: block %x was not told", w.seed, p.id, h.LastSeq, b.Seq)
			}
		}
	}
	if err := w.index.Check(); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
}

// settle lets the wire be good and the workers say nothing new but where they
// are, until the index knows all.
func (w *world) settle() {
	w.wire.bad = false
	for range 10 {
		for _, p := range w.workers {
			p.flush() // what is left over, or an empty record
		}
		for w.deliver() {
		}
		w.tick(30 * time.Second)
		for w.deliver() {
		}
	}
	for _, p := range w.workers {
		h, _ := w.tracker.Health(p.id)
		if h.State != feed.Live || h.Epoch != p.epoch || h.LastSeq != p.next-1 {
			w.t.Fatalf("seed %d: worker %v is at epoch %d, %d, its feed is %+v", w.seed, p.id, p.epoch, p.next-1, h)
		}
		got := w.index.AppendBlocks(nil, p.id)
		if len(got) != len(p.cache) {
			w.t.Fatalf("seed %d: worker %v holds %d blocks, the index says %d", w.seed, p.id, len(p.cache), len(got))
		}
		for _, b := range got {
			if _, ok := p.cache[b.Seq]; !ok {
				w.t.Fatalf("seed %d: worker %v does not hold %x", w.seed, p.id, b.Seq)
			}
		}
	}
}

// TestBadWire publishes over a wire that loses, repeats and reorders, with workers
// that restart and requests that get lost. At every moment the index has exactly
// what a worker had told up to the event that its feed is at, or nothing; and when
// the wire is good again, it comes to have what the workers hold.
func TestBadWire(t *testing.T) {
	var total feed.Health
	for seed := range uint64(60) {
		w := newWorld(t, seed)
		for range 400 {
			p := w.workers[w.wire.rng.IntN(len(w.workers))]
			if w.wire.rng.IntN(150) == 0 {
				p.start()
			} else {
				p.change()
			}
			for range w.wire.rng.IntN(3) {
				w.deliver()
			}
			w.tick(time.Duration(w.wire.rng.IntN(200)) * time.Millisecond)
		}
		w.settle()
		for _, h := range w.tracker.AppendHealth(nil) {
			total.Applied += h.Applied
			total.Gaps += h.Gaps
			total.Duplicates += h.Duplicates
			total.Ignored += h.Ignored
			total.Stale += h.Stale
			total.Resyncs += h.Resyncs
		}
	}
	t.Logf("%+v", total)
	if min(total.Applied, total.Gaps, total.Duplicates, total.Ignored, total.Stale, total.Resyncs) < 20 {
		t.Errorf("the wire is not bad enough to show anything: %+v", total)
	}
}
