package simcluster

import (
	"cmp"
	"errors"
	"math"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/core/rates"
	"penstock/internal/replay"
)

// maxPrefillWorkers bounds the prefill workers of a cluster, and maxPrefillConcurrency the jobs of each at once.
const (
	maxPrefillWorkers     = 1 << 10
	maxPrefillConcurrency = 1 << 10
)

// The bounds of Config.KVBandwidth, in GB/s: the longest prompt takes far less than the virtual clock has.
const (
	minKVBandwidth = 1e-6
	maxKVBandwidth = 1e6
)

// ensureSplitDefaults sets what is not set of the settings of prefill workers.
func (c *Config) ensureSplitDefaults() {
	if c.Split == (disagg.SplitConfig{}) {
		c.Split = disagg.DefaultSplit()
	}
	if c.Handoff == (disagg.HandoffConfig{}) {
		c.Handoff = disagg.HandoffConfig{
			MaxAttempts: 3, LocalWait: 2 * time.Second, QueueWait: 5 * time.Second, AddressedWait: time.Second, Silence: 2 * time.Second, Budget: 20 * time.Second,
		}
	}
	if c.Job == (disagg.JobConfig{}) {
		c.Job = disagg.JobConfig{ClaimWait: time.Second, Heartbeat: 500 * time.Millisecond, Budget: 20 * time.Second}
	}
	c.PrefillConcurrency = cmp.Or(c.PrefillConcurrency, 2)
}

// validateSplit reports what is wrong with prefill workers.
func (c *Config) validateSplit() error {
	errs := []error{c.Split.Validate(), c.Handoff.Validate(), c.Job.Validate()}
	if c.PrefillWorkers < 0 || c.PrefillWorkers > maxPrefillWorkers {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d prefill workers: must be between 0 and %d", c.PrefillWorkers, maxPrefillWorkers))
	}
	if c.PrefillConcurrency < 1 || c.PrefillConcurrency > maxPrefillConcurrency {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d jobs of a prefill worker at once: must be between 1 and %d", c.PrefillConcurrency, maxPrefillConcurrency))
	}
	if c.KVLatency < 0 || c.KVLatency > maxDelay || !(c.KVBandwidth == 0 || c.KVBandwidth >= minKVBandwidth && c.KVBandwidth <= maxKVBandwidth) {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: KV blocks cannot come after %v at %g GB/s: from 0s to %v, and 0 or %g to %g GB/s", c.KVLatency, c.KVBandwidth, maxDelay, minKVBandwidth, maxKVBandwidth))
	}
	return errors.Join(errs...)
}

// kvTokenMs returns how long the blocks of a token take from one worker to another beside KVLatency, in ms.
func (c *Config) kvTokenMs() float64 {
	if c.KVBandwidth == 0 {
		return 0
	}
	return float64(c.Timing.KV.BytesPerToken()) / (c.KVBandwidth * 1e6)
}

// isPrefill reports whether the worker computes prompts for others. Routers do not know it.
func (w *simWorker) isPrefill(c *cluster) bool { return int(w.number) >= c.cfg.Workers }

// callHandoff is the handoff of a call at its decode worker.
type callHandoff struct {
	machine *disagg.Handoff
	effects []disagg.HandoffEffect // to be performed
	end     int                    // tokens before it are to come from a prefill worker; 0 if none are
	cached  int                    // of them, in the cache of the prefill worker
	awaits  bool                   // counted in simWorker.awaiting
	job     jobRef                 // of the present attempt, or the admitted one; noJob before the first
	made    disagg.AttemptRef      // of the last job
	asking  jobRef                 // whose pull is being answered
	tickAt  kv.Mono                // the next eventHandoffTick
}

// importedBlocks are blocks of a call which have arrived: of its tokens before end.
type importedBlocks struct {
	call, generation uint32
	end              int
}

// startHandoff decides where the prompt of a new call is computed, and reports whether a prefill worker does. The
// look-up of the prefix takes no time.
func (w *simWorker) startHandoff(c *cluster, at uint32) (remote bool) {
	cl := &c.calls.all[at]
	if c.cfg.PrefillWorkers == 0 || cl.job != noJob {
		return false
	}
	first := disagg.AttemptRef{Epoch: w.epoch, Attempt: w.attempts + 1}
	w.attempts += uint32(c.cfg.Handoff.MaxAttempts)
	h := &callHandoff{job: noJob, asking: noJob}
	cl.handoff = h
	h.machine, h.effects = disagg.StartHandoff(c.now, c.cfg.Handoff, disagg.HandoffRequest{
		First: first, Tokens: cl.prompt + cl.generated, BlockSize: c.cfg.BlockSize,
	}, nil)
	c.performHandoff(at)
	return h.end > 0
}

// decideSplit decides about a call. The worker knows the queue of the prefill workers, what each of them has to compute
// and what its cache holds, as it is now.
func (w *simWorker) decideSplit(c *cluster, at uint32) disagg.Decision {
	cl := &c.calls.all[at]
	seq := paged.Sequence{Tokens: c.expandTokens(cl), Prompt: cl.prompt}
	in := disagg.SplitInputs{
		Tokens: len(seq.Tokens), Cached: w.sched.CachedPrefix(seq), BlockSize: c.cfg.BlockSize,
		LocalTokens: w.sched.Stats().PrefillTokens, LocalPrefills: max(w.heldCalls-1-w.decoding-w.awaiting, 0), Decoding: w.decoding,
		QueuedJobs: len(c.jobQueue), RunningJobs: c.jobs.usedCount() - len(c.jobQueue), QueuedTokens: c.queuedTokens,
	}
	for _, other := range w.inbox {
		if o := &c.calls.all[other]; o.handoff == nil || o.handoff.end == 0 {
			in.LocalTokens += o.prompt + o.generated
		}
	}
	transfer := disagg.TransferTime{FixedMs: float64(c.cfg.KVLatency) / float64(time.Millisecond), TokenMs: c.cfg.kvTokenMs()}
	among := &c.among
	among.Workers, among.Transfer = among.Workers[:0], [...]disagg.TransferTime{transfer, transfer}
	var likely *simWorker
	for i := c.cfg.Workers; i < len(c.workers); i++ {
		p := &c.workers[i]
		if !p.registered {
			continue
		}
		worker := disagg.PrefillCandidate{Worker: disagg.Incarnation{Worker: p.id, Epoch: p.registeredEpoch}}
		if p.alive {
			worker.QueuedTokens, worker.Jobs, worker.Cached = p.sched.Stats().PrefillTokens, p.heldCalls, p.sched.CachedPrefix(seq)
			in.QueuedTokens += worker.QueuedTokens
			for _, waiting := range p.addressed {
				worker.QueuedTokens += c.jobs.all[waiting].size
				worker.Jobs++
			}
		}
		among.Workers = append(among.Workers, worker)
		if likely == nil || !likely.alive || p.alive && p.sched.Stats().PrefillTokens < likely.sched.Stats().PrefillTokens {
			likely = p
		}
	}
	if len(c.pulls) > 0 {
		likely = &c.workers[c.pulls[0]]
	}
	if likely == nil {
		likely = w // no prefill worker: the rates do not matter
	} else if likely.alive {
		in.RemoteCached = likely.sched.CachedPrefix(seq)
	}
	return disagg.DecideAmong(&c.cfg.Split, &in, among, c.ratesOf(w), c.ratesOf(likely))
}

// ratesOf returns what is known of a worker's speed: decode workers and prefill workers are learned apart.
func (c *cluster) ratesOf(w *simWorker) *rates.WorkerRates {
	if w.isPrefill(c) {
		return c.prefillRates.WorkerOf(w.id)
	}
	return c.decodeRates.WorkerOf(w.id)
}

// learnPrefill learns from a prompt which has been computed, or the rest of one, as a router does: the time is that
// since it was the first of its worker.
func (w *simWorker) learnPrefill(c *cluster, cl *attempt) {
	if c.cfg.PrefillWorkers == 0 {
		return
	}
	since := max(w.prefilledAt, cl.readyAt)
	w.prefilledAt = c.now
	if len(cl.parts) == 0 && cl.computed > 0 {
		c.ratesOf(w).RecordPrefill(c.now, cl.computed, c.now.Sub(since))
	}
}

// cachedTokens returns how many prompt tokens of a call were cached: at its worker, or at the prefill worker.
func (cl *attempt) cachedTokens(work *paged.Work) int {
	if cl.handoff == nil {
		return work.Cached
	}
	return max(work.Cached, min(cl.handoff.cached, cl.prompt-1))
}

// performHandoff performs the effects of a call's machine. It reports whether its worker may have something to compute
// now: the caller wakes it.
func (c *cluster) performHandoff(at uint32) (computable bool) {
	h := c.calls.all[at].handoff
	wasLive := len(h.effects) > 0
	for len(h.effects) > 0 {
		e := h.effects[0]
		h.effects = h.effects[1:]
		w := &c.workers[c.calls.all[at].worker]
		switch e.Kind {
		case disagg.LookUpPrefix:
			d := w.decideSplit(c, at)
			c.splits[d.Reason.String()]++
			h.effects = h.machine.HandlePrefix(c.now, &d, h.effects)
		case disagg.ReserveBlocks:
			h.end = disagg.MovableEnd(e.Tokens, c.cfg.BlockSize)
			w.awaiting, h.awaits = w.awaiting+1, true
		case disagg.EnqueueJob:
			c.enqueueJob(at, &e)
		case disagg.WithdrawJob:
			if w.alive { // one which is gone withdraws nothing
				c.withdrawJob(h.job)
			}
		case disagg.AdmitPull:
			h.job = h.asking // which may have been addressed to its worker, and withdrawn
			c.sendToJob(eventJobAdmitted, h.asking)
		case disagg.RefusePull:
			c.sendToJob(eventJobRefused, h.asking)
		case disagg.AbortPrefill:
			c.sendToJob(eventJobRefused, h.job)
		case disagg.StartDecode:
			w.imports = append(w.imports, importedBlocks{at, c.calls.all[at].generation, e.End})
			computable = true
		case disagg.PrefillLocal:
			c.localReasons[e.Reason.String()]++
			h.end = 0
			computable = w.prefillLocal(c, at) || computable
		default:
			// OpenTransfer and CloseTransfer: a note of another attempt is ignored. FreeBlocks: the sequence is preempted, or
			// is removed.
		}
	}
	if wasLive && h.machine.State().IsEnd() {
		if h.awaits {
			c.workers[c.calls.all[at].worker].awaiting--
		}
		switch h.machine.State() {
		case disagg.Decoding:
			c.split.Remote++
		case disagg.Local:
			c.split.Local++
		default:
			c.split.Cancelled++
		}
	}
	c.scheduleHandoffTick(at)
	return computable
}

// prefillLocal has the worker compute what it awaited from a prefill worker, if the call is scheduled already.
func (w *simWorker) prefillLocal(c *cluster, at uint32) (scheduled bool) {
	cl := &c.calls.all[at]
	if cl.state != callRunning {
		return false
	}
	cl.readyAt = c.now
	w.sched.FinishTransfer(paged.SeqID(at))
	if !w.encoder.EncodesInPass() && len(cl.parts) > 0 {
		ready, blocks := w.sched.SequenceBlocks(paged.SeqID(at))
		if len(blocks) == 0 {
			ready = w.sched.CachedPrefix(paged.Sequence{Tokens: c.expandTokens(cl), Prompt: cl.prompt})
		}
		w.startEncoding(c, at, ready)
	}
	return true
}

// startReserved goes on with a call whose blocks have been reserved, the first ready tokens of which are cached. It
// reports whether something can be computed now.
func (w *simWorker) startReserved(c *cluster, at uint32, ready int) bool {
	h, found := c.calls.all[at].handoff, false
	if h != nil && !h.machine.State().IsEnd() {
		h.effects = h.machine.HandleReserved(c.now, ready, h.effects)
		if found = c.performHandoff(at); !h.machine.State().IsEnd() {
			return found
		}
	}
	return !w.encoder.EncodesInPass() && w.startEncoding(c, at, ready) || found
}

// takeImports gives the scheduler the blocks which have arrived since the last batch began.
func (w *simWorker) takeImports(c *cluster) {
	for _, in := range w.imports {
		cl := &c.calls.all[in.call]
		if cl.generation != in.generation || cl.state != callRunning {
			continue // its client has left
		}
		if !w.sched.ImportTokens(paged.SeqID(in.call), in.end) {
			c.internalError = fault.New(fault.Internal, "simcluster: the blocks of an import to worker %d are not reserved", w.id.ID)
			continue
		}
		cl.readyAt = c.now
		if !w.encoder.EncodesInPass() && len(cl.parts) > 0 {
			w.startEncoding(c, in.call, in.end)
		}
	}
	w.imports = w.imports[:0]
}

// liveHandoff returns the handoff of a call if it goes on, else nil.
func (c *cluster) liveHandoff(at uint32) *callHandoff {
	if h := c.calls.all[at].handoff; h != nil && !h.machine.State().IsEnd() {
		return h
	}
	return nil
}

// reclaimHandoff tells the handoff of a call, if there is one, that its blocks are gone.
func (c *cluster) reclaimHandoff(at uint32) {
	if h := c.liveHandoff(at); h != nil {
		h.effects = h.machine.ReclaimBlocks(h.effects)
		c.performHandoff(at)
	}
}

// cancelHandoff ends the handoff of a call, if there is one.
func (c *cluster) cancelHandoff(at uint32) {
	if h := c.liveHandoff(at); h != nil {
		h.effects = h.machine.CancelHandoff(h.effects)
		c.performHandoff(at)
	}
}

// scheduleHandoffTick schedules the next deadline of a call's handoff.
func (c *cluster) scheduleHandoffTick(at uint32) {
	cl := &c.calls.all[at]
	h := cl.handoff
	if due, live := h.machine.Deadline(); live && (h.tickAt <= c.now || due < h.tickAt) {
		h.tickAt = due
		c.queue.push(due, eventHandoffTick, at, cl.generation)
	}
}

// tickHandoff is the event of a deadline, which may have moved meanwhile.
func (c *cluster) tickHandoff(at, generation uint32) {
	if c.calls.all[at].generation != generation {
		return
	}
	h := c.liveHandoff(at)
	if h == nil || c.now < h.tickAt {
		return
	}
	h.effects = h.machine.Tick(c.now, h.effects)
	if c.performHandoff(at) {
		c.workers[c.calls.all[at].worker].wakeWorker(c)
	}
}

// disaggUse returns where prompts were computed.
func (c *cluster) disaggUse() replay.DisaggUse {
	u := c.split
	u.PrefillWorkers, u.Policy, u.Decisions, u.LocalReasons = c.cfg.PrefillWorkers, c.cfg.Split.Policy.String(), c.splits, c.localReasons
	u.QueueWait = c.jobWaits.Distribution()
	if c.cfg.Split.Policy == disagg.ByThreshold {
		u.MaxLocalPrefillLength, u.MaxPrefillQueueSize = c.cfg.Split.MaxLocalPrefillLength, c.cfg.Split.MaxPrefillQueueSize
	}
	for i := range c.workers {
		w := &c.workers[i]
		n := int64(w.pastComputed + w.sched.Stats().ComputedTokens)
		if w.isPrefill(c) {
			u.PrefillComputed += n
		} else {
			u.DecodeComputed += n
		}
	}
	return u
}

// transferTime returns how long the blocks of so many tokens keep the way out of a prefill worker busy.
func (c *Config) transferTime(tokens int) time.Duration {
	return time.Duration(math.Round(float64(c.kvTokenMs()*float64(tokens)) * float64(time.Millisecond)))
}
