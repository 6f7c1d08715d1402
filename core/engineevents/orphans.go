package engineevents

import (
	"slices"

	"penstock/core/kv"
)

// The bounds of orphans. The oldest runs are dropped.
const (
	maxOrphanRuns   = 1 << 12
	maxOrphans      = 1 << 17 // engine blocks
	maxOrphanTokens = 1 << 20
)

// orphanSet holds blocks on the device which the engine stored after an unknown block. They wait for that
// block: when it becomes known they are stored as if the engine had just sent them.
type orphanSet struct {
	// byParent holds the runs by the hash of the block before them, which may be part of another run.
	byParent    map[kv.EngineHash][]*orphanRun
	byHash      map[kv.EngineHash]runPosition
	oldest      *orphanRun // the oldest; the runs form a list
	newest      *orphanRun
	runCount    int
	tokenCount  int
	arrivals    uint64 // counts runs which arrived, prompts which were sent, and marks; it orders them
	lostArrival uint64 // the arrival number of the last run which was not kept
	// lists holds the access lists of the runs' moves, which share them. It is emptied with the last run.
	lists map[string][]kv.Worker
}

// orphanRun is one store of consecutive blocks. It is kept even after its blocks were removed, as long as
// the engine may have stored it for a remembered request: otherwise another run could be mistaken for that
// one.
type orphanRun struct {
	event        Event // its slices are its own
	liveBlocks   int   // the number of leading blocks before the first removed one
	arrival      uint64
	older, newer *orphanRun
	// guessed holds the Penstock blocks which are assumed to be there because of this run.
	guessed []kv.SeqHash
}

// runPosition is the position of a block in a run.
type runPosition struct {
	run   *orphanRun
	index int
}

// addOrphans makes the first n blocks of e wait for their parent.
func (t *Table) addOrphans(e *Event, n int) {
	if t.cfg.Capacity == 0 || t.adopting {
		return
	}
	t.orphaned = true
	t.startPartialHistory()
	t.orphans.addRun(t, e, n)
}

// addRun remembers the first n blocks of e, whose parent is unknown. It stops at the first block which
// already waits.
func (o *orphanSet) addRun(t *Table, e *Event, n int) {
	if eventTier(e) != kv.TierDevice {
		return
	}
	o.arrivals++
	for i, name := range e.Hashes[:n] {
		if _, waits := o.byHash[name]; waits {
			n = i
			break
		}
	}
	if n == 0 || n > maxOrphans || n*t.cfg.EngineBlockSize > maxOrphanTokens {
		o.lostArrival = o.arrivals
		return
	}
	for o.oldest != nil && (o.runCount >= maxOrphanRuns || len(o.byHash)+n > maxOrphans || o.tokenCount+n*t.cfg.EngineBlockSize > maxOrphanTokens) {
		o.dropRun(t, o.oldest)
	}
	if o.byHash == nil {
		o.byParent, o.byHash = make(map[kv.EngineHash][]*orphanRun), make(map[kv.EngineHash]runPosition)
	}
	r := &orphanRun{event: cloneStoredEvent(e, n, t.cfg.EngineBlockSize), liveBlocks: n, arrival: o.arrivals, older: o.newest}
	if t.buffer.losesMoves {
		r.event.Moves = nil
	}
	for i := range r.event.Moves {
		if m := &r.event.Moves[i]; !o.shareAccess(m) {
			t.stats.RefusedMoves++
			*m = kv.PoolMove{}
		}
	}
	if o.newest != nil {
		o.newest.newer = r
	} else {
		o.oldest = r
	}
	o.newest = r
	o.runCount++
	o.tokenCount += len(r.event.Tokens)
	o.byParent[e.Parent] = append(o.byParent[e.Parent], r)
	for i, name := range r.event.Hashes {
		o.byHash[name] = runPosition{r, i}
	}
}

// cloneStoredEvent copies the first n blocks of a store.
func cloneStoredEvent(e *Event, n, size int) Event {
	c := *e
	c.Hashes, c.Tokens, c.Extra = slices.Clone(e.Hashes[:n]), slices.Clone(e.Tokens[:n*size]), nil
	c.Labels, c.Moves = slices.Clone(e.Labels[:min(n, len(e.Labels))]), slices.Clone(e.Moves[:min(n, len(e.Moves))])
	if len(e.Extra) > 0 {
		c.Extra = make([]Extra, n)
	}
	for i := range c.Extra {
		c.Extra[i].Keys = slices.Clone(e.Extra[i].Keys)
		for j := range c.Extra[i].Keys {
			c.Extra[i].Keys[j].Text = slices.Clone(c.Extra[i].Keys[j].Text)
		}
	}
	return c
}

// shareAccess replaces the access list of a move by the one which the runs share. It reports false if there are too many.
func (o *orphanSet) shareAccess(m *kv.PoolMove) bool {
	if m.Access == nil {
		return true
	}
	key := accessKey(m.Access)
	list, known := o.lists[key]
	if !known {
		if len(o.lists) == maxPooledList {
			return false
		}
		if o.lists == nil {
			o.lists = make(map[string][]kv.Worker)
		}
		list = append([]kv.Worker{}, m.Access...)
		o.lists[key] = list
	}
	m.Access = list
	return true
}

// moveBlock remembers the state in pools which a transition gives a waiting block. It reports whether the block waits.
func (o *orphanSet) moveBlock(t *Table, name kv.EngineHash, m *kv.PoolMove) bool {
	p, waits := o.byHash[name]
	if !waits {
		return false
	}
	e := &p.run.event
	enters := m.To == kv.InTransit || m.To == kv.Pooled
	if e.Moves == nil && enters {
		e.Moves = make([]kv.PoolMove, len(e.Hashes))
	}
	if p.index >= len(e.Moves) {
		return true
	}
	known := &e.Moves[p.index]
	next := *m
	if !m.HasPool {
		next.Pool, next.HasPool = known.Pool, known.HasPool
	}
	switch {
	case enters:
		if next.Access == nil && next.Pool == known.Pool {
			next.Access = known.Access
		}
		if *known = next; !o.shareAccess(known) {
			t.stats.RefusedMoves++
			*known = kv.PoolMove{}
		}
	case next.Pool == known.Pool:
		*known = kv.PoolMove{}
	}
	return true
}

// forgetMoves forgets the states in pools of all waiting blocks for which it is true.
func (o *orphanSet) forgetMoves(which func(m *kv.PoolMove) bool) {
	for r := o.oldest; r != nil; r = r.newer {
		for i := range r.event.Moves {
			if m := &r.event.Moves[i]; which(m) {
				*m = kv.PoolMove{}
			}
		}
	}
}

// removeBlock cuts a run before a block which the engine removed: the blocks after it are useless without
// it. It reports whether the block waited.
func (o *orphanSet) removeBlock(t *Table, name kv.EngineHash) bool {
	p, waits := o.byHash[name]
	if !waits {
		return false
	}
	r := p.run
	t.inferred.dropGuesses(t, r.guessed)
	for _, name := range r.event.Hashes[p.index:r.liveBlocks] {
		delete(o.byHash, name)
	}
	r.liveBlocks = p.index
	return true
}

// purgeRemoved drops the runs without live blocks which arrived before a given arrival.
func (o *orphanSet) purgeRemoved(before uint64) {
	for r := o.oldest; r != nil && r.arrival < before; r = r.newer {
		if r.liveBlocks == 0 {
			o.unlinkRun(r)
		}
	}
}

// truncateToLive cuts the event down to the live blocks.
func (r *orphanRun) truncateToLive(size int) {
	e := &r.event
	e.Hashes, e.Tokens = e.Hashes[:r.liveBlocks], e.Tokens[:r.liveBlocks*size]
	e.Labels, e.Moves = e.Labels[:min(r.liveBlocks, len(e.Labels))], e.Moves[:min(r.liveBlocks, len(e.Moves))]
	if len(e.Extra) > 0 {
		e.Extra = e.Extra[:r.liveBlocks]
	}
}

// dropRun drops a run, and the guesses made because of it.
func (o *orphanSet) dropRun(t *Table, r *orphanRun) {
	t.inferred.dropGuesses(t, r.guessed)
	o.lostArrival = max(o.lostArrival, r.arrival)
	o.unlinkRun(r)
}

// unlinkRun takes a run out of the list and the maps.
func (o *orphanSet) unlinkRun(r *orphanRun) {
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		o.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		o.newest = r.older
	}
	if o.runCount--; o.runCount == 0 {
		o.lists = nil
	}
	o.tokenCount -= len(r.event.Tokens)
	for _, name := range r.event.Hashes[:r.liveBlocks] {
		delete(o.byHash, name)
	}
	parent := r.event.Parent
	others := slices.DeleteFunc(o.byParent[parent], func(other *orphanRun) bool { return other == r })
	if len(others) == 0 {
		delete(o.byParent, parent)
		return
	}
	o.byParent[parent] = others
}

// forgetInferred drops orphans, requests and everything inferred from them.
func (t *Table) forgetInferred() {
	t.orphans.clear()
	t.requests = requestLog{lastNumber: t.requests.lastNumber}
	t.inferred.clear()
	t.orphaned = false
}

// clear drops all runs. The arrival counter continues.
func (o *orphanSet) clear() { *o = orphanSet{arrivals: o.arrivals, lostArrival: o.arrivals} }

// adoptOrphans stores the runs which wait for one of the named blocks, and then the runs which wait for
// those.
func (t *Table) adoptOrphans(names []kv.EngineHash) {
	o := &t.orphans
	if o.runCount == 0 || t.adopting {
		return
	}
	t.adopting = true
	defer func() { t.adopting = false }()
	known := slices.Clone(names)
	for len(known) > 0 {
		name := known[len(known)-1]
		known = known[:len(known)-1]
		if len(o.byParent[name]) == 0 || t.findBlock(name) == 0 {
			continue
		}
		for len(o.byParent[name]) > 0 {
			r := o.byParent[name][0]
			o.unlinkRun(r)
			if r.liveBlocks == 0 {
				continue
			}
			r.truncateToLive(t.cfg.EngineBlockSize)
			t.stats.Adopted += uint64(r.liveBlocks)
			t.storeEvent(&r.event)
			t.inferred.dropGuesses(t, r.guessed)
			known = append(known, r.event.Hashes...)
		}
	}
}
