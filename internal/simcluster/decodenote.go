package simcluster

import (
	"time"

	"penstock/core/disagg"
)

// noteKind is the kind of a decodeNote.
type noteKind uint8

const (
	notePull     noteKind = iota // the prefill worker asks for the prompt
	noteProgress                 // it goes on
	noteGaveUp                   // it has given up, or is gone
	noteBlocks                   // its blocks have arrived
)

// decodeNote is a message of a prefill worker about a job to the decode worker of its request.
type decodeNote struct {
	kind             noteKind
	job              jobRef
	ref              disagg.AttemptRef
	by               disagg.Incarnation
	why              disagg.HandoffReason
	worker           uint32 // which gets it
	call, callNumber uint32
	cached           int   // tokens which the prefill worker's cache had
	bytes            int64 // of the blocks
}

// sendNote sends a note about a job, which arrives after a time.
func (c *cluster) sendNote(ref jobRef, kind noteKind, why disagg.HandoffReason, after time.Duration) {
	j := &c.jobs.all[ref.at]
	at := c.decodeNotes.takeSlot()
	c.decodeNotes.all[at] = decodeNote{
		kind: kind, job: ref, ref: j.offer.Ref, by: disagg.Incarnation{Worker: c.workers[j.worker].id, Epoch: j.workerEpoch}, why: why,
		worker: j.decode, call: j.call, callNumber: j.callNumber, cached: j.cached,
		bytes: int64(j.offer.End-j.offer.Start) * c.cfg.Timing.KV.BytesPerToken(),
	}
	c.queue.push(c.now.Add(after), eventDecodeNote, at, 0)
}

// deliverNote delivers a note to its decode worker.
func (c *cluster) deliverNote(at uint32) {
	n := c.decodeNotes.all[at]
	c.decodeNotes.freeSlot(at)
	w := &c.workers[n.worker]
	var h *callHandoff
	if c.calls.all[n.call].generation == n.callNumber {
		h = c.liveHandoff(n.call)
	}
	switch {
	case !w.alive || w.epoch != n.ref.Epoch:
		c.sendToJob(eventJobFailed, n.job)
		return
	case h == nil:
		if n.kind != noteGaveUp {
			c.sendToJob(eventJobRefused, n.job)
		}
		return
	}
	switch n.kind {
	case notePull:
		c.handlePull(h, &n)
	case noteProgress:
		h.machine.HandleProgress(c.now, n.ref)
	case noteGaveUp:
		why := n.why
		if why != disagg.Incompatible {
			why = disagg.PrefillFailed
		}
		h.effects = h.machine.HandlePrefillFailed(c.now, n.ref, n.by, why, h.effects)
	case noteBlocks:
		c.handleBlocks(h, &n)
	}
	if c.performHandoff(n.call) {
		w.wakeWorker(c)
	}
}

// handlePull answers a prefill worker which asks for a prompt.
func (c *cluster) handlePull(h *callHandoff, n *decodeNote) {
	h.asking = n.job
	if h.effects = h.machine.HandlePull(c.now, n.ref, n.by, h.effects); h.machine.State() != disagg.Prefilling || h.machine.Ref() != n.ref {
		return
	}
	if j := c.lookUpJob(n.job); j != nil {
		j.tokens = append(j.tokens[:0], c.expandTokens(&c.calls.all[n.call])...)
	}
}

// handleBlocks takes the blocks of an attempt, if it is the present one.
func (c *cluster) handleBlocks(h *callHandoff, n *decodeNote) {
	h.effects = h.machine.HandleNotify(n.ref, h.effects)
	if h.machine.State() != disagg.Decoding {
		c.sendToJob(eventJobRefused, n.job)
		return
	}
	h.cached = n.cached
	c.split.BytesMoved += n.bytes
	c.sendToJob(eventJobWritten, n.job)
}
