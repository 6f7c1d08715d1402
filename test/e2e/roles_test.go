package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/disco"
)

// roleRow is what these tests read of a worker's row.
type roleRow struct {
	WorkerID uint64 `json:"worker_id"`
	Role     string `json:"role"`
	State    string `json:"state"`
	Warnings []struct {
		Code string `json:"code"`
	} `json:"warnings"`
	Behind []roleRow `json:"behind"`
}

// roles returns the worker of each role, in the table of workers or behind a router process there.
func (s *server) roles() map[string]roleRow {
	s.t.Helper()
	var table struct {
		Rows []roleRow `json:"rows"`
	}
	s.get("/v1/router/workers", &table)
	all := map[string]roleRow{}
	for _, r := range table.Rows {
		all[r.Role] = r
		for _, b := range r.Behind {
			all[b.Role] = b
		}
	}
	return all
}

// serveSomeone checks that requests are answered, and that the router decides for workers of these roles only.
func (s *server) serveSomeone(roles ...string) {
	s.t.Helper()
	for i := range 4 {
		id := fmt.Sprintf("roles-%d", i)
		resp, data := s.do(http.MethodPost, "/v1/chat/completions", chat(longPrompt(i), 3), "x-request-id", id)
		if resp.StatusCode != http.StatusOK {
			s.t.Errorf("chat: %s: %s", resp.Status, data)
			continue
		}
		var decisions struct {
			Attempts []struct {
				WorkerID uint64 `json:"worker_id"`
				Role     string `json:"role"`
			} `json:"attempts"`
		}
		s.get("/v1/router/decisions?request_id="+id, &decisions)
		if len(decisions.Attempts) != 1 || !slices.Contains(roles, decisions.Attempts[0].Role) {
			s.t.Errorf("attempts %+v, want one at a worker of role %q", decisions.Attempts, roles)
		}
	}
}

// calledWorkers returns the workers of a process which were called, by its metrics.
func (s *server) calledWorkers() (called []string) {
	s.t.Helper()
	_, data := s.do(http.MethodGet, "/metrics", nil)
	for line := range strings.Lines(string(data)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(series, "penstock_worker_request_duration_seconds_count{") && value != "0" {
			called = append(called, strings.Split(series, `"`)[1])
		}
	}
	return called
}

// TestRolesInOneProcess: up with prefill and encode workers serves by its decode workers, and shows every role.
func TestRolesInOneProcess(t *testing.T) {
	t.Parallel()
	s := start(t, "workers=1", "prefill-workers=1", "encode-workers=1")
	s.serveSomeone("decode")
	roles := s.roles()
	for role, id := range map[string]uint64{"decode": 1, "prefill": 2, "encode": 3} {
		if r := roles[role]; r.WorkerID != id || r.State != "ready" {
			t.Errorf("the worker of role %s is %+v", role, r)
		}
	}
	if called := s.calledWorkers(); !slices.Equal(called, []string{"1"}) {
		t.Errorf("the workers %q were called, want 1", called)
	}
	var health struct {
		Instances []struct {
			Role string `json:"role"`
		} `json:"instances"`
	}
	s.get("/health", &health)
	if len(health.Instances) != 3 || health.Instances[1].Role != "prefill" {
		t.Errorf("/health has %+v", health.Instances)
	}
}

// TestRolesOfAFleet: one worker of each role, whichever way they find each other. Requests go to workers that take
// them, through a router process too, and a watcher of kind worker, which a router without roles is, sees no
// other.
func TestRolesOfAFleet(t *testing.T) {
	t.Parallel()
	first := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	dir := t.TempDir()
	for name, settings := range map[string][]string{
		"nats":   {"nats=" + first.started.NATS},
		"file":   {"discovery=file", "discovery-dir=" + dir},
		"static": {"discovery=static"},
	} {
		workers, addrs := map[string]*process{}, []string{}
		for _, role := range []string{"aggregated", "prefill", "decode", "encode"} {
			workers[role] = launch(t, config.Worker, append([]string{"role=" + role, "http-addr=127.0.0.1:0"}, settings...)...)
			addrs = append(addrs, workers[role].started.Addr)
		}
		doors := []*process{first}
		switch name {
		case "nats":
			launch(t, config.Router, settings...)
			through := launch(t, config.Frontend, append([]string{"component=router"}, settings...)...)
			through.serves("penstock-tiny", 1)
			through.eventually("every role behind the router", func() bool { return len(through.roles()) == 5 })
			if a := through.complete("/v1/chat/completions", chat(longPrompt(9), 3)); a.status != http.StatusOK {
				t.Errorf("through a router process: %+v", a)
			}
		case "static":
			doors = []*process{launch(t, config.Frontend, append([]string{"static-workers=" + strings.Join(addrs, ",")}, settings...)...)}
		default:
			doors = []*process{launch(t, config.Frontend, settings...)}
		}
		for _, f := range doors {
			f.serves("penstock-tiny", 2)
			// A prefill worker has the warning until it knows a decode worker, and here it knows none with static.
			f.eventually("every role, ready and with its warnings", func() bool {
				roles := f.roles()
				for role, r := range roles {
					isUnused := role == "prefill" && name == "static"
					if (len(r.Warnings) == 1 && r.Warnings[0].Code == engine.WarnRoleUnused) != isUnused || r.State != "ready" {
						return false
					}
				}
				return len(roles) == 4
			})
			f.serveSomeone("aggregated", "decode")
		}
		for role, w := range workers {
			var health struct{ Role string }
			if w.get("/health", &health); health.Role != role {
				t.Errorf("%s: the health of the worker of role %s says %q", name, role, health.Role)
			}
			if called := w.calledWorkers(); len(called) > 0 && (role == "prefill" || role == "encode") {
				t.Errorf("%s: the worker of role %s was called", name, role)
			}
		}
	}
	registry, err := disco.NewFileRegistry(disco.FileConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[disco.Kind]string{disco.KindWorker: "[aggregated decode]", disco.KindPrefill: "[prefill]", disco.KindEncode: "[encode]"} {
		if got := rolesOfKind(t, registry, kind); fmt.Sprint(got) != want {
			t.Errorf("a watcher of kind %s sees workers of roles %v, want %s", kind, got, want)
		}
	}
}

// rolesOfKind returns the roles of the cards that a watcher of a kind sees, ascending.
func rolesOfKind(t *testing.T, registry disco.Registry, kind disco.Kind) (roles []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer cancel()
	err := registry.Watch(ctx, kind, func(set []disco.Instance) {
		roles = nil
		for i := range set {
			var card engine.Card
			if err := json.Unmarshal(set[i].Meta, &card); err != nil {
				t.Error(err)
			}
			roles = append(roles, card.Role.String())
		}
		cancel()
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(roles)
	return roles
}
