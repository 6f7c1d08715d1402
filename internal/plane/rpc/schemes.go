package rpc

import (
	"context"
	"strings"

	"penstock/core/fault"
)

// Schemes is a plane made of several: Serve is that of one, and a call goes by
// the plane that the scheme of its address names. So the address that a worker
// advertises says how to reach it, and processes that serve on different planes
// are one fleet.
type Schemes struct {
	// Plane serves, and takes the calls to addresses without a scheme.
	Plane
	// ByScheme has the planes that carry calls, by what stands before "://".
	ByScheme map[string]Plane
}

var _ Plane = (*Schemes)(nil)

// Call implements Plane. A scheme that no plane has is Unavailable.
func (s *Schemes) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
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

// Unchecked reports whether what the connection to addr carries may be damaged unnoticed,
// as far as its plane can tell.
func (s *Schemes) Unchecked(addr string) bool {
	scheme, _, _ := strings.Cut(addr, "://")
	p, ok := s.ByScheme[scheme].(interface{ Unchecked(addr string) bool })
	return ok && p.Unchecked(addr)
}
