package prefix

import (
	"slices"

	"penstock/core/kv"
)

// Apply records one event of w's cache. Events of one worker must come in the
// order in which it sent them. Storing what is held and removing what is not
// change nothing but a count; an event of an unknown kind or tier is ignored.
func (x *Index) Apply(w kv.Worker, ev kv.Event) {
	if ev.Tier >= kv.Tiers {
		return
	}
	switch ev.Kind {
	case kv.Stored:
		x.store(x.number(w), ev)
	case kv.Removed:
		x.remove(x.number(w), ev)
	case kv.Cleared:
		x.counts.Clears++
		x.empty(x.number(w))
	}
}

// Drop forgets w and all that it held. It reports whether w was known.
func (x *Index) Drop(w kv.Worker) bool {
	n, ok := x.dense[w]
	if !ok {
		return false
	}
	x.empty(n)
	x.workers[n] = worker{}
	delete(x.dense, w)
	x.vacant = append(x.vacant, n)
	return true
}

func (x *Index) store(n uint32, ev kv.Event) {
	held := x.workers[n].held
	if _, ok := held[ev.Parent]; ev.Start > 0 && !ok {
		x.counts.Orphans++
	}
	seq := ev.Parent
	for i, b := range ev.Blocks {
		seq = kv.Extend(seq, ev.Start+uint32(i), b)
		x.add(n, held, seq, on(ev.Tier))
	}
}

func (x *Index) add(n uint32, held map[kv.SeqHash]tiers, seq kv.SeqHash, t tiers) {
	had, known := held[seq]
	switch {
	case had&t != 0:
		x.counts.Duplicates++
		return
	case !known && len(held) >= x.cfg.MaxBlocks:
		x.counts.Refused++
		return
	case !known:
		x.entries++
	}
	held[seq] = had | t
	x.counts.Stored++
	holders := x.blocks[seq]
	at, found := find(holders, n)
	if found {
		holders[at] = newHolder(n, had|t)
		return
	}
	x.blocks[seq] = slices.Insert(holders, at, newHolder(n, had|t))
}

func (x *Index) remove(n uint32, ev kv.Event) {
	held := x.workers[n].held
	for _, seq := range ev.Seqs {
		had, left := held[seq], held[seq]&^on(ev.Tier)
		if had == left {
			x.counts.Unknown++
			continue
		}
		x.counts.Removed++
		if left != 0 {
			held[seq] = left
			holders := x.blocks[seq]
			at, _ := find(holders, n)
			holders[at] = newHolder(n, left)
			continue
		}
		delete(held, seq)
		x.unhold(n, seq)
	}
}

// empty removes all that worker n holds. Its map is replaced, not cleared: a map
// keeps the room of its largest moment.
func (x *Index) empty(n uint32) {
	for seq := range x.workers[n].held {
		x.unhold(n, seq)
	}
	x.workers[n].held = map[kv.SeqHash]tiers{}
}

// unhold removes worker n from the holders of seq, which it is one of.
func (x *Index) unhold(n uint32, seq kv.SeqHash) {
	x.entries--
	holders := x.blocks[seq]
	if len(holders) == 1 {
		delete(x.blocks, seq)
		return
	}
	at, _ := find(holders, n)
	x.blocks[seq] = slices.Delete(holders, at, at+1)
}

// find returns where worker n is or belongs among holders.
func find(holders []holder, n uint32) (at int, found bool) {
	at, _ = slices.BinarySearch(holders, newHolder(n, 0))
	return at, at < len(holders) && holders[at].number() == n
}
