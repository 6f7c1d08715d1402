package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"penstock/internal/doctor"
	"penstock/internal/fixturetest"

	"penstock/internal/config"
	"penstock/internal/plane/disco"
)

// deadAddr is where no worker answers.
const deadAddr = "tcp://127.0.0.1:1"

// registerDead registers, until the test ends, a worker that is registered like the one
// worker in dir, under another id, and does not answer.
func registerDead(t *testing.T, dir, component string) {
	t.Helper()
	registry, err := disco.NewFileRegistry(disco.FileConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)
	ctx, found := context.WithCancel(t.Context())
	defer found()
	var like disco.Instance
	err = registry.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
		for _, in := range set {
			if in.Component == "backend" {
				like = in
				found()
			}
		}
	})
	if err != nil || like.ID == 0 {
		t.Fatalf("no worker is registered: %v", err)
	}
	like.ID, like.Addr, like.Component = like.ID+1, deadAddr, component
	if _, err := registry.Register(t.Context(), like); err != nil {
		t.Fatal(err)
	}
}

// status is the answer of /health and /ready.
type status struct {
	Code   int `json:"-"`
	Status string
	Reason string
	Models []struct {
		ID, Status, Reason string
		Workers            int
		Ready              int `json:"ready_workers"`
	}
	Instances []struct{ State, Reason string }
}

func (p *process) status(path string) (s status) {
	p.t.Helper()
	resp, data := p.do(http.MethodGet, path, nil)
	if err := json.Unmarshal(data, &s); err != nil {
		p.t.Fatalf("%s: %v: %s", path, err, data)
	}
	s.Code = resp.StatusCode
	return s
}

// TestHealthOfQuarantinedWorker: a model whose only worker does not answer cannot be served, and
// the probes say so, with the reason, while the process lives. A worker that answers makes it
// ready again.
func TestHealthOfQuarantinedWorker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := launch(t, config.Worker, "discovery=file", "discovery-dir="+dir)
	registerDead(t, dir, "dead")
	f := launch(t, config.Frontend, "discovery=file", "discovery-dir="+dir, "component=dead", "migration-wait=0s")
	f.serves("penstock-tiny", 1)
	if a := f.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusServiceUnavailable {
		t.Fatalf("a worker that does not answer: %+v", a)
	}
	f.eventually("the worker is quarantined", func() bool {
		_, table := f.do(http.MethodGet, "/v1/router/workers", nil)
		return strings.Contains(string(table), `"quarantined"`)
	})
	for _, path := range []string{"/health", "/ready", "/health?model=penstock-tiny", "/ready?model=penstock-tiny"} {
		s := f.status(path)
		if s.Code != http.StatusServiceUnavailable || len(s.Models) != 1 || s.Models[0].Status != "unhealthy" || s.Models[0].Workers != 1 || s.Models[0].Ready != 0 ||
			!strings.Contains(s.Models[0].Reason, "not answering") {
			t.Errorf("%s: %+v", path, s)
		}
	}
	if s := f.status("/health"); s.Status != "unhealthy" || len(s.Instances) != 1 || s.Instances[0].State != "quarantined" || !strings.Contains(s.Instances[0].Reason, "has not answered") {
		t.Errorf("/health: %+v", s)
	}
	if s := f.status("/health?model=other"); s.Code != http.StatusServiceUnavailable || len(s.Models) != 1 || s.Models[0].ID != "other" || s.Models[0].Reason == "" {
		t.Errorf("a model that is not there: %+v", s)
	}
	if resp, _ := f.do(http.MethodGet, "/live", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("/live: %s", resp.Status)
	}
	found := doctor.Examine(t.Context(), doctor.Examination{Server: f.url, Timeout: fixturetest.TimeLeft(t) / 4})
	failed := map[string]string{}
	for _, c := range found {
		if c.Status == doctor.CheckFail {
			failed[c.Check] = c.Detail
		}
	}
	if !strings.Contains(failed["model penstock-tiny"], "not answering") || !strings.Contains(failed["server"], "unhealthy") {
		t.Errorf("doctor: %+v", found)
	}

	sound := launch(t, config.Frontend, "discovery=file", "discovery-dir="+dir)
	sound.serves("penstock-tiny", 1)
	for _, path := range []string{"/health", "/ready", "/ready?model=penstock-tiny"} {
		if s := sound.status(path); s.Code != http.StatusOK || len(s.Models) != 1 || s.Models[0].Status != "healthy" || s.Models[0].Ready != 1 || s.Models[0].Reason != "" {
			t.Errorf("beside a worker that answers, %s: %+v", path, s)
		}
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	sound.eventually("no worker is left", func() bool {
		s := sound.status("/ready")
		return s.Code == http.StatusServiceUnavailable && strings.Contains(s.Models[0].Reason, "no worker")
	})
}

// TestHealthThroughRouters: a frontend that sends to router processes is ready while the workers
// behind one of them can be used.
func TestHealthThroughRouters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fleet := []string{"discovery=file", "discovery-dir=" + dir, "migration-wait=0s"}
	launch(t, config.Worker, fleet...)
	registerDead(t, dir, "dead")
	router := launch(t, config.Router, append(fleet, "component=dead", "http-addr=127.0.0.1:0")...)
	f := launch(t, config.Frontend, append(fleet, "component=router")...)
	f.serves("penstock-tiny", 1)
	if a := f.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusServiceUnavailable {
		t.Fatalf("behind the router no worker answers: %+v", a)
	}
	for name, p := range map[string]*process{"router": router, "frontend": f} {
		p.eventually(name+" not ready", func() bool { return p.status("/ready").Code == http.StatusServiceUnavailable })
		for _, path := range []string{"/health", "/ready", "/health?model=penstock-tiny"} {
			if s := p.status(path); s.Code != http.StatusServiceUnavailable || len(s.Models) != 1 || s.Models[0].Status != "unhealthy" || !strings.Contains(s.Models[0].Reason, "not answering") {
				t.Errorf("%s %s: %+v", name, path, s)
			}
		}
		if resp, _ := p.do(http.MethodGet, "/live", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s /live: %s", name, resp.Status)
		}
	}
	launch(t, config.Worker, append(fleet, "component=dead")...)
	for name, p := range map[string]*process{"router": router, "frontend": f} {
		p.eventually(name+" ready", func() bool { return p.status("/ready").Code == http.StatusOK })
	}
	if a := f.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusOK {
		t.Errorf("with a worker that answers: %+v", a)
	}
}
