package simcluster

import (
	"slices"
	"time"

	"penstock/core/disagg"
	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine/sim"
)

// simWorker is a batching engine with its worker process.
type simWorker struct {
	number   uint32
	id       kv.Worker
	alive    bool
	draining bool   // it finishes its calls
	epoch    uint64 // of the worker, from 1

	sched     *paged.Scheduler
	plan      paged.Step
	sampled   []paged.SampledToken
	timing    sim.Timing
	passes    uint64 // over all epochs
	busy      bool   // it computes a batch
	inbox     []uint32
	aborts    []uint32
	heldCalls int // calls which run or wait

	// registered is the state in discovery; a dead worker stays registered until its lease expires.
	registered      bool
	registeredEpoch uint64

	publisher
	member *sim.PoolMember // nil without a pool

	// encoder encodes media, and has the embedding cache; the end of its next object is an event at encodedAt. fetches
	// are the worker's requests for rows, by their keys, peers the workers which are asked. pastRows are the figures of
	// the embedding caches of earlier epochs.
	encoder      sim.Encoders
	encodeTiming sim.Timing
	encodedAt    kv.Mono
	encoded      []paged.RangeID // scratch
	arrived      []paged.RangeID // from other workers, since the last batch began
	fetches      map[embcache.RowKey]uint32
	peers        map[kv.WorkerID]*rowPeer
	pastRows     embcache.Stats
	rowsKnownAt  kv.Mono // when the latest batch which encodes ends: changes of the cache are not known before

	// decoding is the number of answers which run, and awaiting that of calls whose blocks may come from prefill workers.
	// prefilledAt is when the last prompt was computed, pastComputed how many
	// prompt tokens earlier epochs computed. imports have arrived since the last batch began.
	decoding     int
	awaiting     int
	prefilledAt  kv.Mono
	pastComputed uint64
	imports      []importedBlocks
	heldDone     []jobRef // scratch
	attempts     uint32   // numbers of attempts which handoffs of the epoch have
	wireFreeAt   kv.Mono  // of a prefill worker, whose transfers go one after the other
	// addressed are the jobs which wait for this prefill worker alone, and calledJobs how many of these it does.
	addressed  []uint32
	calledJobs int

	load   loadReport // the last one
	loadAt kv.Mono
}

// openWorker starts the first epoch of a worker. Engines differ in their jitter.
func (c *cluster) openWorker(number int) error {
	w := &c.workers[number]
	w.number, w.id = uint32(number), kv.Worker{ID: kv.WorkerID(number + 1)}
	w.timing = c.cfg.Timing
	w.timing.Seed = deriveSeed(c.cfg.Timing.Seed, uint64(number))
	w.encodeTiming = w.timing
	w.encodeTiming.Seed = deriveSeed(w.timing.Seed, 1)
	w.encoder.Timing = &w.encodeTiming
	if err := w.startEpoch(c); err != nil {
		return err
	}
	w.registered, w.registeredEpoch = true, w.epoch
	return nil
}

// startEpoch starts an epoch with an empty cache.
func (w *simWorker) startEpoch(c *cluster) error {
	w.leavePool(c)
	cfg := paged.Config{
		Blocks: c.cfg.Blocks, BlockSize: c.cfg.BlockSize, MaxSeqs: c.cfg.MaxSeqs,
		TokenBudget: c.cfg.TokenBudget, MaxContext: c.cfg.MaxContext,
		MaxWaiting: c.cfg.MaxSeqs + c.cfg.MaxWaiting, // the limit on heldCalls is reached first
	}
	w.joinPool(c, &cfg)
	sched, err := paged.New(cfg)
	if err != nil {
		return err
	}
	if w.sched != nil {
		w.pastComputed += w.sched.Stats().ComputedTokens
	}
	w.sched, w.alive, w.draining, w.busy = sched, true, false, false
	w.decoding, w.awaiting, w.attempts, w.imports, w.calledJobs = 0, 0, 0, w.imports[:0], 0
	w.epoch++
	w.heldCalls, w.inbox, w.aborts = 0, w.inbox[:0], w.aborts[:0]
	if w.encoder.Rows != nil {
		w.pastRows.Add(w.encoder.Rows.Stats())
	}
	w.encoder.Rows = sim.NewRowMemory(c.cfg.EmbeddingCache)
	w.rowsKnownAt = c.now
	c.watchRows(w.encoder.Rows, w.id.ID, w.epoch, &w.rowsKnownAt)
	w.encoder.SetCount(c.cfg.Encoders)
	w.encoder.TakeOver = w.takeOver(c)
	w.encodedAt, w.arrived = 0, w.arrived[:0]
	w.fetches, w.peers = map[embcache.RowKey]uint32{}, map[kv.WorkerID]*rowPeer{}
	if w.publisher, err = newPublisher(w.epoch); err != nil {
		return err
	}
	w.describeCache(c)
	return nil
}

// acceptCall accepts or refuses a call.
func (w *simWorker) acceptCall(c *cluster, at uint32) {
	cl := &c.calls.all[at]
	switch {
	case !cl.clientWaits:
		c.freeCall(at)
		return
	case !w.alive:
		w.failCall(c, at, fault.Unavailable)
		return
	case w.draining:
		w.failCall(c, at, fault.Draining)
		return
	case w.heldCalls >= c.cfg.MaxSeqs+c.cfg.MaxWaiting:
		w.failCall(c, at, fault.Overloaded)
		return
	}
	w.heldCalls++
	c.mediaObjects += int64(len(cl.parts))
	w.admitCall(c, at)
}

// admitCall has a call scheduled, at once or when the rows of its media have come. If blocks are to come from a prefill
// worker, rows are not fetched.
func (w *simWorker) admitCall(c *cluster, at uint32) {
	if cl := &c.calls.all[at]; !w.startHandoff(c, at) && w.encoder.EncodesInPass() && w.fetchRows(c, at) {
		cl.state = callAwaitsRows
		return
	}
	w.queueCall(c, at)
}

// queueCall makes a call wait for the next batch.
func (w *simWorker) queueCall(c *cluster, at uint32) {
	cl := &c.calls.all[at]
	cl.state, cl.readyAt = callQueued, c.now
	w.inbox = append(w.inbox, at)
	w.wakeWorker(c)
}

// failCall sends the last frame of a failed call.
func (w *simWorker) failCall(c *cluster, at uint32, code fault.Code) {
	cl := &c.calls.all[at]
	cl.state = callFinished
	c.sendBatch(c.newBatchOf(responseFrame{call: at, generation: cl.generation, kind: frameFailed, code: code}), c.cfg.Delay)
}

// startBatch handles new calls, and starts the next batch if there is one.
func (w *simWorker) startBatch(c *cluster) {
	w.takeEncoded(c)
	w.takeImports(c)
	w.removeAborted(c)
	w.scheduleInbox(c)
	for again := true; again; {
		w.sched.Step(&w.plan)
		for _, id := range w.plan.Failed {
			// Impossible: a response ends at the context's length.
			w.heldCalls--
			w.failCall(c, uint32(id), fault.Internal)
		}
		found := false
		for _, id := range w.plan.Preempted {
			found = true
			c.reclaimHandoff(uint32(id))
		}
		for _, r := range w.plan.Reserved {
			found = w.startReserved(c, uint32(r.ID), r.Ready) || found
		}
		again = found && len(w.plan.Work) == 0 // something can be computed now
	}
	w.busy = len(w.plan.Work) > 0
	if !w.busy {
		w.publishChanges(c)
		return
	}
	pass := sim.DescribePass(&w.plan, w.sched.Stats(), c.cfg.Blocks)
	if w.encoder.EncodesInPass() {
		pass.EncodeMillis = w.encodeInPass(c)
	}
	d := c.faults.slowedTime(c.now, c.cfg.scalePass(w.number, c.now, w.timing.PassDuration(&pass, w.passes)))
	w.passes++
	c.queue.push(c.now.Add(d), eventBatchDone, w.number, uint32(w.epoch))
	w.announcePass(c, c.now.Add(d))
}

// scalePass returns the duration of a pass of a worker which would take d at speed 1.
func (c *Config) scalePass(worker uint32, now kv.Mono, d time.Duration) time.Duration {
	factor := 1.0
	if len(c.Speeds) > 0 {
		factor = 1 / c.Speeds[int(worker)%len(c.Speeds)]
	}
	for _, s := range c.SlowDowns {
		if s.Worker == int(worker)+1 && sinceStart(now) >= s.At {
			factor *= s.Factor
		}
	}
	if factor == 1 {
		return d
	}
	return time.Duration(float64(d) * factor)
}

// removeAborted drops the calls whose clients are gone.
func (w *simWorker) removeAborted(c *cluster) {
	for _, at := range w.aborts {
		cl := &c.calls.all[at]
		switch cl.state {
		case callQueued:
			w.inbox = slices.DeleteFunc(w.inbox, func(other uint32) bool { return other == at })
		case callRunning:
			w.removeSequence(c, at)
		default:
			continue // its last frame is in flight and ends it
		}
		w.heldCalls--
		c.freeCall(at)
	}
	w.aborts = w.aborts[:0]
}

// removeSequence takes a call out of the schedule.
func (w *simWorker) removeSequence(c *cluster, at uint32) {
	if c.calls.all[at].prefilled {
		w.decoding--
	}
	w.sched.RemoveSequence(paged.SeqID(at))
	w.encoded = w.encoder.StopSequence(c.now, paged.SeqID(at), w.encoded[:0])
	w.scheduleEncoded(c)
	w.finishRanges(w.encoded)
}

// scheduleInbox adds the new calls to the schedule.
func (w *simWorker) scheduleInbox(c *cluster) {
	if len(w.inbox) == 0 {
		return
	}
	accepted := c.newBatch()
	for _, at := range w.inbox {
		cl := &c.calls.all[at]
		if cl.job == noJob {
			c.appendFrame(accepted, responseFrame{call: at, generation: cl.generation, kind: frameAccepted})
		}
		seq := w.newSequence(c, at)
		err := w.sched.AddSequence(seq)
		cl.state = callRunning
		c.countScheduledJob(cl.job)
		switch {
		case err != nil && cl.job != noJob:
			w.heldCalls--
			cl.state = callFinished
			c.queue.push(c.now, eventJobFailed, cl.job.at, cl.job.generation)
		case err != nil:
			w.heldCalls--
			cl.state = callFinished
			c.cancelHandoff(at)
			c.appendFrame(accepted, responseFrame{call: at, generation: cl.generation, kind: frameFailed, code: fault.CodeOf(err)})
		case len(seq.Unfinished) > 0 && seq.TransferEnd == 0:
			w.startEncoding(c, at, w.sched.CachedPrefix(seq))
		}
	}
	w.inbox = w.inbox[:0]
	c.sendBatch(accepted, c.cfg.Delay)
}

// newSequence returns the sequence of a call. Its tokens are valid until the next one.
func (w *simWorker) newSequence(c *cluster, at uint32) paged.Sequence {
	cl := &c.calls.all[at]
	seq := paged.Sequence{ID: paged.SeqID(at), Prompt: cl.prompt}
	if j := c.lookUpJob(cl.job); j != nil {
		seq.Tokens, seq.Hold = j.tokens, true
	} else {
		seq.Tokens = c.expandTokens(cl)
	}
	if cl.handoff != nil {
		seq.TransferEnd = cl.handoff.end
	}
	if !w.encoder.EncodesInPass() {
		seq.Unfinished = sim.UnfinishedRanges(cl.parts)
	}
	return seq
}

// expandTokens returns the prompt and the response so far of a call. They are valid until the next call.
func (c *cluster) expandTokens(cl *attempt) []kv.Token {
	tokens := c.expandPrompt(&c.tasks.all[cl.task])
	for i := range cl.generated {
		tokens = append(tokens, outputToken(cl.index, i))
	}
	c.prompt = tokens[:cl.prompt]
	return tokens
}

// finishBatch ends a batch: its tokens are known.
func (w *simWorker) finishBatch(c *cluster, epoch uint32) {
	if uint32(w.epoch) != epoch || !w.alive {
		return // of an earlier epoch
	}
	w.sampled, w.heldDone = w.sampled[:0], w.heldDone[:0]
	batch := c.newBatch()
	for i := range w.plan.Work {
		work := &w.plan.Work[i]
		at := uint32(work.ID)
		cl := &c.calls.all[at]
		cl.computed += work.Prefill
		if j := c.lookUpJob(cl.job); j != nil && work.Start+len(work.Tokens) == len(j.tokens) {
			w.heldDone = append(w.heldDone, cl.job)
			j.cached = work.Cached
			w.learnPrefill(c, cl)
		}
		if !work.Sample {
			continue
		}
		if !cl.prefilled {
			cl.prefilled = true
			w.decoding++
			w.learnPrefill(c, cl)
			if h := cl.handoff; h != nil && h.machine.State() == disagg.Decoding {
				c.split.RemoteTail += int64(cl.computed)
			}
		}
		w.sampled = append(w.sampled, paged.SampledToken{ID: work.ID, Token: outputToken(cl.index, cl.generated)})
		f := responseFrame{call: at, generation: cl.generation, kind: frameToken, position: cl.generated, cached: cl.cachedTokens(work)}
		cl.generated++
		f.last = cl.generated == cl.limit
		c.appendFrame(batch, f)
	}
	w.sched.Commit(w.sampled)
	for _, f := range c.batches.all[batch] {
		if f.last {
			w.removeSequence(c, f.call)
			w.heldCalls--
			c.calls.all[f.call].state = callFinished
		}
	}
	for _, ref := range w.heldDone {
		c.handleComputed(ref)
	}
	w.heldDone = w.heldDone[:0]
	w.publishChanges(c)
	w.busy = false
	c.sendBatch(batch, c.cfg.Delay)
	w.startBatch(c)
}

// hasElapsed reports whether d has passed from one time to another.
func hasElapsed(from, to kv.Mono, d time.Duration) bool { return to.Sub(from) >= d }
