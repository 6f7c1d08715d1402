package rpc_test

import (
	"context"
	"encoding/binary"
	"testing"

	"penstock/internal/plane/natsd"
	"penstock/internal/plane/rpc"
)

// BenchmarkPlanes measures the planes beside each other in one process: a call
// with one frame, and one frame of a call with many.
func BenchmarkPlanes(b *testing.B) {
	for _, plane := range []struct {
		name string
		open func(b *testing.B) rpc.Plane
	}{
		{"mem", func(*testing.B) rpc.Plane { return rpc.NewMemPlane() }},
		{"http", func(b *testing.B) rpc.Plane {
			p, err := rpc.NewHTTPPlane(rpc.HTTPConfig{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(p.Close)
			return p
		}},
		{"nats", func(b *testing.B) rpc.Plane {
			s, err := natsd.Start(natsd.Config{Listen: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = s.Close() })
			nc, err := natsd.Connect(s.URL(), "bench", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(nc.Close)
			p, err := rpc.NewNATSPlane(nc, rpc.NATSPlaneConfig{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(p.Close)
			return p
		}},
	} {
		p := plane.open(b)
		ctx, cancel := context.WithCancel(context.Background())
		ready, done := make(chan string), make(chan error)
		go func() { done <- p.Serve(ctx, "", sendMany, func(a string) { ready <- a }) }()
		addr := <-ready
		call := func(b *testing.B, frames int) {
			if err := p.Call(b.Context(), addr, "m", binary.LittleEndian.AppendUint64(nil, uint64(frames)), ignore); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("call/"+plane.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call(b, 1)
			}
		})
		b.Run("frame/"+plane.name, func(b *testing.B) {
			b.ReportAllocs()
			call(b, b.N)
		})
		cancel()
		<-done
	}
}

// sendMany sends as many frames of 40 bytes as the body says.
func sendMany(_ context.Context, _ string, body []byte, send func([]byte) error) error {
	frame := make([]byte, 40)
	for range binary.LittleEndian.Uint64(body) {
		if err := send(frame); err != nil {
			return err
		}
	}
	return nil
}
