package encode

import (
	"container/list"

	"penstock/core/kv"
)

// rows are the rows of one object: memory of the shell which counts against CPUBudget, or a pin on an entry of the
// embedding cache, which does not.
type rows struct {
	id    RowsID // 0 for a pin
	bytes int64  // of CPUBudget; 0 for a pin
	// holders are the object, its run, and a copy from the rows. Without one the memory is free, or idle if it is
	// kept.
	holders int
	// written says that a run was told of the memory.
	written bool

	// request and index say which object a pin is for.
	request RequestID
	index   int

	// The rest is of kept rows, which have a key.
	key    kv.Digest
	tokens int
	kept   bool
	idle   *list.Element // in Machine.idle
	stamp  uint64
}

// pinnedRows returns the rows of an object which are pinned in the embedding cache.
func (m *Machine) pinnedRows(o *object) *rows {
	return &rows{request: o.request.id, index: o.index, holders: 1}
}

// reserveRows reserves the memory of all objects of a request which need any, and reports whether there was enough.
// Kept rows serve the objects whose key they have. Other kept rows which nothing holds make room, the least recently
// used first and no more than necessary; none if that is not enough.
func (m *Machine) reserveRows(q *requestRecord, out []Action) (bool, []Action) {
	m.stamp++
	need, spare := int64(0), m.idleBytes
	for i := range q.objects {
		o := &q.objects[i]
		if !o.lacksMemory() {
			continue
		}
		r := m.keptRows(o)
		switch {
		case r == nil:
			need += o.Bytes
		case r.holders == 0 && r.stamp != m.stamp:
			spare -= r.bytes
			r.stamp = m.stamp
		}
	}
	if m.cpuUsed-spare+need > m.cfg.CPUBudget {
		return false, out
	}
	for i := range q.objects {
		if o := &q.objects[i]; o.lacksMemory() {
			if r := m.keptRows(o); r != nil {
				m.holdRows(r)
				o.state, o.rows = EncodedCPU, r
				q.unfinished--
				m.stats.CacheHits++
			}
		}
	}
	for m.cpuUsed+need > m.cfg.CPUBudget {
		m.stats.Evictions++
		out = m.forgetRows(m.idle.Front().Value.(*rows), out)
	}
	m.cpuUsed += need
	for i := range q.objects {
		if o := &q.objects[i]; o.lacksMemory() {
			m.lastRows++
			o.rows = &rows{id: m.lastRows, bytes: o.Bytes, holders: 1, key: o.Key, tokens: o.Tokens}
			m.stats.CacheMisses++
		}
	}
	return true, out
}

// keptRows returns the kept rows for an object; nil if there are none.
func (m *Machine) keptRows(o *object) *rows {
	if r := m.kept[o.Key]; r != nil && r.tokens == o.Tokens && r.bytes == o.Bytes {
		return r
	}
	return nil
}

// holdRows adds a holder.
func (m *Machine) holdRows(r *rows) {
	if r.idle != nil {
		m.idle.Remove(r.idle)
		r.idle = nil
		m.idleBytes -= r.bytes
	}
	r.holders++
}

// releaseRows takes a holder away. r may be nil.
func (m *Machine) releaseRows(r *rows, out []Action) []Action {
	if r == nil {
		return out
	}
	if r.holders--; r.holders > 0 {
		return out
	}
	switch {
	case r.id == 0:
		return append(out, Action{Kind: UnpinRows, Request: r.request, Index: r.index})
	case r.kept:
		r.idle = m.idle.PushBack(r)
		m.idleBytes += r.bytes
		return out
	}
	return m.freeRows(r, out)
}

// freeRows gives the memory of rows back.
func (m *Machine) freeRows(r *rows, out []Action) []Action {
	m.cpuUsed -= r.bytes
	if !r.written {
		return out
	}
	return append(out, Action{Kind: DropRows, Rows: r.id})
}

// keepRows makes the rows of an object findable by their key, beyond its request.
func (m *Machine) keepRows(o *object) {
	r := o.rows
	if m.cfg.Cache == WithCache || r == nil || r.id == 0 || r.key == (kv.Digest{}) || m.kept[r.key] != nil {
		return
	}
	r.kept = true
	m.kept[r.key] = r
}

// forgetRows gives up kept rows which nothing holds.
func (m *Machine) forgetRows(r *rows, out []Action) []Action {
	delete(m.kept, r.key)
	m.idle.Remove(r.idle)
	m.idleBytes -= r.bytes
	return m.freeRows(r, out)
}

// DropKept gives up all kept rows which no request uses.
func (m *Machine) DropKept(now kv.Mono, out []Action) []Action {
	for m.idle.Len() > 0 {
		out = m.forgetRows(m.idle.Front().Value.(*rows), out)
	}
	return m.advance(now, out)
}
