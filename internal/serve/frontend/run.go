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
// ends; it returns nil then. It takes no connection before it knows who is
// registered, or has waited firstSight for that: until then they wait in ln. At the end it is a lame duck for DrainGrace. Then it
// stops accepting, refuses new requests on open connections, lets those in
// progress finish within DrainTimeout, and cuts off the rest with an error that
// says so. The registry is followed until the last request is over.
func (f *Frontend) Run(ctx context.Context, ln net.Listener) error {
	// What outlives ctx: requests in progress and the catalog.
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	follow, unfollow := context.WithCancel(base)
	defer unfollow()

	door := &gate{inner: f.handler, leaving: &f.leaving}
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
	go func() {
		f.awaitSight(ctx)
		served <- srv.Serve(ln)
	}()

	var err error
	select {
	case <-ctx.Done():
		err = f.lameDuck(served)
	case err = <-served:
	}
	if err != nil {
		served <- nil
		err = fmt.Errorf("frontend: serve %s: %w", ln.Addr(), err)
	}

	f.leaving.Store(true)
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

// firstSight bounds the wait for the first look at who is registered, beyond which
// the registry is away and requests are told so.
const firstSight = 5 * time.Second

// awaitSight waits until this frontend and its router know who is registered. A
// frontend that has just been started would otherwise tell the first clients that
// no model exists.
func (f *Frontend) awaitSight(ctx context.Context) {
	late := time.NewTimer(firstSight)
	defer late.Stop()
	for _, seen := range [...]<-chan struct{}{f.catalog.seen, f.deps.Seen} {
		if seen == nil {
			continue
		}
		select {
		case <-seen:
		case <-late.C:
			f.deps.Log.Warn("requests are taken before it is known who is registered: the registry does not answer", "after", firstSight)
			return
		case <-ctx.Done():
			return
		}
	}
}

// lameDuck goes on serving for DrainGrace, so that nobody finds a closed port
// before he could know: health says draining, and each answer closes its
// connection. Idle connections stay open until a request on one of them is answered
// so or the grace is over: to close one now would break the request that is just
// being written to it. It returns the error of a server that fails meanwhile.
func (f *Frontend) lameDuck(served <-chan error) error {
	if f.cfg.DrainGrace == 0 {
		return nil
	}
	f.leaving.Store(true)
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
