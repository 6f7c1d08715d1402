package dispatch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

func TestHints(t *testing.T) {
	if b := EncodeHints(&route.Request{ID: "a", Attempt: 2, Model: "m", Tokens: []kv.Token{1}, Pin: kv.Worker{ID: 3}, Exclude: []kv.WorkerID{4}}); b != nil {
		t.Errorf("a request without wishes has the hints %s", b)
	}
	want := route.Request{
		Override: route.Override{
			OverlapWeight: new(0.0), Temperature: new(0.5), Mode: new(route.Random), AssumeReuse: new(false), TrackPrefill: new(true),
			TTFTTarget: new(250.0), ITLTarget: new(0.0),
			MoE: &route.MoEQuery{Layer: new(uint32(0)), Experts: []uint32{1, 2}, Group: new(uint32(3)), Fallback: new(false)},
		},
		Allowed: []kv.WorkerID{5, kv.MaxWorkerID}, Session: route.Session{ID: "s", Last: true},
		Priority: queue.Priority{Strict: 7, Jump: time.Minute}, ExpectedOutput: 9,
		Client: 1 << 63,
	}
	var got route.Request
	if err := ApplyHints(EncodeHints(&want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hints and back:\n%s", diff)
	}
}

// TestHintsForRouter: only a worker which is known to be no router process gets no hints.
func TestHintsForRouter(t *testing.T) {
	router, worker := engine.Card{Router: true}, engine.Card{}
	task := RoutedTask{dispatcher: &Dispatcher{HasRouters: true}, Route: route.Request{ExpectedOutput: 9}, Workers: func() *catalog.Model {
		return &catalog.Model{Workers: []*catalog.Worker{{Instance: disco.Instance{ID: 1}, Card: &router}, {Instance: disco.Instance{ID: 2}, Card: &worker}}}
	}}
	for id, want := range map[kv.WorkerID]bool{1: true, 2: false, 3: true} {
		task.Decision.Worker.ID = id
		if got := task.hintsForRouter(); (got != nil) != want {
			t.Errorf("worker %d gets the hints %s", id, got)
		}
	}
	task.dispatcher.HasRouters = false
	if got := task.hintsForRouter(); got != nil {
		t.Errorf("behind a router process a worker gets the hints %s", got)
	}
}

func FuzzHeed(f *testing.F) {
	f.Add([]byte(`{"router_config_override":{"moe_query":{"layer_id":1}},"allowed_worker_ids":[1],"session_id":"s","strict_priority":1,"priority_jump_ns":5,"expected_output":-4}`))
	f.Add([]byte(`{"later":1}`))
	f.Add([]byte(`{"client":"00ff00000000000a"}`))
	f.Add([]byte(`{"client":"-1"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var req, again route.Request
		if err := ApplyHints(b, &req); err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if req.ExpectedOutput < 0 || len(req.Session.ID) > route.MaxSessionID {
			t.Fatalf("took %+v", req)
		}
		if err := ApplyHints(EncodeHints(&req), &again); err != nil {
			t.Fatal(err)
		}
		if b, c := EncodeHints(&req), EncodeHints(&again); string(b) != string(c) {
			t.Fatalf("%s became %s", b, c)
		}
	})
}
