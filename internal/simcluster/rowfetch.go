package simcluster

import (
	"math"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/core/rendezvous"
	"penstock/internal/engine/sim"
)

// rowFetch is a worker's request to other workers for the rows of an object, on behalf of its calls.
type rowFetch struct {
	worker  uint32
	epoch   uint64        // of the worker
	targets []kv.WorkerID // which are asked one after another; the first is being asked
	key     embcache.RowKey
	kind    media.Kind
	tokens  int
	outcome rowOutcome // of the first target
	load    int        // objects of an encode worker, when it answered
	waiting []waitingPart
}

// rowOutcome is what a worker answers which is asked for rows.
type rowOutcome uint8

const (
	rowsSent   rowOutcome = iota
	rowsGone              // it has evicted them
	workerDown            // nothing answers there
)

// waitingPart is a call that waits for a media object.
type waitingPart struct {
	call, generation uint32
	part             int
}

// rowPeer is what a worker knows of another one which it asks for rows.
type rowPeer struct {
	inFlight    int // objects for which it asks it
	reported    int // objects which that had when it last answered, at reportedAt
	reportedAt  kv.Mono
	pausedUntil kv.Mono // when it may be asked again
}

// The bounds of the coordinator in a worker process: how long a count of an encode worker's objects is used, how long a
// worker which has failed is not asked, and how many workers are asked which only hold rows.
const (
	reportAge      = 2 * time.Second
	failurePause   = 5 * time.Second
	holderAttempts = 2
)

// The bounds of Config.RowBandwidth, in GB/s: the largest object takes far less than the virtual clock has.
const (
	minRowBandwidth = 1e-6
	maxRowBandwidth = 1e6
)

// rowTransferTime is how long the rows of an object take from one worker to another.
func (c *Config) rowTransferTime(tokens int) time.Duration {
	if c.RowBandwidth == 0 {
		return c.RowLatency
	}
	return c.RowLatency + time.Duration(math.Round(float64(sim.RowBytes)*float64(tokens)/c.RowBandwidth))
}

// asksHolders reports whether workers ask others for rows which these hold.
func (c *cluster) asksHolders() bool { return !c.cfg.NoRowSharing && c.holders != nil }

// fetchRows asks other workers for the media of a new call which the worker lacks, and reports whether the call waits for
// any: one whose media are encoded in the passes waits before it is scheduled.
func (w *simWorker) fetchRows(c *cluster, at uint32) (waits bool) {
	cl := &c.calls.all[at]
	if len(cl.parts) == 0 || len(c.encoders) == 0 && !c.asksHolders() {
		return false
	}
	prompt := c.expandPrompt(&c.tasks.all[cl.task])
	cached := w.sched.CachedPrefix(paged.Sequence{Tokens: prompt, Prompt: len(prompt)})
	for i := range cl.parts {
		if cl.parts[i].End > cached && w.fetchPart(c, at, i) {
			cl.missing++
		}
	}
	if cl.missing == 0 && len(c.encoders) == 0 {
		return false
	}
	for i := range cl.parts { // what is here stays for the call
		if p := &cl.parts[i]; p.End > cached && !p.Elsewhere && w.encoder.Rows.HasRows(&p.Key) {
			p.Ready = w.encoder.Rows.LookupRows(&p.Key)
		}
	}
	return cl.missing > 0
}

// fetchPart makes a part of a call wait for its rows from other workers, and reports whether it does: the worker lacks
// them and does not encode them, and there is a worker to ask.
func (w *simWorker) fetchPart(c *cluster, at uint32, part int) bool {
	p := &c.calls.all[at].parts[part]
	f, found := w.fetches[p.Key]
	if !found {
		if w.encoder.Rows.HasRows(&p.Key) || w.encoder.IsEncoding(&p.Key) {
			return false
		}
		if f, found = w.startFetch(c, p); !found {
			return false
		}
	}
	w.encoder.Rows.LookupRows(&p.Key) // the miss is counted
	p.Missed, p.Elsewhere = true, true
	c.rowFetches.all[f].waiting = append(c.rowFetches.all[f].waiting, waitingPart{at, c.calls.all[at].generation, part})
	return true
}

// takeOver returns what has an object fetched which waits for an encoder of the worker, if another worker holds it by now;
// nil if workers do not share.
func (w *simWorker) takeOver(c *cluster) func(*embcache.RowKey, media.Kind, int, []paged.RangeID) bool {
	if !c.asksHolders() {
		return nil
	}
	return func(key *embcache.RowKey, kind media.Kind, tokens int, ranges []paged.RangeID) bool {
		f, ok := w.startFetch(c, &sim.MediaPart{Key: *key, Kind: kind, End: tokens})
		for _, r := range ranges {
			if ok {
				wait := waitingPart{uint32(r.Seq), c.calls.all[r.Seq].generation, r.Index}
				c.rowFetches.all[f].waiting = append(c.rowFetches.all[f].waiting, wait)
			}
		}
		return ok
	}
}

// startFetch asks other workers for the rows of an object; false if there is none to ask.
func (w *simWorker) startFetch(c *cluster, p *sim.MediaPart) (at uint32, ok bool) {
	order, holders := w.orderTargets(c, p)
	if len(c.encoders) > 0 {
		holders++ // and the first encode worker, which does not fail
	}
	if holders == 0 {
		return 0, false
	}
	at = c.rowFetches.takeSlot()
	f := &c.rowFetches.all[at]
	*f = rowFetch{
		worker: w.number, epoch: w.epoch, key: p.Key, kind: p.Kind, tokens: p.End - p.Start, waiting: f.waiting[:0], targets: f.targets[:0],
	}
	for _, i := range order[:holders] {
		f.targets = append(f.targets, c.candidates[i].ID)
	}
	if isIdentified(&p.Key) {
		w.fetches[p.Key] = at
	}
	w.askTarget(c, at)
	return at, true
}

func isIdentified(key *embcache.RowKey) bool { return key.Digest != kv.Digest{} }

// orderTargets returns the workers which can be asked for rows, as indexes of c.candidates, in the order of the coordinator
// in a worker process; the first holders of them encode nothing for others.
func (w *simWorker) orderTargets(c *cluster, p *sim.MediaPart) (order []int, holders int) {
	c.candidates, c.rowHolders = c.candidates[:0], c.rowHolders[:0]
	if c.holders != nil && isIdentified(&p.Key) {
		key := p.Key.EventKey()
		c.rowHolders = c.holders.AppendHolders(c.rowHolders, &key)
	}
	takesTime := w.encodeTiming.EncodeMillis(p.Kind, p.End-p.Start) > 0
	encoders := len(c.rowHolders)
	for i := range c.rowHolders {
		id := c.rowHolders[i].ID
		if int(id) > len(c.workers) {
			encoders = i
			break
		}
		if id != w.id.ID && c.asksHolders() && takesTime {
			w.addCandidate(c, rendezvous.Candidate{ID: id, Holds: true, HoldsOnly: true})
		}
	}
	for i := range c.encoders {
		id := c.encoders[i].id
		holds := encoders < len(c.rowHolders) && c.rowHolders[encoders].ID == id
		if holds {
			encoders++
		}
		w.addCandidate(c, rendezvous.Candidate{ID: id, Holds: holds})
	}
	c.askOrder, holders = rendezvous.AppendAskOrder(c.askOrder[:0], p.Key.PlaceHash(0), c.candidates, holderAttempts)
	return c.askOrder, holders
}

// addCandidate adds a worker to those which can be asked, with its load, unless it has failed a short while ago.
func (w *simWorker) addCandidate(c *cluster, of rendezvous.Candidate) {
	if known := w.peers[of.ID]; known != nil {
		if c.now < known.pausedUntil {
			return
		}
		of.Load = known.inFlight
		if known.reportedAt != 0 && c.now.Sub(known.reportedAt) < reportAge {
			of.Load = max(of.Load, known.reported)
		}
	}
	c.candidates = append(c.candidates, of)
}

// askTarget sends a fetch to its first target.
func (w *simWorker) askTarget(c *cluster, at uint32) {
	id := c.rowFetches.all[at].targets[0]
	if w.peers[id] == nil {
		w.peers[id] = &rowPeer{}
	}
	w.peers[id].inFlight++
	c.queue.push(c.now.Add(c.cfg.Delay), eventRowsAsked, at, 0)
}

// acceptFetch has the first target of a fetch answer it.
func (c *cluster) acceptFetch(at uint32) {
	if n := int(c.rowFetches.all[at].targets[0]); n > len(c.workers) {
		c.encoders[n-len(c.workers)-1].acceptFetch(c, at)
	} else {
		c.workers[n-1].giveRows(c, at)
	}
}

// giveRows answers a fetch with the rows which the worker holds. It encodes nothing for others.
func (w *simWorker) giveRows(c *cluster, at uint32) {
	f, after := &c.rowFetches.all[at], c.cfg.Delay
	switch {
	case !w.alive:
		f.outcome = workerDown
	case !w.encoder.Rows.RepeatLookup(&f.key): // the look-up counts where it was made
		f.outcome = rowsGone
	default:
		f.outcome = rowsSent
		after += c.cfg.rowTransferTime(f.tokens)
	}
	c.queue.push(c.now.Add(after), eventRowsArrived, at, 0)
}

// finishFetch takes the answer to a fetch: the rows are at the worker, or it asks the next target, or encodes.
func (w *simWorker) finishFetch(c *cluster, at uint32) {
	f := &c.rowFetches.all[at]
	if !w.alive || w.epoch != f.epoch {
		c.rowFetches.freeSlot(at)
		return
	}
	w.recordAnswer(c, f)
	if f.outcome != rowsSent {
		c.fetchMisses++
		if f.targets = f.targets[1:]; len(f.targets) > 0 {
			w.askTarget(c, at)
			return
		}
	}
	if w.fetches[f.key] == at {
		delete(w.fetches, f.key)
	}
	came := f.outcome == rowsSent
	if came {
		w.encoder.Rows.KeepRows(&f.key, f.tokens)
	}
	for _, p := range f.waiting { // other fetches may begin meanwhile
		if cl := &c.calls.all[p.call]; cl.generation == p.generation { // its client has not left
			w.finishPart(c, p, came)
		}
	}
	c.rowFetches.freeSlot(at)
}

// recordAnswer records what the answer to a fetch says about its first target.
func (w *simWorker) recordAnswer(c *cluster, f *rowFetch) {
	id := f.targets[0]
	known := w.peers[id]
	known.inFlight--
	switch {
	case int(id) > len(c.workers):
		known.reported, known.reportedAt = f.load, c.now
	case f.outcome == workerDown:
		known.pausedUntil = c.now.Add(failurePause)
	case f.outcome == rowsSent:
		c.rowsFetched++
	}
	if *known == (rowPeer{}) {
		delete(w.peers, id)
	}
}

// finishPart makes a part ready whose rows have come, or has it encoded by the worker.
func (w *simWorker) finishPart(c *cluster, at waitingPart, came bool) {
	cl := &c.calls.all[at.call]
	p := &cl.parts[at.part]
	p.Ready, p.Elsewhere, p.Refused = came, false, !came
	switch cl.state {
	case callAwaitsRows:
		if cl.missing--; cl.missing == 0 {
			w.queueCall(c, at.call)
		}
	case callRunning:
		r := paged.RangeID{Seq: paged.SeqID(at.call), Index: at.part}
		if w.encoder.StartPart(c.now, r, p) {
			w.arrived = append(w.arrived, r)
		}
		w.scheduleEncoded(c)
		w.wakeWorker(c)
	default:
	}
}
