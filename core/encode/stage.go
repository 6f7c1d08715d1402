package encode

import (
	"cmp"
	"container/list"
	"slices"

	"penstock/core/kv"
)

// stagingHold is the staging memory of a request's rows, or the wish for it.
type stagingHold struct {
	id       RequestID
	request  *requestRecord // nil once it has ended
	bytes    int64
	queued   *list.Element // in Machine.stageQueue; nil once the memory is granted
	copied   bool
	copyFrom []*rows // which the copy holds
}

// StageRequest asks for staging memory for all rows of a request. CopyRows grants it, in the order of these calls. It
// is legal for a request which is ready, and again for one which keeps its rows after MarkMerged.
func (m *Machine) StageRequest(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	switch {
	case err != nil:
		return out, err
	case q.stage != nil:
		return out, q.refuse("StageRequest", "it has asked before")
	case q.state == Encoding:
		return out, q.refuse("StageRequest", "objects are not encoded")
	case q.state != EncodedCPU && q.retention == DiscardRows:
		return out, q.refuse("StageRequest", "its rows are not kept: submit it again")
	}
	s := &stagingHold{id: id, request: q}
	for i := range q.objects {
		s.bytes += q.objects[i].Bytes
	}
	q.stage = s
	m.stages[id] = s
	s.queued = m.stageQueue.PushBack(s)
	return m.advance(now, out), nil
}

// grantStaging grants staging memory in order, as long as each request fits.
func (m *Machine) grantStaging(out []Action) []Action {
	for first := m.stageQueue.Front(); first != nil; first = m.stageQueue.Front() {
		s := first.Value.(*stagingHold)
		if s.bytes > m.cfg.StagingBudget-m.stagingUsed {
			return out
		}
		m.stageQueue.Remove(first)
		s.queued = nil
		m.stagingUsed += s.bytes
		out = append(out, Action{Kind: CopyRows, Request: s.id, Sources: m.startCopy(s)})
	}
	return out
}

// startCopy makes a copy hold the rows of its request, and returns them by insertion position.
func (m *Machine) startCopy(s *stagingHold) []RowSource {
	all := make([]*object, len(s.request.objects))
	for i := range s.request.objects {
		all[i] = &s.request.objects[i]
	}
	slices.SortFunc(all, func(a, b *object) int { return cmp.Compare(a.Position, b.Position) })
	sources := make([]RowSource, len(all))
	for i, o := range all {
		m.holdRows(o.rows)
		s.copyFrom = append(s.copyFrom, o.rows)
		sources[i] = RowSource{Index: o.index, Rows: o.rows.id}
	}
	return sources
}

// MarkCopied says that all rows of a request are in staging memory, after CopyRows. The request gives up the rows from
// which they were copied, unless it keeps them.
func (m *Machine) MarkCopied(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	switch {
	case err != nil:
		return out, err
	case q.stage == nil || q.stage.queued != nil || q.stage.copied:
		return out, q.refuse("MarkCopied", "no copy is in progress")
	}
	q.stage.copied = true
	out = m.endCopy(q.stage, out)
	if q.retention == DiscardRows {
		for i := range q.objects {
			out = m.dropObjectRows(&q.objects[i], out)
		}
	}
	q.state = Staged
	return m.advance(now, out), nil
}

// endCopy makes a copy let go of the rows.
func (m *Machine) endCopy(s *stagingHold, out []Action) []Action {
	for _, r := range s.copyFrom {
		out = m.releaseRows(r, out)
	}
	s.copyFrom = nil
	return out
}

// MarkMerged says that the input of the model has the rows: their staging memory is free.
func (m *Machine) MarkMerged(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	switch {
	case err != nil:
		return out, err
	case q.state != Staged:
		return out, q.refuse("MarkMerged", "")
	}
	m.freeStage(q.stage)
	q.stage = nil
	q.state, q.merged = Merged, true
	return m.advance(now, out), nil
}

// freeStage gives staging memory back.
func (m *Machine) freeStage(s *stagingHold) {
	m.stagingUsed -= s.bytes
	delete(m.stages, s.id)
}

// MarkPrefilled says that the KV cache has the rows. A request which keeps them ends by EndRequest, another one now.
func (m *Machine) MarkPrefilled(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	switch {
	case err != nil:
		return out, err
	case q.state != Merged:
		return out, q.refuse("MarkPrefilled", "")
	case q.stage != nil:
		return out, q.refuse("MarkPrefilled", "it is being staged again")
	}
	q.state, q.prefilled = Prefilled, true
	switch q.retention {
	case DiscardRows:
		out = m.endRequest(q, Completed, out)
	case KeepForNextTurn:
		for i := range q.objects {
			m.keepRows(&q.objects[i])
		}
	}
	return m.advance(now, out), nil
}

// leaveStage ends a request's use of staging memory. Memory which may be in use stays until ReleaseStaging.
func (m *Machine) leaveStage(q *requestRecord, out []Action) []Action {
	s := q.stage
	switch {
	case s == nil:
		return out
	case s.queued != nil:
		m.stageQueue.Remove(s.queued)
		delete(m.stages, s.id)
		return out
	}
	s.request = nil
	m.orphans++
	return append(out, Action{Kind: DropStaged, Request: s.id})
}

// ReleaseStaging answers DropStaged: nothing uses the staging memory of a request which has ended, nor copies into it.
func (m *Machine) ReleaseStaging(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	s, live := m.stages[id], m.requests[id]
	switch {
	case live != nil:
		return out, live.refuse("ReleaseStaging", "it has not ended")
	case s == nil:
		return out, ErrUnknownRequest
	}
	out = m.endCopy(s, out)
	m.freeStage(s)
	m.orphans--
	return m.advance(now, out), nil
}
