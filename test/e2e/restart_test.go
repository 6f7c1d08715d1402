package e2e

import (
	"testing"

	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
)

// crash leaves in dir what a killed process leaves: registrations of the given
// workers that were not released.
func crash(t *testing.T, dir string, workers ...disco.Instance) {
	t.Helper()
	nats, err := natsd.Start(natsd.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect("crash")
	if err != nil {
		t.Fatal(err)
	}
	registry, err := disco.NewNATSRegistry(conn, disco.NATSRegistryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if _, err := registry.Register(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	registry.Close() // releases nothing
	conn.Close()
	if err := nats.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRestartForgetsTheDead: workers of a killed process are not listed, and get
// no requests, while their leases have not run out yet.
func TestRestartForgetsTheDead(t *testing.T) {
	dir := t.TempDir()
	crash(t, dir,
		disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Endpoint: "generate", Addr: "mem-1"},
		disco.Instance{Kind: disco.KindWorker, ID: 7, Epoch: 1, Namespace: "penstock", Component: "backend", Endpoint: "generate", Addr: "mem-2"},
	)
	s := start(t, "data-dir="+dir, "workers=1")
	var health struct {
		Instances []struct {
			WorkerID int    `json:"worker_id"`
			State    string `json:"state"`
		} `json:"instances"`
	}
	s.get("/health", &health)
	if len(health.Instances) != 1 || health.Instances[0].WorkerID != 1 || health.Instances[0].State != "ready" {
		t.Errorf("instances are %+v, want worker 1, ready", health.Instances)
	}
}
