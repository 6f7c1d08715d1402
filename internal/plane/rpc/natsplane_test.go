package rpc_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/plane/natsd"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

func TestNATSEmbedded(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane { return openNATS(t, natsd.Config{}) })
}

func TestNATSOverTCP(t *testing.T) {
	rpctest.Run(t, func(t *testing.T) rpc.Plane { return openNATS(t, natsd.Config{Listen: "127.0.0.1:0"}) })
}

// openNATS opens a plane on a server of its own.
func openNATS(t *testing.T, cfg natsd.Config) rpc.Plane {
	t.Helper()
	s, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	connect := s.Connect
	if s.URL() != "" {
		connect = func(name string) (*nats.Conn, error) { return natsd.Connect(s.URL(), name, nil) }
	}
	nc, err := connect("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	p, err := rpc.NewNATS(nc, rpc.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
