package router

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

const (
	worldWorkers = 4
	worldRouters = 3
	worldPool    = 60 // blocks of room
)

// world is a fleet of workers and routers over faulty planes. Only the test's goroutine drives it.
type world struct {
	t        *testing.T
	mode     route.Mode
	rng      *rand.Rand
	store    *storage
	bus      *bustest.FaultyBus
	archive  *bustest.FaultyArchive
	registry *servetest.Registry
	calls    *rpc.MemPlane
	prompts  []*prompt

	workers [worldWorkers]*chaosWorker
	routers [worldRouters]*chaosRouter
	ended   []*process // killed, perhaps not finished yet
	active  []*errand
	sent    int // so far

	// engines is the lock of all engines, of the pool, and of told.
	engines sync.Mutex
	pool    *sim.Pool
	told    map[kv.Worker][]*story // by worker, in the order of epochs
}

// prompt is one of the prompts of a world.
type prompt struct {
	tokens []kv.Token
	blocks []kv.BlockHash
	chain  []kv.SeqHash
}

// errand is a request that a router has sent to a worker.
type errand struct {
	id     string
	router *chaosRouter
	worker kv.Worker
	prompt *prompt
	filled bool
}

type chaosWorker struct {
	id     kv.WorkerID
	epoch  uint64
	engine *scripted
	*process
}

func (w *chaosWorker) as() kv.Worker { return kv.Worker{ID: w.id} }

func (w *chaosWorker) alive() bool { return w.process != nil && !w.dead.Load() }

type chaosRouter struct {
	*process
	router *Router
}

func (r *chaosRouter) alive() bool { return r.process != nil && !r.dead.Load() }

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, mode: [...]route.Mode{route.KV, route.Time}[seed%2], rng: rand.New(rand.NewPCG(seed, 0)), store: newStorage(), registry: servetest.NewRegistry(), calls: rpc.NewMemPlane(),
		archive: bustest.NewFaultyArchive(bus.NewMemArchive(), seed, bustest.ArchiveFaults{}), told: map[kv.Worker][]*story{},
	}
	w.bus = bustest.WithFaults(w.store, seed, bustest.BusFaults{})
	var err error
	if w.pool, err = sim.NewPool(3, worldPool); err != nil {
		t.Fatal(err)
	}
	w.makePrompts()
	for i := range w.workers {
		w.workers[i] = &chaosWorker{id: kv.WorkerID(i + 1)}
	}
	for i := range w.routers {
		w.routers[i] = &chaosRouter{}
	}
	return w
}

// makePrompts makes prompts, some with common prefixes, the longest of more than a page of the index.
func (w *world) makePrompts() {
	h, err := kv.NewHasher(4, kv.Salt{})
	if err != nil {
		w.t.Fatal(err)
	}
	for root := range 4 {
		for tail := range 3 {
			n := 6 + w.rng.IntN(6)
			if root == 0 {
				n = 70
			}
			p := &prompt{tokens: make([]kv.Token, 4*n)}
			parting := 1 + w.rng.IntN(n-1)
			for i := range p.tokens {
				p.tokens[i] = kv.Token(1000*root + i)
				if i/4 >= parting {
					p.tokens[i] += kv.Token(100_000 * (tail + 1))
				}
			}
			p.blocks = h.AppendBlockHashes(nil, p.tokens, nil)
			p.chain = h.AppendSeqHashes(nil, p.tokens, nil)
			w.prompts = append(w.prompts, p)
		}
	}
}

// hits is true with a probability.
func (w *world) hits(p float64) bool { return w.rng.Float64() < p }

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

// startWorker starts the next epoch of a worker.
func (w *world) startWorker(at *chaosWorker) {
	at.epoch++
	at.process = &process{}
	own := at.process
	account := &story{epoch: at.epoch}
	w.engines.Lock()
	at.engine = newScripted(&w.engines, w.pool.AddMember(at.as()))
	w.told[at.as()] = append(w.told[at.as()], account)
	w.tellPool()
	w.engines.Unlock()
	topic := bus.KVEventsTopic("penstock", "backend")
	own.tap = func(t bus.Topic, data []byte) {
		if t == topic {
			w.engines.Lock()
			defer w.engines.Unlock()
			account.add(w.t, data)
		}
	}
	cfg := worker.Config{ID: at.id, Epoch: at.epoch, CanaryInterval: new(time.Duration(0))}
	wk, err := worker.New(cfg, at.engine, worker.Planes{
		RPC: w.calls, Bus: ownBus{w.bus, own}, Registry: ownRegistry{w.registry, own},
	}, worker.NewMetrics(obs.NewMetrics()), slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	own.start(w.t.Context(), wk.Run)
}

// endWorker ends an epoch of a worker, with or without a shutdown.
func (w *world) endWorker(at *chaosWorker, end func(*process)) {
	end(at.process)
	w.engines.Lock()
	at.engine.stop()
	w.tellPool()
	w.engines.Unlock()
	w.ended = append(w.ended, at.process)
	at.process = nil
	for _, s := range slices.Clone(w.active) {
		if s.worker == at.as() {
			w.free(s)
		}
	}
}

// expire removes an epoch of a killed worker from discovery.
func (w *world) expire(at *chaosWorker, epoch uint64) {
	for _, in := range w.registry.Instances() {
		if in.ID == at.id && in.Epoch == epoch {
			w.registry.Delete(in)
		}
	}
}

// tellPool makes members report changes of the pool that others caused. The caller holds the engines'
// lock.
func (w *world) tellPool() {
	for _, at := range w.workers {
		if e := at.engine; e != nil && e.member != nil && e.member.HasPending() {
			e.tell(e.member.AppendPending(nil)...)
		}
	}
}

// startRouter starts a replica, which dies after the given number of steps of its snapshots if that is
// not 0.
func (w *world) startRouter(at *chaosRouter, steps int64) {
	at.process = &process{}
	at.steps.Store(steps)
	cfg := Config{
		Sync: true, TrackOutput: true, Route: route.Config{Mode: w.mode},
		Snapshots: SnapshotPolicy{Threshold: 20, Look: time.Second, Interval: 5 * time.Second},
	}
	r, err := New(cfg, Planes{
		Bus: ownBus{w.bus, at.process}, Registry: ownRegistry{w.registry, at.process}, RPC: w.calls,
		Archive: ownArchive{w.archive, at.process},
	}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	at.router = r
	at.start(w.t.Context(), r.Run)
}

// endRouter ends a replica, and with it the requests that it had sent to workers.
func (w *world) endRouter(at *chaosRouter, end func(*process)) {
	end(at.process)
	w.buryRouter(at)
}

func (w *world) buryRouter(at *chaosRouter) {
	w.ended = append(w.ended, at.process)
	at.process = nil
	w.active = slices.DeleteFunc(w.active, func(s *errand) bool { return s.router == at })
}

// close ends everything.
func (w *world) close() {
	for _, at := range w.routers {
		if at.process != nil {
			w.endRouter(at, (*process).end)
		}
	}
	for _, at := range w.workers {
		if at.process != nil {
			w.endWorker(at, (*process).end)
		}
	}
	for _, p := range w.ended {
		<-p.done
		if p.err != nil && !p.dead.Load() {
			w.t.Errorf("a process ended with %v", p.err)
		}
	}
}

// end stops a process with a shutdown, without waiting for it.
func (p *process) end() { p.cancel() }

// send routes a request through a router, if it finds a worker.
func (w *world) send(at *chaosRouter) {
	w.sent++
	p := w.prompts[w.rng.IntN(len(w.prompts))]
	id := fmt.Sprint("request ", w.sent)
	ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
	defer cancel()
	d, err := at.router.Route(ctx, &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: p.tokens})
	if err != nil {
		return
	}
	s := &errand{id: id, router: at, worker: d.Worker, prompt: p}
	w.active = append(w.active, s)
	if wk := w.workers[d.Worker.ID-1]; !wk.alive() {
		w.free(s) // it fails at once
	} else {
		w.engines.Lock()
		wk.engine.store(p, len(p.blocks))
		w.engines.Unlock()
	}
}

// prefill marks the prompt of a request as computed.
func (w *world) prefill(s *errand) {
	s.filled = true
	s.router.router.MarkPrefilled(s.id, 1, 0)
}

// free ends a request.
func (w *world) free(s *errand) {
	s.router.router.FreeReservation(s.id, 1, 0)
	w.active = slices.DeleteFunc(w.active, func(o *errand) bool { return o == s })
}

// story holds all events that an epoch of a worker has published, by number, whether a router received
// them or not.
type story struct {
	epoch  uint64
	events []kv.Event
	held   map[uint64][]kv.SeqHash // by number of the last event that counts
}

// add records a record at its first publication.
func (l *story) add(t *testing.T, data []byte) {
	var rec kvfeed.Record
	if err := kvfeed.DecodeRecord(&rec, data); err != nil {
		t.Error(err)
		return
	}
	if rec.First != uint64(len(l.events))+1 {
		return // a repeated record
	}
	for i := range rec.Events {
		ev := rec.Events[i]
		ev.Blocks, ev.Seqs = slices.Clone(ev.Blocks), slices.Clone(ev.Seqs)
		l.events = append(l.events, ev)
	}
}

// at returns what the worker held after n of its events, ascending.
func (l *story) at(n uint64) []kv.SeqHash {
	if held, ok := l.held[n]; ok {
		return held
	}
	set := map[holdingOf]bool{}
	for _, ev := range l.events[:n] {
		switch ev.Kind {
		case kv.Cleared:
			clear(set)
		case kv.Stored:
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				set[holdingOf{seq, ev.Tier}] = true
			}
		case kv.Removed:
			for _, seq := range ev.Seqs {
				delete(set, holdingOf{seq, ev.Tier})
			}
		}
	}
	var held []kv.SeqHash
	for h := range set {
		held = append(held, h.seq)
	}
	slices.Sort(held)
	if l.held == nil {
		l.held = map[uint64][]kv.SeqHash{}
	}
	l.held[n] = held
	return held
}

type holdingOf struct {
	seq  kv.SeqHash
	tier kv.Tier
}

// said returns the pool state that the epoch last gave a block within its first n events; 0 is none.
func (l *story) said(seq kv.SeqHash, n uint64) (state kv.PoolState) {
	for i := range l.events[:n] {
		if ev := &l.events[i]; ev.Kind == kv.Moved && (slices.Contains(ev.Seqs, seq) || len(ev.Seqs) == 0 && state == kv.Pooled) {
			state = ev.Move.To
		}
	}
	return state
}
