package simcluster

import (
	"penstock/core/embcache"
	"penstock/core/embindex"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine/sim"
)

// rowChange is a change of an embedding cache on its way to the processes which follow it. All get it at the same time,
// and none is lost, so that one index stands for what each of them knows.
type rowChange struct {
	holder kv.WorkerID
	epoch  uint64 // of the holder
	key    kv.Digest
	added  bool
}

// openHolders makes the index of embedding caches, if a decision depends on it.
func (c *cluster) openHolders() (err error) {
	asked := c.cfg.EncodeWorkers > 1 || !c.cfg.NoRowSharing && len(c.workers) > 1
	if c.cfg.EmbeddingCache > 0 && (asked || c.prefersHolders()) {
		c.holders, err = embindex.New(embindex.Config{})
	}
	return err
}

// prefersHolders reports whether routers prefer workers which hold the embeddings of a prompt's media.
func (c *cluster) prefersHolders() bool {
	return c.usesEvents && c.cfg.Workers > 1 && c.cfg.Route.Affinity.Embedding > 0
}

// watchRows has the changes of an embedding cache made known in their order, and none before a time.
func (c *cluster) watchRows(rows *sim.RowMemory, holder kv.WorkerID, epoch uint64, notBefore *kv.Mono) {
	if c.holders == nil {
		return
	}
	rows.WatchChanges(func(changed *embcache.Change) {
		at := c.rowChanges.takeSlot()
		c.rowChanges.all[at] = rowChange{holder, epoch, changed.Item.Key.EventKey(), changed.Cause == embcache.Added}
		if c.encodesInPass {
			c.passChanges = append(c.passChanges, at)
		} else {
			c.queue.push(max(c.now, *notBefore).Add(c.cfg.EventDelay), eventRowsChanged, at, 0)
		}
	})
}

// encodeInPass encodes what a batch needs, and returns how long that takes in milliseconds. The rows are in the cache at
// once, for other sequences of the batch; announcePass makes them known.
func (w *simWorker) encodeInPass(c *cluster) (ms float64) {
	c.encodesInPass = true
	for i := range w.plan.Work {
		if work := &w.plan.Work[i]; work.Prefill > 0 {
			ms += w.encoder.EncodeInPass(c.calls.all[work.ID].parts, work.Start, work.Start+work.Prefill)
		}
	}
	c.encodesInPass = false
	return ms
}

// announcePass makes known what encodeInPass has encoded, at the end of the pass, and later changes not before.
func (w *simWorker) announcePass(c *cluster, end kv.Mono) {
	for _, at := range c.passChanges {
		w.rowsKnownAt = end
		c.queue.push(end.Add(c.cfg.EventDelay), eventRowsChanged, at, 0)
	}
	c.passChanges = c.passChanges[:0]
}

// applyRowChange applies a change, unless its worker has left or started again since.
func (c *cluster) applyRowChange(at uint32) {
	change := c.rowChanges.all[at]
	c.rowChanges.freeSlot(at)
	if n := int(change.holder); n <= len(c.workers) && (!c.workers[n-1].registered || c.workers[n-1].registeredEpoch != change.epoch) {
		return
	}
	if change.added {
		c.holders.Add(kv.Worker{ID: change.holder}, change.key)
	} else {
		c.holders.Remove(kv.Worker{ID: change.holder}, change.key)
	}
}

// forgetHolder forgets what a worker holds which has left discovery, or has started again.
func (c *cluster) forgetHolder(w kv.Worker) {
	if c.holders != nil {
		c.holders.DropWorker(w)
	}
}

// lookUpHeld returns which workers hold the embeddings of which media of a prompt. The result is valid until the next call.
func (c *cluster) lookUpHeld(parts []sim.MediaPart) []route.HeldMedia {
	if !c.prefersHolders() || c.holders == nil {
		return nil
	}
	c.held = c.held[:0]
	for i := range parts[:min(len(parts), route.MaxHeldMedia)] {
		if !isIdentified(&parts[i].Key) {
			continue
		}
		key := parts[i].Key.EventKey()
		c.rowHolders = c.holders.AppendHolders(c.rowHolders[:0], &key)
		for _, w := range c.rowHolders {
			if int(w.ID) <= c.cfg.Workers {
				c.held = route.AddHolder(c.held, w, i)
			}
		}
	}
	return c.held
}
