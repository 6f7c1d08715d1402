package simcluster

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"penstock/core/splitmix"

	"penstock/core/embindex"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/prefix"
	"penstock/core/rendezvous"
	"penstock/core/route"
	"penstock/internal/engine/sim"
	"penstock/internal/replay"
)

// cluster is the state of a run.
type cluster struct {
	cfg    Config
	record Recorder
	now    kv.Mono
	queue  eventQueue
	faults faultInjector

	workers      []simWorker // workers which take requests, and then the prefill workers
	encoders     []simEncoder
	routers      []simRouter
	usesOverlaps bool      // whether decisions depend on cached blocks
	pool         *sim.Pool // nil if there is none
	usesEvents   bool      // whether routers follow cache events for that

	source      replay.Source
	nextRequest replay.Request // the next request of source, unless drained
	drained     bool
	sessions    map[string]*sessionState
	started     int // requests started
	// mediaObjects counts the media objects of all calls, rowsFetched the ones whose rows came from a worker which held them,
	// and fetchMisses the answers of workers which did not.
	mediaObjects, rowsFetched, fetchMisses int64
	// holders is what routers and workers know of embedding caches; nil if nothing depends on it.
	holders *embindex.Index
	prefillFleet
	scaling fleetScaler

	// tasks, calls, batches and the other arenas hold values by slot number, with free lists.
	tasks      arena[requestTask]
	calls      arena[attempt]
	batches    arena[[]responseFrame]
	records    arena[recordInFlight]
	poolCopies arena[poolCopy]
	rowFetches arena[rowFetch]
	rowChanges arena[rowChange]
	// requests are resync requests of routers in flight to workers.
	requests     arena[kvfeed.ResyncRequest]
	pings        arena[sentPing]
	syncMessages arena[syncMessage]
	jobs         arena[prefillJob]
	decodeNotes  arena[decodeNote]

	prompt        []kv.Token // of the task with serial promptSerial
	promptSerial  uint64
	serial        uint64
	chain         []kv.SeqHash
	blocks        []kv.BlockHash
	match         prefix.Match
	overlaps      []kv.Overlap // from events
	guesses       []kv.Overlap // from predictions
	merged        []kv.Overlap
	candidates    []rendezvous.Candidate
	askOrder      []int
	rowHolders    []kv.Worker
	held          []route.HeldMedia
	encodesInPass bool     // a worker does now
	passChanges   []uint32 // of its cache meanwhile
	internalError error    // an internal error of the simulation
	// onDecision, if not nil, is called with each decision; for tests.
	onDecision func(*requestTask, *route.Query, route.Decision)
}

// arena is a set of values with stable slots.
type arena[T any] struct {
	all    []T
	vacant []uint32
}

// takeSlot returns a free slot, with the value of its last use. It invalidates pointers to other values.
func (s *arena[T]) takeSlot() uint32 {
	if last := len(s.vacant) - 1; last >= 0 {
		at := s.vacant[last]
		s.vacant = s.vacant[:last]
		return at
	}
	var zero T
	s.all = append(s.all, zero)
	return uint32(len(s.all) - 1)
}

func (s *arena[T]) freeSlot(at uint32) { s.vacant = append(s.vacant, at) }

// usedCount returns how many slots are in use.
func (s *arena[T]) usedCount() int { return len(s.all) - len(s.vacant) }

func newCluster(cfg Config, source replay.Source, record Recorder) (*cluster, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &cluster{
		cfg: cfg, source: source, record: record, sessions: map[string]*sessionState{},
		usesOverlaps: cfg.Route.UsesOverlaps(),
		workers:      make([]simWorker, cfg.Workers+cfg.PrefillWorkers),
		routers:      make([]simRouter, cfg.Routers),
	}
	c.usesEvents = c.usesOverlaps && !cfg.NoKVEvents
	c.faults = faultInjector{Faults: cfg.Faults, random: randomSource{splitmix.Source(deriveSeed(cfg.Seed, 1))}}
	if err := c.openPool(); err != nil {
		return nil, fmt.Errorf("simcluster: %w", err)
	}
	if err := c.openHolders(); err != nil {
		return nil, fmt.Errorf("simcluster: %w", err)
	}
	c.openEncoders()
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
	c.openScaling()
	for i := range c.routers {
		c.updateMembers(i)
	}
	if err := c.openPrefillFleet(); err != nil {
		return nil, fmt.Errorf("simcluster: %w", err)
	}
	c.queue.push(c.now.Add(upkeepEvery), eventUpkeep, 0, 0)
	c.queue.push(c.now.Add(loadEvery), eventLoadReport, 0, 0)
	c.faults.scheduleFirstEnds(c)
	if err := c.readAhead(); err != nil {
		return nil, err
	}
	return c, nil
}

// isFinished reports whether every request has finished.
func (c *cluster) isFinished() bool { return c.drained && c.tasks.usedCount() == 0 }

// runEvent runs the next event.
func (c *cluster) runEvent() error {
	e := c.queue.pop()
	c.now = e.at
	switch e.kind {
	case eventRequestDue:
		if err := c.addTask(); err != nil {
			return err
		}
	case eventSessionDue:
		c.startTask(e.a)
	case eventTaskWake:
		c.wakeTask(e.a, e.b)
	case eventTaskStall:
		c.checkStall(e.a, e.b)
	case eventCallArrived:
		c.workers[c.calls.all[e.a].worker].acceptCall(c, e.a)
	case eventBatchDone:
		c.workers[e.a].finishBatch(c, e.b)
	case eventFramesArrived:
		c.deliverFrames(e.a)
	case eventRecordArrived:
		c.deliverRecord(e.a, e.b)
	case eventResyncArrived:
		c.workers[e.a].acceptResync(c, e.b)
	case eventResyncDue:
		c.routers[e.a].runResyncs(c)
	case eventResyncAnswer:
		c.workers[e.a].answerResyncs(c, e.b)
	case eventWorkerCrash:
		c.crashWorker(e.a)
	case eventWorkerDrain:
		c.drainWorker(e.a)
	case eventWorkerStop:
		c.stopWorker(&c.workers[e.a], fault.Draining)
	case eventWorkerRestart:
		c.restartWorker(e.a)
	case eventLeaseExpired:
		c.expireLease(e.a, e.b)
	case eventDiscovery:
		c.updateMembers(int(e.a))
	case eventPingDue:
		c.routers[e.a].sendPings(c, e.b)
	case eventPingDone:
		c.finishPing(e.a)
	case eventSyncDue:
		c.routers[e.a].sendSync(c, e.b)
	case eventSyncArrived:
		c.routers[e.b].receiveSync(c, e.a)
	case eventUpkeep:
		for i := range c.routers {
			c.routers[i].runUpkeep(c)
		}
		c.queue.push(c.now.Add(upkeepEvery), eventUpkeep, 0, 0)
	case eventCopyDone:
		c.finishPoolCopy(e.a)
	case eventRowsAsked:
		c.acceptFetch(e.a)
	case eventObjectEncoded:
		c.encoders[e.a].finishObject(c)
	case eventRowsArrived:
		c.workers[c.rowFetches.all[e.a].worker].finishFetch(c, e.a)
	case eventRowsChanged:
		c.applyRowChange(e.a)
	case eventWorkerEncoded:
		c.workers[e.a].finishEncoding(c, e.b)
	case eventJobQueued, eventJobAdmitted, eventJobRefused, eventJobFailed, eventJobWritten, eventJobTick:
		c.handleJobEvent(e.kind, jobRef{e.a, e.b})
	case eventDecodeNote:
		c.deliverNote(e.a)
	case eventHandoffTick:
		c.tickHandoff(e.a, e.b)
	case eventAdmit:
		c.admitWaiting(&c.routers[e.a])
	case eventScale:
		c.scaleFleet()
	case eventScaleSample:
		c.sampleFleet()
	case eventWorkerReady:
		c.beginWorker(e.a, e.b)
	case eventDrainCheck:
		c.checkDrain(e.a, e.b)
	case eventLoadReport:
		for i := range c.workers[:c.cfg.Workers] {
			c.workers[i].reportLoad(c)
		}
		c.queue.push(c.now.Add(loadEvery), eventLoadReport, 0, 0)
	}
	return c.internalError
}

// readAhead reads the next request of the source and schedules its arrival.
func (c *cluster) readAhead() error {
	err := c.source.Next(&c.nextRequest)
	switch {
	case errors.Is(err, io.EOF):
		c.drained = true
		return nil
	case err != nil:
		return fmt.Errorf("simcluster: read the workload: %w", err)
	case c.nextRequest.At < 0:
		return fmt.Errorf("simcluster: request %d does not say when it is sent: choose an arrival process", c.nextRequest.Index)
	case kv.Mono(c.nextRequest.At) < c.now:
		return fmt.Errorf("simcluster: request %d is to be sent at %v, before the one that it follows: sort the workload by time", c.nextRequest.Index, c.nextRequest.At)
	}
	if idle := kv.Mono(c.nextRequest.At).Sub(c.now); idle > maxIdle {
		return fmt.Errorf("simcluster: request %d is to be sent %v after the one before it, and a pause may be %v at most: look at the unit of the workload's times", c.nextRequest.Index, idle, maxIdle)
	}
	c.queue.push(kv.Mono(c.nextRequest.At), eventRequestDue, 0, 0)
	return nil
}

// maxIdle bounds the pauses of a workload: the cluster's periodic work (load reports, router upkeep) takes
// real time to simulate, and a pause of a hundred years would never end.
const maxIdle = 31 * 24 * time.Hour

// sessionState is a conversation: at most one of its requests is in flight.
type sessionState struct {
	busy    bool
	lastEnd kv.Mono  // end of the last response
	started bool     // there was one
	queue   []uint32 // tasks which wait for it
}

// addTask makes a task of the source's next request.
func (c *cluster) addTask() error {
	at := c.tasks.takeSlot()
	t := &c.tasks.all[at]
	t.reset(&c.nextRequest)
	c.serial++
	t.serial = c.serial
	t.due = c.now
	if name := t.request.Session; name != "" {
		s := c.sessions[name]
		if s == nil {
			s = &sessionState{}
			c.sessions[name] = s
		}
		t.session = s
		if s.busy {
			s.queue = append(s.queue, at)
			return c.readAhead()
		}
		s.busy = true
		if s.started {
			t.due = c.dueAfterSession(t, s)
		}
	}
	c.queue.push(t.due, eventSessionDue, at, 0)
	return c.readAhead()
}

// releaseSession starts the next request of a session.
func (c *cluster) releaseSession(s *sessionState) {
	s.busy, s.started, s.lastEnd = false, true, c.now
	if len(s.queue) == 0 {
		return
	}
	at := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	s.busy = true
	t := &c.tasks.all[at]
	t.due = c.dueAfterSession(t, s)
	c.queue.push(t.due, eventSessionDue, at, 0)
}

// dueAfterSession returns when the next task of a session is due.
func (c *cluster) dueAfterSession(t *requestTask, s *sessionState) kv.Mono {
	if t.request.Delay > maxIdle {
		c.internalError = fmt.Errorf("simcluster: request %d is to be sent %v after the answer before it, and a pause may be %v at most: look at the unit of the workload's times", t.request.Index, t.request.Delay, maxIdle)
		return c.now
	}
	return max(kv.Mono(t.request.At), s.lastEnd.Add(t.request.Delay))
}

// expandPrompt makes the prompt of a task.
func (c *cluster) expandPrompt(t *requestTask) []kv.Token {
	if c.promptSerial != t.serial {
		c.prompt = replay.AppendTokens(c.prompt[:0], &t.request, c.cfg.Vocabulary)
		c.promptSerial = t.serial
	}
	return c.prompt
}

// sinceStart returns a time as a duration from the start of the run.
func sinceStart(m kv.Mono) time.Duration { return time.Duration(m) }
