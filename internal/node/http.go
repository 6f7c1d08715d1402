package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/internal/config"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/readiness"
	"penstock/internal/obs"
)

// newHandler serves the HTTP API of processes without a frontend: probes, metrics, the configuration, and the
// patterns of more.
func (p *process) newHandler(health, ready http.Handler, more map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h http.Handler) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				openai.WriteMethodNotAllowed(w, r, "GET, HEAD")
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	get("/metrics", p.endpoint.requireAdmin(p.metrics.Handler(), p.cfg.HTTP.MetricsAccess))
	get("/v1/config", p.endpoint.requireAdmin(configHandler(p.cfg), config.AccessAdmin))
	get("/live", http.HandlerFunc(readiness.ServeLive))
	get("/ready", ready)
	get("/health", health)
	serves := "/health, /ready, /live, /metrics and /v1/config"
	for _, pattern := range slices.Sorted(maps.Keys(more)) {
		mux.Handle(pattern, p.endpoint.requireAdmin(more[pattern], config.AccessAdmin))
		serves = pattern + ", " + serves
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		openai.WriteError(w, fault.New(fault.NotFound, "a %s serves %s here; requests for models go to a frontend", p.cfg.Command, serves))
	})
	return mux
}

// The limits of HTTP without a frontend.
const (
	headerTimeout  = 10 * time.Second
	bodyTimeout    = time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	closeTimeout   = 5 * time.Second
)

// serveHTTP serves h on ln, which it closes, until ctx ends, and then returns nil.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           withDeadlines(h),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          obs.NewThrottle(log, time.Minute).LineLogger(slog.LevelWarn, "HTTP connection failed"),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := srv.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-served
	return err
}

// withDeadlines limits how long a client may take to send a body and to read a response; handlers that stream
// extend the second themselves.
func withDeadlines(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Only a real connection has deadlines.
		control, now := http.NewResponseController(w), time.Now()
		if r.Body != http.NoBody {
			_ = control.SetReadDeadline(now.Add(bodyTimeout))
		}
		_ = control.SetWriteDeadline(now.Add(bodyTimeout))
		h.ServeHTTP(w, r)
	})
}

// configHandler serves the effective configuration to "config show --server".
func configHandler(cfg *config.Loaded) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// The values are plain, so encoding cannot fail; a write error means that the client disconnected.
		_ = json.NewEncoder(w).Encode(map[string]any{"rows": cfg.Settings()})
	})
}
