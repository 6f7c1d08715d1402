package dialects

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/internal/config"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

// street is a house of separate processes: a frontend that takes routers by turns and looks at no media, two routers that do,
// and a worker for each server.
type street struct {
	*house
	routers []*house // the same, as each of the routers sees it
}

// role runs a process until the test ends.
func (h *house) role(command config.Command, run func(context.Context, *config.Loaded, io.Writer, func(node.Started)) error, settings ...string) node.Started {
	h.t.Helper()
	var env []string
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		env = append(env, config.EnvName(key)+"="+value)
	}
	cfg, err := config.Load("", env, config.NoFlags(command))
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan node.Started, 1), make(chan error, 1)
	go func() { ended <- run(ctx, cfg, h.log, func(s node.Started) { ready <- s }) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("%s: %v", command, err)
		}
	})
	select {
	case s := <-ready:
		return s
	case err := <-ended:
		ended <- err
		h.t.Fatalf("%s: %v\n%s", command, err, h.log)
	case <-time.After(fixturetest.TimeLeft(h.t)):
		h.t.Fatalf("%s does not become ready\n%s", command, h.log)
	}
	return node.Started{}
}

// pave starts a street.
func pave(t *testing.T, dialect enginemock.Dialect, p plan) *street {
	t.Helper()
	s := &street{house: &house{t: t, dialect: dialect, block: blockSize, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, log: &logBuffer{}}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
	dir := modelDir(t)
	openEyes(t, dir)
	front := s.role(config.Frontend, node.RunFrontend, "http-addr=127.0.0.1:0", "drain-grace=0s", "nats-listen=127.0.0.1:0", "component=router", "router-mode=round-robin", "prompt-wait=1h")
	s.url = front.URL
	nats := "nats=" + front.NATS
	for i := range 2 {
		b := serve(t, dialect, dir, p)
		s.engines = append(s.engines, b)
		s.role(config.Worker, node.RunWorker, nats, fmt.Sprint("worker-id=", i+1), "model-path="+dir, "engine="+b.spec(dialect)+p.spec)
		r := s.role(config.Router, node.RunRouter, nats, "multimodal=true", "router-mode=kv", "http-addr=127.0.0.1:0", "router-predicted-ttl=0s", fmt.Sprint("router-seed=", i+1))
		seen := *s.house
		seen.url = r.URL
		s.routers = append(s.routers, &seen)
	}
	for _, r := range s.routers {
		r.engines = s.engines
		r.eventually(func() error { return r.follows(2) })
	}
	s.eventually(func() error {
		if health := s.get("/health"); !strings.Contains(health, `"workers":2`) {
			return fmt.Errorf("the frontend knows %s", health)
		}
		return nil
	})
	return s
}

// follows says why a router does not follow so many workers; nil if it does.
func (h *house) follows(n int) error {
	var table struct {
		Rows []struct {
			Feed struct{ State string }
		}
	}
	if err := json.Unmarshal([]byte(h.get("/v1/router/workers")), &table); err != nil {
		return err
	}
	live := 0
	for _, row := range table.Rows {
		if row.Feed.State == "live" {
			live++
		}
	}
	if live != n {
		return fmt.Errorf("the caches of %d workers of %d are followed", live, n)
	}
	return nil
}

// resolved is of how many conversations a router found out what they show.
func (h *house) resolved() (n int) {
	h.t.Helper()
	for line := range strings.Lines(h.get("/metrics")) {
		if value, ok := strings.CutPrefix(line, `penstock_router_process_media_resolve_seconds_count{outcome="resolved"} `); ok {
			n, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return n
}

// ask sends a conversation and returns its answer with the worker that served it, and which router chose that; then all
// routers know what is cached.
func (s *street) ask(parts ...string) (a answer, router int) {
	s.t.Helper()
	a, router = s.chat(nil, parts...), -1
	for i, r := range s.routers {
		var d struct {
			Attempts []struct {
				Worker    int  `json:"worker_id"`
				Predicted *int `json:"predicted_cached_tokens"`
			}
		}
		if json.Unmarshal([]byte(r.get("/v1/router/decisions?request_id="+a.id)), &d) == nil && len(d.Attempts) > 0 {
			router, a.worker = i, d.Attempts[0].Worker-1
			if p := d.Attempts[0].Predicted; p != nil {
				a.expected = *p
			}
		}
	}
	for _, r := range s.routers {
		r.settled()
		r.eventually(r.idle)
	}
	return a, router
}

// idle says that a router counts a request with a worker; nil if it does not. What another router sent ends here some
// milliseconds after it ended there, and a worker that seems to be busy may lose to one without the picture.
func (h *house) idle() error {
	var table struct {
		Rows []struct {
			Load struct {
				Active int `json:"active_requests"`
			}
		}
	}
	if err := json.Unmarshal([]byte(h.get("/v1/router/workers")), &table); err != nil {
		return err
	}
	for i, row := range table.Rows {
		if row.Load.Active != 0 {
			return fmt.Errorf("worker %d is believed to serve %d requests", i, row.Load.Active)
		}
	}
	return nil
}

// TestMultimodalRouters: router processes identify pictures, for engines that take them in requests of their own: the
// same picture again is where it was, whichever router is asked, and as much of it is cached as was predicted.
func TestMultimodalRouters(t *testing.T) {
	for name, c := range visionEngines() {
		t.Run(name, func(t *testing.T) {
			s := pave(t, c.dialect, c.plan)
			after := strings.Repeat("Say it in a few words that everybody knows. ", 4)
			holder, asked := map[int]int{}, map[int]bool{}
			for round := range 3 {
				for seed := range 5 {
					a, router := s.ask("What does this picture show, and who would have made it? ", picture(t, 200+seed, 168, seed+1), after)
					asked[router] = true
					if a.status != http.StatusOK || a.err != "" || router < 0 {
						t.Fatalf("%+v, chosen by router %d", a, router)
					}
					if off := a.cached - a.expected; off < -s.block || off > s.block {
						t.Errorf("picture %d: %d tokens were predicted, %d reported", seed, a.expected, a.cached)
					}
					switch {
					case round == 0:
						holder[seed] = a.worker
						if a.cached >= 64 {
							t.Errorf("picture %d is new: %+v", seed, a)
						}
					case a.cached < 64 || a.worker != holder[seed]:
						t.Errorf("picture %d in round %d: %+v, which is at %d", seed, round, a, holder[seed])
					}
				}
			}
			looked := 0
			for _, r := range s.routers {
				looked += r.resolved()
			}
			if len(asked) != 2 || looked != 15 {
				t.Errorf("the routers %v were asked, and found out about %d pictures", asked, looked)
			}
		})
	}
}
