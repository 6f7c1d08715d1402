package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/serve/worker"
)

// remotes are the engines of this process that other programs run. Each comes and goes by
// itself: none waits for another, and one that comes late is taken in then.
type remotes struct {
	p       *process
	log     *slog.Logger
	metrics *worker.Metrics
	all     []*remoteEngine
	// id is the number of a worker in the fleet.
	id func(of, rank int) kv.WorkerID
	// look asks an engine what it serves, and adapt opens the adapter of one of its ranks.
	look  func(ctx context.Context, of *config.RemoteEngine, key string) (lookedAt, error)
	adapt adapter
	// returnLook is the constant of that name.
	returnLook time.Duration
	// settled is set once the process has told that it serves: until then an engine
	// that cannot be used as the settings say ends the process.
	settled atomic.Bool

	mu struct {
		sync.Mutex
		epoch uint64
		pipes map[string]*prep.Pipeline // by digest
		ids   map[[2]int]kv.WorkerID
	}
}

// remoteEngine is one of them: an engine, or as many as it has data-parallel ranks, with
// a worker for each.
type remoteEngine struct {
	set   *remotes
	of    config.RemoteEngine
	index int
	log   *slog.Logger

	mu struct {
		sync.Mutex
		status  EngineStatus
		card    engine.Card // while it serves
		workers []rankWorker
	}
}

// rankWorker is the worker of one data-parallel rank.
type rankWorker struct {
	*worker.Worker
	id     kv.WorkerID
	rank   int
	engine engine.Engine
}

// The states of an engine that another program runs.
const (
	EngineAsking  = "asking"  // it has not been reached or given up yet
	EngineWaiting = "waiting" // it does not answer; it is asked again
	EngineOpening = "opening" // it answers, and its worker is being made
	EngineServing = "serving"
	EngineDown    = "unreachable" // it served, and does not answer now: its workers wait for it
	EngineRefused = "refused"     // it answers, and cannot be used; it is tried again
)

// The kinds of what routers know of an engine's cache.
const (
	EventsYes     = "yes"     // the engine says what it stores and evicts
	EventsGuessed = "guessed" // it follows from what is sent there, corrected by what the engine reports
	EventsNo      = "no"      // nothing is known but what routers predict
)

// Warning is one thing that is wrong with an engine though it serves.
type Warning = engine.Warning

// EngineStatus is what is known of an engine that another program runs.
type EngineStatus struct {
	Kind   string `json:"kind"` // one of config.RemoteKinds
	URL    string `json:"url"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"` // why it does not serve

	// While it serves.
	Model     string   `json:"model,omitempty"`
	Adapters  []string `json:"adapters,omitempty"`
	Workers   []uint64 `json:"workers,omitempty"` // one for each data-parallel rank
	BlockSize int      `json:"block_size,omitempty"`
	Blocks    int      `json:"blocks,omitempty"` // of a rank
	Events    string   `json:"events,omitempty"` // EventsYes, EventsGuessed or EventsNo
	// Tokenizer is where texts become tokens: a directory, or "engine".
	Tokenizer string `json:"tokenizer,omitempty"`
	Chat      bool   `json:"chat,omitempty"` // whether conversations are taken
	// Media are the kinds of media that the model sees, and MediaNamed says that the engine knows them by
	// the names by which requests are routed.
	Media      []string         `json:"media,omitempty"`
	MediaNamed bool             `json:"media_named,omitempty"`
	Notes      []string         `json:"notes,omitempty"` // what would make it better
	Warnings   []engine.Warning `json:"warnings,omitempty"`
	// MediaChecks are the counts of media that were compared with the engine's since it started.
	MediaChecks []engine.MediaCheck `json:"media_checks,omitempty"`
}

// Name names an engine for people.
func (s *EngineStatus) Name() string { return s.Kind + "=" + s.URL }

// newRemotes makes what follows the engines of the settings. id may be nil: then the
// workers have small numbers.
func (p *process) newRemotes(id func(of, rank int) kv.WorkerID) (*remotes, error) {
	epoch, err := nextEpoch(p.cfg.DataDir, time.Now())
	if err != nil {
		return nil, err
	}
	r := &remotes{p: p, log: obs.Component(p.log, "engine"), metrics: worker.NewMetrics(p.metrics), id: id, look: lookAt, adapt: p.adapt, returnLook: returnLook}
	if id == nil {
		r.id = r.smallID
	}
	r.mu.epoch = epoch - 1
	r.mu.pipes = map[string]*prep.Pipeline{}
	for i, of := range p.cfg.RemoteEngines() {
		e := &remoteEngine{set: r, of: of, index: i, log: r.log.With("engine", of.String())}
		e.mu.status = EngineStatus{Kind: of.Kind, URL: of.URL.String(), State: EngineAsking}
		r.all = append(r.all, e)
	}
	return r, nil
}

// runs are the services of all engines.
func (r *remotes) runs() []func(context.Context) error {
	var all []func(context.Context) error
	for _, e := range r.all {
		all = append(all, e.run)
	}
	return all
}

// smallID numbers the workers of one process, which need to be told apart from each other
// only: the first ranks of all engines have the first numbers, so that worker 2 is the
// second engine, and further ranks those after them, as they are found.
func (r *remotes) smallID(of, rank int) kv.WorkerID {
	if rank == 0 {
		return kv.WorkerID(of + 1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]int{of, rank}
	if r.mu.ids == nil {
		r.mu.ids = map[[2]int]kv.WorkerID{}
	}
	if r.mu.ids[key] == 0 {
		r.mu.ids[key] = kv.WorkerID(len(r.all) + len(r.mu.ids) + 1)
	}
	return r.mu.ids[key]
}

// nextEpoch returns a higher epoch than any before: an engine that is opened again is
// another life of its workers.
func (r *remotes) nextEpoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.epoch = max(r.mu.epoch+1, uint64(time.Now().UnixMilli()))
	return r.mu.epoch
}

// keep remembers a pipeline for a frontend in this process.
func (r *remotes) keep(pipe *prep.Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.pipes[pipe.Digest] = pipe
}

// pipeline returns the pipeline of a digest; nil if no engine here has it.
func (r *remotes) pipeline(digest string) *prep.Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pipes[digest]
}

// status lists what is known of all engines.
func (r *remotes) status() []EngineStatus {
	var all []EngineStatus
	for _, e := range r.all {
		all = append(all, e.status())
	}
	return all
}

// undecided reports whether an engine may yet turn out to serve at once.
func (r *remotes) undecided() bool {
	for _, e := range r.all {
		if s := e.now().State; s == EngineAsking || s == EngineOpening {
			return true
		}
	}
	return false
}

// served returns how many workers there are of each model.
func (r *remotes) served() map[string]int {
	models := map[string]int{}
	for _, e := range r.all {
		if s := e.now(); s.State == EngineServing {
			models[s.Model] += len(s.Workers)
		}
	}
	return models
}

// await returns when what can serve does: at least one engine, and every other one that
// answers. seen reports whether so many workers of a model can be sent requests.
func (r *remotes) await(ctx context.Context, seen func(model string, workers int) bool) error {
	limit := time.Duration(r.p.cfg.EngineWait)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrNotReady)
	defer cancel()
	err := untilAt(ctx, 10*time.Millisecond, func() bool {
		served := r.served()
		for model, workers := range served {
			if !seen(model, workers) {
				return false
			}
		}
		return len(served) > 0 && !r.undecided()
	})
	if served := r.served(); err == ErrNotReady && len(served) > 0 {
		return fmt.Errorf("%w: engines serve, and their workers are not seen by all of this process after %v; the log says more with --log-level debug", ErrNotReady, limit)
	}
	if err == ErrNotReady {
		return fmt.Errorf("%w: no engine serves after %v (--engine-wait)%s", ErrNotReady, limit, r.unanswered())
	}
	return err
}

// unanswered says which engines do not serve, for an error.
func (r *remotes) unanswered() (list string) {
	for _, e := range r.all {
		if s := e.now(); s.State != EngineServing {
			list += fmt.Sprintf("\n%s: %s", s.Name(), s.Detail)
		}
	}
	return list
}

// now returns what is known of the engine, without what its adapters find wrong.
func (e *remoteEngine) now() EngineStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.status
}

// status returns what is known of the engine.
func (e *remoteEngine) status() EngineStatus {
	s := e.now()
	for _, w := range e.workers() {
		s.Warnings = append(s.Warnings, warningsOf(w.engine)...)
		if src, ok := w.engine.(engine.MediaCheckSource); ok {
			s.MediaChecks = append(s.MediaChecks, src.MediaChecks()...)
		}
	}
	if i := slices.IndexFunc(s.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable }); i >= 0 && s.State == EngineServing {
		s.State, s.Detail = EngineDown, s.Warnings[i].Detail
	}
	return s
}

// workers returns the engine's workers; none unless it serves.
func (e *remoteEngine) workers() []rankWorker {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.workers
}

// is notes a state in which the engine does not serve.
func (e *remoteEngine) is(state, detail string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.workers = nil
	e.mu.status = EngineStatus{Kind: e.of.Kind, URL: e.of.URL.String(), State: state, Detail: detail}
}

// run has the engine served until ctx ends: it waits until the engine answers, makes its
// workers, and does so again when they end by themselves. What the settings say wrongly
// of an engine ends it with an error as long as the process is starting, since somebody
// looks on; afterwards it is logged and tried again. Another process that registers with the
// id of one of the workers ends it with an error at any time.
func (e *remoteEngine) run(ctx context.Context) error {
	pause := backoff.Backoff{Least: 2 * time.Second, Most: 30 * time.Second}
	for {
		began := time.Now()
		err := e.life(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause.Reset() // it has served
		}
		if errors.Is(err, errAnew) {
			e.log.Warn("the engine is not the one that it was: it is opened again")
			continue
		}
		if err == nil {
			err = errEnded
		}
		if errors.Is(err, worker.ErrReplaced) || !e.set.settled.Load() && !errors.Is(err, errAway) {
			return fmt.Errorf("%s: %w", e.of.String(), err)
		}
		if errors.Is(err, errAway) {
			e.is(EngineWaiting, err.Error())
			e.log.Warn("the engine went away as it was opened", "error", err)
		} else {
			e.is(EngineRefused, err.Error())
			e.log.Error("the engine cannot be used; it will be tried again", "error", err)
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}

// life serves the engine once: from its first answer to the end of its workers.
func (e *remoteEngine) life(ctx context.Context) error {
	key, err := secret("api-key-file", e.of.APIKeyFile)
	if err != nil {
		return err
	}
	found, err := e.await(ctx, key)
	if err != nil {
		return err
	}
	e.is(EngineOpening, "")
	opened, err := e.open(ctx, key, found)
	if err != nil {
		return err
	}
	return e.serve(ctx, key, opened)
}

// errAnew is an engine that answers while its adapter keeps away from it: it has come
// back with another model, or as something else.
var errAnew = errors.New("the engine came back as another one")

// returnLook is how often it is seen whether an engine that its adapter keeps away from
// answers, and returnLooks how often it must do so: adapters find out sooner that one is back.
const (
	returnLook  = 3 * time.Second
	returnLooks = 3
)

// watchReturn returns errAnew when the engine is to be opened again, or ctx's error.
func (e *remoteEngine) watchReturn(ctx context.Context, key string, adapters []engine.Engine) error {
	for answered := 0; answered < returnLooks; {
		if err := backoff.Pause(ctx, e.set.returnLook); err != nil {
			return err
		}
		if !slices.ContainsFunc(adapters, keepsAway) {
			answered = 0
			continue
		}
		if _, err := e.set.look(ctx, &e.of, key); err != nil {
			answered = 0
			continue
		}
		answered++
	}
	return errAnew
}

// keepsAway reports whether an adapter takes its engine for one that does not answer.
func keepsAway(e engine.Engine) bool {
	return slices.ContainsFunc(warningsOf(e), func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable })
}

// errAway is an engine that went away again before it served.
var errAway = errors.New("the engine does not answer any more")

// rankSet is an engine that has been opened: the adapters of its ranks.
type rankSet struct {
	ranks []engine.Engine // at least one
	// tokenizer is where texts become tokens, for people.
	tokenizer string
	chat      bool // whether conversations are taken
	notes     []string
	blind     bool // requests that show media are routed by their text; a note says why
	// aliases are further names of the model; nil is what the adapter says.
	aliases []string
	// check compares the tokenizer with the engine's, once it runs; afterwards notes has what
	// it found besides.
	check func(context.Context) error
}

// serve makes the workers of an engine and runs them until ctx ends or one of them does.
func (e *remoteEngine) serve(ctx context.Context, key string, o *rankSet) error {
	workers, err := e.makeWorkers(o)
	if err != nil {
		return err
	}
	card := o.ranks[0].Card()
	if o.aliases != nil {
		card.Aliases = o.aliases
	}
	if err := e.claim(card); err != nil {
		return err
	}
	defer e.disclaim()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				cancel(err)
			}
		})
		running.Go(func() { watchWarnings(ctx, w.engine, e.log.With("worker", uint64(w.id))) })
	}
	running.Go(func() { cancel(e.watchReturn(ctx, key, o.ranks)) })
	if e.registered(ctx, workers) {
		e.serving(card, workers, o)
	}
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// makeWorkers makes a worker for each rank.
func (e *remoteEngine) makeWorkers(o *rankSet) ([]rankWorker, error) {
	var all []rankWorker
	epoch := e.set.nextEpoch()
	for rank, eng := range o.ranks {
		id := e.set.id(e.index, rank)
		w, err := e.set.p.newRankWorker(id, epoch, rank, o, e.set.metrics)
		if err != nil {
			return nil, err
		}
		all = append(all, rankWorker{w, id, rank, eng})
	}
	return all, nil
}

// claim takes the name of a model for the engine, unless another one here serves it by
// another card: frontends would send nothing to one of them.
func (e *remoteEngine) claim(card engine.Card) error {
	e.set.mu.Lock() // so that of two that differ one is the first
	defer e.set.mu.Unlock()
	for _, other := range e.set.all {
		if other == e {
			continue
		}
		other.mu.Lock()
		theirs := other.mu.card
		other.mu.Unlock()
		if theirs.Name != card.Name {
			continue
		}
		if field, mine, their, differ := card.Differs(&theirs); differ {
			return fmt.Errorf("it serves %s as %s does, with another model card: %s is %s here and %s there; start both engines alike, or tell clients two names with name=NAME", card.Name, other.of.String(), field, mine, their)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.card = card
	return nil
}

// disclaim gives the name up again.
func (e *remoteEngine) disclaim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.card = engine.Card{}
	e.mu.workers = nil
}

// registered waits until all workers are in discovery; not if ctx ended before.
func (e *remoteEngine) registered(ctx context.Context, workers []rankWorker) bool {
	return until(ctx, func() bool {
		for _, w := range workers {
			if _, ok := w.Registered(); !ok {
				return false
			}
		}
		return true
	}) == nil
}

// serving notes that the engine serves.
func (e *remoteEngine) serving(card engine.Card, workers []rankWorker, o *rankSet) {
	s := EngineStatus{
		Kind: e.of.Kind, URL: e.of.URL.String(), State: EngineServing,
		Model: card.Name, Adapters: card.Adapters, BlockSize: card.BlockSize, Blocks: card.Blocks,
		Events: eventsOf(o.ranks[0]), Tokenizer: o.tokenizer, Chat: o.chat, Notes: o.notes,
		Media: card.Media, MediaNamed: !o.blind && (card.Attaches || card.MediaKeys != ""),
	}
	for _, w := range workers {
		s.Workers = append(s.Workers, uint64(w.id))
	}
	e.mu.Lock()
	e.mu.status, e.mu.workers = s, workers
	e.mu.Unlock()
	e.log.Info("the engine serves", "model", s.Model, "workers", len(workers), "events", s.Events, "tokenizer", s.Tokenizer, "block_size", s.BlockSize, "blocks", s.Blocks, "media", strings.Join(s.Media, ","))
	for _, note := range o.notes {
		e.log.Warn(note)
	}
}

// eventsOf says what routers know of an engine's cache.
func eventsOf(e engine.Engine) string {
	if _, ok := e.(engine.KVSource); !ok {
		return EventsNo
	}
	if e.Card().KVGuessed {
		return EventsGuessed
	}
	return EventsYes
}
