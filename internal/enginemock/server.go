package enginemock

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
	cfg          Config
	card         engine.Card
	faults       *Faults
	listener     net.Listener
	ranks        []*rankServer
	firstEngines []engine.Engine // of the ranks, until Run
	stats        serverStats
	dialect      *dialect
	media        *mediaLoader // computes media tokens; nil without a pipeline
	slots        *slotPool    // of llama.cpp; nil otherwise
	startedAt    time.Time
	closed       sync.Once
	// tasks are executed by Run; ended is closed when Run no longer executes any.
	tasks chan task
	ended chan struct{}

	counter atomic.Uint64 // for choosing ranks and for random numbers
	mu      struct {
		sync.Mutex
		conns    map[net.Conn]struct{}
		adapters []Adapter // ascending
		// Of SGLang's adapters: the unloaded ones, and how often each was loaded since the start.
		unloaded map[string]Adapter
		loads    map[string]int
		asleep   int // sleep level; 0 is awake
		live     map[string]context.CancelFunc
		// remembered are the media objects which the processor has cached by name.
		remembered map[string]mediaInfo
		processed  int // requests whose media another server had processed
		encoded    encoderCache
		leases     map[string]*lease // of blocks which prefills keep for a decode
		leased     chan struct{}     // closed when a lease is added
		consumed   map[string]bool   // leases which were claimed; at most maxLeases
		// Transfers of blocks: to other instances, to this one, and transfers which this one did not get.
		sent, received, missed, reused int
		fail                           error
		stop                           context.CancelFunc
	}
}

// New returns a server whose addresses are bound and which serves nothing until Run, or every problem of cfg.
func New(cfg Config) (*Server, error) {
	cfg.ensureDefaults()
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	if cfg.Open == nil {
		return nil, errors.New("enginemock config: Open is missing: a server needs engines")
	}
	d := cfg.newDialect()
	how := cfg.newMediaLoader(d.loader)
	s := &Server{dialect: d, media: how, cfg: cfg, faults: newFaults(cfg.Seed, cfg.Faults), startedAt: time.Now(), tasks: make(chan task, 8), ended: make(chan struct{})}
	s.mu.conns = map[net.Conn]struct{}{}
	s.mu.live = map[string]context.CancelFunc{}
	s.mu.remembered = map[string]mediaInfo{}
	s.mu.encoded = cfg.newEncoderCache()
	s.mu.unloaded, s.mu.loads = map[string]Adapter{}, map[string]int{}
	s.mu.leases, s.mu.leased, s.mu.consumed = map[string]*lease{}, make(chan struct{}), map[string]bool{}
	s.mu.adapters = slices.Clone(cfg.Adapters)
	for _, a := range cfg.Adapters {
		s.mu.loads[a.Name] = 1
	}
	s.counter.Store(cfg.Seed << 20)
	for i := range cfg.Ranks {
		eng, err := cfg.Open(i)
		if err != nil {
			return nil, fmt.Errorf("open the engine of rank %d: %w", i, err)
		}
		s.firstEngines = append(s.firstEngines, eng)
	}
	s.card = s.firstEngines[0].Card()
	if len(s.cfg.Models) == 0 {
		s.cfg.Models = append([]string{s.card.Name}, s.card.Aliases...)
	}
	if s.cfg.Root == "" {
		s.cfg.Root = s.cfg.Models[0]
	}
	if cfg.Dialect == LlamaCPP {
		s.slots = newSlotPool(cfg.Slots)
	} else {
		s.cfg.Ping = 0
	}
	var err error
	if s.listener, err = net.Listen("tcp", cfg.HTTPAddr); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", cfg.HTTPAddr, err)
	}
	for i := range cfg.Ranks {
		f, err := openPublisher(context.Background(), &s.cfg, d, i, s.faults)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		f.publishFirst(s.card.Blocks)
		r := &rankServer{index: i, cfg: &s.cfg, feed: f}
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
		r.startInstance(ctx, s.firstEngines[i], s.failRun)
	}
	hs := &http.Server{
		Handler:           s.newHandler(),
		IdleTimeout:       max(s.cfg.KeepAlive, 0),
		ReadHeaderTimeout: 30 * time.Second,
		ConnState:         s.trackConn,
		ConnContext:       withConn,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	done := make(chan error, 1)
	go func() { done <- hs.Serve(s.listener) }()
	err := s.runTasks(ctx, hs, done)
	cancel()
	for _, r := range s.ranks {
		if l, err := r.removeInstance(false); err == nil {
			l.stopAndWait()
		}
	}
	s.mu.Lock()
	err = errors.Join(s.mu.fail, ignoreClosed(err))
	s.mu.Unlock()
	return errors.Join(err, s.Close())
}

// runTasks executes tasks until the server ends.
func (s *Server) runTasks(ctx context.Context, hs *http.Server, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		case e := <-s.tasks:
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
func (s *Server) failRun(err error) {
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
		_ = s.listener.Close()
		for _, r := range s.ranks {
			r.feed.closeSockets()
		}
	})
	return nil
}

// URL is the base URL of the HTTP server.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// EventsAddr is the endpoint of the events of rank 0; "" if there is none.
func (s *Server) EventsAddr() string { return s.ranks[0].feed.boundAddrs[0] }

// ReplayAddr is the endpoint of the replay of rank 0; "" if there is none.
func (s *Server) ReplayAddr() string { return s.ranks[0].feed.boundAddrs[1] }

// SnapshotAddr is the endpoint of the snapshots of rank 0; "" if there is none.
func (s *Server) SnapshotAddr() string { return s.ranks[0].feed.boundAddrs[2] }

// RankAddr is the endpoint of the events of a rank; "" if there is none.
func (s *Server) RankAddr(rank int) string { return s.ranks[rank].feed.boundAddrs[0] }

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
type task struct {
	do   func(context.Context) error
	done chan error // capacity of one
}

// errStopped is the error of a task that came after the end of Run.
var errStopped = errors.New("the server has stopped")

// performTask makes Run execute a function, once it runs, and returns its error.
func (s *Server) performTask(do func(context.Context) error) error {
	e := task{do, make(chan error, 1)}
	select {
	case s.tasks <- e:
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
func (s *Server) Restart() error { return s.performTask(s.restartEngines) }

// restartEngines implements Restart within Run.
func (s *Server) restartEngines(ctx context.Context) error {
	var gone []*engineInstance
	for _, r := range s.ranks {
		l, err := r.removeInstance(false)
		if err != nil {
			return fmt.Errorf("restart rank %d: %w", r.index, err)
		}
		gone = append(gone, l)
	}
	s.closeConns()
	for _, l := range gone {
		l.stopAndWait()
	}
	s.dropLeases()
	for i, r := range s.ranks {
		eng, err := s.cfg.Open(i)
		if err == nil {
			err = r.feed.restartPublisher(ctx)
		}
		if err != nil {
			err = fmt.Errorf("restart rank %d: %w", i, err)
			s.failRun(err)
			return err
		}
		r.feed.publishFirst(s.card.Blocks)
		r.startInstance(ctx, eng, s.failRun)
	}
	s.stats.resetCounters()
	s.ForgetEncoded()
	if s.slots != nil {
		s.slots.eraseAll()
	}
	return nil
}

// resetCaches empties the caches, unless requests are running: then it is a Conflict.
func (s *Server) resetCaches() error { return s.performTask(s.clearCaches) }

// clearCaches implements resetCaches within Run.
func (s *Server) clearCaches(ctx context.Context) error {
	for i, r := range s.ranks {
		l, err := r.removeInstance(true)
		if err != nil {
			return err
		}
		l.stopAndWait()
		eng, err := s.cfg.Open(i)
		if err != nil {
			s.failRun(fmt.Errorf("reset the cache of rank %d: %w", i, err))
			return err
		}
		r.feed.publishCleared()
		r.startInstance(ctx, eng, s.failRun)
	}
	return nil
}

// loadOf is the load of a rank; false if its engine does not report it.
func (s *Server) loadOf(of *rankServer) (engine.Load, bool) {
	l := of.currentInstance()
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
func (s *Server) nextRandom() uint64 { return splitmix.Mix(s.counter.Add(1)) }

// chooseRank returns the rank that serves a request: the requested one, or the one with the least requests.
func (s *Server) chooseRank(asked *int) (*rankServer, error) {
	if asked != nil {
		if *asked < 0 || *asked >= len(s.ranks) {
			return nil, fault.New(fault.Invalid, "data_parallel_rank %d is out of range [0, %d).", *asked, len(s.ranks))
		}
		return s.ranks[*asked], nil
	}
	best, least := s.ranks[0], int(^uint(0)>>1)
	for i := range s.ranks {
		r := s.ranks[(i+int(s.counter.Load()))%len(s.ranks)]
		r.mu.Lock()
		busy := r.mu.busy
		r.mu.Unlock()
		if busy < least {
			best, least = r, busy
		}
	}
	s.counter.Add(1)
	return best, nil
}

// resolveModel returns what a request's model name means: the model itself ("") or an adapter.
func (s *Server) resolveModel(name string) (adapter string, ok bool) {
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
func (s *Server) loadedAdapters() []Adapter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.adapters)
}

// registerRequest makes abort(id) cancel a request, until the returned function is called.
func (s *Server) registerRequest(id string, cancel context.CancelFunc) func() {
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
func (s *Server) abortRequest(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, cancel := range s.mu.live {
		if id == "" || k == id {
			cancel()
		}
	}
}

// trackedConn is a handler's view of its connection.
type trackedConn struct {
	net.Conn
	requests atomic.Int64
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &trackedConn{Conn: c})
}

// trackConn keeps the set of open connections.
func (s *Server) trackConn(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.mu.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.mu.conns, c)
	default:
	}
}

// closeConns closes every connection, as the end of a process does.
func (s *Server) closeConns() {
	s.mu.Lock()
	var all []net.Conn
	for c := range s.mu.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// resetIdle resets the connection of a request which is not its first, if a fault is due: a client sees the
// same if its request crosses the close of an idle connection.
func (s *Server) resetIdle(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*trackedConn)
	if !ok || c.requests.Add(1) == 1 {
		return
	}
	if _, hit := s.faults.takeDue(FaultReset); !hit {
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
	panic(http.ErrAbortHandler)
}
