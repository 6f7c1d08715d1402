package bus_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

func TestNATSEmbedded(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return openNATS(t, natsd.Config{}) })
}

func TestNATSOverTCP(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return openNATS(t, natsd.Config{Listen: "127.0.0.1:0"}) })
}

func TestZMQAlone(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return bus.OpenZMQ(t, bus.ZMQPeer{}) })
}

// One process publishes, another one subscribes.
func TestZMQBetweenProcesses(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bus.Bus { return bus.OpenPair(t) })
}

func TestMemArchive(t *testing.T) {
	bustest.RunArchive(t, func(*testing.T) bus.Archive { return bus.NewMemArchive() })
}

// An archive without faults behind the wrapper is still an archive.
func TestFaultyArchiveWithoutFaults(t *testing.T) {
	bustest.RunArchive(t, func(*testing.T) bus.Archive {
		return bustest.NewFaultyArchive(bus.NewMemArchive(), 1, bustest.ArchiveFaults{})
	})
}

func TestNATSArchiveEmbedded(t *testing.T) {
	bustest.RunArchive(t, func(t *testing.T) bus.Archive { return openArchive(t, natsd.Config{}) })
}

func TestNATSArchiveOverTCP(t *testing.T) {
	bustest.RunArchive(t, func(t *testing.T) bus.Archive { return openArchive(t, natsd.Config{Listen: "127.0.0.1:0"}) })
}

// openArchive opens an archive on a server of its own.
func openArchive(t *testing.T, cfg natsd.Config) bus.Archive {
	t.Helper()
	a, err := bus.NewNATSArchive(connect(t, cfg), bus.ArchiveConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// openNATS opens a bus on a server of its own.
func openNATS(t *testing.T, cfg natsd.Config) bus.Bus {
	t.Helper()
	b, err := bus.NewNATSBus(connect(t, cfg), bus.NATSBusConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// connect returns a connection to a server of its own.
func connect(t *testing.T, cfg natsd.Config) *nats.Conn {
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
	return natsdtest.Connect(t, s)
}

func TestMemQueue(t *testing.T) {
	bustest.RunQueue(t, func(*testing.T) bus.Queues { return bus.NewMemBus() })
}

func TestNATSQueueEmbedded(t *testing.T) {
	bustest.RunQueue(t, func(t *testing.T) bus.Queues { return openNATS(t, natsd.Config{}).(bus.Queues) })
}

func TestNATSQueueOverTCP(t *testing.T) {
	bustest.RunQueue(t, func(t *testing.T) bus.Queues {
		return openNATS(t, natsd.Config{Listen: "127.0.0.1:0"}).(bus.Queues)
	})
}

// Queues without faults behind the wrapper are still queues.
func TestFaultyQueueWithoutFaults(t *testing.T) {
	bustest.RunQueue(t, func(*testing.T) bus.Queues {
		return bustest.NewFaultyQueues(bus.NewMemBus(), 1, bustest.QueueFaults{})
	})
}
