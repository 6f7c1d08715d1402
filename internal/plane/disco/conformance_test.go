package disco_test

import (
	"context"
	"testing"
	"time"

	"penstock/internal/plane/disco"
	"penstock/internal/plane/disco/discotest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// ttl is longer than any part of the suite takes.
const ttl = 10 * time.Minute

func TestMem(t *testing.T) {
	discotest.Run(t, func(*testing.T) disco.Registry { return disco.NewMemRegistry() })
}

func TestNATSEmbedded(t *testing.T) {
	discotest.Run(t, func(t *testing.T) disco.Registry { return openNATS(t, natsd.Config{}) })
}

func TestNATSOverTCP(t *testing.T) {
	discotest.Run(t, func(t *testing.T) disco.Registry { return openNATS(t, natsd.Config{Listen: "127.0.0.1:0"}) })
}

func TestFile(t *testing.T) {
	discotest.Run(t, func(t *testing.T) disco.Registry { return openFile(t, t.TempDir()) })
}

// twoProcesses registers in one process and watches in another.
type twoProcesses struct{ here, there disco.Registry }

func (p twoProcesses) Register(ctx context.Context, in disco.Instance) (disco.Lease, error) {
	return p.here.Register(ctx, in)
}

func (p twoProcesses) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	return p.there.Watch(ctx, kind, sink)
}

func TestFileBetweenProcesses(t *testing.T) {
	discotest.Run(t, func(t *testing.T) disco.Registry {
		dir := t.TempDir()
		return twoProcesses{openFile(t, dir), openFile(t, dir)}
	})
}

func openFile(t *testing.T, dir string) *disco.FileRegistry {
	t.Helper()
	r, err := disco.NewFileRegistry(disco.FileConfig{Dir: dir, TTL: ttl, Interval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// openNATS opens a registry on a server of its own.
func openNATS(t *testing.T, cfg natsd.Config) disco.Registry {
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
	r, err := disco.NewNATSRegistry(natsdtest.Connect(t, s), disco.NATSRegistryConfig{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}
