// Package rpc is the request plane: a call carries one request to a handler and a stream of frames
// back. Either side can end it.
package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"

	"penstock/core/fault"
)

// Limits of every plane, whatever its transport.
const (
	// MaxBody bounds the body of a call, in bytes; a longer one is TooLarge.
	MaxBody = 64 << 20
	// MaxMethod bounds the name of a method, in bytes; a longer one is TooLarge.
	MaxMethod = 1 << 10
	// MaxFrame bounds one frame of an answer, in bytes; a longer one is TooLarge.
	MaxFrame = 8 << 20
	// Credit is how many frames a handler may be ahead of its caller. A plane
	// over a network holds further frames only in bounded socket buffers.
	Credit = 64
)

// Handler serves calls. It returns when the call is done. A *fault.Error keeps its code on the way
// to the caller; any other error arrives as Internal. ctx ends when the caller disconnects or its
// deadline passes; its only value is the caller's W3C trace context. send blocks while the caller
// is behind by the plane's credit, copies the frame, and fails when the call is over. The handler
// must not keep body after it returns.
type Handler func(ctx context.Context, method string, body []byte, send func(frame []byte) error) error

// Plane carries calls. Implementations are safe for concurrent use.
//
// Addresses are URLs whose scheme names the plane ("tcp://host:port"). Addresses within a process
// have no scheme.
type Plane interface {
	// Serve answers calls at addr with h until ctx ends. Then it refuses new calls with
	// Unavailable, waits for the calls in progress, and returns nil. An empty addr lets the plane
	// choose one. Serve calls ready, if not nil, with the address to advertise once calls can
	// arrive.
	Serve(ctx context.Context, addr string, h Handler, ready func(addr string)) error
	// Call sends one call and passes each frame of the answer to recv, in order. It returns nil
	// when the handler returned nil, the handler's *fault.Error, Unavailable when addr cannot be
	// reached or the connection broke, recv's error (the handler is then canceled), or ctx's error.
	// recv must not keep the frame.
	Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error
}

// checkLimits reports whether a call exceeds MaxMethod or MaxBody.
func checkLimits(method string, body []byte) error {
	switch {
	case len(method) > MaxMethod:
		return fault.New(fault.TooLarge, "call %.20q: the name of the method has %d bytes, at most %d are allowed", method, len(method), MaxMethod)
	case len(body) > MaxBody:
		return errBodyTooLarge(method, len(body))
	}
	return nil
}

func errBodyTooLarge(method string, n int) *fault.Error {
	return fault.New(fault.TooLarge, "call %s: the body has %d bytes, at most %d are allowed", method, n, MaxBody)
}

func errFrameTooLarge(n int) error {
	return fault.New(fault.TooLarge, "send: the frame has %d bytes, at most %d are allowed", n, MaxFrame)
}

// invokeHandler runs the handler and passes its outcome to report: exactly once, in this goroutine.
// A handler which panics or calls runtime.Goexit fails its own call only.
func invokeHandler(ctx context.Context, h Handler, method string, body []byte, send func([]byte) error, report func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// recover returns nil after runtime.Goexit.
		report(&fault.Error{
			Code:    fault.Internal,
			Message: fmt.Sprintf("call %s: the handler crashed; the log says why", method),
			Err:     fmt.Errorf("panic: %v\n%s", recover(), debug.Stack()),
		})
	}()
	err := h(ctx, method, body, send)
	returned = true
	report(handlerOutcome(method, err))
}

// SchemeMux combines several planes: Serve uses one of them, and Call selects the plane by the
// scheme of the address. The address that a worker advertises therefore tells how to reach it, and
// processes which serve on different planes can form one deployment.
type SchemeMux struct {
	// Plane serves, and takes calls to addresses without a scheme.
	Plane
	// ByScheme maps a scheme, the part before "://", to the plane which carries its calls.
	ByScheme map[string]Plane
}

var _ Plane = (*SchemeMux)(nil)

// Call implements Plane. An unknown scheme is Unavailable.
func (s *SchemeMux) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	scheme, _, ok := strings.Cut(addr, "://")
	if !ok {
		return s.Plane.Call(ctx, addr, method, body, recv)
	}
	p := s.ByScheme[scheme]
	if p == nil {
		return fault.New(fault.Unavailable, "call %s: this process has no request plane for %.20q addresses", method, scheme)
	}
	return p.Call(ctx, addr, method, body, recv)
}

// Unchecked reports whether damage to data on the connection to addr would go unnoticed, as far as
// its plane can tell.
func (s *SchemeMux) Unchecked(addr string) bool {
	scheme, _, _ := strings.Cut(addr, "://")
	p, ok := s.ByScheme[scheme].(interface{ Unchecked(addr string) bool })
	return ok && p.Unchecked(addr)
}
