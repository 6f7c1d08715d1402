package bus_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/natsd"
)

func TestNATSEmbedded(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return openNATS(t, natsd.Config{}) })
}

func TestNATSOverTCP(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return openNATS(t, natsd.Config{Listen: "127.0.0.1:0"}) })
}

// openNATS opens a bus on a server of its own.
func openNATS(t *testing.T, cfg natsd.Config) bus.Bus {
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
	b, err := bus.NewNATS(nc, bus.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
