package simcluster

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// cluster is the state of a run.
type cluster struct {
	cfg    Config
	record Recorder
	now    kv.Mono
	queue  queue
	chaos  chaos

	workers []worker
	routers []router
	matches bool      // whether decisions depend on cached blocks
	pool    *sim.Pool // nil if there is none
	follow  bool      // whether routers follow cache events for that

	source   replay.Source
	head     replay.Request // the next request of source, unless drained
	drained  bool
	sessions map[string]*session
	served   int // requests started

	// tasks, calls, batches and the other arenas hold values by slot number, with free lists.
	tasks   slab[task]
	calls   slab[call]
	batches slab[[]frame]
	parcels slab[parcel]
	copies  slab[copying]
	// requests are resync requests of routers in flight to workers.
	requests slab[feed.Request]
	pings    slab[ping]
	letters  slab[letter]

	prompt   []kv.Token // of the task with serial promptSerial
	promptOf uint64
	serial   uint64
	chain    []kv.SeqHash
	blocks   []kv.BlockHash
	match    prefix.Match
	overlaps []kv.Overlap // from events
	guesses  []kv.Overlap // from predictions
	merged   []kv.Overlap
	defect   error // an internal error of the simulation
	// onDecision, if not nil, is called with each decision; for tests.
	decided func(*task, *route.Query, route.Decision)
}

// arena is a set of values with stable slots.
type slab[T any] struct {
	all    []T
	vacant []uint32
}

// takeSlot returns a free slot, with the value of its last use. It invalidates pointers to other values.
func (s *slab[T]) take() uint32 {
	if last := len(s.vacant) - 1; last >= 0 {
		at := s.vacant[last]
		s.vacant = s.vacant[:last]
		return at
	}
	var zero T
	s.all = append(s.all, zero)
	return uint32(len(s.all) - 1)
}

func (s *slab[T]) give(at uint32) { s.vacant = append(s.vacant, at) }

// usedCount returns how many slots are in use.
func (s *slab[T]) used() int { return len(s.all) - len(s.vacant) }

func newCluster(cfg Config, source replay.Source, record Recorder) (*cluster, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &cluster{
		cfg: cfg, source: source, record: record, sessions: map[string]*session{},
		matches: cfg.Route.Mode == route.KV && *cfg.Route.OverlapWeight > 0,
		workers: make([]worker, cfg.Workers),
		routers: make([]router, cfg.Routers),
	}
	c.follow = c.matches && !cfg.NoKVEvents
	c.chaos = newChaos(cfg.Faults, cfg.Seed)
	if err := c.openPool(); err != nil {
		return nil, fmt.Errorf("simcluster: %w", err)
	}
	for i := range c.routers {
		if err := c.openRouter(i); err != nil {
			return nil, fmt.Errorf("simcluster: %w", err)
		}
	}
	for i := range c.workers {
		if err := c.openWorker(i); err != nil {
			return nil, fmt.Errorf("simcluster: %w", err)
		}
	}
	for i := range c.routers {
		c.discover(i)
	}
	c.queue.push(c.now.Add(upkeepEvery), upkeep, 0, 0)
	c.queue.push(c.now.Add(loadEvery), reported, 0, 0)
	c.chaos.begin(c)
	if err := c.readAhead(); err != nil {
		return nil, err
	}
	return c, nil
}

// isFinished reports whether every request has finished.
func (c *cluster) finished() bool { return c.drained && c.tasks.used() == 0 }

// runEvent runs the next event.
func (c *cluster) step() error {
	e := c.queue.pop()
	c.now = e.at
	switch e.kind {
	case arrive:
		if err := c.arrive(); err != nil {
			return err
		}
	case send:
		c.begin(e.a)
	case wake:
		c.wake(e.a, e.b)
	case stall:
		c.stall(e.a, e.b)
	case called:
		c.workers[c.calls.all[e.a].worker].called(c, e.a)
	case passed:
		c.workers[e.a].passed(c, e.b)
	case framed:
		c.deliver(e.a)
	case recorded:
		c.unpack(e.a, e.b)
	case asked:
		c.workers[e.a].asked(c, e.b)
	case asking:
		c.routers[e.a].asking(c)
	case answered:
		c.workers[e.a].answered(c, e.b)
	case crashed:
		c.crash(e.a)
	case leaving:
		c.leave(e.a)
	case left:
		c.halt(&c.workers[e.a], fault.Draining)
	case reborn:
		c.reborn(e.a)
	case expired:
		c.expire(e.a, e.b)
	case found:
		c.discover(int(e.a))
	case probed:
		c.routers[e.a].probe(c, e.b)
	case ponged:
		c.ponged(e.a)
	case told:
		c.routers[e.a].speak(c, e.b)
	case heard:
		c.routers[e.b].hear(c, e.a)
	case upkeep:
		for i := range c.routers {
			c.routers[i].tidy(c)
		}
		c.queue.push(c.now.Add(upkeepEvery), upkeep, 0, 0)
	case copied:
		c.copied(e.a)
	case reported:
		for i := range c.workers {
			c.workers[i].report(c)
		}
		c.queue.push(c.now.Add(loadEvery), reported, 0, 0)
	}
	return c.defect
}

// readAhead reads the next request of the source and schedules its arrival.
func (c *cluster) readAhead() error {
	err := c.source.Next(&c.head)
	switch {
	case errors.Is(err, io.EOF):
		c.drained = true
		return nil
	case err != nil:
		return fmt.Errorf("simcluster: read the workload: %w", err)
	case c.head.At < 0:
		return fmt.Errorf("simcluster: request %d does not say when it is sent: choose an arrival process", c.head.Index)
	case kv.Mono(c.head.At) < c.now:
		return fmt.Errorf("simcluster: request %d is to be sent at %v, before the one that it follows: sort the workload by time", c.head.Index, c.head.At)
	}
	if idle := kv.Mono(c.head.At).Sub(c.now); idle > maxIdle {
		return fmt.Errorf("simcluster: request %d is to be sent %v after the one before it, and a pause may be %v at most: look at the unit of the workload's times", c.head.Index, idle, maxIdle)
	}
	c.queue.push(kv.Mono(c.head.At), arrive, 0, 0)
	return nil
}

// maxIdle bounds the pauses of a workload: the cluster's periodic work (load reports, router upkeep) takes
// real time to simulate, and a pause of a hundred years would never end.
const maxIdle = 31 * 24 * time.Hour

// sessionState is a conversation: at most one of its requests is in flight.
type session struct {
	busy  bool
	ended kv.Mono  // end of the last response
	begun bool     // there was one
	queue []uint32 // tasks which wait for it
}

// addTask makes a task of the source's next request.
func (c *cluster) arrive() error {
	at := c.tasks.take()
	t := &c.tasks.all[at]
	t.reset(&c.head)
	c.serial++
	t.serial = c.serial
	t.due = c.now
	if name := t.request.Session; name != "" {
		s := c.sessions[name]
		if s == nil {
			s = &session{}
			c.sessions[name] = s
		}
		t.session = s
		if s.busy {
			s.queue = append(s.queue, at)
			return c.readAhead()
		}
		s.busy = true
		if s.begun {
			t.due = c.after(t, s)
		}
	}
	c.queue.push(t.due, send, at, 0)
	return c.readAhead()
}

// releaseSession starts the next request of a session.
func (c *cluster) free(s *session) {
	s.busy, s.begun, s.ended = false, true, c.now
	if len(s.queue) == 0 {
		return
	}
	at := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	s.busy = true
	t := &c.tasks.all[at]
	t.due = c.after(t, s)
	c.queue.push(t.due, send, at, 0)
}

// dueAfterSession returns when the next task of a session is due.
func (c *cluster) after(t *task, s *session) kv.Mono {
	if t.request.Delay > maxIdle {
		c.defect = fmt.Errorf("simcluster: request %d is to be sent %v after the answer before it, and a pause may be %v at most: look at the unit of the workload's times", t.request.Index, t.request.Delay, maxIdle)
		return c.now
	}
	return max(kv.Mono(t.request.At), s.ended.Add(t.request.Delay))
}

// expandPrompt makes the prompt of a task.
func (c *cluster) expand(t *task) []kv.Token {
	if c.promptOf != t.serial {
		c.prompt = replay.AppendTokens(c.prompt[:0], &t.request, c.cfg.Vocabulary)
		c.promptOf = t.serial
	}
	return c.prompt
}

// sinceStart returns a time as a duration from the start of the run.
func since(m kv.Mono) time.Duration { return time.Duration(m) }
