// Package engines opens the engines which the settings name: those of this process, and those which run as other
// programs, which its Supervisor finds, opens, serves and opens again.
package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// Supervisor serves the engines of this process which run as other programs. Each connects and disconnects
// independently: none waits for another, and one that appears late is added then.
type Supervisor struct {
	cfg SupervisorConfig
	all []*remoteEngine
	// announced is set once the process has announced that it serves. Until then an engine that cannot be
	// used as the settings say ends the process.
	announced atomic.Bool

	mu struct {
		sync.Mutex
		pipes map[string]*prep.Pipeline // by digest
		ids   map[[2]int]kv.WorkerID
	}
}

// SupervisorConfig configures a supervisor.
type SupervisorConfig struct {
	Settings *config.Loaded
	// NextEpoch returns a higher epoch than any before: an engine that is reopened is a new incarnation of its
	// workers.
	NextEpoch func() uint64
	// WorkerID returns the id of the worker of an engine's rank in the fleet; nil numbers the workers of this
	// process.
	WorkerID func(engine, rank int) kv.WorkerID
	// NewWorker makes the worker of a rank.
	NewWorker func(RankConfig) (*worker.Worker, error)
	// OpenAdapter opens the adapters of engines; nil is the function of that name.
	OpenAdapter AdapterOpener
	// ReturnInterval is the interval at which an engine considered unreachable by its adapter is probed; 0
	// means 3 s.
	ReturnInterval time.Duration
	// LastLine returns the last line which an engine of this process's own wrote, for the log; nil if there is none.
	LastLine func() string
	Log      *slog.Logger
}

// RankConfig describes one data-parallel rank of an open engine to its worker.
type RankConfig struct {
	ID          kv.WorkerID
	Epoch       uint64
	Rank, Ranks int
	Engine      engine.Engine
	// Check compares the tokenizer here with the engine's, once the engine runs.
	Check func(context.Context) error
	// Aliases are further names of the model; nil means the adapter's.
	Aliases []string
}

// remoteEngine is one remote engine, with a worker for each of its data-parallel ranks.
//
//	state        event                                       next
//	asking       no answer                                   waiting
//	asking       an answer                                   opening
//	waiting      an answer                                   opening
//	opening      the workers are registered                  serving
//	opening      the engine went away                        waiting
//	opening      another error                               refused; at the start of the process, its end
//	serving      the adapter finds it unreachable            unreachable, with its workers
//	unreachable  the adapter reaches it again                serving
//	unreachable  another engine answers there                opening
//	refused      a pause                                     opening or waiting
type remoteEngine struct {
	set   *Supervisor
	spec  config.RemoteEngine
	index int
	log   *slog.Logger

	mu struct {
		sync.Mutex
		status  Status
		card    engine.Card // while it serves
		workers []rankWorker
	}
}

// rankWorker is the worker of one data-parallel rank.
type rankWorker struct {
	*worker.Worker
	id     kv.WorkerID
	engine engine.Engine
}

// NewSupervisor makes the supervisor of the settings' remote engines.
func NewSupervisor(cfg SupervisorConfig) *Supervisor {
	if cfg.OpenAdapter == nil {
		cfg.OpenAdapter = OpenAdapter
	}
	cfg.ReturnInterval = cmp.Or(cfg.ReturnInterval, 3*time.Second)
	cfg.Log = obs.Component(cfg.Log, "engine")
	r := &Supervisor{cfg: cfg}
	if cfg.WorkerID == nil {
		r.cfg.WorkerID = r.smallID
	}
	r.mu.pipes = map[string]*prep.Pipeline{}
	for i, of := range cfg.Settings.RemoteEngines() {
		e := &remoteEngine{set: r, spec: of, index: i, log: cfg.Log.With("engine", of.String())}
		e.mu.status = Status{Kind: of.Kind, URL: of.URL.String(), State: StateAsking}
		r.all = append(r.all, e)
	}
	return r
}

// Runners returns the services of all engines.
func (r *Supervisor) Runners() []func(context.Context) error {
	var all []func(context.Context) error
	for _, e := range r.all {
		all = append(all, e.run)
	}
	return all
}

// smallID numbers the workers of one process, which only need to differ from each other. The first ranks of
// all engines have the first numbers, so that worker 2 is the second engine; further ranks follow in the
// order in which they are found.
func (r *Supervisor) smallID(of, rank int) kv.WorkerID {
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

// keepPipeline stores a pipeline for a frontend in this process.
func (r *Supervisor) keepPipeline(pipe *prep.Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.pipes[pipe.Digest] = pipe
}

// Pipeline returns the pipeline of a digest; nil if no engine here has it.
func (r *Supervisor) Pipeline(digest string) *prep.Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pipes[digest]
}

// Statuses returns the status of all engines.
func (r *Supervisor) Statuses() []Status {
	var all []Status
	for _, e := range r.all {
		all = append(all, e.fullStatus())
	}
	return all
}

// Workers returns the workers of all engines which serve.
func (r *Supervisor) Workers() (all []*worker.Worker) {
	for _, e := range r.all {
		for _, w := range e.currentWorkers() {
			all = append(all, w.Worker)
		}
	}
	return all
}

// AnnounceReady ends the start: from now on an engine that cannot be used as the settings say is retried.
func (r *Supervisor) AnnounceReady() { r.announced.Store(true) }

// isAnyIn reports whether an engine is in one of the states.
func (r *Supervisor) isAnyIn(states ...string) bool {
	return slices.ContainsFunc(r.all, func(e *remoteEngine) bool { return slices.Contains(states, e.currentStatus().State) })
}

// countServing returns the number of serving workers of each model which take requests.
func (r *Supervisor) countServing() map[string]int {
	models := map[string]int{}
	for _, e := range r.all {
		if s := e.currentStatus(); s.State == StateServing {
			n := len(s.Workers)
			if s.Role != "" {
				n = 0
			}
			models[s.Model] += n
		}
	}
	return models
}

// AwaitServing returns when at least one engine serves, and so does every other which answers. seen reports
// whether the given number of workers of a model can receive requests.
func (r *Supervisor) AwaitServing(ctx context.Context, seen func(model string, workers int) bool) error {
	limit := time.Duration(r.cfg.Settings.Engine.Wait)
	waiting, cancel := context.WithTimeoutCause(ctx, limit, config.ErrNotReady)
	defer cancel()
	err := backoff.Poll(waiting, 10*time.Millisecond, func() bool {
		served := r.countServing()
		for model, workers := range served {
			if !seen(model, workers) {
				return false
			}
		}
		return len(served) > 0 && !r.isAnyIn(StateAsking, StateOpening)
	})
	switch {
	case err != config.ErrNotReady:
		return err
	case len(r.countServing()) > 0:
		return fmt.Errorf("%w: engines serve, and their workers are not seen by all of this process after %v; the log says more with --log-level debug", err, limit)
	}
	// However short the limit is, the error says what became of the first request to each engine.
	first, cancel := context.WithTimeout(ctx, 2*lookTimeout)
	defer cancel()
	_ = backoff.Poll(first, 10*time.Millisecond, func() bool { return !r.isAnyIn(StateAsking) })
	return fmt.Errorf("%w: no engine serves after %v (--engine-wait)%s", err, limit, r.describeNotServing())
}

// describeNotServing lists the engines which do not serve, for an error.
func (r *Supervisor) describeNotServing() (list string) {
	for _, e := range r.all {
		if s := e.currentStatus(); s.State != StateServing {
			why := s.Detail
			if s.State == StateOpening {
				why = "it answers, and is still being opened"
			}
			list += fmt.Sprintf("\n%s: %s", s.Name(), why)
		}
	}
	return list
}

// currentWorkers returns the engine's workers; none unless it serves.
func (e *remoteEngine) currentWorkers() []rankWorker {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.workers
}

// run serves the engine until ctx ends: it waits until the engine answers, makes its workers, and starts over
// when they end. A wrong setting of an engine ends run with an error while the process starts, when an
// operator is watching; later it is logged and retried. If another process registers with the id of one of
// the workers, run ends with an error at any time.
func (e *remoteEngine) run(ctx context.Context) error {
	pause := backoff.Backoff{Min: 2 * time.Second, Max: 30 * time.Second}
	for {
		began := time.Now()
		err := e.serveOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause.Reset() // it has served
		}
		if errors.Is(err, errEngineReplaced) {
			e.log.Warn("the engine is not the one that it was: it is opened again")
			continue
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		if errors.Is(err, worker.ErrReplaced) || !e.set.announced.Load() && !errors.Is(err, errEngineGone) {
			return fmt.Errorf("%s: %w", e.spec.String(), err)
		}
		if errors.Is(err, errEngineGone) {
			e.setNotServing(StateWaiting, err.Error())
			e.log.Warn("the engine went away as it was opened", "error", err)
		} else {
			e.setNotServing(StateRefused, err.Error())
			e.log.Error("the engine cannot be used; it will be tried again", "error", err)
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}

// serveOnce serves the engine once: from its first answer to the end of its workers.
func (e *remoteEngine) serveOnce(ctx context.Context) error {
	key, err := config.ReadSecret("api-key-file", e.spec.APIKeyFile)
	if err != nil {
		return err
	}
	found, err := e.awaitReady(ctx, key)
	if err != nil {
		return err
	}
	e.setNotServing(StateOpening, "")
	opened, err := e.open(ctx, key, found)
	if err != nil {
		return err
	}
	return e.serve(ctx, key, opened)
}

// errEngineReplaced is an engine that answers while its adapter considers it unreachable: it has come back
// with another model, or as another kind.
var errEngineReplaced = errors.New("the engine came back as another one")

// returnLooks is how many answers in a row reopen an engine which its adapter considers unreachable: adapters
// notice the return of the same engine sooner.
const returnLooks = 3

// watchReturn returns errEngineReplaced when the engine must be reopened, or ctx's error.
func (e *remoteEngine) watchReturn(ctx context.Context, key string, adapters []engine.Engine) error {
	for answered := 0; answered < returnLooks; {
		if err := backoff.SleepContext(ctx, e.set.cfg.ReturnInterval); err != nil {
			return err
		}
		if !slices.ContainsFunc(adapters, isUnreachable) {
			answered = 0
			continue
		}
		if _, err := probeEngine(ctx, &e.spec, key); err != nil {
			answered = 0
			continue
		}
		answered++
	}
	return errEngineReplaced
}

// errEngineGone is an engine that stopped answering before it served.
var errEngineGone = errors.New("the engine does not answer any more")

// openedEngine is an engine that has been opened: the adapters of its ranks.
type openedEngine struct {
	ranks []engine.Engine // at least one
	// tokenizer is where texts become tokens, for people.
	tokenizer  string
	chat       bool // whether it accepts conversations
	notes      []string
	textRouted bool // requests with media are routed by their text; a note says why
	// aliases are further names of the model; nil means the adapter's.
	aliases []string
	// check compares the tokenizer with the engine's, once it runs; it appends what it finds to notes.
	check func(context.Context) error
}

// serve makes the workers of an engine and runs them until ctx ends or one of them does.
func (e *remoteEngine) serve(ctx context.Context, key string, o *openedEngine) error {
	workers, err := e.makeWorkers(o)
	if err != nil {
		return err
	}
	card := o.ranks[0].Card()
	if o.aliases != nil {
		card.Aliases = o.aliases
	}
	if err := e.claimModel(card); err != nil {
		return err
	}
	defer e.releaseModel()
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
	if e.awaitRegistered(ctx, workers) {
		e.setServing(card, workers, o)
	}
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// makeWorkers makes a worker for each rank.
func (e *remoteEngine) makeWorkers(o *openedEngine) ([]rankWorker, error) {
	var all []rankWorker
	epoch := e.set.cfg.NextEpoch()
	for rank, eng := range o.ranks {
		id := e.set.cfg.WorkerID(e.index, rank)
		w, err := e.set.cfg.NewWorker(RankConfig{id, epoch, rank, len(o.ranks), eng, o.check, o.aliases})
		if err != nil {
			return nil, err
		}
		all = append(all, rankWorker{w, id, eng})
	}
	return all, nil
}

// claimModel claims a model's name for the engine, unless another engine of this process serves it with a
// different card: frontends would send nothing to one of them.
func (e *remoteEngine) claimModel(card engine.Card) error {
	e.set.mu.Lock() // so that of two which differ, one is the first
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
		if field, mine, their, differ := card.FirstDifference(&theirs); differ {
			return fmt.Errorf("it serves %s as %s does, with another model card: %s is %s here and %s there; start both engines alike, or tell clients two names with name=NAME", card.Name, other.spec.String(), field, mine, their)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.card = card
	return nil
}

// releaseModel gives up the claim.
func (e *remoteEngine) releaseModel() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.card = engine.Card{}
	e.mu.workers = nil
}

// awaitRegistered waits until all workers are in discovery. It reports false if ctx ended first.
func (e *remoteEngine) awaitRegistered(ctx context.Context, workers []rankWorker) bool {
	return backoff.Poll(ctx, time.Millisecond, func() bool {
		for _, w := range workers {
			if _, ok := w.RegisteredAddr(); !ok {
				return false
			}
		}
		return true
	}) == nil
}
