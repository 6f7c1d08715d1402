package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"penstock/core/fault"
)

// cutOff is how long requests have to say goodbye after they were cut off at the
// end of a drain.
const cutOff = 5 * time.Second

// Run follows the registry and serves HTTP on ln, which it closes, until ctx
// ends; it returns nil then. At the end it stops accepting, refuses new requests
// on open connections, lets those in progress finish within DrainTimeout, and
// cuts off the rest with an error that says so. The registry is followed until
// the last request is over.
func (f *Frontend) Run(ctx context.Context, ln net.Listener) error {
	// What outlives ctx: requests in progress and the catalog.
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	follow, unfollow := context.WithCancel(base)
	defer unfollow()

	door := &gate{inner: f.handler}
	srv := &http.Server{
		Handler:           door,
		ReadHeaderTimeout: f.cfg.HeaderTimeout,
		IdleTimeout:       f.cfg.IdleTimeout,
		MaxHeaderBytes:    f.cfg.MaxHeaderBytes,
		HTTP2:             f.http2(),
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          f.throttled.Writer(slog.LevelWarn, "HTTP connection failed"),
	}
	var followed sync.WaitGroup
	followed.Go(func() { f.catalog.run(follow, f.deps.Registry) })
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()

	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
		err = fmt.Errorf("frontend: serve %s: %w", ln.Addr(), err)
	}

	f.draining.Store(true)
	if f.deps.OnDrain != nil {
		f.deps.OnDrain()
	}
	e := f.drain(srv, cut)
	door.close()
	if e != nil && err == nil {
		err = fmt.Errorf("frontend: drain: %w", e)
	}
	unfollow()
	<-served
	followed.Wait()
	f.throttled.Flush(context.WithoutCancel(ctx))
	return err
}

// drain ends the server: by waiting, then by cutting requests off, at the last by
// closing the connections of those that hang in a write.
func (f *Frontend) drain(srv *http.Server, cut context.CancelCauseFunc) error {
	if err := shutdown(srv, f.cfg.DrainTimeout); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f.deps.Log.Warn("cutting off requests that did not finish in time", "requests", f.inflight.Load(), "timeout", f.cfg.DrainTimeout)
	cut(&fault.Error{Code: fault.Unavailable, Message: "this frontend is shutting down: send the request again", RetryAfter: retrySoon})
	if err := shutdown(srv, cutOff); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return srv.Close()
}

// shutdown stops accepting and waits until no request is in progress.
func shutdown(srv *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return srv.Shutdown(ctx)
}
