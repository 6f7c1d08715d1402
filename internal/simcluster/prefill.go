package simcluster

import (
	"slices"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/rates"
	"penstock/internal/replay"
)

// prefillFleet is what the prefill workers of a cluster share, and what is known of them.
type prefillFleet struct {
	// jobQueue are the jobs which wait for a prefill worker, and pulls the numbers of the workers which wait for a job:
	// one for each job more that a worker can do, in the order in which they began to wait.
	jobQueue, pulls []uint32
	among           disagg.Candidates // scratch
	// queuedTokens belong to jobs which are not scheduled at a prefill worker.
	queuedTokens int

	decodeRates, prefillRates *rates.Learner

	split                replay.DisaggUse
	splits, localReasons map[string]int
	jobWaits             *replay.Times
}

// openPrefillFleet makes the prefill workers ready to pull jobs.
func (c *cluster) openPrefillFleet() (err error) {
	if c.cfg.PrefillWorkers == 0 {
		return nil
	}
	c.splits, c.localReasons, c.jobWaits = map[string]int{}, map[string]int{}, replay.NewTimes()
	if c.decodeRates, err = rates.New(rates.Config{}); err != nil {
		return err
	}
	if c.prefillRates, err = rates.New(rates.Config{}); err != nil {
		return err
	}
	for range c.cfg.PrefillConcurrency {
		for i := c.cfg.Workers; i < len(c.workers); i++ {
			c.addPulls(&c.workers[i], 1)
		}
	}
	return nil
}

// jobRef names a job, which may be over.
type jobRef struct{ at, generation uint32 }

// noWorker is the number of no worker.
const noWorker = ^uint32(0)

// noJob is no job.
var noJob = jobRef{at: ^uint32(0)}

// maxDeliveries bounds how often a job is given to prefill workers.
const maxDeliveries = 5

// prefillJob is a job of the prefill workers, from the decode worker which made it to its end.
type prefillJob struct {
	generation       uint32
	call, callNumber uint32 // of the decode worker, and its generation
	offer            disagg.JobOffer
	decode           uint32 // worker
	tokens           []kv.Token
	to               uint32  // the worker to which it is addressed; noWorker if it is to none
	counted          bool    // in queuedTokens
	size             int     // tokens
	madeAt, queuedAt kv.Mono // queuedAt is when it came to the queue
	deliveries       int

	// At the prefill worker which has it, if machine is not nil.
	machine     *disagg.PrefillJob
	worker      uint32
	workerEpoch uint64
	sequence    uint32 // its call there; noCall if there is none
	sequenceGen uint32 // the generation of that
	cached      int    // tokens which its cache had
	tickAt      kv.Mono
}

// lookUpJob returns a job; nil if it is over.
func (c *cluster) lookUpJob(ref jobRef) *prefillJob {
	if ref == noJob || c.jobs.all[ref.at].generation != ref.generation {
		return nil
	}
	return &c.jobs.all[ref.at]
}

// enqueueJob makes the job of an attempt, and sends it to the queue, or to the worker to which it is addressed.
func (c *cluster) enqueueJob(call uint32, e *disagg.HandoffEffect) {
	cl := &c.calls.all[call]
	at := c.jobs.takeSlot()
	j := &c.jobs.all[at]
	*j = prefillJob{
		generation: j.generation, call: call, callNumber: cl.generation, decode: cl.worker, tokens: j.tokens[:0], sequence: noCall,
		offer: disagg.JobOffer{Ref: e.Ref, Start: e.Start, End: e.End, Budget: e.Budget},
		size:  cl.prompt + cl.generated, madeAt: c.now, counted: true, to: noWorker,
	}
	if e.Peer != (disagg.Incarnation{}) {
		j.to = uint32(e.Peer.Worker.ID - 1)
		c.split.Addressed++
	}
	c.queuedTokens += j.size
	if e.Ref != cl.handoff.made { // else it was addressed, and is the others' now
		c.split.Jobs++
	}
	cl.handoff.made = e.Ref
	cl.handoff.job = jobRef{at, j.generation}
	c.queue.push(c.now.Add(c.cfg.Delay), eventJobQueued, at, j.generation)
}

// countScheduledJob says that a job is scheduled at its prefill worker, or over.
func (c *cluster) countScheduledJob(ref jobRef) {
	if j := c.lookUpJob(ref); j != nil && j.counted {
		j.counted = false
		c.queuedTokens -= j.size
	}
}

// withdrawJob drops a job which no prefill worker has.
func (c *cluster) withdrawJob(ref jobRef) {
	if j := c.lookUpJob(ref); j != nil && j.machine == nil {
		isRef := func(other uint32) bool { return other == ref.at }
		if j.to == noWorker {
			c.jobQueue = slices.DeleteFunc(c.jobQueue, isRef)
		} else {
			w := &c.workers[j.to]
			w.addressed = slices.DeleteFunc(w.addressed, isRef)
		}
		c.freeJob(ref)
	}
}

// freeJob ends a job.
func (c *cluster) freeJob(ref jobRef) {
	c.countScheduledJob(ref)
	j := &c.jobs.all[ref.at]
	j.generation++
	j.machine = nil
	c.jobs.freeSlot(ref.at)
}

// addPulls has a prefill worker wait for n jobs more.
func (c *cluster) addPulls(w *simWorker, n int) {
	if !w.isPrefill(c) || !w.alive || w.draining {
		return
	}
	for range n {
		c.pulls = append(c.pulls, w.number)
	}
	c.servePulls()
}

// dropPulls has a worker pull no jobs any more. Those which are addressed to it, and which it has not begun, are refused.
func (c *cluster) dropPulls(worker uint32) {
	c.pulls = slices.DeleteFunc(c.pulls, func(other uint32) bool { return other == worker })
	w := &c.workers[worker]
	for _, at := range w.addressed {
		c.refuseJob(jobRef{at, c.jobs.all[at].generation}, w)
	}
	w.addressed = w.addressed[:0]
}

// refuseJob ends a job at the worker to which it is addressed, which does not take it.
func (c *cluster) refuseJob(ref jobRef, w *simWorker) {
	j := &c.jobs.all[ref.at]
	j.worker, j.workerEpoch = w.number, w.epoch
	c.sendNote(ref, noteGaveUp, disagg.PrefillFailed, c.cfg.Delay)
	c.freeJob(ref)
}

// serveAddressed begins jobs which are addressed to a worker, up to PrefillConcurrency beside the ones of the queue.
func (c *cluster) serveAddressed(w *simWorker) {
	for len(w.addressed) > 0 && w.calledJobs < c.cfg.PrefillConcurrency {
		at := w.addressed[0]
		w.addressed = slices.Delete(w.addressed, 0, 1)
		w.calledJobs++
		c.startJob(jobRef{at, c.jobs.all[at].generation}, w)
	}
}

// servePulls gives jobs to the workers which wait for them.
func (c *cluster) servePulls() {
	for len(c.jobQueue) > 0 && len(c.pulls) > 0 {
		at, worker := c.jobQueue[0], c.pulls[0]
		c.jobQueue, c.pulls = slices.Delete(c.jobQueue, 0, 1), slices.Delete(c.pulls, 0, 1)
		c.startJob(jobRef{at, c.jobs.all[at].generation}, &c.workers[worker])
	}
}

// startJob begins a job at the prefill worker which has pulled it.
func (c *cluster) startJob(ref jobRef, w *simWorker) {
	j := &c.jobs.all[ref.at]
	j.worker, j.workerEpoch, j.tickAt = w.number, w.epoch, 0
	if j.deliveries++; j.deliveries == 1 {
		c.jobWaits.Add(c.now.Sub(j.queuedAt))
	}
	offer := j.offer
	offer.Budget = max(offer.Budget-c.now.Sub(j.madeAt), 1)
	var owner *disagg.Metadata
	if d := &c.workers[j.decode]; d.registered {
		owner = c.exchangeMetadata(d.registeredEpoch)
	}
	machine, effects := disagg.StartJob(c.now, c.cfg.Job, offer, c.exchangeMetadata(w.epoch), owner, nil)
	j.machine = machine
	c.performJob(ref, effects)
}

// exchangeMetadata returns what the workers state, which are alike.
func (c *cluster) exchangeMetadata(epoch uint64) *disagg.Metadata {
	return &disagg.Metadata{
		Epoch: epoch, BlockSize: c.cfg.BlockSize, TokenBytes: int(c.cfg.Timing.KV.BytesPerToken()), Layout: "simulated", Type: "simulated",
		Numerics: "simulated", Transports: []disagg.TransportAddress{{Name: "simulated"}},
	}
}

// performJob performs the effects of a job's machine.
func (c *cluster) performJob(ref jobRef, effects []disagg.HandoffEffect) {
	j := &c.jobs.all[ref.at]
	isOver, goesBack := false, false
	for _, e := range effects {
		switch e.Kind {
		case disagg.FetchPrompt:
			c.sendNote(ref, notePull, 0, c.cfg.Delay)
		case disagg.RunPrefill:
			c.runPrefill(ref)
			j = &c.jobs.all[ref.at]
		case disagg.WriteBlocks:
			w := &c.workers[j.worker]
			w.wireFreeAt = max(w.wireFreeAt, c.now).Add(c.cfg.transferTime(e.End - e.Start))
			c.sendNote(ref, noteBlocks, 0, w.wireFreeAt.Sub(c.now)+c.cfg.KVLatency)
		case disagg.KeepAlive:
			c.sendNote(ref, noteProgress, 0, c.cfg.Delay)
		case disagg.TellDecode:
			c.sendNote(ref, noteGaveUp, e.Reason, c.cfg.Delay)
		case disagg.ReleasePrompt:
			c.releaseSequence(j)
		case disagg.AckJob:
			isOver = true
		case disagg.ReturnJob:
			goesBack = true
		}
	}
	w, addressed := &c.workers[j.worker], j.to != noWorker
	switch {
	case goesBack && addressed:
		c.refuseJob(ref, w)
	case isOver, goesBack && j.deliveries >= maxDeliveries:
		c.freeJob(ref)
	case goesBack:
		j.machine = nil
		c.jobQueue = append(c.jobQueue, ref.at)
	default:
		c.scheduleJobTick(ref)
		return
	}
	switch {
	case w.epoch != j.workerEpoch:
	case addressed:
		w.calledJobs--
		c.serveAddressed(w)
	default:
		c.addPulls(w, 1)
	}
}

// runPrefill has the prefill worker of a job compute its prompt.
func (c *cluster) runPrefill(ref jobRef) {
	j := &c.jobs.all[ref.at]
	if c.calls.all[j.call].generation != j.callNumber {
		return // it has been cancelled, and that is on its way
	}
	at := c.calls.takeSlot()
	cl, decode := &c.calls.all[at], &c.calls.all[j.call]
	cl.reset(decode.task, &c.tasks.all[decode.task], j.worker)
	cl.job, cl.clientWaits = ref, false
	j.sequence, j.sequenceGen = at, cl.generation
	w := &c.workers[j.worker]
	w.heldCalls++
	w.admitCall(c, at)
}

// releaseSequence ends what runs for a job at its prefill worker, and lets go of its blocks.
func (c *cluster) releaseSequence(j *prefillJob) {
	at := j.sequence
	if j.sequence = noCall; at == noCall || c.calls.all[at].generation != j.sequenceGen {
		return
	}
	if c.calls.all[at].state == callFinished { // the engine has refused it
		c.freeCall(at)
		return
	}
	c.cancelCall(at)
}

// handleComputed reports that the prompt of a job has been computed.
func (c *cluster) handleComputed(ref jobRef) {
	if j := c.lookUpJob(ref); j != nil && j.machine != nil {
		c.performJob(ref, j.machine.HandleComputed(nil))
	}
}

// handleJobEvent handles an event of a job.
func (c *cluster) handleJobEvent(kind eventKind, ref jobRef) {
	j := c.lookUpJob(ref)
	switch {
	case j == nil:
		return
	case kind == eventJobQueued:
		j.queuedAt = c.now
		if j.to != noWorker {
			c.acceptAddressed(ref, &c.workers[j.to])
			return
		}
		c.jobQueue = append(c.jobQueue, ref.at)
		c.servePulls()
		return
	case j.machine == nil:
		return
	}
	var effects []disagg.HandoffEffect
	switch kind {
	case eventJobAdmitted:
		effects = j.machine.HandlePrompt(c.now, 0, nil)
	case eventJobRefused:
		effects = j.machine.HandleRefused(nil)
	case eventJobFailed:
		effects = j.machine.HandleFailed(nil)
	case eventJobWritten:
		effects = j.machine.HandleWritten(nil)
	case eventJobTick:
		if c.now < j.tickAt {
			return // it has moved
		}
		effects = j.machine.Tick(c.now, nil)
	}
	c.performJob(ref, effects)
}

// acceptAddressed takes a job at the worker to which it is addressed, or refuses it.
func (c *cluster) acceptAddressed(ref jobRef, w *simWorker) {
	if !w.alive || w.draining {
		c.refuseJob(ref, w)
		return
	}
	w.addressed = append(w.addressed, ref.at)
	c.serveAddressed(w)
}

// scheduleJobTick schedules the next deadline of a job.
func (c *cluster) scheduleJobTick(ref jobRef) {
	j := &c.jobs.all[ref.at]
	if due, live := j.machine.Deadline(); live && (j.tickAt <= c.now || due < j.tickAt) {
		j.tickAt = due
		c.queue.push(due, eventJobTick, ref.at, ref.generation)
	}
}

// loseJobs ends the jobs of a prefill worker which has stopped. Its connections to the decode workers end with it.
func (c *cluster) loseJobs(w *simWorker) {
	c.dropPulls(w.number)
	if !w.isPrefill(c) {
		return
	}
	for i := range c.jobs.all {
		if j := &c.jobs.all[i]; j.machine != nil && j.worker == w.number && j.workerEpoch == w.epoch {
			ref := jobRef{uint32(i), j.generation}
			c.sendNote(ref, noteGaveUp, disagg.PrefillFailed, c.cfg.Delay)
			c.releaseSequence(j)
			c.freeJob(ref)
		}
	}
}

// sendToJob sends an event to the prefill worker of a job.
func (c *cluster) sendToJob(kind eventKind, ref jobRef) {
	if c.lookUpJob(ref) != nil {
		c.queue.push(c.now.Add(c.cfg.Delay), kind, ref.at, ref.generation)
	}
}
