package planner

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
)

// exampleDecision is the example of docs/format/decision.md.
func exampleDecision() FleetDecision {
	return FleetDecision{
		Version: 1, ID: 1796072421382, Namespace: "penstock", Time: "2026-11-30T21:00:29Z",
		Roles: []RoleDecision{{Role: "aggregated", Workers: 2, Leave: []kv.WorkerID{1897697234748949}, Reason: "stop 1: 2 workers are needed, by ITL"}},
	}
}

// TestDecisionFormat: the page of the format has a decision and an acknowledgement as they are written and read.
func TestDecisionFormat(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/decision.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```")
	if len(blocks) != 5 {
		t.Fatalf("the page has %d parts, want two blocks", len(blocks))
	}
	var documented FleetDecision
	if err := json.Unmarshal([]byte(strings.TrimPrefix(blocks[1], "json")), &documented); err != nil {
		t.Fatal(err)
	}
	have, _ := json.Marshal(documented)
	want, _ := json.Marshal(exampleDecision())
	if string(have) != string(want) {
		t.Errorf("the page has %s\nwant         %s", have, want)
	}
	ack, err := parseAck([]byte(strings.TrimPrefix(blocks[3], "json")))
	if err != nil {
		t.Fatal(err)
	}
	fleet := ack.fleetOf([]plan.WorkerRole{plan.Decode, plan.Aggregated}, documented.ID)
	if ack.ID != documented.ID || fleet[1] != (plan.RoleFleet{Ready: 2, Draining: 1}) || fleet[0] != (plan.RoleFleet{}) {
		t.Errorf("%+v, %+v", ack, fleet)
	}
}

// testStore checks that a connector writes decisions into a store, whose ids ascend over planners, and reads
// acknowledgements.
func testStore(ctx context.Context, t *testing.T, store DecisionStore, acknowledge func(Ack)) {
	t.Helper()
	roles := []plan.WorkerRole{plan.Aggregated}
	newConnector := func(patience time.Duration) *VirtualConnector {
		c := NewVirtualConnector(store, patience)
		c.timeout = fixturetest.TimeLeft(t) // a busy server may need longer than storeTimeout
		return c
	}
	c := newConnector(0)
	if fleet, problems := c.DescribeFleet(ctx, roles); fleet != nil || problems != nil {
		t.Errorf("an empty store: %v, %q", fleet, problems)
	}
	d := exampleDecision()
	if err := c.ApplyDecision(ctx, &d, nil); err != nil {
		t.Fatal(err)
	}
	if _, problems := c.DescribeFleet(ctx, roles); len(problems) != 1 || !strings.Contains(problems[0], "no agent has acknowledged decision 1796072421382") {
		t.Errorf("problems %q", problems)
	}
	acknowledge(Ack{Version: 1, ID: d.ID, Error: "no quota", Roles: []AckRole{{Role: "aggregated", Ready: 1, Refused: 1}}})
	fleet, problems := c.DescribeFleet(ctx, roles)
	if len(fleet) != 1 || fleet[0] != (plan.RoleFleet{Ready: 1, Refused: 1}) || len(problems) != 1 || !strings.Contains(problems[0], `"no quota"`) {
		t.Errorf("%+v, %q", fleet, problems)
	}
	later := exampleDecision()
	later.ID++
	if err := c.ApplyDecision(ctx, &later, nil); err != nil {
		t.Fatal(err)
	}
	if fleet, _ := c.DescribeFleet(ctx, roles); len(fleet) != 1 || fleet[0] != (plan.RoleFleet{Ready: 1}) {
		t.Errorf("%+v has what an earlier decision could not have", fleet)
	}
	acknowledge(Ack{Version: 2, ID: d.ID})
	if fleet, problems := c.DescribeFleet(ctx, roles); fleet != nil || len(problems) != 1 || !strings.Contains(problems[0], "version 2") {
		t.Errorf("%+v, %q", fleet, problems)
	}
	// The clock of the next planner is behind.
	next, earlier := newConnector(time.Hour), exampleDecision()
	earlier.ID = 5
	if err := next.ApplyDecision(ctx, &earlier, nil); err != nil {
		t.Fatal(err)
	}
	data, err := store.ReadDecision(ctx)
	var stored FleetDecision
	if err != nil || json.Unmarshal(data, &stored) != nil || stored.ID != later.ID+1 || earlier.ID != stored.ID {
		t.Errorf("after decision %d of another planner comes %s, %v", later.ID, data, err)
	}
	// Of two planners the later one writes.
	later.ID++
	if err := c.ApplyDecision(ctx, &later, nil); err == nil || !strings.Contains(err.Error(), "another planner of this namespace") {
		t.Errorf("the planner before it: %v", err)
	}
	earlier.ID = 5
	if err := next.ApplyDecision(ctx, &earlier, nil); err != nil {
		t.Error(err)
	}
}

// lossyStore is a store whose writes succeed, and of which the first ones seem to fail.
type lossyStore struct {
	DecisionStore
	losses int
}

func (s *lossyStore) WriteDecision(ctx context.Context, data []byte) error {
	err := s.DecisionStore.WriteDecision(ctx, data)
	if s.losses--; s.losses >= 0 {
		err = errors.Join(err, errors.New("no answer"))
	}
	return err
}

// TestLostWrite: a planner whose decision was written, and which was not told so, is no other planner.
func TestLostWrite(t *testing.T) {
	directory, err := NewDirectoryStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	store := &lossyStore{DecisionStore: directory}
	c := NewVirtualConnector(store, time.Hour)
	for i, lost := range []bool{true, false, true, true, false} {
		store.losses = 0
		if lost {
			store.losses = 1
		}
		d := exampleDecision()
		d.ID += uint64(i)
		if err := c.ApplyDecision(t.Context(), &d, nil); (err != nil) != lost || err != nil && strings.Contains(err.Error(), "another planner") {
			t.Errorf("decision %d, whose answer is lost: %v: %v", i, lost, err)
		}
	}
	// Another planner is found, also when nothing was written for certain.
	store.losses = 1
	first, d := NewVirtualConnector(store, time.Hour), exampleDecision()
	if err := first.ApplyDecision(t.Context(), &d, nil); err == nil {
		t.Error("the answer was not lost")
	}
	next := exampleDecision()
	if err := NewVirtualConnector(store, time.Hour).ApplyDecision(t.Context(), &next, nil); err != nil {
		t.Error(err)
	}
	if err := first.ApplyDecision(t.Context(), &d, nil); err == nil || !strings.Contains(err.Error(), "another planner") {
		t.Errorf("after decision %d of another planner: %v", next.ID, err)
	}
}

// TestRefusedBefore: what an agent could not have for an earlier planner is not refused to this one.
func TestRefusedBefore(t *testing.T) {
	dir := t.TempDir()
	store, err := NewDirectoryStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(Ack{Version: 1, ID: exampleDecision().ID, Roles: []AckRole{{Role: "aggregated", Ready: 1, Starting: 1, Refused: 1}}})
	if err := os.WriteFile(filepath.Join(dir, ackFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewVirtualConnector(store, time.Hour)
	if fleet, _ := c.DescribeFleet(t.Context(), []plan.WorkerRole{plan.Aggregated}); len(fleet) != 1 || fleet[0] != (plan.RoleFleet{Ready: 1, Starting: 1}) {
		t.Errorf("fleet %+v", fleet)
	}
}

// TestNeverAcknowledged: decisions which no agent acknowledges are reported, also if each interval has another one.
func TestNeverAcknowledged(t *testing.T) {
	store, err := NewDirectoryStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := NewVirtualConnector(store, 2*time.Minute)
		for i := range 4 {
			if _, problems := c.DescribeFleet(t.Context(), nil); (len(problems) > 0) != (i >= 2) {
				t.Errorf("after %d decisions: %q", i, problems)
			}
			d := exampleDecision()
			d.ID += uint64(i)
			if err := c.ApplyDecision(t.Context(), &d, nil); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
		}
	})
}

func TestDirectoryStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "decisions")
	store, err := NewDirectoryStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	testStore(t.Context(), t, store, func(a Ack) {
		text, _ := json.Marshal(a)
		if err := os.WriteFile(filepath.Join(dir, ackFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("the directory has %v, %v, want the two files", files, err)
	}
}

func TestNATSStore(t *testing.T) {
	server, err := natsd.Start(natsd.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := server.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	store, err := NewNATSStore(conn, "penstock")
	if err != nil {
		t.Fatal(err)
	}
	ctx := fixturetest.PatientContext(t)
	testStore(ctx, t, store, func(a Ack) {
		b, err := store.openBucket(ctx)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := json.Marshal(a)
		if _, err := b.Put(ctx, "penstock.ack", text); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAgentAloneKnowsWorkers: without a server the workers are the ones which the agent acknowledges.
func TestAgentAloneKnowsWorkers(t *testing.T) {
	dir := t.TempDir()
	store, err := NewDirectoryStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeFleet{rate: 60}
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlanner(t, Config{Sources: SourceConfig{Pages: []string{"http://fleet/metrics"}}}, f, NewVirtualConnector(store, time.Minute))
		stop := startPlanner(t, p)
		pass(time.Minute + time.Second)
		if r := p.LastReport(); len(r.Roles) > 0 || r.Hold != "the workers are not known" || !strings.Contains(strings.Join(r.Problems, "\n"), "in an acknowledgement with id 0") {
			t.Errorf("without an acknowledgement: %+v, %q, %q", r.Roles, r.Hold, r.Problems)
		}
		text, _ := json.Marshal(Ack{Version: 1, Roles: []AckRole{{Role: "aggregated", Ready: 1}}})
		if err := os.WriteFile(filepath.Join(dir, ackFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if r := p.LastReport(); orderOf(p) < 4 || r.Roles[0].Actual != 1 {
			t.Errorf("%+v, %q", r.Roles, r.Problems)
		}
		stop()
	})
}

// TestDryRun: without a connector plans are made, and orders are not withdrawn for which nothing starts.
func TestDryRun(t *testing.T) {
	f := &fakeFleet{rate: 60, processes: []*fakeProcess{{id: 1, role: "aggregated", registered: true}}}
	synctest.Test(t, func(t *testing.T) {
		p := newTestPlanner(t, Config{Sources: SourceConfig{Server: "http://fleet"}}, f, nil)
		stop := startPlanner(t, p)
		pass(time.Hour + time.Second)
		if r := p.LastReport(); orderOf(p) < 4 || r.Roles[0].Actual != 1 || r.Connector != "none" || r.DecisionID != 0 {
			t.Errorf("%+v", r)
		}
		f.change(func(f *fakeFleet) {
			f.processes = append(f.processes, &fakeProcess{id: 2, role: "aggregated", registered: true})
			f.rate = 0.1
			f.cached = map[kv.WorkerID]int{2: 9}
		})
		pass(time.Hour)
		if r := p.LastReport(); orderOf(p) != 1 || len(r.Leave["aggregated"]) != 1 || r.Leave["aggregated"][0] != 1 {
			t.Errorf("%+v, %v", r.Roles, r.Leave)
		}
		stop()
	})
}

// TestWebhook: decisions are posted with their signature; errors and answers which are no acknowledgement are said, and
// redirects are not followed.
func TestWebhook(t *testing.T) {
	status, answer, posted := http.StatusOK, "", 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		posted++
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write(body)
		if got, want := r.Header.Get(signatureHeader), "sha256="+hex.EncodeToString(mac.Sum(nil)); got != want {
			t.Errorf("signature %s, want %s", got, want)
		}
		want, _ := json.Marshal(exampleDecision())
		if string(body) != string(want) || r.Method != http.MethodPost {
			t.Errorf("%s %s", r.Method, body)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	c := NewWebhookConnector(WebhookConfig{URL: server.URL + "/hook?token=hidden", Secret: "secret"})
	defer c.Close()
	c.client.Timeout = fixturetest.TimeLeft(t)
	roles := []plan.WorkerRole{plan.Aggregated}
	apply := func() string {
		d := exampleDecision()
		if err := c.ApplyDecision(t.Context(), &d, nil); err != nil {
			return err.Error()
		}
		return ""
	}
	if problem := apply(); problem != "" {
		t.Error(problem)
	}
	if fleet, _ := c.DescribeFleet(t.Context(), roles); fleet != nil {
		t.Errorf("fleet %+v", fleet)
	}
	answer = `{"version":1,"id":7,"roles":[{"role":"aggregated","ready":3}]}`
	if problem := apply(); problem != "" {
		t.Error(problem)
	}
	if fleet, _ := c.DescribeFleet(t.Context(), roles); len(fleet) != 1 || fleet[0].Ready != 3 {
		t.Errorf("fleet %+v", fleet)
	}
	for _, tt := range []struct {
		status        int
		answer, wants string
	}{
		{http.StatusFound, "", "302 Found"},
		{http.StatusBadGateway, "", "502 Bad Gateway"},
		{http.StatusOK, "thanks", "no acknowledgement"},
		{http.StatusOK, strings.Repeat(" ", maxAck) + `{"version":1}`, "no acknowledgement"},
	} {
		status, answer = tt.status, tt.answer
		if problem := apply(); !strings.Contains(problem, tt.wants) {
			t.Errorf("status %d: %q, want %q", tt.status, problem, tt.wants)
		}
	}
	status, answer = http.StatusOK, `{"version":1,"id":1796072421382,"roles":[{"role":"aggregated","refused":3}]}`
	if problem := apply(); problem != "" {
		t.Error(problem)
	}
	if posted != 7 {
		t.Errorf("%d calls, want 7", posted)
	}
	server.Close()
	if problem := apply(); problem == "" || strings.Contains(problem, "hidden") {
		t.Errorf("without a server: %q", problem)
	}
	if fleet, problems := c.DescribeFleet(t.Context(), roles); fleet != nil || problems != nil {
		t.Errorf("an answer to an earlier decision tells what exists: %+v, %q", fleet, problems)
	}
}
