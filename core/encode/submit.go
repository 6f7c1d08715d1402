package encode

import (
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Placeholder is a place of a prompt which waits for an object.
type Placeholder struct {
	// Position is where the placeholder is in the prompt, before any object is expanded.
	Position int
	// Kind is the kind of object which the prompt has there, a media.Kind.
	Kind uint8
}

// SubmittedObject is a media object of a request, as it is known before it is encoded.
type SubmittedObject struct {
	// Kind is the object's kind, a media.Kind.
	Kind uint8
	// Position is that of its placeholder.
	Position int
	// Key names the rows: rows of equal keys are equal, bit for bit. It is a digest of all that embcache.RowKey
	// has, with the salt. Rows without one, the zero digest, serve no other object.
	Key kv.Digest
	// Tokens is how many tokens the object takes, one for each row, and Bytes the size of its rows. Both are exact:
	// an encoder which returns something else has failed.
	Tokens int
	Bytes  int64
	// Shape is the shape of the encoder's input. Only objects of equal kind and shape share a run.
	Shape [4]int
	// Cost is its part of Config.MaxBatchCost, such as patches.
	Cost int
	// Held is the number of rows which the shell has found in the embedding cache and pinned there; 0 for none.
	Held int
}

// Submission is a request's media.
type Submission struct {
	// Placeholders are all places of the prompt, in any order.
	Placeholders []Placeholder
	// Objects are the objects, each with one place. Other calls name them by their index here.
	Objects []SubmittedObject
	// Usage decides how long the rows are kept.
	Usage Usage
}

// SubmitRequest takes the objects of a request. A request without any, or with rows for all, is ready at once.
//
// It is refused if its objects and placeholders are not one for one, or if a size is not known (Invalid); if its rows
// exceed a budget, it has more than MaxObjects, or one costs more than any batch may (TooLarge); and if all requests
// together would have more than MaxObjects (Overloaded). Then nothing has changed, and the pins of held rows remain the
// shell's.
func (m *Machine) SubmitRequest(now kv.Mono, s Submission, out []Action) (RequestID, []Action, error) {
	if err := m.checkSubmission(&s, m.cfg.MaxObjects-m.objects-m.orphans); err != nil {
		return 0, out, err
	}
	q := m.addRequest(now, &s)
	if q.lacksMemory() {
		q.waiting = m.waiting.PushBack(q)
	}
	out = m.settleRequest(q, out)
	return q.id, m.advance(now, out), nil
}

// addRequest adds the record of a request.
func (m *Machine) addRequest(now kv.Mono, s *Submission) *requestRecord {
	m.lastRequest++
	q := &requestRecord{id: m.lastRequest, retention: s.Usage.Retention(), objects: make([]object, len(s.Objects)), deadline: now.Add(m.cfg.Timeout)}
	for i := range s.Objects {
		o := &q.objects[i]
		*o = object{request: q, index: i, SubmittedObject: s.Objects[i]}
		if o.Held > 0 {
			o.state, o.rows = EncodedCPU, m.pinnedRows(o)
			m.stats.CacheHits++
			continue
		}
		q.unfinished++
	}
	m.requests[q.id] = q
	m.objects += q.weight()
	m.stats.Requests++
	q.unsettled = m.unsettled.PushBack(q)
	return q
}

// lacksMemory reports whether an object needs memory which is not reserved.
func (q *requestRecord) lacksMemory() bool {
	return slices.ContainsFunc(q.objects, func(o object) bool { return o.lacksMemory() })
}

// lacksMemory reports whether the object needs memory which is not reserved.
func (o *object) lacksMemory() bool { return o.state == Encoding && o.rows == nil }

// ReplaceRequest is SubmitRequest for a request which takes the place of another one. That one ends: Completed if it
// was prefilled, else Cancelled. takes has for each object the index of an object of the old request, or -1. What there
// is of that object is the new one's alone from now on: its rows in memory, or its place in a run or in the queue for an
// encoder, with its permit and the number of its attempts. Runs go on, and the items which name it name the new one.
// taken says for which objects that was so. An object which is Held, or of whose old one there is nothing, or a pin
// alone, is as any other.
//
// No request holds memory while it waits for more. If there is not enough for the others at once, nothing is taken, and
// the new request waits as any other.
//
// Its errors are the errors of SubmitRequest, ErrUnknownRequest, and Invalid if an object is taken twice, is not there,
// or has another kind, shape, key or size. Then nothing has changed.
func (m *Machine) ReplaceRequest(now kv.Mono, old RequestID, s Submission, takes []int, out []Action) (id RequestID, taken []bool, more []Action, err error) {
	from, err := m.requestIn(old)
	if err != nil {
		return 0, nil, out, err
	}
	if err := from.checkTakes(&s, takes); err != nil {
		return 0, nil, out, err
	}
	room := m.cfg.MaxObjects - m.objects - m.orphans + from.weight()
	if from.stage != nil && from.stage.queued == nil {
		room--
	}
	if err := m.checkSubmission(&s, room); err != nil {
		return 0, nil, out, err
	}
	q := m.addRequest(now, &s)
	taken = make([]bool, len(takes))
	for i, k := range takes {
		if k >= 0 && q.objects[i].Held == 0 {
			taken[i] = q.objects[i].takeOver(&from.objects[k])
		}
	}
	how := Cancelled
	if from.prefilled {
		how = Completed
	}
	out = m.endRequest(from, how, out)
	if q.lacksMemory() {
		q.waiting = m.waiting.PushBack(q)
	}
	out = m.admitRequests(now, out)
	for i := range q.objects {
		switch o := &q.objects[i]; {
		case !taken[i]:
		case q.waiting != nil:
			taken[i] = false
			out = m.leaveEncoder(o, out)
			out = m.dropObjectRows(o, out)
			if o.state != Encoding {
				q.unfinished++
			}
			*o = object{request: q, index: i, SubmittedObject: o.SubmittedObject}
		case o.run != nil:
			named := &o.run.items[o.slot].named
			named.Request, named.Index = q.id, i
		}
	}
	out = m.settleRequest(q, out)
	return q.id, taken, m.advance(now, out), nil
}

// checkTakes returns why a submission cannot take objects of the request; nil if it can.
func (q *requestRecord) checkTakes(s *Submission, takes []int) error {
	if len(takes) != len(s.Objects) {
		return fault.New(fault.Invalid, "encode: %d objects take over %d", len(s.Objects), len(takes))
	}
	taken := make([]bool, len(q.objects))
	for i, k := range takes {
		switch {
		case k == -1:
			continue
		case k < 0 || k >= len(taken) || taken[k]:
			return fault.New(fault.Invalid, "encode: object %d takes object %d of request %d, which is not there or taken", i, k, q.id)
		}
		taken[k] = true
		a, b := &s.Objects[i], &q.objects[k]
		if a.Kind != b.Kind || a.Shape != b.Shape || a.Key != b.Key || a.Tokens != b.Tokens || a.Bytes != b.Bytes {
			return fault.New(fault.Invalid, "encode: object %d takes object %d of request %d, which is another one", i, k, q.id)
		}
	}
	return nil
}

// takeOver makes the object have what there is of another one, which has nothing then, and reports whether there was
// anything.
func (o *object) takeOver(from *object) bool {
	if from.rows == nil || from.rows.id == 0 {
		return false
	}
	own := *o
	*o = *from
	o.request, o.index, o.SubmittedObject = own.request, own.index, own.SubmittedObject
	*from = object{request: from.request, index: from.index, SubmittedObject: from.SubmittedObject, state: Discarded}
	switch {
	case o.run != nil:
		o.run.items[o.slot].object = o
	case o.group != nil:
		o.group.objects[slices.Index(o.group.objects, from)] = o
	}
	if o.state != Encoding {
		o.request.unfinished--
	}
	return true
}

// weight is how many objects of Config.MaxObjects the request is.
func (q *requestRecord) weight() int { return max(1, len(q.objects)) }

// checkSubmission returns why a submission is refused; nil if it is not. room is for how many objects there is room.
func (m *Machine) checkSubmission(s *Submission, room int) error {
	if n := max(len(s.Objects), len(s.Placeholders)); n > m.cfg.MaxObjects {
		return fault.New(fault.TooLarge, "encode: %d objects or placeholders are more than the %d of all requests together: show fewer", n, m.cfg.MaxObjects)
	}
	if err := matchPlaceholders(s); err != nil {
		return err
	}
	var own, all int64
	for i := range s.Objects {
		o := &s.Objects[i]
		switch {
		case o.Tokens < 1 || o.Bytes < 1 || o.Cost < 0:
			return fault.New(fault.Invalid, "encode: object %d has %d tokens, %d bytes of rows and cost %d: its size must be known", i, o.Tokens, o.Bytes, o.Cost)
		case o.Held != 0 && o.Held != o.Tokens:
			return fault.New(fault.Invalid, "encode: object %d has %d cached rows and %d tokens in the prompt", i, o.Held, o.Tokens)
		case m.cfg.MaxBatchCost > 0 && o.Cost > m.cfg.MaxBatchCost:
			return fault.New(fault.TooLarge, "encode: object %d costs %d, more than the %d of a whole batch: show a smaller one", i, o.Cost, m.cfg.MaxBatchCost)
		case o.Bytes > m.cfg.StagingBudget-all:
			return refuseSize(i, o.Bytes, m.cfg.StagingBudget-all, m.cfg.StagingBudget, "staged")
		case o.Held == 0 && o.Bytes > m.cfg.CPUBudget-own:
			return refuseSize(i, o.Bytes, m.cfg.CPUBudget-own, m.cfg.CPUBudget, "encoded")
		}
		if all += o.Bytes; o.Held == 0 {
			own += o.Bytes
		}
	}
	if n := max(1, len(s.Objects)); n > room {
		return fault.New(fault.Overloaded, "encode: %d objects are here and %d more would exceed %d: try again later", m.cfg.MaxObjects-room, n, m.cfg.MaxObjects)
	}
	return nil
}

// refuseSize returns the error for an object whose rows exceed what the objects before it leave of a whole budget.
func refuseSize(i int, bytes, left, budget int64, what string) error {
	return fault.New(fault.TooLarge, "encode: object %d has rows of %d bytes, and the objects before it leave %d of the %d for %s rows: show fewer or smaller ones", i, bytes, left, budget, what)
}

// matchPlaceholders checks that each placeholder has one object, of its kind. As there are as many of both, it is
// enough that each object has a placeholder of its own.
func matchPlaceholders(s *Submission) error {
	if len(s.Placeholders) != len(s.Objects) {
		return fault.New(fault.Invalid, "encode: the prompt has %d placeholders for %d objects", len(s.Placeholders), len(s.Objects))
	}
	places := slices.Clone(s.Placeholders)
	slices.SortFunc(places, func(a, b Placeholder) int { return a.Position - b.Position })
	taken := make([]bool, len(places))
	for i := range s.Objects {
		o := &s.Objects[i]
		at, ok := slices.BinarySearchFunc(places, o.Position, func(p Placeholder, position int) int { return p.Position - position })
		switch {
		case o.Position < 0 || !ok:
			return fault.New(fault.Invalid, "encode: object %d is for position %d, where the prompt has no placeholder", i, o.Position)
		case taken[at]:
			return fault.New(fault.Invalid, "encode: object %d is for position %d, which another object has", i, o.Position)
		case places[at].Kind != o.Kind:
			return fault.New(fault.Invalid, "encode: object %d is of kind %d, and its placeholder of kind %d", i, o.Kind, places[at].Kind)
		}
		taken[at] = true
	}
	return nil
}

// admitRequests reserves the memory of waiting requests in order, as long as each fits.
func (m *Machine) admitRequests(now kv.Mono, out []Action) []Action {
	for first := m.waiting.Front(); first != nil; first = m.waiting.Front() {
		q := first.Value.(*requestRecord)
		var ok bool
		if ok, out = m.reserveRows(q, out); !ok {
			return out
		}
		m.waiting.Remove(first)
		q.waiting = nil
		for i := range q.objects {
			if o := &q.objects[i]; o.state == Encoding && o.group == nil && o.run == nil {
				m.queueObject(now, o)
			}
		}
		out = m.settleRequest(q, out)
	}
	return out
}

// settleRequest reports a request once all its objects are finished.
func (m *Machine) settleRequest(q *requestRecord, out []Action) []Action {
	if q.unfinished > 0 || q.unsettled == nil {
		return out
	}
	if len(q.failures) > 0 {
		return m.endRequest(q, Failed, out)
	}
	m.unsettled.Remove(q.unsettled)
	q.unsettled = nil
	q.state = EncodedCPU
	return append(out, Action{Kind: RequestReady, Request: q.id})
}

// failObject ends an object which is not encoded. The caller settles its request.
func (m *Machine) failObject(o *object, kind FailureKind, detail string, out []Action) []Action {
	m.stats.Failures[kind]++
	o.request.failures = append(o.request.failures, Failure{Index: o.index, Kind: kind, Detail: detail})
	o.request.unfinished--
	o.state = Discarded
	out = m.leaveEncoder(o, out)
	return m.dropObjectRows(o, out)
}

// dropObjectRows gives up an object's use of its rows, if it has any.
func (m *Machine) dropObjectRows(o *object, out []Action) []Action {
	r := o.rows
	o.rows = nil
	return m.releaseRows(r, out)
}

// endRequest deletes a request's record.
func (m *Machine) endRequest(q *requestRecord, how Ending, out []Action) []Action {
	for i := range q.objects {
		out = m.leaveEncoder(&q.objects[i], out)
		out = m.dropObjectRows(&q.objects[i], out)
	}
	if q.unsettled != nil {
		m.unsettled.Remove(q.unsettled)
	}
	if q.waiting != nil {
		m.waiting.Remove(q.waiting)
	}
	out = m.leaveStage(q, out)
	delete(m.requests, q.id)
	m.objects -= q.weight()
	m.stats.Ended[how]++
	return append(out, Action{Kind: RequestEnded, Request: q.id, Ending: how, Failures: q.failures})
}

// CancelRequest ends a request in any state. Its runs and copies hold their memory until they have ended.
func (m *Machine) CancelRequest(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	if err != nil {
		return out, err
	}
	return m.advance(now, m.endRequest(q, Cancelled, out)), nil
}

// EndRequest ends a request whose generation is complete: it needs its rows no more. It is legal after the first
// MarkPrefilled.
func (m *Machine) EndRequest(now kv.Mono, id RequestID, out []Action) ([]Action, error) {
	q, err := m.requestIn(id)
	if err != nil {
		return out, err
	}
	if !q.prefilled {
		return out, q.refuse("EndRequest", "its media were never prefilled")
	}
	return m.advance(now, m.endRequest(q, Completed, out)), nil
}
