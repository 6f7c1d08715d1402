package encode

import (
	"cmp"
	"fmt"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// batchShape is what the objects of a batch have in common.
type batchShape struct {
	kind  uint8
	shape [4]int
}

// group are objects which wait for an encoder, in order.
type group struct {
	objects []*object
	// retry says that the objects run again as they are, without others.
	retry bool
}

// encoder is a registered encoder.
type encoder struct {
	id     EncoderID
	limits EncoderLimits
	runs   []*run // the first to start first
	jobs   int    // objects in runs
}

// EncoderLimits bound what one encoder does at once. 0 is no bound but Config.MaxJobs.
type EncoderLimits struct {
	Jobs int // objects
	Runs int
}

// run is a run of an encoder, or a part of one.
type run struct {
	id      RunID
	encoder *encoder
	part    bool // SplitRun has made it
	// counted is up to when Stats.EncodeTime has the time of the run and of all its parts, which share it.
	counted *kv.Mono
	items   []runItem
	live    int // items with an object
}

// runItem is an object in a run; nil once it has left. The run holds its rows until its end.
type runItem struct {
	object *object
	named  Item
	rows   *rows
}

// AddEncoder registers an encoder, which gets runs from now on. It is Conflict if the id is taken, and Invalid if a
// limit is negative.
func (m *Machine) AddEncoder(now kv.Mono, id EncoderID, limits EncoderLimits, out []Action) ([]Action, error) {
	at, found := m.findEncoder(id)
	switch {
	case found:
		return out, fault.New(fault.Conflict, "encode: encoder %d is there already", id)
	case limits.Jobs < 0 || limits.Runs < 0:
		return out, fault.New(fault.Invalid, "encode: encoder %d: %d objects and %d runs at once must not be negative", id, limits.Jobs, limits.Runs)
	case limits.Jobs == 0:
		limits.Jobs = m.cfg.MaxJobs
	}
	m.encoders = slices.Insert(m.encoders, at, &encoder{id: id, limits: limits})
	return m.advance(now, out), nil
}

// LoseEncoder removes an encoder which has died, is not reachable or fails at once: it writes no memory any more. The
// objects of its runs run again elsewhere, unless it was their last attempt.
func (m *Machine) LoseEncoder(now kv.Mono, id EncoderID, out []Action) ([]Action, error) {
	at, found := m.findEncoder(id)
	if !found {
		return out, ErrUnknownEncoder
	}
	e := m.encoders[at]
	m.encoders = slices.Delete(m.encoders, at, at+1)
	for len(e.runs) > 0 {
		r := e.runs[0]
		m.removeRun(r)
		out = m.repeatLost(now, r, fmt.Sprintf("encoder %d was lost", e.id), out)
	}
	return m.advance(now, out), nil
}

func (m *Machine) findEncoder(id EncoderID) (at int, found bool) {
	return slices.BinarySearchFunc(m.encoders, id, func(e *encoder, id EncoderID) int {
		return cmp.Compare(e.id, id)
	})
}

// leastLoaded returns the encoder with the fewest objects which has room for one more, by id if there are several; nil
// if none has, or all permits are held.
func (m *Machine) leastLoaded() (best *encoder) {
	if m.running >= m.cfg.MaxJobs {
		return nil
	}
	for _, e := range m.encoders {
		full := e.jobs >= e.limits.Jobs || e.limits.Runs > 0 && len(e.runs) >= e.limits.Runs
		if !full && (best == nil || e.jobs < best.jobs) {
			best = e
		}
	}
	return best
}

// queueObject makes an object, whose memory is reserved, wait for an encoder.
func (m *Machine) queueObject(now kv.Mono, o *object) {
	shape := batchShape{o.Kind, o.Shape}
	g := m.byShape[shape]
	if g == nil {
		g = &group{}
		m.byShape[shape] = g
		m.groups = append(m.groups, g)
	}
	m.lastOrder++
	o.order, o.since = m.lastOrder, now
	g.addObject(o)
}

// queueRetry makes objects run again in one run, before all others.
func (m *Machine) queueRetry(now kv.Mono, all []*object) {
	if len(all) == 0 {
		return
	}
	g := &group{retry: true}
	for _, o := range all {
		m.lastOrder++
		o.order, o.since = m.lastOrder, now
		g.addObject(o)
	}
	m.retries = append(m.retries, g)
}

func (g *group) addObject(o *object) {
	g.objects = append(g.objects, o)
	o.group = g
}

// takeObjects removes n objects of a group from index at, and the group itself with the last one.
func (m *Machine) takeObjects(g *group, at, n int) {
	for _, o := range g.objects[at : at+n] {
		o.group = nil
	}
	shape := batchShape{g.objects[0].Kind, g.objects[0].Shape}
	g.objects = slices.Delete(g.objects, at, at+n)
	switch {
	case len(g.objects) > 0:
	case g.retry:
		m.retries = slices.DeleteFunc(m.retries, func(o *group) bool { return o == g })
	default:
		delete(m.byShape, shape)
		m.groups = slices.DeleteFunc(m.groups, func(o *group) bool { return o == g })
	}
}

// startRuns gives encoders what they may run.
func (m *Machine) startRuns(now kv.Mono, out []Action) []Action {
	for {
		e := m.leastLoaded()
		if e == nil {
			return out
		}
		g := m.nextGroup(now, e)
		if g == nil {
			return out
		}
		out = m.startRun(now, e, g, out)
	}
}

// nextGroup returns the group which runs next on an encoder with room; nil if all have to wait. Groups which run again
// come first. Of the others any may run on an idle encoder, and on a busy one a group which is full or has waited: the
// one with the oldest object.
func (m *Machine) nextGroup(now kv.Mono, e *encoder) (next *group) {
	if len(m.retries) > 0 {
		return m.retries[0]
	}
	for _, g := range m.groups {
		_, full := m.batchSize(g, m.cfg.MaxBatch)
		due := full || e.jobs == 0 || now.Sub(g.objects[0].since) >= m.cfg.BatchWait
		if due && (next == nil || g.objects[0].order < next.objects[0].order) {
			next = g
		}
	}
	return next
}

// batchSize returns how many objects of a group, the first ones, are a batch of at most room objects, and whether no
// other one could join it.
func (m *Machine) batchSize(g *group, room int) (n int, full bool) {
	left := m.cfg.MaxBatchCost
	for n < min(room, len(g.objects)) {
		if left -= g.objects[n].Cost; left < 0 && m.cfg.MaxBatchCost > 0 {
			return n, true
		}
		n++
	}
	return n, n == room || m.cfg.MaxBatchCost > 0 && left == 0
}

// startRun runs the first objects of a group, as many as a batch, the encoder and the permits have room for.
func (m *Machine) startRun(now kv.Mono, e *encoder, g *group, out []Action) []Action {
	n, _ := m.batchSize(g, min(m.cfg.MaxBatch, m.cfg.MaxJobs-m.running, e.limits.Jobs-e.jobs))
	m.lastRun++
	r := &run{id: m.lastRun, encoder: e, counted: new(now), items: make([]runItem, n), live: n}
	started := Action{Kind: RunBatch, Run: r.id, Encoder: e.id, Items: make([]Item, n)}
	for i, o := range g.objects[:n] {
		if o.attempts++; o.attempts == 1 {
			m.stats.Jobs++
		} else {
			m.stats.Repeats++
		}
		o.run, o.slot = r, i
		o.rows.written = true
		m.holdRows(o.rows)
		r.items[i] = runItem{o, Item{o.request.id, o.index, o.attempts, o.rows.id}, o.rows}
		started.Items[i] = r.items[i].named
	}
	m.takeObjects(g, 0, n)
	m.runs[r.id] = r
	e.runs = append(e.runs, r)
	e.jobs += n
	m.running += n
	m.stats.Runs++
	return append(out, started)
}

// leaveEncoder ends an object's wait for an encoder, or its part of a run. A run without any object
// left is aborted.
func (m *Machine) leaveEncoder(o *object, out []Action) []Action {
	if o.group != nil {
		m.takeObjects(o.group, slices.Index(o.group.objects, o), 1)
		return out
	}
	r := o.run
	if r == nil {
		return out
	}
	r.items[o.slot].object, o.run = nil, nil
	if r.live--; r.live > 0 {
		return out
	}
	return append(out, r.abort())
}

// abort returns the action for a run without any object.
func (r *run) abort() Action { return Action{Kind: AbortRun, Run: r.id, Encoder: r.encoder.id} }

// SplitRun makes some items of a run a run of their own on the same encoder, whose id it returns: what the encoder has
// made of them is reported apart, and does not wait for the others. places are their places among the items, ascending.
// The items of both runs keep their order, their permits and their memory. From now on each is a run as any other: its
// own FinishRun or FailRun ends it, and AbortRun follows for the one which no request wants. Both count as runs of the
// encoder, which may have more than EncoderLimits.Runs then, and gets no other before it has fewer.
//
// It is Invalid if the places are not some of the run's and not all, or not ascending.
func (m *Machine) SplitRun(id RunID, places []int, out []Action) (RunID, []Action, error) {
	r, err := m.endingRun(id)
	if err != nil {
		return 0, out, err
	}
	n := len(places)
	for k, at := range places {
		if at < 0 || at >= len(r.items) || k > 0 && at <= places[k-1] {
			return 0, out, fault.New(fault.Invalid, "encode: run %d of %d items has no part of items %v", id, len(r.items), places)
		}
	}
	if n == 0 || n == len(r.items) {
		return 0, out, fault.New(fault.Invalid, "encode: %d of the %d items of run %d are no part of it", n, len(r.items), id)
	}
	m.lastRun++
	part := &run{id: m.lastRun, encoder: r.encoder, part: true, counted: r.counted}
	var rest []runItem
	for at, item := range r.items {
		if k := len(part.items); k < n && places[k] == at {
			part.items = append(part.items, item)
		} else {
			rest = append(rest, item)
		}
	}
	aborted := r.live == 0
	r.items = rest
	r.placeItems()
	part.placeItems()
	m.runs[part.id] = part
	r.encoder.runs = append(r.encoder.runs, part)
	if part.live == 0 {
		out = append(out, part.abort())
	}
	if r.live == 0 && !aborted {
		out = append(out, r.abort())
	}
	return part.id, out, nil
}

// placeItems makes the objects of a run know their places in it, and counts them.
func (r *run) placeItems() {
	r.live = 0
	for at := range r.items {
		if o := r.items[at].object; o != nil {
			o.run, o.slot = r, at
			r.live++
		}
	}
}

// removeRun deletes the record of a run which has ended, and gives its permits back. Its items still hold their rows.
func (m *Machine) removeRun(r *run) {
	delete(m.runs, r.id)
	e := r.encoder
	e.runs = slices.DeleteFunc(e.runs, func(o *run) bool { return o == r })
	e.jobs -= len(r.items)
	m.running -= len(r.items)
}

// endItem makes a run let go of an item's rows, and returns the object; nil if it has left.
func (m *Machine) endItem(i *runItem, out []Action) (*object, []Action) {
	o := i.object
	if o != nil {
		o.run = nil
	}
	return o, m.releaseRows(i.rows, out)
}

// repeatLost ends a run whose encoder is lost. Its objects run again as they were; each alone if it is its last
// attempt, so that an object which ends encoders takes no other with it.
func (m *Machine) repeatLost(now kv.Mono, r *run, detail string, out []Action) []Action {
	var again []*object
	for i := range r.items {
		var o *object
		if o, out = m.endItem(&r.items[i], out); o == nil {
			continue
		}
		switch o.losses++; {
		case o.losses >= m.cfg.MaxAttempts:
			out = m.failObject(o, EncoderLost, fmt.Sprintf("%s: attempt %d of %d", detail, o.losses, m.cfg.MaxAttempts), out)
			out = m.settleRequest(o.request, out)
		case o.losses == m.cfg.MaxAttempts-1:
			m.queueRetry(now, []*object{o})
		default:
			again = append(again, o)
		}
	}
	m.queueRetry(now, again)
	return out
}

// Result is what a run has made of one item.
type Result struct {
	// Failure is NotFailed if there are rows. Otherwise the object has failed for good, Detail says more, and the
	// other fields are without meaning.
	Failure FailureKind
	Detail  string
	// Tokens and Bytes are the number and the size of the rows.
	Tokens int
	Bytes  int64
	// Place says where they are.
	Place RowsPlace
}

// RowsPlace says where rows are.
type RowsPlace uint8

// The places.
const (
	InMemory RowsPlace = iota // in the memory which the item's Rows name
	InCache                   // in the embedding cache, with a pin for the item
)

// FinishRun reports what a run has made of each of its items, in their order. What it made for objects which have
// ended changes nothing, and is given up at once.
func (m *Machine) FinishRun(now kv.Mono, id RunID, results []Result, out []Action) ([]Action, error) {
	r, err := m.endingRun(id)
	if err != nil {
		return out, err
	}
	if len(results) != len(r.items) {
		return out, fmt.Errorf("encode: run %d has %d items and %d results", id, len(r.items), len(results))
	}
	for i := range results {
		if results[i].Failure >= failureKinds {
			return out, fmt.Errorf("encode: item %d of run %d cannot fail with kind %d", i, id, results[i].Failure)
		}
	}
	m.removeRun(r)
	encoded := false
	for i := range r.items {
		item, result := &r.items[i], &results[i]
		var o *object
		if o, out = m.endItem(item, out); o == nil {
			if result.Failure == NotFailed && result.Place == InCache {
				out = append(out, Action{Kind: UnpinRows, Request: item.named.Request, Index: item.named.Index})
			}
			continue
		}
		encoded = encoded || result.Failure == NotFailed
		out = m.takeResult(o, result, out)
		out = m.settleRequest(o.request, out)
	}
	if encoded {
		m.stats.EncodeTime += now.Sub(*r.counted)
		*r.counted = now
	}
	return m.advance(now, out), nil
}

// endingRun returns a run about which the shell reports.
func (m *Machine) endingRun(id RunID) (*run, error) {
	r := m.runs[id]
	if r == nil {
		m.stats.LateReports++
		return nil, ErrUnknownRun
	}
	return r, nil
}

// takeResult finishes an object.
func (m *Machine) takeResult(o *object, result *Result, out []Action) []Action {
	if result.Failure != NotFailed {
		return m.failObject(o, result.Failure, result.Detail, out)
	}
	if result.Place == InCache {
		out = m.dropObjectRows(o, out)
		o.rows = m.pinnedRows(o)
	}
	if result.Tokens != o.Tokens || result.Bytes != o.Bytes {
		return m.failObject(o, SizeDiffers, fmt.Sprintf("the encoder returned %d rows of %d bytes, and %d of %d bytes were estimated", result.Tokens, result.Bytes, o.Tokens, o.Bytes), out)
	}
	o.state = EncodedCPU
	o.request.unfinished--
	m.stats.Encoded++
	m.stats.EncodedBytes += uint64(result.Bytes)
	return out
}

// FailRun reports that a run has failed as a whole, so that nothing is known of its items one by one. An object which
// ran alone fails. The halves of several run again, without others. EncoderLost says that the run was lost while its
// encoder is still there: the objects run again as after LoseEncoder, perhaps on the same one.
func (m *Machine) FailRun(now kv.Mono, id RunID, kind FailureKind, detail string, out []Action) ([]Action, error) {
	if kind == NotFailed || kind >= failureKinds {
		return out, fmt.Errorf("encode: run %d cannot fail with kind %d", id, kind)
	}
	r, err := m.endingRun(id)
	if err != nil {
		return out, err
	}
	m.removeRun(r)
	if kind == EncoderLost {
		return m.advance(now, m.repeatLost(now, r, detail, out)), nil
	}
	var again []*object
	for i := range r.items {
		var o *object
		if o, out = m.endItem(&r.items[i], out); o == nil {
			continue
		}
		if len(r.items) > 1 {
			again = append(again, o)
			continue
		}
		out = m.failObject(o, kind, detail, out)
		out = m.settleRequest(o.request, out)
	}
	half := (len(again) + 1) / 2
	m.queueRetry(now, again[:half])
	m.queueRetry(now, again[half:])
	return m.advance(now, out), nil
}
