//go:build ucx && cgo

package xfer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"testing"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
	"penstock/internal/plane/xfer/xfertest"
)

// hasUCX tells that this build has UCX. The tests of all transports then include it.
const hasUCX = true

func TestUCX(t *testing.T) {
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		return xfertest.Ends{Owner: newUCX(t, xfer.TCPConfig{Config: cfg}), Writer: newUCX(t, xfer.TCPConfig{Config: cfg})}
	})
}

// TestUCXWithTLS: peers which meet with TLS.
func TestUCXWithTLS(t *testing.T) {
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "owner"})
	xfertest.Run(t, func(t *testing.T, cfg xfer.Config) xfertest.Ends {
		cfg.Token = "secret"
		return xfertest.Ends{
			Owner:  newUCX(t, xfer.TCPConfig{Config: cfg, ServerTLS: &tls.Config{Certificates: []tls.Certificate{pair.TLS}}}),
			Writer: newUCX(t, xfer.TCPConfig{Config: cfg, ClientTLS: &tls.Config{RootCAs: pair.Pool}}),
		}
	})
}

// TestUCXKeepsSignals: with the library loaded, a nil pointer is still a panic of Go.
func TestUCXKeepsSignals(t *testing.T) {
	newUCX(t, xfer.TCPConfig{})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var p *xfer.Receipt
	t.Log(p.Bytes)
}

// BenchmarkUCX measures transfers between two planes, over UCX and over TCP.
func BenchmarkUCX(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 64 << 20} {
		for _, transport := range []string{"tcp", "ucx"} {
			b.Run(fmt.Sprintf("%s/%dKiB", transport, size>>10), func(b *testing.B) {
				var planes [2]interface {
					xfer.Plane
					io.Closer
				}
				for i := range planes {
					p, err := openPlane(transport)
					if err != nil {
						b.Fatal(err)
					}
					defer p.Close()
					planes[i] = p
				}
				ctx, cancel := context.WithCancel(context.Background())
				ready, done := make(chan struct{}), make(chan error, 1)
				go func() { done <- planes[0].Run(ctx, func() { close(ready) }) }()
				defer func() { cancel(); <-done }()
				<-ready
				src, dst := fillPattern(make([]byte, size), 1), make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					tr, err := planes[0].Expect(xfer.Incoming{Into: [][]byte{dst}})
					if err != nil {
						b.Fatal(err)
					}
					if err := xfer.Write(ctx, planes[1], tr.Descriptor(), nil, src); err != nil {
						b.Fatal(err)
					}
				}
				if !bytes.Equal(src, dst) {
					b.Error("the bytes differ")
				}
			})
		}
	}
}
