package rpc

import (
	"context"
	"strings"

	"penstock/core/fault"
)

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
