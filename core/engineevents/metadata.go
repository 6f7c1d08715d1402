package engineevents

import (
	"math"

	"penstock/core/kv"
)

// maxWorkers bounds the workers in all access lists of a batch.
const maxWorkers = 1 << 18

// eventMetadata is what the event being read says of experts and pools. Fields which cannot be parsed do not make
// the event invalid: a stored block without its label is a block all the same.
type eventMetadata struct {
	labels    []kv.MoELabel
	moves     []kv.PoolMove
	oneLabel  bool // labels has one element, for all blocks
	oneMove   bool
	badMove   bool // a field of a transition cannot be parsed
	described int  // labels and moves of the batch
	workers   int  // in access lists of the batch
}

// startEvent forgets what was read of the event before.
func (m *eventMetadata) startEvent() {
	*m = eventMetadata{described: m.described, workers: m.workers}
}

// finishEvent gives e the metadata of its blocks. It reports false for a transition which cannot be understood.
func (m *eventMetadata) finishEvent(e *Event) bool {
	n := len(e.Hashes)
	switch e.Kind {
	case Moved:
		return !m.badMove && e.Move.To != 0
	case Stored:
		e.Labels, e.Moves = perBlock(m.labels, m.oneLabel, n), perBlock(m.moves, m.oneMove, n)
	}
	e.Move = kv.PoolMove{}
	return true
}

// perBlock returns one element for each of n blocks; nil if all has another length.
func perBlock[T any](all []T, one bool, n int) []T {
	if one {
		each := make([]T, n)
		for i := range each {
			each[i] = all[0]
		}
		return each
	}
	if len(all) != n {
		return nil
	}
	return all
}

// readLabels reads moe_metadata: a map for all blocks, or for each block nil or a map.
func (c *batchReader) readLabels() (ok bool) {
	c.labels, c.oneLabel, ok = readMetadata(c, (*batchReader).readLabel)
	return ok
}

// readMoves reads cxl_metadata: a map for all blocks, or for each block nil or a map.
func (c *batchReader) readMoves() (ok bool) {
	c.moves, c.oneMove, ok = readMetadata(c, (*batchReader).readBlockState)
	return ok
}

// readMetadata reads a map, or an array of nils and maps. If one of them cannot be parsed there is none. ok is false
// if the value is no msgpack, or too large.
func readMetadata[T any](c *batchReader, read func(*batchReader) (T, bool)) (all []T, one, ok bool) {
	start := c.pos
	n := 1
	if one = c.isMap(); !one {
		if n, ok = c.readArrayHeader(); !ok {
			c.pos = start
			return nil, false, c.skipValue()
		}
	}
	if n > maxHashes-c.described {
		c.tooLarge = true
		return nil, false, false
	}
	c.described += n
	all = make([]T, n)
	for i := range all {
		if !one && c.readNil() {
			continue
		}
		if all[i], ok = read(c); c.tooLarge {
			return nil, false, false
		}
		if !ok {
			c.pos = start
			return nil, false, c.skipValue()
		}
	}
	return all, one, true
}

// readUint32 reads a number below 2^32.
func (c *batchReader) readUint32() (uint32, bool) {
	v, ok := c.readBoundedInt(0, math.MaxUint32)
	return uint32(v), ok
}

// readLabel reads {layer_id, expert_id, expert_group}; the group may be nil or absent.
func (c *batchReader) readLabel() (l kv.MoELabel, ok bool) {
	layer, expert := false, false
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		name, isText := c.readString()
		switch {
		case !isText:
			return l, false
		case string(name) == "layer_id":
			l.Layer, ok = c.readUint32()
			layer = true
		case string(name) == "expert_id":
			l.Expert, ok = c.readUint32()
			expert = true
		case string(name) == "expert_group" && !c.readNil():
			l.Group, ok = c.readUint32()
			l.Has |= kv.HasGroup
		case string(name) != "expert_group":
			ok = c.skipValue()
		}
	}
	l.Has |= kv.HasExpert
	return l, ok && layer && expert
}

// readBlockState reads {state, pool_id, accessible_workers}. Its list may be left empty for none.
func (c *batchReader) readBlockState() (m kv.PoolMove, ok bool) {
	m.OfBlocks = true
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		name, isText := c.readString()
		switch {
		case !isText:
			return m, false
		case string(name) == "state":
			ok = c.readState(&m)
		case string(name) == "pool_id" && !c.readNil():
			ok = c.readPool(&m)
		case string(name) == "accessible_workers" && !c.readNil():
			if ok = c.readAccess(&m); len(m.Access) == 0 {
				m.Access = nil
			}
		case string(name) != "pool_id" && string(name) != "accessible_workers":
			ok = c.skipValue()
		}
	}
	return m, ok && m.To != 0
}

// readTransition reads a field of a transition. It reports false if the value is no msgpack.
func (c *batchReader) readTransition(f eventField, e *Event) (ok bool) {
	start := c.pos
	e.Move.OfBlocks = true
	switch f {
	case fieldState:
		ok = c.readState(&e.Move)
	case fieldPool:
		ok = c.readPool(&e.Move)
	case fieldAccess:
		ok = c.readAccess(&e.Move)
	}
	if ok || c.tooLarge {
		return ok
	}
	c.badMove = true
	c.pos = start
	return c.skipValue()
}

func (c *batchReader) readState(m *kv.PoolMove) bool {
	name, isText := c.readString()
	if !isText {
		return false
	}
	to, known := kv.ParsePoolState(string(name))
	m.To = to
	return known
}

func (c *batchReader) readPool(m *kv.PoolMove) bool {
	id, ok := c.readUint32()
	m.Pool, m.HasPool = kv.PoolID(id), ok
	return ok
}

// readAccess reads a list of workers: each an id, for its rank 0, or [id, rank].
func (c *batchReader) readAccess(m *kv.PoolMove) bool {
	n, ok := c.readArrayHeader()
	if !ok {
		return false
	}
	if n > maxWorkers-c.workers {
		c.tooLarge = true
		return false
	}
	c.workers += n
	m.Access = make([]kv.Worker, 0, min(n, kv.MaxAccess))
	for range n {
		var w kv.Worker
		ranked := c.isArray()
		if ranked {
			if parts, ok := c.readArrayHeader(); !ok || parts != 2 {
				return false
			}
		}
		id, ok := c.readBoundedInt(0, int64(kv.MaxWorkerID))
		if ok && ranked {
			w.Rank, ok = c.readUint32()
		}
		if !ok {
			return false
		}
		if w.ID = kv.WorkerID(id); len(m.Access) < kv.MaxAccess {
			m.Access = append(m.Access, w)
		}
	}
	return true
}
