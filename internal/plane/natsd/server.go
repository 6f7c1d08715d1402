package natsd

import (
	"cmp"
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
		current serverInstance // zero before the first start; replaced by replaceServer
		serving *server.Server // current.nats when clients can use it, otherwise nil
	}
	stop     context.CancelFunc // stops watchWrites
	watching sync.WaitGroup     // waits for watchWrites
}

// serverInstance is one of the servers that run one after another, with its own log: errors which a
// server logs while it stops are no reason to replace its successor.
type serverInstance struct {
	nats *server.Server
	log  *serverLogger
}

// Start starts a server and returns when clients can use it. With an empty or small DataDir that
// takes milliseconds.
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
	if err := s.launchServer(serverOptions(&cfg, dir)); err != nil {
		return nil, err
	}
	if addr, ok := s.currentServer().nats.Addr().(*net.TCPAddr); ok { // a replacement listens at the same port
		host, _, _ := cfg.listenHostPort() // Validate has checked it
		s.cfg.Listen = net.JoinHostPort(host, strconv.Itoa(addr.Port))
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.watching.Go(func() { s.watchWrites(ctx) })
	return s, nil
}

// launchServer starts a server and returns when clients can use it.
func (s *Server) launchServer(o *server.Options) error {
	log := newServerLogger(s.log)
	ns, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.current, s.mu.serving = serverInstance{nats: ns, log: log}, nil
	s.mu.Unlock()
	ns.SetLoggerV2(log, false, false, false)
	ns.Start() // returns when it accepts connections, or has logged why not
	if msg := log.fatalMessage(); msg != "" {
		return explainStartError(msg, &s.cfg, s.dir)
	}
	if !ns.ReadyForConnections(inProcessTimeout) {
		return fmt.Errorf("not ready within %v", inProcessTimeout)
	}
	s.mu.Lock()
	s.mu.serving = ns
	s.mu.Unlock()
	return nil
}

// currentServer returns the running server; its nats is nil if none was started.
func (s *Server) currentServer() serverInstance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.current
}

// InProcessConn implements nats.InProcessConnProvider for connections which survive a replacement
// of the server. It fails while a server starts: a starting server accepts in-process connections
// before its streams are loaded, and would report that there are none.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	ns := s.mu.serving
	s.mu.Unlock()
	if ns == nil {
		return nil, errors.New("the embedded nats server is starting")
	}
	return ns.InProcessConn()
}

// inProcessTimeout bounds the start of a server, and the handshake of a connection within the process. Such a server
// is not away: it answers, or closes the connection. On a busy machine both may take seconds.
const inProcessTimeout = time.Minute

// handshakeTimeout bounds the TLS handshake of a connection, and the time until it shows the token. The server would
// refuse a client on a busy machine after 2 s, as if its token were wrong.
const handshakeTimeout = 30 * time.Second

func serverOptions(cfg *Config, dir string) *server.Options {
	o := &server.Options{
		ServerName:         "penstock",
		DontListen:         cfg.Listen == "",
		NoSigs:             true, // the program handles signals
		JetStream:          true,
		StoreDir:           dir,
		JetStreamMaxStore:  cfg.MaxStore,
		JetStreamMaxMemory: cfg.MaxMemory,
		// A client which vanished without closing its connection is dropped with its subscriptions
		// within about 15 s.
		PingInterval:  5 * time.Second,
		MaxPingsOut:   2,
		Authorization: cfg.Token,
		AuthTimeout:   handshakeTimeout.Seconds(),
	}
	if cfg.TLS != nil {
		o.TLS, o.TLSConfig, o.TLSTimeout = true, cfg.TLS, handshakeTimeout.Seconds()
		o.TLSVerify = cfg.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	}
	if cfg.Listen != "" {
		o.Host, o.Port, _ = cfg.listenHostPort() // Validate has checked it
		o.Host = cmp.Or(o.Host, "0.0.0.0")
		o.Port = cmp.Or(o.Port, server.RANDOM_PORT)
	}
	return o
}

// explainStartError adds advice for the operator to the server's fatal message.
func explainStartError(msg string, cfg *Config, dir string) error {
	switch {
	case strings.HasPrefix(msg, "Error listening on port"):
		return fmt.Errorf("listen on %s: %s; stop what uses the port or choose another", cfg.Listen, msg)
	case strings.HasPrefix(msg, "Can't start JetStream"):
		return fmt.Errorf("data directory %s: %s; check its space and permissions or choose another", dir, msg)
	}
	return errors.New(msg)
}

// URL returns the address of the server for other processes; "" if it does not listen.
func (s *Server) URL() string {
	addr, ok := s.currentServer().nats.Addr().(*net.TCPAddr)
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

// StoreUsage returns, in bytes of files, how much all streams store, how much is reserved for them,
// and the limit. ok is false while no server is running.
func (s *Server) StoreUsage() (used, reserved, limit uint64, ok bool) {
	info, err := s.currentServer().nats.Jsz(nil)
	if err != nil || info.Disabled || info.Config.MaxStore <= 0 {
		return 0, 0, 0, false
	}
	return info.Store, info.ReservedStore, uint64(info.Config.MaxStore), true
}

// Connect returns an in-process connection. The caller must close it before the server. It survives
// interruptions like a network connection.
func (s *Server) Connect(name string) (*nats.Conn, error) {
	opts := append(connOptions(name, s.log), nats.InProcessServer(s), nats.Timeout(inProcessTimeout))
	if s.cfg.Token != "" {
		opts = append(opts, nats.Token(s.cfg.Token))
	}
	nc, err := nats.Connect("", opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded nats: %w", err)
	}
	return nc, nil
}

// Close stops the server, waits for it, and removes temporary files. It is idempotent.
func (s *Server) Close() error {
	s.close.Do(func() {
		s.stop()
		s.watching.Wait()
		if ns := s.currentServer().nats; ns != nil {
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

// serverLogger forwards the server's log and keeps its first fatal message, which is the only way to
// learn why the server did not start.
type serverLogger struct {
	out         *slog.Logger
	writeFailed chan struct{} // signals that a stream accepts no more writes; capacity one
	mu          struct {
		sync.Mutex
		fatal string
	}
}

func newServerLogger(out *slog.Logger) *serverLogger {
	return &serverLogger{out: out, writeFailed: make(chan struct{}, 1)}
}

func (l *serverLogger) Noticef(format string, v ...any) {
	l.out.Debug("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *serverLogger) Warnf(format string, v ...any) {
	l.out.Warn("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *serverLogger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.out.Error("nats server", "text", text)
	if !strings.Contains(strings.ToLower(text), writeErrorText) {
		return
	}
	select {
	case l.writeFailed <- struct{}{}:
	default: // already signaled
	}
}

// Fatalf does not end the process; that decision is left to the caller of Start.
func (l *serverLogger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.fatal == "" {
		l.mu.fatal = fmt.Sprintf(format, v...)
	}
}

// Debugf and Tracef are disabled in the server.
func (l *serverLogger) Debugf(string, ...any) {}
func (l *serverLogger) Tracef(string, ...any) {}

func (l *serverLogger) fatalMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.fatal
}
