package mimic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/splitmix"
	"penstock/internal/engine"
)

// Server mocks one engine. Create it with [New].
type Server struct {
	cfg     Config
	card    engine.Card
	faults  *Faults
	ln      net.Listener
	ranks   []*rank
	first   []engine.Engine // of the ranks, until Run
	stats   stats
	release *sglangRelease // of SGLang; nil otherwise
	media   *loading       // computes media tokens; nil without a pipeline
	slots   *slots         // of llama.cpp; nil otherwise
	began   time.Time
	closed  sync.Once
	// tasks are executed by Run; ended is closed when Run no longer executes any.
	errands chan errand
	ended   chan struct{}

	turn atomic.Uint64 // for choosing ranks and for random numbers
	mu   struct {
		sync.Mutex
		conns    map[net.Conn]struct{}
		adapters []Adapter // ascending
		// Of SGLang's adapters: the unloaded ones, and how often each was loaded since the start.
		unloaded map[string]Adapter
		loads    map[string]int
		asleep   int // sleep level; 0 is awake
		live     map[string]context.CancelFunc
		// remembered are the media objects which the processor has cached by name.
		remembered map[string]known
		processed  int                  // requests whose media another server had processed
		leases     map[string]time.Time // of blocks which prefills keep for a decode, by request
		fail       error
		stop       context.CancelFunc
	}
}

// New returns a server whose addresses are bound and which serves nothing until Run, or every problem of cfg.
func New(cfg Config) (*Server, error) {
	cfg.ensureDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Open == nil {
		return nil, errors.New("mimic config: Open is missing: a server needs engines")
	}
	how := cfg.load()
	s := &Server{media: how, cfg: cfg, faults: newFaults(cfg.Seed, cfg.Faults), began: time.Now(), errands: make(chan errand, 8), ended: make(chan struct{}), release: cfg.release()}
	s.mu.conns = map[net.Conn]struct{}{}
	s.mu.live = map[string]context.CancelFunc{}
	s.mu.remembered = map[string]known{}
	s.mu.unloaded, s.mu.loads = map[string]Adapter{}, map[string]int{}
	s.mu.leases = map[string]time.Time{}
	s.mu.adapters = slices.Clone(cfg.Adapters)
	for _, a := range cfg.Adapters {
		s.mu.loads[a.Name] = 1
	}
	s.turn.Store(cfg.Seed << 20)
	for i := range cfg.Ranks {
		eng, err := cfg.Open(i)
		if err != nil {
			return nil, fmt.Errorf("open the engine of rank %d: %w", i, err)
		}
		s.first = append(s.first, eng)
	}
	s.card = s.first[0].Card()
	if len(s.cfg.Models) == 0 {
		s.cfg.Models = append([]string{s.card.Name}, s.card.Aliases...)
	}
	if s.cfg.Root == "" {
		s.cfg.Root = s.cfg.Models[0]
	}
	if cfg.Dialect == LlamaCPP {
		s.slots = newSlots(cfg.Slots)
	}
	var err error
	if s.ln, err = net.Listen("tcp", cfg.HTTPAddr); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", cfg.HTTPAddr, err)
	}
	for i := range cfg.Ranks {
		f, err := openFeed(context.Background(), &s.cfg, i, s.faults)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		f.begin(s.card.Blocks)
		r := &rank{index: i, cfg: &s.cfg, feed: f}
		r.mu.changed = make(chan struct{})
		s.ranks = append(s.ranks, r)
	}
	return s, nil
}

// Run serves until ctx ends, and then returns nil. A server runs once.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer close(s.ended)
	s.mu.Lock()
	s.mu.stop = cancel
	s.mu.Unlock()
	for i, r := range s.ranks {
		r.begin(ctx, s.first[i], s.failed)
	}
	hs := &http.Server{
		Handler:           s.handler(),
		IdleTimeout:       max(s.cfg.KeepAlive, 0),
		ReadHeaderTimeout: 30 * time.Second,
		ConnState:         s.track,
		ConnContext:       withConn,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	done := make(chan error, 1)
	go func() { done <- hs.Serve(s.ln) }()
	err := s.attend(ctx, hs, done)
	cancel()
	for _, r := range s.ranks {
		if l, err := r.take(false); err == nil {
			l.end()
		}
	}
	s.mu.Lock()
	err = errors.Join(s.mu.fail, ignoreClosed(err))
	s.mu.Unlock()
	return errors.Join(err, s.Close())
}

// runTasks executes tasks until the server ends.
func (s *Server) attend(ctx context.Context, hs *http.Server, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		case e := <-s.errands:
			e.done <- e.do(ctx)
		case <-ctx.Done():
			_ = hs.Close()
			<-done
			return nil
		}
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// failRun ends Run with an error.
func (s *Server) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.fail == nil {
		s.mu.fail = err
	}
	s.mu.stop()
}

// Close releases the addresses. Run does so at its end.
func (s *Server) Close() error {
	s.closed.Do(func() {
		_ = s.ln.Close()
		for _, r := range s.ranks {
			r.feed.close()
		}
	})
	return nil
}

// URL is the base URL of the HTTP server.
func (s *Server) URL() string { return "http://" + s.ln.Addr().String() }

// EventsAddr is the endpoint of the events of rank 0; "" if there is none.
func (s *Server) EventsAddr() string { return s.ranks[0].feed.bound[0] }

// ReplayAddr is the endpoint of the replay of rank 0; "" if there is none.
func (s *Server) ReplayAddr() string { return s.ranks[0].feed.bound[1] }

// SnapshotAddr is the endpoint of the snapshots of rank 0; "" if there is none.
func (s *Server) SnapshotAddr() string { return s.ranks[0].feed.bound[2] }

// RankAddr is the endpoint of the events of a rank; "" if there is none.
func (s *Server) RankAddr(rank int) string { return s.ranks[rank].feed.bound[0] }

// Faults returns the switches.
func (s *Server) Faults() *Faults { return s.faults }

// Card describes the served model.
func (s *Server) Card() engine.Card { return s.card }

// Models returns the served names, the first the model's own.
func (s *Server) Models() []string { return slices.Clone(s.cfg.Models) }

// Subscribers returns how many subscribers the events of rank 0 have.
func (s *Server) Subscribers() int {
	f := s.ranks[0].feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pub == nil {
		return 0
	}
	return f.pub.Subscribers()
}

// task is a function which Run executes for another goroutine.
type errand struct {
	do   func(context.Context) error
	done chan error // capacity of one
}

// errStopped is the error of a task that came after the end of Run.
var errStopped = errors.New("the server has stopped")

// performTask makes Run execute a function, once it runs, and returns its error.
func (s *Server) perform(do func(context.Context) error) error {
	e := errand{do, make(chan error, 1)}
	select {
	case s.errands <- e:
	case <-s.ended:
		return errStopped
	}
	select {
	case err := <-e.done:
		return err
	case <-s.ended:
		return errStopped
	}
}

// Restart loses all state, as a restarted process does: answers break off, connections are lost, caches are
// empty and batches of events are numbered from the first again. It returns when the server accepts requests
// again.
func (s *Server) Restart() error { return s.perform(s.restart) }

// restartEngines implements Restart within Run.
func (s *Server) restart(ctx context.Context) error {
	var gone []*life
	for _, r := range s.ranks {
		l, err := r.take(false)
		if err != nil {
			return fmt.Errorf("restart rank %d: %w", r.index, err)
		}
		gone = append(gone, l)
	}
	s.hangUp()
	for _, l := range gone {
		l.end()
	}
	for i, r := range s.ranks {
		eng, err := s.cfg.Open(i)
		if err == nil {
			err = r.feed.restart(ctx)
		}
		if err != nil {
			err = fmt.Errorf("restart rank %d: %w", i, err)
			s.failed(err)
			return err
		}
		r.feed.begin(s.card.Blocks)
		r.begin(ctx, eng, s.failed)
	}
	s.stats.restart()
	if s.slots != nil {
		s.slots.forget()
	}
	return nil
}

// resetCaches empties the caches, unless requests are running: then it is a Conflict.
func (s *Server) reset() error { return s.perform(s.clear) }

// clearCaches implements resetCaches within Run.
func (s *Server) clear(ctx context.Context) error {
	for i, r := range s.ranks {
		l, err := r.take(true)
		if err != nil {
			return err
		}
		l.end()
		eng, err := s.cfg.Open(i)
		if err != nil {
			s.failed(fmt.Errorf("reset the cache of rank %d: %w", i, err))
			return err
		}
		r.feed.clear()
		r.begin(ctx, eng, s.failed)
	}
	return nil
}

// loadOf is the load of a rank; false if its engine does not report it.
func (s *Server) load(of *rank) (engine.Load, bool) {
	l := of.now()
	if l == nil {
		return engine.Load{TotalBlocks: s.card.Blocks}, false
	}
	src, ok := l.eng.(engine.LoadSource)
	if !ok {
		return engine.Load{TotalBlocks: s.card.Blocks}, false
	}
	return src.Load(), true
}

// nextRandom returns a number which is different in every call.
func (s *Server) draw() uint64 { return splitmix.Mix(s.turn.Add(1)) }

// chooseRank returns the rank that serves a request: the requested one, or the one with the least requests.
func (s *Server) choose(asked *int) (*rank, error) {
	if asked != nil {
		if *asked < 0 || *asked >= len(s.ranks) {
			return nil, fault.New(fault.Invalid, "data_parallel_rank %d is out of range [0, %d).", *asked, len(s.ranks))
		}
		return s.ranks[*asked], nil
	}
	best, least := s.ranks[0], int(^uint(0)>>1)
	for i := range s.ranks {
		r := s.ranks[(i+int(s.turn.Load()))%len(s.ranks)]
		r.mu.Lock()
		busy := r.mu.busy
		r.mu.Unlock()
		if busy < least {
			best, least = r, busy
		}
	}
	s.turn.Add(1)
	return best, nil
}

// resolveModel returns what a request's model name means: the model itself ("") or an adapter.
func (s *Server) model(name string) (adapter string, ok bool) {
	if name == "" || slices.Contains(s.cfg.Models, name) {
		return "", true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.mu.adapters {
		if a.Name == name {
			return name, true
		}
	}
	return "", false
}

// loadedAdapters returns the loaded adapters.
func (s *Server) adapters() []Adapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.adapters)
}

// registerRequest makes abort(id) cancel a request, until the returned function is called.
func (s *Server) register(id string, cancel context.CancelFunc) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live[id] = cancel
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.live, id)
	}
}

// abortRequest cancels a request; "" cancels all.
func (s *Server) abort(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, cancel := range s.mu.live {
		if id == "" || k == id {
			cancel()
		}
	}
}
