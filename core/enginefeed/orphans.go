package enginefeed

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// The bounds of orphans. The oldest runs are dropped.
const (
	maxRuns         = 1 << 12
	maxOrphans      = 1 << 17 // engine blocks
	maxOrphanTokens = 1 << 20
)

// orphanSet holds blocks on the device which the engine stored after an unknown block. They wait for that
// block: when it becomes known they are stored as if the engine had just sent them.
type orphans struct {
	// byParent holds the runs by the hash of the block before them, which may be part of another run.
	byParent map[kv.EngineHash][]*run
	at       map[kv.EngineHash]place
	first    *run // the oldest; the runs form a list
	last     *run
	runs     int
	tokens   int
	arrivals uint64 // counts runs which arrived, prompts which were sent, and marks; it orders them
	lost     uint64 // the arrival number of the last run which was not kept
}

// orphanRun is one store of consecutive blocks. It is kept even after its blocks were removed, as long as
// the engine may have stored it for a remembered request: otherwise another run could be mistaken for that
// one.
type run struct {
	event        Event // its slices are its own
	live         int   // the number of leading blocks before the first removed one
	arrival      uint64
	older, newer *run
	// guessed holds the Penstock blocks which are assumed to be there because of this run.
	told []kv.SeqHash
}

// runPosition is the position of a block in a run.
type place struct {
	run   *run
	index int
}

// addOrphans makes the first n blocks of e wait for their parent.
func (t *Table) orphan(e *Event, n int) {
	if t.cfg.Capacity == 0 || t.adopting {
		return
	}
	t.orphaned = true
	t.becomePartial()
	t.orphans.keep(t, e, n)
}

// addRun remembers the first n blocks of e, whose parent is unknown. It stops at the first block which
// already waits.
func (o *orphans) keep(t *Table, e *Event, n int) {
	if tierOf(e) != kv.TierDevice {
		return
	}
	o.arrivals++
	for i, name := range e.Hashes[:n] {
		if _, waits := o.at[name]; waits {
			n = i
			break
		}
	}
	if n == 0 || n > maxOrphans || n*t.cfg.EngineBlock > maxOrphanTokens {
		o.lost = o.arrivals
		return
	}
	for o.first != nil && (o.runs >= maxRuns || len(o.at)+n > maxOrphans || o.tokens+n*t.cfg.EngineBlock > maxOrphanTokens) {
		o.drop(t, o.first)
	}
	if o.at == nil {
		o.byParent, o.at = make(map[kv.EngineHash][]*run), make(map[kv.EngineHash]place)
	}
	r := &run{event: cloneStored(e, n, t.cfg.EngineBlock), live: n, arrival: o.arrivals, older: o.last}
	if o.last != nil {
		o.last.newer = r
	} else {
		o.first = r
	}
	o.last = r
	o.runs++
	o.tokens += len(r.event.Tokens)
	o.byParent[e.Parent] = append(o.byParent[e.Parent], r)
	for i, name := range r.event.Hashes {
		o.at[name] = place{r, i}
	}
}

// cloneStoredEvent copies the first n blocks of a store.
func cloneStored(e *Event, n, size int) Event {
	c := *e
	c.Hashes, c.Tokens, c.Extra = slices.Clone(e.Hashes[:n]), slices.Clone(e.Tokens[:n*size]), nil
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

// removeBlock cuts a run before a block which the engine removed: the blocks after it are useless without
// it. It reports whether the block waited.
func (o *orphans) remove(t *Table, name kv.EngineHash) bool {
	p, waits := o.at[name]
	if !waits {
		return false
	}
	r := p.run
	t.inferred.dropGuesses(t, r.told)
	for _, name := range r.event.Hashes[p.index:r.live] {
		delete(o.at, name)
	}
	r.live = p.index
	return true
}

// purgeRemoved drops the runs without live blocks which arrived before a given arrival.
func (o *orphans) purge(before uint64) {
	for r := o.first; r != nil && r.arrival < before; r = r.newer {
		if r.live == 0 {
			o.unlink(r)
		}
	}
}

// truncateToLive cuts the event down to the live blocks.
func (r *run) cut(size int) {
	e := &r.event
	e.Hashes, e.Tokens = e.Hashes[:r.live], e.Tokens[:r.live*size]
	if len(e.Extra) > 0 {
		e.Extra = e.Extra[:r.live]
	}
}

// dropRun drops a run, and the guesses made because of it.
func (o *orphans) drop(t *Table, r *run) {
	t.inferred.dropGuesses(t, r.told)
	o.lost = max(o.lost, r.arrival)
	o.unlink(r)
}

// unlinkRun takes a run out of the list and the maps.
func (o *orphans) unlink(r *run) {
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		o.first = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		o.last = r.older
	}
	o.runs--
	o.tokens -= len(r.event.Tokens)
	for _, name := range r.event.Hashes[:r.live] {
		delete(o.at, name)
	}
	parent := r.event.Parent
	others := slices.DeleteFunc(o.byParent[parent], func(other *run) bool { return other == r })
	if len(others) == 0 {
		delete(o.byParent, parent)
		return
	}
	o.byParent[parent] = others
}

// forgetInferred drops orphans, requests and everything inferred from them.
func (t *Table) forgetInferred() {
	t.orphans.clear()
	t.requests = requests{number: t.requests.number}
	t.inferred.clear()
	t.orphaned = false
}

// clear drops all runs. The arrival counter continues.
func (o *orphans) clear() { *o = orphans{arrivals: o.arrivals, lost: o.arrivals} }

// adoptOrphans stores the runs which wait for one of the named blocks, and then the runs which wait for
// those.
func (t *Table) adopt(names []kv.EngineHash) {
	o := &t.orphans
	if o.runs == 0 || t.adopting {
		return
	}
	t.adopting = true
	defer func() { t.adopting = false }()
	known := slices.Clone(names)
	for len(known) > 0 {
		name := known[len(known)-1]
		known = known[:len(known)-1]
		if len(o.byParent[name]) == 0 || t.find(name) == 0 {
			continue
		}
		for len(o.byParent[name]) > 0 {
			r := o.byParent[name][0]
			o.unlink(r)
			if r.live == 0 {
				continue
			}
			r.cut(t.cfg.EngineBlock)
			t.stats.Adopted += uint64(r.live)
			t.store(&r.event)
			t.inferred.dropGuesses(t, r.told)
			known = append(known, r.event.Hashes...)
		}
	}
}

// check verifies the maps and the counters.
func (o *orphans) check() error {
	runs, tokens, blocks := 0, 0, 0
	for r := o.first; r != nil; r = r.newer {
		runs, tokens, blocks = runs+1, tokens+len(r.event.Tokens), blocks+r.live
		if len(r.event.Hashes) == 0 || !slices.Contains(o.byParent[r.event.Parent], r) {
			return fmt.Errorf("a run of %d blocks is not found by its parent", len(r.event.Hashes))
		}
		for i, name := range r.event.Hashes[:r.live] {
			if o.at[name] != (place{r, i}) {
				return fmt.Errorf("orphan %x is not found", name)
			}
		}
	}
	if runs != o.runs || tokens != o.tokens || blocks != len(o.at) {
		return fmt.Errorf("%d runs of %d blocks and %d tokens wait, counted are %d, %d and %d", runs, blocks, tokens, o.runs, len(o.at), o.tokens)
	}
	return nil
}
