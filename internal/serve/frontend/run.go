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

// cutOff is how long requests may take to send their last error after they were cut off at the end of a
// drain.
const cutOff = 5 * time.Second

// Run follows the catalog and serves HTTP on ln, which it closes, until ctx ends; it returns nil then.
// It accepts no connection before the registry is read, or firstReadTimeout has passed: until then
// connections wait in ln. At the end it continues to serve for DrainGrace. Then it stops accepting,
// refuses new requests on open connections, lets running ones finish within DrainTimeout, and cuts off
// the rest with an error that says so. It follows the catalog until the last request ends.
func (f *Frontend) Run(ctx context.Context, ln net.Listener) error {
	// These outlive ctx: running requests and the catalog.
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	follow, unfollow := context.WithCancel(base)
	defer unfollow()

	door := &requestGate{inner: f.handler, leaving: &f.isLeaving}
	srv := &http.Server{
		Handler:           door,
		ReadHeaderTimeout: f.cfg.HeaderTimeout,
		IdleTimeout:       f.cfg.IdleTimeout,
		MaxHeaderBytes:    f.cfg.MaxHeaderBytes,
		HTTP2:             f.http2Config(),
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          f.throttled.LineLogger(slog.LevelWarn, "HTTP connection failed"),
	}
	var followed sync.WaitGroup
	followed.Go(func() { f.catalog.run(follow) })
	served := make(chan error, 1)
	go func() {
		f.awaitWorkers(ctx)
		served <- srv.Serve(ln)
	}()

	var err error
	select {
	case <-ctx.Done():
		err = f.serveGrace(served)
	case err = <-served:
	}
	if err != nil {
		served <- nil
		err = fmt.Errorf("frontend: serve %s: %w", ln.Addr(), err)
	}

	f.isLeaving.Store(true)
	f.isDraining.Store(true)
	if f.deps.OnDrain != nil {
		f.deps.OnDrain()
	}
	e := f.drainServer(srv, cut)
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

// firstReadTimeout bounds the wait for the first read of the registry; after it the registry counts as
// unreachable, and requests fail with that.
const firstReadTimeout = 5 * time.Second

// awaitWorkers waits until the registry is read. Otherwise a new
// frontend would tell its first clients that no model exists.
func (f *Frontend) awaitWorkers(ctx context.Context) {
	late := time.NewTimer(firstReadTimeout)
	defer late.Stop()
	select {
	case <-f.catalog.loaded:
	case <-late.C:
		f.deps.Log.Warn("requests are taken before it is known which workers are registered: the registry does not answer", "after", firstReadTimeout)
	case <-ctx.Done():
	}
}

// serveGrace continues to serve for DrainGrace, so that clients learn of the shutdown before the port
// is closed: health reports draining, and each answer closes its connection. Idle connections stay open
// until they have carried such an answer or the grace is over: closing one now would break a request
// that is being written to it. It returns the error of a server that fails meanwhile.
func (f *Frontend) serveGrace(served <-chan error) error {
	if f.cfg.DrainGrace == 0 {
		return nil
	}
	f.isLeaving.Store(true)
	f.deps.Log.Info("leaving: requests are still taken", "grace", f.cfg.DrainGrace)
	grace := time.NewTimer(f.cfg.DrainGrace)
	defer grace.Stop()
	select {
	case <-grace.C:
		return nil
	case err := <-served:
		return err
	}
}

// drainServer ends the server: it waits, then cuts requests off, and finally closes the connections whose
// writes block.
func (f *Frontend) drainServer(srv *http.Server, cut context.CancelCauseFunc) error {
	if err := shutDownServer(srv, f.cfg.DrainTimeout); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f.deps.Log.Warn("cutting off requests that did not finish in time", "requests", f.inflight.Load(), "timeout", f.cfg.DrainTimeout)
	cut(&fault.Error{Code: fault.Unavailable, Message: "this frontend is shutting down: send the request again", RetryAfter: retrySoon})
	if err := shutDownServer(srv, cutOff); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return srv.Close()
}

// shutDownServer stops accepting and waits until no request is running.
func shutDownServer(srv *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return srv.Shutdown(ctx)
}
