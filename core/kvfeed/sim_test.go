package kvfeed_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
)

// held is a cache: the last block of each held prefix.
type held map[kv.SeqHash]link

type link struct {
	parent kv.SeqHash
	start  uint32
	block  kv.BlockHash
}

// apply applies an event in the plainest form.
func (h held) apply(ev kv.Event) {
	switch ev.Kind {
	case kv.Stored:
		parent := ev.Parent
		for i, b := range ev.Blocks {
			start := ev.Start + uint32(i)
			seq := kv.ExtendSeq(parent, start, b)
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

// publisher is a model worker: a cache which changes at random, the published events with the state of the
// cache after each, and the requests of routers.
type publisher struct {
	w       *world
	id      kv.Worker
	epoch   uint64
	next    uint64 // counted independently of log
	cache   held
	told    held
	history map[uint64]map[uint64]held // epoch, sequence number: the published state
	batch   []kv.Event
	log     *kvfeed.EventLog[[]byte]
	asked   []kvfeed.ResyncRequest // and not answered
}

// start starts a new epoch with an empty cache.
func (p *publisher) start() {
	p.epoch++
	p.next, p.cache, p.told, p.batch, p.asked = 1, held{}, held{}, nil, nil
	p.history[p.epoch] = map[uint64]held{0: {}}
	log, err := kvfeed.NewEventLog[[]byte](kvfeed.LogConfig{Events: p.w.ring}, p.epoch)
	if err != nil {
		p.w.t.Fatal(err)
	}
	p.log = log
	p.describe()
}

func (p *publisher) emit(ev kv.Event) { p.batch = append(p.batch, ev) }

func (p *publisher) flush() {
	r := &kvfeed.Record{Worker: p.id, Epoch: p.epoch, First: p.next, BlockSize: 16, Events: p.batch}
	for _, ev := range p.batch {
		p.told.apply(ev)
		p.history[p.epoch][p.next] = maps.Clone(p.told)
		p.next++
	}
	data := kvfeed.AppendRecord(nil, r)
	if len(p.batch) > 0 {
		p.log.AddRecord(len(p.batch), len(data), data)
	}
	if p.log.Next() != p.next {
		p.w.fatalf("worker %v is at %d, its log at %d", p.id, p.next, p.log.Next())
	}
	p.batch = nil
	p.w.publish(data)
}

// change changes the cache and publishes the event.
func (p *publisher) change() {
	rng := p.w.rng
	keys := p.cache.sorted()
	ev := kv.Event{Kind: kv.Stored}
	switch n := rng.IntN(40); {
	case n == 0:
		ev = kv.Event{Kind: kv.Cleared}
	case n < 16 && len(keys) > 0:
		// Any block, so that gaps and blocks after gaps occur.
		ev = kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{keys[rng.IntN(len(keys))]}}
	default:
		if len(keys) > 0 && rng.IntN(3) > 0 {
			ev.Parent = keys[rng.IntN(len(keys))]
			ev.Start = p.cache[ev.Parent].start + 1
		}
		for range 1 + rng.IntN(3) {
			ev.Blocks = append(ev.Blocks, kv.BlockHash(1+rng.IntN(5)))
		}
	}
	p.cache.apply(ev)
	p.emit(ev)
	if rng.IntN(2) == 0 {
		p.flush()
	}
}

// describe publishes the whole cache.
func (p *publisher) describe() {
	if len(p.batch) > 0 {
		p.flush()
	}
	p.log.StartDescription(p.w.now)
	p.asked = nil
	p.emit(kv.Event{Kind: kv.Cleared})
	for _, seq := range p.cache.sorted() {
		l := p.cache[seq]
		p.emit(kv.Event{Kind: kv.Stored, Start: l.start, Parent: l.parent, Blocks: []kv.BlockHash{l.block}})
		if p.w.rng.IntN(4) == 0 {
			p.flush()
		}
	}
	p.flush()
}

// kept reports whether a request can be answered from the last events, by counting them.
func (p *publisher) kept(q kvfeed.ResyncRequest) bool {
	return q.Epoch == p.epoch && q.From > 0 && q.From <= p.next && p.next-q.From <= uint64(p.w.ring)
}

// answer publishes the log's answers, and compares them with the requests: a description must answer a
// request which nothing less answers, and a repetition all others.
func (p *publisher) answer() {
	at, ok := p.log.Deadline()
	if ok != (len(p.asked) > 0) {
		p.w.fatalf("worker %v was asked %v, its log has something to say: %t", p.id, p.asked, ok)
	}
	if !ok || at > p.w.now {
		return
	}
	a := p.log.NextAnswer(p.w.now)
	switch {
	case a.Describe:
		// The log may keep a few more: those at the start of the oldest kept record.
		if !slices.ContainsFunc(p.asked, func(q kvfeed.ResyncRequest) bool { return !p.kept(q) }) {
			p.w.fatalf("worker %v describes its cache at %d for %v", p.id, p.next, p.asked)
		}
		p.w.descriptions++
		p.describe()
	case a.Repeat:
		for _, q := range p.asked {
			if p.kept(q) && q.From < a.From {
				p.w.fatalf("worker %v repeats from %d for %v", p.id, a.From, q)
			}
		}
		p.asked = slices.DeleteFunc(p.asked, func(q kvfeed.ResyncRequest) bool { return q.Epoch == p.epoch && q.From >= a.From })
		p.w.repetitions++
		records := p.log.AppendRecords(nil, a.From)
		if len(records) == 0 {
			if a.From != p.next {
				p.w.fatalf("worker %v at %d repeats nothing from %d", p.id, p.next, a.From)
			}
			records = append(records, kvfeed.AppendRecord(nil, &kvfeed.Record{Worker: p.id, Epoch: p.epoch, First: p.next, BlockSize: 16}))
		}
		var first kvfeed.Record
		if err := kvfeed.DecodeRecord(&first, records[0]); err != nil || first.First > a.From {
			p.w.fatalf("worker %v repeats %d instead of %d, %v", p.id, first.First, a.From, err)
		}
		for _, data := range records {
			p.w.publish(data)
		}
	}
}

// letter is a message with its time of arrival.
type letter struct {
	at   kv.Mono
	from kv.Worker // for requests: the destination
	data []byte
}

// wire carries messages to one receiver. While it is bad it loses, repeats and delays messages, so that they
// are reordered.
type wire struct {
	w     *world
	queue []letter // by time
	past  []letter // sent recently
}

func (x *wire) send(l letter) {
	rng, copies := x.w.rng, 1
	if x.w.bad {
		switch n := rng.IntN(100); {
		case n < x.w.loss:
			copies = 0
		case n < x.w.loss+10:
			copies = 2
		}
	}
	for range copies {
		l.at = x.w.now.Add(time.Millisecond)
		if x.w.bad && rng.IntN(10) == 0 {
			l.at = l.at.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
		x.put(l)
	}
	if x.w.bad && rng.IntN(20) == 0 && len(x.past) > 0 {
		old := x.past[rng.IntN(len(x.past))]
		old.at = x.w.now
		x.put(old)
	}
	x.past = append(x.past, l)
	x.past = x.past[max(0, len(x.past)-50):]
}

func (x *wire) put(l letter) {
	at := len(x.queue)
	for at > 0 && x.queue[at-1].at > l.at {
		at--
	}
	x.queue = slices.Insert(x.queue, at, l)
}

func (x *wire) receive() (letter, bool) {
	if len(x.queue) == 0 || x.queue[0].at > x.w.now {
		return letter{}, false
	}
	l := x.queue[0]
	x.queue = slices.Delete(x.queue, 0, 1)
	return l, true
}

// view is what a router would match: the simplest index.
type view struct {
	held   map[kv.Worker]held
	hidden map[kv.Worker]bool
}

func (v *view) clone() *view {
	c := &view{held: map[kv.Worker]held{}, hidden: maps.Clone(v.hidden)}
	for w, h := range v.held {
		c.held[w] = maps.Clone(h)
	}
	return c
}

// router is one router: the messages which reached it, its tracker and its view.
type router struct {
	w       *world
	wire    wire
	tracker *kvfeed.Tracker
	view    *view
	record  kvfeed.Record
	// proof has, for each epoch of a worker, the number after the last event which ever reached this router.
	proof map[kv.Worker]map[uint64]uint64

	// saved is a snapshot, since the letters which arrived after it.
	saved *snapshot
	since []letter
}

type snapshot struct {
	tracker []byte
	view    *view
	proof   map[kv.Worker]map[uint64]uint64
}

func (r *router) open() {
	tracker, err := kvfeed.NewTracker(kvfeed.Config{})
	if err != nil {
		r.w.t.Fatal(err)
	}
	r.tracker = tracker
	r.view = &view{held: map[kv.Worker]held{}, hidden: map[kv.Worker]bool{}}
	r.proof = map[kv.Worker]map[uint64]uint64{}
}

func cloneProof(p map[kv.Worker]map[uint64]uint64) map[kv.Worker]map[uint64]uint64 {
	c := map[kv.Worker]map[uint64]uint64{}
	for w, m := range p {
		c[w] = maps.Clone(m)
	}
	return c
}

// save takes a snapshot; restart replaces the router by a new one which loads the last snapshot.
func (r *router) save() {
	r.saved = &snapshot{r.tracker.AppendSnapshot(nil), r.view.clone(), cloneProof(r.proof)}
	r.since = nil
}

func (r *router) restart() {
	r.open()
	if r.saved == nil {
		return
	}
	if err := r.tracker.LoadSnapshot(r.w.now, r.saved.tracker); err != nil {
		r.w.fatalf("%v", err)
	}
	r.view, r.proof = r.saved.view.clone(), cloneProof(r.saved.proof)
	for _, l := range r.since {
		l.at = r.w.now
		r.take(l)
	}
}

// receive handles one letter which has arrived.
func (r *router) receive() bool {
	l, ok := r.wire.receive()
	if !ok {
		return false
	}
	r.since = append(r.since, l)
	r.take(l)
	return true
}

func (r *router) take(l letter) {
	rec := &r.record
	if err := kvfeed.DecodeRecord(rec, l.data); err != nil {
		r.w.fatalf("%v", err)
	}
	if r.proof[rec.Worker] == nil {
		r.proof[rec.Worker] = map[uint64]uint64{}
	}
	lives := r.proof[rec.Worker]
	lives[rec.Epoch] = max(lives[rec.Epoch], rec.First+uint64(len(rec.Events)))
	r.obey(rec.Worker, rec.Events, r.tracker.AcceptRecord(r.w.now, rec))
	r.check()
}

func (r *router) obey(w kv.Worker, events []kv.Event, v kvfeed.FeedVerdict) {
	if v.Drop {
		delete(r.view.held, w)
		delete(r.view.hidden, w)
	}
	if v.Hide {
		r.view.hidden[w] = true
	}
	if v.Outcome == kvfeed.Apply {
		if r.view.held[w] == nil {
			r.view.held[w] = held{}
		}
		for _, ev := range events[v.Skip:] {
			r.view.held[w].apply(ev)
		}
	}
	if v.Show {
		delete(r.view.hidden, w)
	}
	if v.Resync {
		r.w.ask(v.Request)
	}
}

// tick runs what is due by time alone. claims are the workers' reports about themselves.
func (r *router) tick(claims map[kv.Worker]kvfeed.PublishReport) {
	for _, p := range r.w.workers {
		c := claims[p.id]
		r.obey(p.id, nil, r.tracker.ExpectWorker(r.w.now, p.id, c.Epoch))
		_, v := r.tracker.CompareReport(r.w.now, p.id, c)
		r.obey(p.id, nil, v)
	}
	for _, w := range r.tracker.GiveUpRepairs(r.w.now, nil) {
		delete(r.view.held, w)
		delete(r.view.hidden, w)
	}
	for _, q := range r.tracker.DueRequests(r.w.now, nil) {
		r.w.ask(q)
	}
	r.check()
}

// check compares the router's view with what the workers published. A worker which is matched at all is
// matched with exactly the state which it had published up to an event, and no later event has reached this
// router: every difference from its cache is in transit, or was lost and is not yet detected.
func (r *router) check() {
	if err := r.tracker.Check(); err != nil {
		r.w.fatalf("%v", err)
	}
	for _, p := range r.w.workers {
		got, hidden := r.view.held[p.id], r.view.hidden[p.id]
		h, known := r.tracker.HealthOf(p.id)
		state := kvfeed.Resyncing
		if known {
			state = h.State
		}
		switch {
		case state == kvfeed.Resyncing && len(got) > 0:
			r.w.fatalf("%d blocks of worker %v, which is in doubt", len(got), p.id)
		case state == kvfeed.Resyncing:
			continue
		case state == kvfeed.Repairing && !hidden, state == kvfeed.Live && hidden:
			r.w.fatalf("worker %v is %v, hidden %t", p.id, state, hidden)
		case state == kvfeed.Live && h.LastSeq+1 < r.proof[p.id][h.Epoch]:
			r.w.fatalf("worker %v is live at %d though %d was told of", p.id, h.LastSeq, r.proof[p.id][h.Epoch]-1)
		case state == kvfeed.Live && h.Epoch < slices.Max(slices.Collect(maps.Keys(r.proof[p.id]))):
			r.w.fatalf("worker %v is live in life %d, which is over", p.id, h.Epoch)
		}
		want, ok := p.history[h.Epoch][h.LastSeq]
		if !ok {
			r.w.fatalf("worker %v has never told event %d of life %d", p.id, h.LastSeq, h.Epoch)
		}
		if !maps.Equal(got, want) {
			r.w.fatalf("worker %v, %v at %d: %d blocks, was told %d", p.id, state, h.LastSeq, len(got), len(want))
		}
	}
}

// world is a few workers, two routers, and wires between all of them.
type world struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	now     kv.Mono
	bad     bool
	loss    int // percent
	ring    int
	workers []*publisher
	routers [2]*router
	asks    wire // requests to workers

	descriptions, repetitions int // requested by routers
}

func newWorld(t *testing.T, seed uint64, ring, loss int) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), bad: true, loss: loss, ring: ring}
	w.asks.w = w
	for i := range w.routers {
		r := &router{w: w, wire: wire{w: w}}
		r.open()
		w.routers[i] = r
	}
	for i := range 3 {
		p := &publisher{w: w, id: kv.Worker{ID: 10, Rank: uint32(i)}, history: map[uint64]map[uint64]held{}}
		w.workers = append(w.workers, p)
		p.start()
	}
	return w
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d at %v: %s", w.seed, time.Duration(w.now), fmt.Sprintf(format, args...))
}

func (w *world) publisher(id kv.Worker) *publisher {
	return w.workers[slices.IndexFunc(w.workers, func(p *publisher) bool { return p.id == id })]
}

// publish sends a record to all routers, on wires which fail independently.
func (w *world) publish(data []byte) {
	for _, r := range w.routers {
		r.wire.send(letter{data: data})
	}
}

func (w *world) ask(q kvfeed.ResyncRequest) {
	w.asks.send(letter{from: q.Worker, data: kvfeed.AppendRequest(nil, q)})
}

// advance lets time pass; letters arrive and are answered.
func (w *world) advance(d time.Duration) {
	for end := w.now.Add(d); w.now < end; {
		w.now = min(end, w.now.Add(10*time.Millisecond))
		for l, ok := w.asks.receive(); ok; l, ok = w.asks.receive() {
			q, err := kvfeed.DecodeRequest(l.from, l.data)
			if err != nil {
				w.fatalf("%v", err)
			}
			p := w.publisher(q.Worker)
			p.log.AddRequest(q)
			p.asked = append(p.asked, q)
		}
		for _, p := range w.workers {
			p.answer()
		}
		for _, r := range w.routers {
			for r.receive() {
			}
			claims := map[kv.Worker]kvfeed.PublishReport{}
			for _, p := range w.workers {
				claims[p.id] = kvfeed.PublishReport{Epoch: p.epoch, Next: p.next, At: w.now}
			}
			r.tick(claims)
		}
	}
}

// trouble restarts processes and loses stored records.
func (w *world) trouble() {
	r := w.routers[w.rng.IntN(2)]
	switch n := w.rng.IntN(300); {
	case n < 2:
		w.workers[w.rng.IntN(3)].start()
	case n < 3:
		r.wire.queue = nil // its stored records expired before they were read
	case n < 4:
		r.restart()
	case n < 8:
		r.save()
	case n < 9:
		id := w.workers[w.rng.IntN(3)].id
		r.obey(id, nil, r.tracker.SuspectLoss(w.now, id))
	}
}

// settle makes the wires good and the workers idle, until the routers know everything.
func (w *world) settle() {
	w.bad = false
	for _, p := range w.workers {
		p.flush() // the remaining events
	}
	w.advance(75 * time.Second) // twice the longest wait, and a little more
	for _, r := range w.routers {
		for _, p := range w.workers {
			h, _ := r.tracker.HealthOf(p.id)
			if h.State != kvfeed.Live || h.Epoch != p.epoch || h.LastSeq != p.next-1 || h.Missing != 0 {
				w.fatalf("worker %v is in life %d at %d, its feed is %+v", p.id, p.epoch, p.next-1, h)
			}
			if !maps.Equal(r.view.held[p.id], p.cache) {
				w.fatalf("worker %v holds %d blocks, a router believes %d", p.id, len(p.cache), len(r.view.held[p.id]))
			}
		}
	}
}

func (w *world) total(sum *kvfeed.Health) {
	for _, r := range w.routers {
		for _, h := range r.tracker.AppendHealth(nil) {
			sum.Applied += h.Applied
			sum.Gaps += h.Gaps
			sum.Repaired += h.Repaired
			sum.Described += h.Described
			sum.GivenUp += h.GivenUp
			sum.Duplicates += h.Duplicates
			sum.Ignored += h.Ignored
			sum.Stale += h.Stale
			sum.Resyncs += h.Resyncs
		}
	}
}

// TestBadWires publishes over wires which lose, repeat and reorder records and requests, while workers and
// routers restart and stored records are lost. At every moment a router matches exactly what a worker had
// published up to the last event which reached it, or nothing; and after all faults have ended it comes to
// match what the workers hold.
func TestBadWires(t *testing.T) {
	for _, tt := range []struct {
		name       string
		ring, loss int
		described  int // minimum number of occurrences
		givenUp    uint64
	}{
		{"short ring", 12, 12, 100, 0},
		{"long ring", 1 << 20, 12, 0, 0},
		{"hardly anything arrives", 30, 80, 100, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var total kvfeed.Health
			descriptions, repetitions := 0, 0
			for seed := range uint64(12) {
				w := newWorld(t, seed, tt.ring, tt.loss)
				for range 400 {
					w.trouble()
					w.workers[w.rng.IntN(len(w.workers))].change()
					w.advance(time.Duration(w.rng.IntN(8)) * 10 * time.Millisecond)
				}
				w.settle()
				w.total(&total)
				descriptions += w.descriptions
				repetitions += w.repetitions
			}
			t.Logf("%d repetitions, %d descriptions, %+v", repetitions, descriptions, total)
			if min(total.Applied, total.Gaps, total.Repaired, total.Duplicates, total.Ignored, total.Stale, total.Resyncs) < 10 || repetitions < 100 {
				t.Errorf("the wires are not bad enough to show anything: %+v", total)
			}
			if min(descriptions, int(total.Described)) < tt.described || total.GivenUp < tt.givenUp {
				t.Errorf("nothing was lost that the ring does not have: %+v", total)
			}
			if tt.described == 0 && descriptions > repetitions/20 {
				t.Errorf("%d descriptions beside %d repetitions, with a ring that has everything", descriptions, repetitions)
			}
		})
	}
}
