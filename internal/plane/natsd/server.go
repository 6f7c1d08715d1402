package natsd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Server is a running embedded server.
type Server struct {
	cfg   Config
	dir   string
	lock  *os.File
	temp  string // directory to remove; "" if none
	log   *slog.Logger
	close sync.Once
	err   error // of Close

	mu struct {
		sync.Mutex
		current instance       // zero until it was started; replaced by mend
		serving *server.Server // current.nats when clients can use it, nil before
	}
	stop context.CancelFunc // ends watch
	ends sync.WaitGroup     // watch
}

// instance is one server of those that run one after another, and what it logs: what
// the one before says at its end is no reason to replace its successor.
type instance struct {
	nats *server.Server
	log  *logger
}

// Start starts a server and returns when clients can use it, within
// milliseconds if DataDir is empty or small.
func Start(cfg Config) (_ *Server, err error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("start nats: %w", err)
	}
	s := &Server{cfg: cfg, log: cfg.Log, stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start nats: %w", err), s.Close())
		}
	}()
	dir := cfg.DataDir
	if dir == "" {
		removeAbandoned(cfg.Log)
		s.temp, s.lock, err = lockTemp()
		dir = s.temp
	} else {
		s.lock, err = lockDir(dir)
	}
	if err != nil {
		return nil, err
	}
	s.dir = dir
	if err := s.launch(options(&cfg, dir)); err != nil {
		return nil, err
	}
	if addr, ok := s.current().nats.Addr().(*net.TCPAddr); ok { // the next one listens at the same port
		host, _, _ := cfg.hostPort() // Validate has seen it
		s.cfg.Listen = net.JoinHostPort(host, strconv.Itoa(addr.Port))
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.ends.Go(func() { s.watch(ctx) })
	return s, nil
}

// launch starts a server and returns when clients can use it.
func (s *Server) launch(o *server.Options) error {
	log := newLogger(s.log)
	ns, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.current, s.mu.serving = instance{nats: ns, log: log}, nil
	s.mu.Unlock()
	ns.SetLoggerV2(log, false, false, false)
	ns.Start() // returns when it accepts connections, or has logged why not
	if msg := log.fatalMessage(); msg != "" {
		return explain(msg, &s.cfg, s.dir)
	}
	if !ns.ReadyForConnections(10 * time.Second) {
		return errors.New("not ready within 10 s")
	}
	s.mu.Lock()
	s.mu.serving = ns
	s.mu.Unlock()
	return nil
}

// current returns the server that runs now; its nats is nil if none was started.
func (s *Server) current() instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.current
}

// InProcessConn implements nats.InProcessConnProvider for connections that go on
// when the server was replaced. It fails while a server starts: one takes connections
// within the process before its streams are there, and would answer that there are none.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	ns := s.mu.serving
	s.mu.Unlock()
	if ns == nil {
		return nil, errors.New("the embedded nats server is starting")
	}
	return ns.InProcessConn()
}

// tlsTimeout bounds the handshake of a connection.
const tlsTimeout = 5 * time.Second

func options(cfg *Config, dir string) *server.Options {
	o := &server.Options{
		ServerName:         "penstock",
		DontListen:         cfg.Listen == "",
		NoSigs:             true, // signals are the program's
		JetStream:          true,
		StoreDir:           dir,
		JetStreamMaxStore:  cfg.MaxStore,
		JetStreamMaxMemory: cfg.MaxMemory,
		// A client that vanished without closing its connection is dropped, and
		// its subscriptions with it, within about 15 s.
		PingInterval:  5 * time.Second,
		MaxPingsOut:   2,
		Authorization: cfg.Token,
	}
	if cfg.TLS != nil {
		o.TLS, o.TLSConfig, o.TLSTimeout = true, cfg.TLS, tlsTimeout.Seconds()
		o.TLSVerify = cfg.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	}
	if cfg.Listen != "" {
		o.Host, o.Port, _ = cfg.hostPort() // Validate has seen it
		if o.Host == "" {
			o.Host = "0.0.0.0"
		}
		if o.Port == 0 {
			o.Port = server.RANDOM_PORT
		}
	}
	return o
}

// explain adds to the server's last words what the operator can do.
func explain(msg string, cfg *Config, dir string) error {
	switch {
	case strings.HasPrefix(msg, "Error listening on port"):
		return fmt.Errorf("listen on %s: %s; stop what uses the port or choose another", cfg.Listen, msg)
	case strings.HasPrefix(msg, "Can't start JetStream"):
		return fmt.Errorf("data directory %s: %s; check its space and permissions or choose another", dir, msg)
	}
	return errors.New(msg)
}

// URL returns where other processes reach the server; "" if it does not listen.
func (s *Server) URL() string {
	addr, ok := s.current().nats.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "nats://"
	if s.cfg.TLS != nil {
		scheme = "tls://"
	}
	return scheme + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// Store returns what all streams hold, what has been promised to them, and what they may hold
// together, in bytes of files; ok is false while the server is not there.
func (s *Server) Store() (used, reserved, limit uint64, ok bool) {
	info, err := s.current().nats.Jsz(nil)
	if err != nil || info.Disabled || info.Config.MaxStore <= 0 {
		return 0, 0, 0, false
	}
	return info.Store, info.ReservedStore, uint64(info.Config.MaxStore), true
}

// Connect returns a connection within the process, which the caller closes
// before the server. It survives interruptions as one over a network does.
func (s *Server) Connect(name string) (*nats.Conn, error) {
	opts := append(connOptions(name, s.log), nats.InProcessServer(s))
	if s.cfg.Token != "" {
		opts = append(opts, nats.Token(s.cfg.Token))
	}
	nc, err := nats.Connect("", opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded nats: %w", err)
	}
	return nc, nil
}

// Close stops the server, waits for it and removes what was temporary. It is
// idempotent.
func (s *Server) Close() error {
	s.close.Do(func() {
		s.stop()
		s.ends.Wait()
		if ns := s.current().nats; ns != nil {
			ns.Shutdown()
			ns.WaitForShutdown()
		}
		if s.lock != nil {
			s.err = s.lock.Close() // releases the lock
		}
		if s.temp != "" {
			s.err = errors.Join(s.err, os.RemoveAll(s.temp))
		}
	})
	return s.err
}
