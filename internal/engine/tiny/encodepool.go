package tiny

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/embcache"
	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// EncodeConfig bounds the encoders of media. Zero fields have defaults.
type EncodeConfig struct {
	// MaxJobs are the objects which are encoded, fetched or read at once; 32. Batch bounds the objects which are encoded
	// together; 8.
	MaxJobs, Batch int
	// Threads are the encoders, each on a processor of its own; 4. There are never more than processors but one, which
	// is the model's.
	Threads int
	// BatchWait is how long an object waits for others of its shape while every encoder is busy, and for the content of
	// others of its batch; 5 ms.
	BatchWait time.Duration
	// Timeout is the time from the start of a request's encoding to its last rows; 60 s. Other workers have a quarter of
	// it for an object.
	Timeout time.Duration
	// CPUBudget bounds the rows in memory, without rows in the embedding cache, and StagingBudget the rows which the
	// model reads, in bytes; 16 GB and 4 GB, and at most a quarter and a sixteenth of Config.MemoryLimit.
	CPUBudget, StagingBudget int64
	// Tracer, if not nil, has a span for each object.
	Tracer *obs.Tracer
}

// maxPoolObjects bounds the objects of all requests which an encodePool knows.
const maxPoolObjects = 1 << 16

// maxBatchTokens bounds the tokens of the objects which are encoded together. A larger object is encoded alone.
const maxBatchTokens = 4096

// maxAttempts is how many encoders may be lost with an object.
const maxAttempts = 3

func (c *EncodeConfig) ensureDefaults(memory uint64) {
	ensure := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	ensure(&c.MaxJobs, 32)
	ensure(&c.Threads, 4)
	ensure(&c.Batch, 8)
	if c.BatchWait == 0 {
		c.BatchWait = 5 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	ensureBudget(&c.CPUBudget, 16e9, memory/4)
	ensureBudget(&c.StagingBudget, 4e9, memory/16)
}

// ensureBudget gives a budget its default, which is at most a share of the memory, if that is known.
func ensureBudget(budget *int64, value int64, share uint64) {
	if *budget == 0 {
		*budget = value
		if share > 0 {
			*budget = int64(min(uint64(value), share))
		}
	}
}

func (c *EncodeConfig) machineConfig(cache encode.CacheMode) encode.Config {
	return encode.Config{
		MaxJobs: c.MaxJobs, MaxBatch: c.Batch, MaxBatchCost: maxBatchTokens, BatchWait: c.BatchWait, MaxAttempts: maxAttempts, Timeout: c.Timeout,
		CPUBudget: c.CPUBudget, StagingBudget: c.StagingBudget, MaxObjects: maxPoolObjects, Cache: cache,
	}
}

// validate reports every problem.
func (c *EncodeConfig) validate() error {
	err := c.machineConfig(encode.NoCache).Validate()
	if c.Threads < 1 {
		err = errors.Join(err, fmt.Errorf("encode: encoders are limited to %d: must be at least 1", c.Threads))
	}
	return err
}

// encodePool is the shell of an [encode.Machine], which decides what is encoded when, and whose rows are in memory. The
// pool has its lock, its clock, its encoders and the rows. The engines which share a model's weights share it.
//
// Each call of the machine ends in performLocked, which does what the machine asks for. Nothing waits under the lock:
// runs and copies are goroutines of their own, which end by a report to the machine. The lock is taken before the locks of
// rowRuns and rowStore.
type encodePool struct {
	of        *mediaEncoders
	cfg       EncodeConfig
	startedAt time.Time
	// cores has room for the runs which compute at once, and asking for the objects which others are asked for.
	cores, asking chan struct{}
	computing     atomic.Int64 // runs which compute
	passes        atomic.Int64 // of the model, in progress

	mu struct {
		sync.Mutex
		machine  *encode.Machine
		requests map[encode.RequestID]*encodeRequest
		rows     map[encode.RowsID]storedRows
		pins     map[pinName]storedRows
		timer    *time.Timer // of the machine's deadline; nil before the first
		// users are the engines which run, and busy the goroutines of runs and copies. ended is signalled at the end of each.
		users, busy int
		ended       sync.Cond
	}
}

// pinName is an object whose rows are pinned in the embedding cache.
type pinName struct {
	request encode.RequestID
	index   int
}

// requestState is the state of an encodeRequest.
type requestState uint8

const (
	requestEncoding  requestState = iota // or being copied
	requestReady                         // its rows are staged
	requestPrefilled                     // its rows are kept, and are not staged
	requestEnded
)

// encodeRequest is a submission. Fields without a comment do not change after submitRequest.
type encodeRequest struct {
	pool    *encodePool
	id      encode.RequestID
	objects []*encodeObject
	usage   encode.Usage
	// replaces is the request of which this one takes what it can, and which ends; nil if there is none.
	replaces *encodeRequest
	// notify is called under the pool's lock when the rows are staged, or cannot be had.
	notify func()

	// Under the pool's lock.
	state  requestState
	err    error       // why it has failed
	staged [][]float32 // by object
	grids  [][3]int    // the same
	raised bool        // a tier below memory had all rows
	copies bool        // rows are being copied
	drops  bool        // the machine waits for ReleaseStaging
	held   bool        // the model reads what is staged, also after the end
}

// encodeObject is an object of an encodeRequest.
type encodeObject struct {
	rowRequest
	index    int // in the client's request
	from     *mediaContent
	key      embcache.RowKey
	position int
	tokens   int
	grid     [3]int // zero if unknown before it is decoded
	counted  bool   // its look-up was
	content  *objectContent
	ctx      context.Context // ends with the request which has the object
	cancel   context.CancelFunc

	// Under the pool's lock. of is the request which has the object: one at any time, see ReplaceRequest of package
	// encode.
	of   *encodeRequest
	name pinName // in that request
	err  error   // of the encoder
}

// newEncodePool returns an idle pool. cfg is valid, as Config.Validate says.
func newEncodePool(cfg *Config, of *mediaEncoders) *encodePool {
	own := cfg.Encode
	own.ensureDefaults(cfg.MemoryLimit)
	cache := encode.WithCache
	if *cfg.EmbeddingCache == 0 {
		cache = encode.NoCache
	}
	m, err := encode.New(own.machineConfig(cache))
	if err != nil {
		panic(err)
	}
	threads := min(own.Threads, max(1, runtime.GOMAXPROCS(0)-1))
	p := &encodePool{of: of, cfg: own, startedAt: time.Now(), cores: make(chan struct{}, threads), asking: make(chan struct{}, maxParallel)}
	for i := range threads {
		if _, err := m.AddEncoder(0, encode.EncoderID(i+1), encode.EncoderLimits{}, nil); err != nil {
			panic(err)
		}
	}
	p.mu.ended.L = &p.mu.Mutex
	p.mu.machine, p.mu.requests = m, map[encode.RequestID]*encodeRequest{}
	p.mu.rows, p.mu.pins = map[encode.RowsID]storedRows{}, map[pinName]storedRows{}
	return p
}

// runUser runs an engine which uses the pool. The last one waits for the goroutines of the pool.
func (p *encodePool) runUser(run func() error) error {
	p.mu.Lock()
	p.mu.users++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for p.mu.users--; p.mu.users == 0 && p.mu.busy > 0; {
			p.mu.ended.Wait()
		}
	}()
	return run()
}

// endGoroutineLocked says that a goroutine of the pool does nothing any more.
func (p *encodePool) endGoroutineLocked() {
	p.mu.busy--
	p.mu.ended.Broadcast()
}

// newRequest returns a request to submit. ctx has the trace; its end does not end the request.
func (p *encodePool) newRequest(ctx context.Context, objects []*encodeObject, notify func()) *encodeRequest {
	q := &encodeRequest{pool: p, objects: objects, notify: notify}
	for _, o := range objects {
		o.of = q
		o.ctx, o.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	return q
}

// cancelLocked ends the contexts of the objects which the request still has.
func (q *encodeRequest) cancelLocked() {
	for _, o := range q.objects {
		if o.of == q {
			o.cancel()
		}
	}
}

// nowLocked returns the machine's time.
func (p *encodePool) nowLocked() kv.Mono { return kv.Mono(time.Since(p.startedAt)) + 1 }

// submitRequest starts a request. After an error there is none.
func (p *encodePool) submitRequest(q *encodeRequest) error {
	s := encode.Submission{Usage: q.usage}
	held := make([]storedRows, len(q.objects))
	for i, o := range q.objects {
		submitted := encode.SubmittedObject{
			Kind: uint8(o.object.Kind), Position: o.position, Tokens: o.tokens, Bytes: int64(o.tokens) * int64(p.of.rows.width) * elementBytes,
			Shape: [4]int{o.grid[0], o.grid[1], o.grid[2], o.tokens}, Cost: min(o.tokens, maxBatchTokens),
		}
		if identifies(&o.key) {
			submitted.Key = o.key.TierKey()
		}
		var ok bool
		if held[i], ok = p.of.rows.findRows(&o.key, o.tokens, !o.counted); ok {
			submitted.Held = o.tokens
		}
		s.Objects = append(s.Objects, submitted)
		s.Placeholders = append(s.Placeholders, encode.Placeholder{Position: o.position, Kind: submitted.Kind})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	actions, err := q.submitLocked(s)
	if err != nil {
		for i := range held {
			p.of.rows.releaseRows(&held[i])
		}
		q.state = requestEnded
		q.cancelLocked()
		return err
	}
	p.mu.requests[q.id] = q
	for i, o := range q.objects {
		if o.name = (pinName{q.id, i}); s.Objects[i].Held > 0 {
			p.mu.pins[o.name] = held[i]
		}
	}
	p.performLocked(actions)
	return nil
}

// submitLocked submits a request. Objects which it takes from the one that it replaces are its own then.
func (q *encodeRequest) submitLocked(s encode.Submission) (actions []encode.Action, err error) {
	p, old := q.pool, q.replaces
	q.replaces = nil
	if old == nil || old.state == requestEnded {
		q.id, actions, err = p.mu.machine.SubmitRequest(p.nowLocked(), s, nil)
		return actions, err
	}
	takes := make([]int, len(q.objects))
	for i, o := range q.objects {
		takes[i] = old.findObject(o.index)
	}
	var taken []bool
	q.id, taken, actions, err = p.mu.machine.ReplaceRequest(p.nowLocked(), old.id, s, takes, nil)
	for i := range taken {
		if taken[i] {
			q.objects[i].cancel()
			q.objects[i] = old.objects[takes[i]]
			q.objects[i].of = q
		}
	}
	return actions, err
}

// findObject returns which of a request's objects is one of the client's request; -1 if none is.
func (q *encodeRequest) findObject(index int) int {
	return slices.IndexFunc(q.objects, func(o *encodeObject) bool { return o.index == index })
}

// performLocked does what the machine asks for.
func (p *encodePool) performLocked(actions []encode.Action) {
	m := p.mu.machine
	for i := 0; i < len(actions); i++ {
		a, more, err := actions[i], actions, error(nil)
		q := p.mu.requests[a.Request]
		switch a.Kind {
		case encode.RunBatch:
			p.startRunLocked(&a)
		case encode.RequestReady:
			more, err = m.StageRequest(p.nowLocked(), q.id, actions)
		case encode.CopyRows:
			p.startCopyLocked(q, a.Sources)
		case encode.DropRows:
			r := p.mu.rows[a.Rows]
			delete(p.mu.rows, a.Rows)
			p.of.rows.releaseRows(&r)
		case encode.UnpinRows:
			name := pinName{a.Request, a.Index}
			r := p.mu.pins[name]
			delete(p.mu.pins, name)
			p.of.rows.releaseRows(&r)
		case encode.DropStaged:
			if q.drops = true; !q.copies && !q.held {
				more, err = m.ReleaseStaging(p.nowLocked(), q.id, actions)
			}
		case encode.RequestEnded:
			p.endLocked(q, &a)
		case encode.AbortRun: // the contexts of its requests have ended
		}
		if err == nil {
			actions = more
		}
	}
	p.setTimerLocked()
}

// endLocked takes note of the end of a request.
func (p *encodePool) endLocked(q *encodeRequest, a *encode.Action) {
	delete(p.mu.requests, q.id)
	q.state = requestEnded
	q.cancelLocked()
	if a.Ending != encode.Failed {
		return
	}
	var all []error
	for _, f := range a.Failures {
		o := q.objects[f.Index]
		if o.err != nil {
			all = append(all, engine.WrapMediaFailure(o.index, f.Kind, o.err))
			continue
		}
		all = append(all, engine.NewMediaFailure(o.index, f.Kind, o.object, f.Detail))
	}
	q.err = all[0]
	if len(all) > 1 {
		q.err = errors.Join(all...)
	}
	q.notify()
}

// setTimerLocked arms the timer for what the machine does by time alone.
func (p *encodePool) setTimerLocked() {
	at, ok := p.mu.machine.Deadline()
	wait := time.Duration(at - p.nowLocked())
	switch {
	case !ok && p.mu.timer != nil:
		p.mu.timer.Stop()
	case ok && p.mu.timer == nil:
		p.mu.timer = time.AfterFunc(wait, p.tick)
	case ok:
		p.mu.timer.Reset(wait)
	}
}

func (p *encodePool) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.performLocked(p.mu.machine.Tick(p.nowLocked(), nil))
}

// startCopyLocked copies the rows of a request to memory from which the model reads them.
func (p *encodePool) startCopyLocked(q *encodeRequest, sources []encode.RowSource) {
	from := make([]storedRows, len(q.objects))
	for _, s := range sources {
		if s.Rows == 0 {
			from[s.Index] = p.mu.pins[pinName{q.id, s.Index}]
		} else {
			from[s.Index] = p.mu.rows[s.Rows]
		}
	}
	q.copies = true
	p.mu.busy++
	go p.copyRows(q, from)
}

// copyRows copies rows, which the machine holds until it ends.
func (p *encodePool) copyRows(q *encodeRequest, from []storedRows) {
	n := 0
	for i := range from {
		n += len(from[i].rows)
	}
	memory := make([]float32, 0, n)
	staged, grids, raised := make([][]float32, len(from)), make([][3]int, len(from)), true
	for i := range from {
		start := len(memory)
		memory = append(memory, from[i].rows...)
		staged[i], grids[i] = memory[start:len(memory):len(memory)], from[i].grid
		raised = raised && from[i].raised
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.endGoroutineLocked()
	q.copies = false
	if q.drops {
		p.releaseStagingLocked(q)
		return
	}
	actions, err := p.mu.machine.MarkCopied(p.nowLocked(), q.id, nil)
	if err != nil {
		return
	}
	q.staged, q.grids, q.raised, q.state = staged, grids, raised, requestReady
	p.performLocked(actions)
	q.notify()
}

// releaseStagingLocked says that nothing uses what was staged of a request which has ended.
func (p *encodePool) releaseStagingLocked(q *encodeRequest) {
	if actions, err := p.mu.machine.ReleaseStaging(p.nowLocked(), q.id, nil); err == nil {
		p.performLocked(actions)
	}
	q.staged = nil
}

// pollRequest returns the state of a request, and why it has failed.
func (q *encodeRequest) pollRequest() (requestState, error) {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	return q.state, q.err
}

// encodesObject reports whether an object of a request has no rows yet.
func (q *encodeRequest) encodesObject(index int) bool {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	state, err := q.pool.mu.machine.StateOf(q.id, index)
	return err == nil && state == encode.Encoding
}

// stagedRows returns what is staged of a request which is ready. The model may read it until finishPrefill or
// endRequest, or after holdStaged until dropStaged.
func (q *encodeRequest) stagedRows() (rows [][]float32, grids [][3]int) {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	return q.staged, q.grids
}

// stageAgain stages the rows of a request which keeps them.
func (q *encodeRequest) stageAgain() {
	p := q.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if actions, err := p.mu.machine.StageRequest(p.nowLocked(), q.id, nil); err == nil {
		q.state = requestEncoding
		p.performLocked(actions)
	}
}

// finishPrefill says that the KV cache has what the rows say. It reports whether the request keeps them.
func (q *encodeRequest) finishPrefill() (keeps bool) {
	p := q.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	actions, err := p.mu.machine.MarkMerged(p.nowLocked(), q.id, nil)
	if err == nil {
		q.staged, q.state = nil, requestPrefilled
		actions, err = p.mu.machine.MarkPrefilled(p.nowLocked(), q.id, actions)
	}
	if err == nil {
		p.performLocked(actions)
	}
	return q.state == requestPrefilled
}

// endRequest ends a request in any state, also one which has ended.
func (q *encodeRequest) endRequest() {
	p := q.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.mu.machine.CancelRequest
	switch q.state {
	case requestEnded:
		return
	case requestPrefilled:
		end = p.mu.machine.EndRequest
	}
	if actions, err := end(p.nowLocked(), q.id, nil); err == nil {
		p.performLocked(actions)
	}
}

// holdStaged says that the model reads what is staged of a request after its end too, until dropStaged.
func (q *encodeRequest) holdStaged() {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	q.held = true
}

// dropStaged says that the model does not read any more what is staged of a request which was replaced.
func (q *encodeRequest) dropStaged() {
	p := q.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	q.held = false
	if q.drops && !q.copies {
		p.releaseStagingLocked(q)
	}
}

// encodeOne returns the rows of an object which is no part of a prompt that is computed here. They are staged until they
// are given back.
func (p *encodePool) encodeOne(ctx context.Context, from *mediaContent, w *rowRequest, key *embcache.RowKey) (storedRows, error) {
	o := &encodeObject{rowRequest: *w, from: from, key: *key, counted: true}
	if err := p.findSize(ctx, o); err != nil {
		return storedRows{}, err
	}
	changed := make(chan struct{}, 1)
	q := p.newRequest(ctx, []*encodeObject{o}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err := p.submitRequest(q); err != nil {
		return storedRows{}, refusedSize(q.objects, err)
	}
	select {
	case <-changed:
	case <-ctx.Done():
		q.endRequest()
		return storedRows{}, ctx.Err()
	}
	if _, err := q.pollRequest(); err != nil {
		return storedRows{}, err
	}
	rows, grids := q.stagedRows()
	return storedRows{rows: rows[0], grid: grids[0], raised: q.raised, request: q}, nil
}

// findSize finds how many tokens an object takes: as many as the prompt has for it, or as its size says, or as it has
// once it is decoded.
func (p *encodePool) findSize(ctx context.Context, o *encodeObject) error {
	if o.pads > 0 {
		o.tokens = o.pads
		if grid, ok := p.of.gridOf(o.object, o.pads); ok {
			o.grid = grid
		}
		return nil
	}
	if l, ok := p.of.layoutBySize(o.object); ok {
		o.tokens, o.grid = l.PadCount, l.Grid
		return nil
	}
	in, err := o.from.findContent(ctx, o.object)
	if err != nil {
		return err
	}
	defer in.release()
	if err := acquireSem(ctx, p.cores); err != nil {
		return err
	}
	defer releaseSem(p.cores)
	t, err := in.decodeTensor(o.object)
	if err != nil {
		return err
	}
	l, err := p.of.layoutOf(o.object, &t, 0)
	if err != nil {
		return err
	}
	o.tokens, o.grid = l.PadCount, l.Grid
	o.content = &objectContent{tensor: t, release: func() {}}
	return nil
}

// acquireSem waits for room, releaseSem gives it back.
func acquireSem(ctx context.Context, room chan struct{}) error {
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func releaseSem(room chan struct{}) { <-room }

// yields reports whether an encoder should use one processor alone: the model computes, or other encoders do.
func (p *encodePool) yields() bool { return p.passes.Load() > 0 || p.computing.Load() > 1 }

// askersID names what is asked of other workers among the encoders of the figures.
const askersID encode.EncoderID = 0

// stats returns the figures of the machine, and the load of its encoders. With others to ask these are the first one.
func (p *encodePool) stats() engine.EncodeStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := engine.EncodeStats{Stats: p.mu.machine.Stats()}
	if p.of.remote != nil {
		s.Encoders = append(s.Encoders, encode.EncoderLoad{Encoder: askersID, InFlight: len(p.asking), Capacity: cap(p.asking)})
	}
	s.Encoders = p.mu.machine.AppendEncoders(s.Encoders)
	return s
}

// countJobs returns how many objects are being encoded or wait for it. Objects of a request which waits for memory
// count as one.
func (p *encodePool) countJobs() (running, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.machine.Stats()
	running = min(s.RunningObjects, cap(p.cores))
	return running, s.RunningObjects - running + s.QueuedObjects + s.WaitingRequests
}

// refusedSize returns the error of a request which was not submitted, about its largest object if it is too large.
func refusedSize(objects []*encodeObject, err error) error {
	if fault.CodeOf(err) != fault.TooLarge {
		return err
	}
	largest := objects[0]
	for _, o := range objects {
		if o.tokens > largest.tokens {
			largest = o
		}
	}
	return engine.NewMediaFailure(largest.index, encode.OutOfMemory, largest.object, err.Error())
}
