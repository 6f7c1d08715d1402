package enginefeed

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// The bounds of orphans. What is older is forgotten.
const (
	maxRuns         = 1 << 12
	maxOrphans      = 1 << 17 // the engine's blocks
	maxOrphanTokens = 1 << 20
)

// orphans are blocks on the device that the engine stored behind a block which is not known. They wait for the
// block before them: then they are stored as if the engine had said so now.
type orphans struct {
	// byParent has runs by the name of the block before them, which may be part of another run.
	byParent map[kv.EngineHash][]*run
	at       map[kv.EngineHash]place
	first    *run // the oldest; the runs are a list
	last     *run
	runs     int
	tokens   int
	arrivals uint64 // counts runs that came, prompts that were sent, and marks: it tells which was earlier
	lost     uint64 // the arrival of the last run that was not kept
}

// run is a store of blocks in a row. It is remembered after its blocks were removed too, as long as it may be what the engine
// stored for a request that is remembered: else another run could be taken for that.
type run struct {
	event        Event // its slices are its own
	live         int   // blocks, from the first one on, of which none was removed
	arrival      uint64
	older, newer *run
	// told are blocks of ours that are believed to be there because of this run.
	told []kv.SeqHash
}

// place is a block of a run.
type place struct {
	run   *run
	index int
}

// orphan has the first n blocks of e wait for their parent.
func (t *Table) orphan(e *Event, n int) {
	if t.cfg.Capacity == 0 || t.adopting {
		return
	}
	t.orphaned = true
	t.becomePartial()
	t.orphans.keep(t, e, n)
}

// keep remembers the first n blocks of e, whose parent is not known. Blocks that wait already are left out.
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

// cloneStored copies the first n blocks of a store.
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

// remove cuts a run before a block that the engine removed: what follows that block is of no use without it. It
// reports whether the block waited.
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

// purge forgets the runs without blocks which came before an arrival.
func (o *orphans) purge(before uint64) {
	for r := o.first; r != nil && r.arrival < before; r = r.newer {
		if r.live == 0 {
			o.unlink(r)
		}
	}
}

// cut leaves the blocks that were not removed.
func (r *run) cut(size int) {
	e := &r.event
	e.Hashes, e.Tokens = e.Hashes[:r.live], e.Tokens[:r.live*size]
	if len(e.Extra) > 0 {
		e.Extra = e.Extra[:r.live]
	}
}

// drop forgets a run, and what is believed because of it.
func (o *orphans) drop(t *Table, r *run) {
	t.inferred.dropGuesses(t, r.told)
	o.lost = max(o.lost, r.arrival)
	o.unlink(r)
}

// unlink takes a run out.
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

// forgetInferred forgets orphans, requests and what was inferred of them.
func (t *Table) forgetInferred() {
	t.orphans.clear()
	t.requests = requests{number: t.requests.number}
	t.inferred.clear()
	t.orphaned = false
}

// clear forgets all runs. Arrivals are counted on.
func (o *orphans) clear() { *o = orphans{arrivals: o.arrivals, lost: o.arrivals} }

// adopt stores the runs which wait for one of names, and those which wait for them.
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

// check returns what is wrong.
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
