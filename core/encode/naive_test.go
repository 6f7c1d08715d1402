package encode

import (
	"cmp"
	"math"
	"slices"

	"penstock/core/kv"
)

// naive is the simplest machine: flat lists, from which everything is computed anew whenever it is needed. Which rows
// have holders, how much memory is used and which objects form a batch is found by looking at all of them.
type naive struct {
	cfg        Config
	now        kv.Mono
	requests   []*naiveRequest // in the order of submits
	encoders   []*naiveEncoder
	runs       []*naiveRun // in the order of starts
	rows       []*naiveRows
	retries    [][]*naiveObject
	stages     []*naiveStage // in the order in which they were asked for
	ends       map[RequestID]Ending
	counted    map[RunID]kv.Mono // until when the time of a run is counted, by origin
	lastID     RequestID
	lastRun    RunID
	lastRows   RowsID
	events     uint64 // orders what happens
	stats      Stats
	actions    []Action
	everLarger int64 // the most memory that rows have ever had which encoders were told of
}

type naiveRequest struct {
	id                          RequestID
	objects                     []*naiveObject
	retention                   Retention
	state                       ObjectState
	admitted, merged, prefilled bool
	failures                    []Failure
	submitted                   kv.Mono
}

type naiveObject struct {
	of    *naiveRequest
	index int
	SubmittedObject
	state            ObjectState
	rows             *naiveRows
	attempts, losses int
	queued           uint64 // event; 0 if it does not wait for an encoder, or waits in retries
	since            kv.Mono
}

type naiveEncoder struct {
	id     EncoderID
	limits EncoderLimits
}

type naiveRun struct {
	id      RunID
	on      EncoderID
	origin  RunID          // the run of which it is a part; itself if it is none
	objects []*naiveObject // nil for one which has left
	items   []Item
	rows    []*naiveRows
}

type naiveRows struct {
	id      RowsID // 0 for a pin
	bytes   int64
	key     kv.Digest
	tokens  int
	written bool
	kept    bool
	idle    uint64 // event
	request RequestID
	index   int
}

type naiveStage struct {
	of              *naiveRequest // nil for one which has ended
	id              RequestID
	bytes           int64
	granted, copied bool
	from            []*naiveRows
}

func newNaive(cfg Config) *naive {
	return &naive{cfg: cfg, now: 1, ends: map[RequestID]Ending{}, counted: map[RunID]kv.Mono{}}
}

func (n *naive) event() uint64 {
	n.events++
	return n.events
}

func (n *naive) act(a Action) { n.actions = append(n.actions, a) }

func (n *naive) find(id RequestID) *naiveRequest {
	for _, q := range n.requests {
		if q.id == id {
			return q
		}
	}
	return nil
}

func (n *naive) findRun(id RunID) *naiveRun {
	for _, r := range n.runs {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (n *naive) stageOf(id RequestID) *naiveStage {
	for _, s := range n.stages {
		if s.id == id {
			return s
		}
	}
	return nil
}

// held reports whether anything uses rows.
func (n *naive) held(r *naiveRows) bool {
	for _, q := range n.requests {
		for _, o := range q.objects {
			if o.rows == r {
				return true
			}
		}
	}
	for _, run := range n.runs {
		if slices.Contains(run.rows, r) {
			return true
		}
	}
	for _, s := range n.stages {
		if slices.Contains(s.from, r) {
			return true
		}
	}
	return false
}

// letGo ends rows which nothing holds any more.
func (n *naive) letGo(all ...*naiveRows) {
	for _, r := range all {
		if r == nil || !slices.Contains(n.rows, r) || n.held(r) {
			continue
		}
		if r.kept {
			r.idle = n.event()
			continue
		}
		n.free(r)
	}
}

func (n *naive) free(r *naiveRows) {
	n.rows = slices.DeleteFunc(n.rows, func(o *naiveRows) bool { return o == r })
	switch {
	case r.id == 0:
		n.act(Action{Kind: UnpinRows, Request: r.request, Index: r.index})
	case r.written:
		n.act(Action{Kind: DropRows, Rows: r.id})
	}
}

func (n *naive) drop(o *naiveObject) {
	r := o.rows
	o.rows = nil
	n.letGo(r)
}

func (n *naive) cpu() (used int64) {
	for _, r := range n.rows {
		used += r.bytes
	}
	return used
}

func (n *naive) staged() (used int64) {
	for _, s := range n.stages {
		if s.granted {
			used += s.bytes
		}
	}
	return used
}

func (n *naive) idleRows() []*naiveRows {
	all := slices.DeleteFunc(slices.Clone(n.rows), func(r *naiveRows) bool { return !r.kept || n.held(r) })
	slices.SortFunc(all, func(a, b *naiveRows) int { return cmp.Compare(a.idle, b.idle) })
	return all
}

func (n *naive) keptFor(o *naiveObject) *naiveRows {
	for _, r := range n.rows {
		if r.kept && r.key == o.Key && r.tokens == o.Tokens && r.bytes == o.Bytes {
			return r
		}
	}
	return nil
}

func (n *naive) weight() (w int) {
	for _, q := range n.requests {
		w += max(1, len(q.objects))
	}
	for _, s := range n.stages {
		if s.of == nil {
			w++
		}
	}
	return w
}

// accepts says whether a submission is accepted when there are so many objects.
func (n *naive) accepts(s *Submission, objects int) bool {
	var all, own int64
	for _, p := range s.Placeholders {
		count := 0
		for _, o := range s.Objects {
			if o.Position == p.Position && o.Kind == p.Kind {
				count++
			}
		}
		if count != 1 || p.Position < 0 {
			return false
		}
	}
	for _, o := range s.Objects {
		count := 0
		for _, p := range s.Placeholders {
			if p.Position == o.Position {
				count++
			}
		}
		if count != 1 || o.Tokens < 1 || o.Bytes < 1 || o.Cost < 0 || o.Held != 0 && o.Held != o.Tokens || n.cfg.MaxBatchCost > 0 && o.Cost > n.cfg.MaxBatchCost {
			return false
		}
		if all += o.Bytes; o.Held == 0 {
			own += o.Bytes
		}
	}
	return all <= n.cfg.StagingBudget && own <= n.cfg.CPUBudget && objects+max(1, len(s.Objects)) <= n.cfg.MaxObjects
}

func (n *naive) submit(s *Submission) (RequestID, bool) {
	if !n.accepts(s, n.weight()) {
		return 0, false
	}
	q := n.add(s)
	q.admitted = q.unfinished() == 0
	n.settle(q)
	n.advance()
	return q.id, true
}

func (n *naive) add(s *Submission) *naiveRequest {
	n.lastID++
	q := &naiveRequest{id: n.lastID, retention: s.Usage.Retention(), submitted: n.now}
	for i, o := range s.Objects {
		one := &naiveObject{of: q, index: i, SubmittedObject: o}
		if o.Held > 0 {
			n.stats.CacheHits++
			one.state, one.rows = EncodedCPU, n.pin(q.id, i)
		}
		q.objects = append(q.objects, one)
	}
	n.stats.Requests++
	n.requests = append(n.requests, q)
	return q
}

// replace ends a request, and submits another one which takes objects of it over. It reports whether that is legal.
func (n *naive) replace(old RequestID, s *Submission, takes []int) (id RequestID, taken []bool, ok bool) {
	from := n.find(old)
	if from == nil || len(takes) != len(s.Objects) {
		return 0, nil, false
	}
	for i, k := range takes {
		if k == -1 {
			continue
		}
		if k < 0 || k >= len(from.objects) || slices.Index(takes, k) != i {
			return 0, nil, false
		}
		a, b := s.Objects[i], from.objects[k].SubmittedObject
		a.Position, a.Cost, a.Held = b.Position, b.Cost, b.Held
		if a != b {
			return 0, nil, false
		}
	}
	objects := n.weight() - max(1, len(from.objects))
	if st := n.stageOf(old); st != nil && st.granted {
		objects++
	}
	if !n.accepts(s, objects) {
		return 0, nil, false
	}
	q := n.add(s)
	for i, k := range takes {
		moved := k >= 0 && s.Objects[i].Held == 0 && from.objects[k].rows != nil && from.objects[k].rows.id != 0
		if taken = append(taken, moved); moved {
			o := from.objects[k]
			from.objects[k] = &naiveObject{of: from, index: k, state: Discarded}
			o.of, o.index, o.SubmittedObject = q, i, s.Objects[i]
			q.objects[i] = o
		}
	}
	n.end(from, map[bool]Ending{true: Completed, false: Cancelled}[from.prefilled])
	q.admitted = !slices.ContainsFunc(q.objects, func(o *naiveObject) bool { return o.state == Encoding && o.rows == nil })
	for n.admit() {
	}
	for i, o := range q.objects {
		switch {
		case !taken[i]:
		case q.admitted:
			for _, r := range n.runs {
				if at := slices.Index(r.objects, o); at >= 0 {
					r.items = slices.Clone(r.items) // an action has them
					r.items[at].Request, r.items[at].Index = q.id, i
				}
			}
		default:
			taken[i] = false
			n.unqueue(o)
			n.drop(o)
			q.objects[i] = &naiveObject{of: q, index: i, SubmittedObject: o.SubmittedObject}
		}
	}
	n.settle(q)
	n.advance()
	return q.id, taken, true
}

func (n *naive) pin(id RequestID, index int) *naiveRows {
	r := &naiveRows{request: id, index: index}
	n.rows = append(n.rows, r)
	return r
}

func (q *naiveRequest) unfinished() (count int) {
	for _, o := range q.objects {
		if o.state == Encoding {
			count++
		}
	}
	return count
}

// settle reports a request which has just become finished.
func (n *naive) settle(q *naiveRequest) {
	switch {
	case q.unfinished() > 0 || q.state != Encoding || n.find(q.id) == nil:
	case len(q.failures) > 0:
		n.end(q, Failed)
	default:
		q.state = EncodedCPU
		n.act(Action{Kind: RequestReady, Request: q.id})
	}
}

func (n *naive) end(q *naiveRequest, how Ending) {
	for _, o := range q.objects {
		n.unqueue(o)
		n.drop(o)
	}
	if s := n.stageOf(q.id); s != nil {
		s.of = nil
		if s.granted {
			n.act(Action{Kind: DropStaged, Request: q.id})
		} else {
			n.stages = slices.DeleteFunc(n.stages, func(o *naiveStage) bool { return o == s })
		}
	}
	n.requests = slices.DeleteFunc(n.requests, func(o *naiveRequest) bool { return o == q })
	n.ends[q.id] = how
	n.stats.Ended[how]++
	n.act(Action{Kind: RequestEnded, Request: q.id, Ending: how, Failures: q.failures})
}

// unqueue takes an object from all queues and runs.
func (n *naive) unqueue(o *naiveObject) {
	o.queued = 0
	for i := range n.retries {
		n.retries[i] = slices.DeleteFunc(n.retries[i], func(p *naiveObject) bool { return p == o })
	}
	for _, r := range n.runs {
		if at := slices.Index(r.objects, o); at >= 0 {
			r.objects[at] = nil
			if !slices.ContainsFunc(r.objects, func(p *naiveObject) bool { return p != nil }) {
				n.act(Action{Kind: AbortRun, Run: r.id, Encoder: r.on})
			}
		}
	}
}

func (n *naive) fail(o *naiveObject, kind FailureKind) {
	n.stats.Failures[kind]++
	o.of.failures = append(o.of.failures, Failure{Index: o.index, Kind: kind})
	o.state = Discarded
	n.unqueue(o)
	n.drop(o)
	n.settle(o.of)
}

func (n *naive) advance() {
	for n.admit() {
	}
	for n.dispatch() {
	}
	for _, s := range n.stages {
		if s.granted {
			continue
		}
		if n.staged()+s.bytes > n.cfg.StagingBudget {
			break
		}
		s.granted = true
		objects := slices.Clone(s.of.objects)
		slices.SortFunc(objects, func(a, b *naiveObject) int { return a.Position - b.Position })
		a := Action{Kind: CopyRows, Request: s.id, Sources: []RowSource{}}
		for _, o := range objects {
			a.Sources = append(a.Sources, RowSource{o.index, o.rows.id})
		}
		for _, o := range s.of.objects {
			s.from = append(s.from, o.rows)
		}
		n.act(a)
	}
}

// admit reserves the memory of the first request which waits for it, and reports whether it could.
func (n *naive) admit() bool {
	at := slices.IndexFunc(n.requests, func(q *naiveRequest) bool { return !q.admitted })
	if at < 0 {
		return false
	}
	q, need, spared := n.requests[at], int64(0), n.idleRows()
	for _, o := range q.objects {
		if o.state != Encoding || o.rows != nil {
			continue
		}
		if r := n.keptFor(o); r != nil {
			spared = slices.DeleteFunc(spared, func(s *naiveRows) bool { return s == r })
		} else {
			need += o.Bytes
		}
	}
	used := n.cpu() + need
	var evicted []*naiveRows
	for _, r := range spared {
		if used > n.cfg.CPUBudget {
			used -= r.bytes
			evicted = append(evicted, r)
		}
	}
	if used > n.cfg.CPUBudget {
		return false
	}
	q.admitted = true
	var missing []*naiveObject
	for _, o := range q.objects {
		if o.state != Encoding || o.rows != nil {
			continue
		}
		if r := n.keptFor(o); r != nil {
			n.stats.CacheHits++
			o.state, o.rows = EncodedCPU, r
		} else {
			missing = append(missing, o)
		}
	}
	for _, r := range evicted {
		n.stats.Evictions++
		n.free(r)
	}
	for _, o := range missing {
		n.stats.CacheMisses++
		n.lastRows++
		o.rows = &naiveRows{id: n.lastRows, bytes: o.Bytes, key: o.Key, tokens: o.Tokens}
		n.rows = append(n.rows, o.rows)
		o.queued, o.since = n.event(), n.now
	}
	n.settle(q)
	return true
}

func (n *naive) permits() (held int) {
	for _, r := range n.runs {
		held += len(r.items)
	}
	return held
}

func (n *naive) loadOf(id EncoderID) (jobs, runs int) {
	for _, r := range n.runs {
		if r.on == id {
			jobs, runs = jobs+len(r.items), runs+1
		}
	}
	return jobs, runs
}

// free returns the encoder which gets the next batch, what it has, and for how many objects there is room.
func (n *naive) freeEncoder() (best *naiveEncoder, jobs, room int) {
	jobs = math.MaxInt
	for _, e := range n.encoders {
		j, runs := n.loadOf(e.id)
		limit := e.limits.Jobs
		if limit == 0 {
			limit = n.cfg.MaxJobs
		}
		r := min(limit-j, n.cfg.MaxJobs-n.permits())
		if r > 0 && (e.limits.Runs == 0 || runs < e.limits.Runs) && j < jobs {
			best, jobs, room = e, j, r
		}
	}
	return best, jobs, room
}

// batchOf returns the first objects of a list which fit into a batch, and whether no other object could be added.
func (n *naive) batchOf(all []*naiveObject, most int) (batch []*naiveObject, full bool) {
	cost := 0
	for _, o := range all {
		if len(batch) == most || n.cfg.MaxBatchCost > 0 && cost+o.Cost > n.cfg.MaxBatchCost {
			return batch, true
		}
		batch, cost = append(batch, o), cost+o.Cost
	}
	return batch, len(batch) == most || n.cfg.MaxBatchCost > 0 && cost == n.cfg.MaxBatchCost
}

// waitingObjects returns all objects which wait for an encoder and not to run again, in order.
func (n *naive) waitingObjects() (all []*naiveObject) {
	for _, q := range n.requests {
		for _, o := range q.objects {
			if o.queued > 0 {
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(a, b *naiveObject) int { return cmp.Compare(a.queued, b.queued) })
	return all
}

func (n *naive) dispatch() bool {
	e, jobs, room := n.freeEncoder()
	if e == nil {
		return false
	}
	n.retries = slices.DeleteFunc(n.retries, func(b []*naiveObject) bool { return len(b) == 0 })
	if len(n.retries) > 0 {
		batch, _ := n.batchOf(n.retries[0], min(room, n.cfg.MaxBatch))
		n.start(e, batch)
		return true
	}
	waiting := n.waitingObjects()
	for i, first := range waiting {
		like := slices.DeleteFunc(slices.Clone(waiting), func(o *naiveObject) bool { return o.Kind != first.Kind || o.Shape != first.Shape })
		if like[0] != waiting[i] {
			continue
		}
		if _, full := n.batchOf(like, n.cfg.MaxBatch); full || jobs == 0 || n.now.Sub(first.since) >= n.cfg.BatchWait {
			batch, _ := n.batchOf(like, min(room, n.cfg.MaxBatch))
			n.start(e, batch)
			return true
		}
	}
	return false
}

func (n *naive) start(e *naiveEncoder, batch []*naiveObject) {
	n.lastRun++
	n.stats.Runs++
	r := &naiveRun{id: n.lastRun, on: e.id, origin: n.lastRun}
	n.counted[r.origin] = n.now
	for _, o := range batch {
		if o.attempts++; o.attempts == 1 {
			n.stats.Jobs++
		} else {
			n.stats.Repeats++
		}
		n.unqueue(o)
		o.rows.written = true
		r.objects, r.rows = append(r.objects, o), append(r.rows, o.rows)
		r.items = append(r.items, Item{o.of.id, o.index, o.attempts, o.rows.id})
	}
	n.runs = append(n.runs, r)
	n.act(Action{Kind: RunBatch, Run: r.id, Encoder: e.id, Items: r.items})
	written := int64(0)
	for _, r := range n.rows {
		if r.written {
			written += r.bytes
		}
	}
	n.everLarger = max(n.everLarger, written)
}

// take removes a run, whose rows the caller lets go.
func (n *naive) take(id RunID) *naiveRun {
	r := n.findRun(id)
	if r == nil {
		n.stats.LateReports++
		return nil
	}
	n.runs = slices.DeleteFunc(n.runs, func(o *naiveRun) bool { return o == r })
	return r
}

func (n *naive) finish(id RunID, results []Result) bool {
	r := n.take(id)
	if r == nil {
		return false
	}
	useful := false
	rows := r.rows
	for i, o := range r.objects {
		got := results[i]
		if o == nil {
			if got.Failure == NotFailed && got.Place == InCache {
				n.act(Action{Kind: UnpinRows, Request: r.items[i].Request, Index: r.items[i].Index})
			}
			n.letGo(rows[i])
			continue
		}
		if got.Failure == NotFailed && got.Place == InCache {
			n.drop(o)
			o.rows = n.pin(o.of.id, o.index)
		}
		useful = useful || got.Failure == NotFailed
		switch {
		case got.Failure != NotFailed:
			n.fail(o, got.Failure)
		case got.Tokens != o.Tokens || got.Bytes != o.Bytes:
			n.fail(o, SizeDiffers)
		default:
			n.stats.Encoded++
			n.stats.EncodedBytes += uint64(got.Bytes)
			o.state = EncodedCPU
			n.settle(o.of)
		}
	}
	if useful {
		n.stats.EncodeTime += n.now.Sub(n.counted[r.origin])
		n.counted[r.origin] = n.now
	}
	n.advance()
	return true
}

// split makes a part of a run a run of its own, and reports whether that is legal.
func (n *naive) split(id RunID, places []int) (RunID, bool) {
	r := n.findRun(id)
	if r == nil {
		n.stats.LateReports++
		return 0, false
	}
	inside := func(at int) bool { return at >= 0 && at < len(r.items) }
	distinct := slices.Compact(slices.Sorted(slices.Values(places)))
	if !slices.Equal(distinct, places) || !slices.Equal(slices.DeleteFunc(distinct, func(at int) bool { return !inside(at) }), places) ||
		len(places) == 0 || len(places) == len(r.items) {
		return 0, false
	}
	n.lastRun++
	part, rest := &naiveRun{id: n.lastRun, on: r.on, origin: r.origin}, &naiveRun{}
	for at := range r.items {
		to := rest
		if slices.Contains(places, at) {
			to = part
		}
		to.objects, to.rows, to.items = append(to.objects, r.objects[at]), append(to.rows, r.rows[at]), append(to.items, r.items[at])
	}
	wanted := func(r *naiveRun) bool {
		return slices.ContainsFunc(r.objects, func(o *naiveObject) bool { return o != nil })
	}
	if !wanted(part) {
		n.act(Action{Kind: AbortRun, Run: part.id, Encoder: r.on})
	} else if !wanted(rest) {
		n.act(Action{Kind: AbortRun, Run: r.id, Encoder: r.on})
	}
	r.objects, r.rows, r.items = rest.objects, rest.rows, rest.items
	n.runs = append(n.runs, part)
	return part.id, true
}

func (n *naive) failRun(id RunID, kind FailureKind) bool {
	r := n.take(id)
	if r == nil {
		return false
	}
	if kind == EncoderLost {
		n.again(r)
		n.advance()
		return true
	}
	var live []*naiveObject
	for i, o := range r.objects {
		switch {
		case o == nil:
			n.letGo(r.rows[i])
		case len(r.objects) == 1:
			n.fail(o, kind)
		default:
			live = append(live, o)
		}
	}
	half := (len(live) + 1) / 2
	n.retries = append(n.retries, slices.Clone(live[:half]), slices.Clone(live[half:]))
	n.advance()
	return true
}

func (n *naive) again(r *naiveRun) {
	var live []*naiveObject
	for i, o := range r.objects {
		if o == nil {
			n.letGo(r.rows[i])
			continue
		}
		switch o.losses++; o.losses {
		case n.cfg.MaxAttempts:
			n.fail(o, EncoderLost)
		case n.cfg.MaxAttempts - 1:
			n.retries = append(n.retries, []*naiveObject{o})
		default:
			live = append(live, o)
		}
	}
	n.retries = append(n.retries, live)
}

func (n *naive) addEncoder(id EncoderID, limits EncoderLimits) bool {
	for _, e := range n.encoders {
		if e.id == id {
			return false
		}
	}
	n.encoders = append(n.encoders, &naiveEncoder{id, limits})
	slices.SortFunc(n.encoders, func(a, b *naiveEncoder) int { return cmp.Compare(a.id, b.id) })
	n.advance()
	return true
}

func (n *naive) loseEncoder(id EncoderID) bool {
	at := slices.IndexFunc(n.encoders, func(e *naiveEncoder) bool { return e.id == id })
	if at < 0 {
		return false
	}
	n.encoders = slices.Delete(n.encoders, at, at+1)
	for _, r := range slices.Clone(n.runs) {
		if r.on == id {
			n.take(r.id)
			n.again(r)
		}
	}
	n.advance()
	return true
}

func (n *naive) tick() {
	for _, q := range slices.Clone(n.requests) {
		if n.cfg.Timeout == 0 || q.state != Encoding || n.now.Sub(q.submitted) < n.cfg.Timeout {
			continue
		}
		for _, o := range q.objects {
			if o.state == Encoding {
				n.fail(o, DeadlinePassed)
			}
		}
	}
	n.advance()
}

// change is an event of a request which has only its id.
type change uint8

const (
	changeStage change = iota
	changeCopied
	changeMerged
	changePrefilled
	changeEnd
	changeCancel
	changeRelease
	changes = iota
)

// apply applies a change, and reports whether it is legal.
func (n *naive) apply(c change, id RequestID) bool {
	q, s := n.find(id), n.stageOf(id)
	if c == changeRelease {
		if q != nil || s == nil {
			return false
		}
		n.stages = slices.DeleteFunc(n.stages, func(o *naiveStage) bool { return o == s })
		n.letGo(s.from...)
		n.advance()
		return true
	}
	if q == nil {
		return false
	}
	switch c {
	case changeStage:
		again := (q.state == Merged || q.state == Prefilled) && q.retention != DiscardRows
		if s != nil || q.state != EncodedCPU && !again {
			return false
		}
		s = &naiveStage{of: q, id: id}
		for _, o := range q.objects {
			s.bytes += o.Bytes
		}
		n.stages = append(n.stages, s)
	case changeCopied:
		if s == nil || !s.granted || s.copied {
			return false
		}
		from := s.from
		s.copied, s.from = true, nil
		n.letGo(from...)
		if q.retention == DiscardRows {
			for _, o := range q.objects {
				n.drop(o)
			}
		}
		q.state = Staged
	case changeMerged:
		if q.state != Staged {
			return false
		}
		n.stages = slices.DeleteFunc(n.stages, func(o *naiveStage) bool { return o == s })
		q.state, q.merged = Merged, true
	case changePrefilled:
		if q.state != Merged || s != nil {
			return false
		}
		q.state, q.prefilled = Prefilled, true
		for _, o := range q.objects {
			if r := o.rows; q.retention == KeepForNextTurn && n.cfg.Cache == NoCache && r.id != 0 && r.key != (kv.Digest{}) &&
				!slices.ContainsFunc(n.rows, func(k *naiveRows) bool { return k.kept && k.key == r.key }) {
				r.kept = true
			}
		}
		if q.retention == DiscardRows {
			n.end(q, Completed)
		}
	case changeEnd:
		if !q.prefilled {
			return false
		}
		n.end(q, Completed)
	case changeCancel:
		n.end(q, Cancelled)
	}
	n.advance()
	return true
}

func (n *naive) dropKept() {
	for _, r := range n.idleRows() {
		n.free(r)
	}
	n.advance()
}

// figures returns the statistics of now.
func (n *naive) figures() Stats {
	s := n.stats
	for _, q := range n.requests {
		switch {
		case q.state == Encoding:
			s.EncodingRequests++
		case q.merged:
			s.ActiveRequests++
		default:
			s.ReadyRequests++
		}
		if !q.admitted {
			s.WaitingRequests++
		}
		for _, o := range q.objects {
			if o.state == EncodedCPU && !q.merged {
				s.CompletedObjects++
			}
			if o.queued > 0 {
				s.QueuedObjects++
			}
		}
	}
	for _, b := range n.retries {
		s.QueuedObjects += len(b)
	}
	for _, st := range n.stages {
		if !st.granted {
			s.StagingRequests++
		}
	}
	for _, r := range n.idleRows() {
		s.KeptRows++
		s.KeptBytes += r.bytes
	}
	s.RunningObjects, s.MaxJobs = n.permits(), n.cfg.MaxJobs
	s.CPUBytes, s.CPUBudget, s.StagingBytes, s.StagingBudget = n.cpu(), n.cfg.CPUBudget, n.staged(), n.cfg.StagingBudget
	return s
}

// deadline returns when time alone does something.
func (n *naive) deadline() (at kv.Mono, ok bool) {
	earlier := func(t kv.Mono) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for _, q := range n.requests {
		if q.state == Encoding && n.cfg.Timeout > 0 {
			earlier(q.submitted.Add(n.cfg.Timeout))
		}
	}
	if e, _, _ := n.freeEncoder(); e != nil {
		for _, o := range n.waitingObjects() {
			earlier(o.since.Add(n.cfg.BatchWait))
		}
	}
	return at, ok
}
