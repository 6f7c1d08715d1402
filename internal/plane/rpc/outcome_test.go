package rpc

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
)

func TestFaultOnTheWire(t *testing.T) {
	for _, f := range []*fault.Error{
		{},
		{Code: fault.Draining, Message: "näme", Param: "messages[0]", RetryAfter: 1500 * time.Millisecond},
		{Code: 200, Message: "of a later version"},
	} {
		b := appendFault(nil, f)
		got, err := decodeFault(b)
		if err != nil || !reflect.DeepEqual(got, f) {
			t.Errorf("%+v came back as %+v, %v", f, got, err)
		}
	}
	long := &fault.Error{Message: strings.Repeat("ö", 4000), Param: strings.Repeat("ö", 200), RetryAfter: 1 << 62}
	got, err := decodeFault(appendFault(nil, long))
	if err != nil || len(got.Message) != maxMessage || len(got.Param) != maxParam || got.RetryAfter != (1<<32-1)*time.Millisecond {
		t.Errorf("a long one came back as %d and %d bytes, %v: %v", len(got.Message), len(got.Param), got.RetryAfter, err)
	}
}

func FuzzDecodeFault(f *testing.F) {
	f.Add(appendFault(nil, &fault.Error{Code: fault.Limited, Message: "m", Param: "p", RetryAfter: time.Second}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeFault(b)
		if err != nil {
			return
		}
		again, err := decodeFault(appendFault(nil, e))
		if err != nil || len(e.Message) <= maxMessage && len(e.Param) <= maxParam && !reflect.DeepEqual(e, again) {
			t.Errorf("%+v came back as %+v: %v", e, again, err)
		}
	})
}

func TestSchemes(t *testing.T) {
	a, b := NewMemPlane(), NewMemPlane()
	s := &SchemeMux{Plane: a, ByScheme: map[string]Plane{"x": b}}
	serve := func(p Plane, addr, says string) func() {
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- p.Serve(ctx, addr, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
				return send([]byte(says))
			}, func(string) { close(ready) })
		}()
		<-ready
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	defer serve(s, "1", "a")()
	defer serve(b, "x://1", "b")()
	for addr, want := range map[string]string{"1": "a", "x://1": "b"} {
		got := ""
		if err := s.Call(t.Context(), addr, "m", nil, func(f []byte) error { got = string(f); return nil }); err != nil || got != want {
			t.Errorf("at %s answers %q, %v", addr, got, err)
		}
	}
	if err := s.Call(t.Context(), "y://1", "m", nil, nil); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("an unknown scheme: %v", err)
	}
}
