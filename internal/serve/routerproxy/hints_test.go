package routerproxy

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// TestWishesReachTheRouter: the client's routing hints reach the router behind the proxy, on every
// attempt, and no worker.
func TestWishesReachTheRouter(t *testing.T) {
	wishes := route.Request{
		Override: route.Override{Temperature: new(0.5), MoE: &route.MoEQuery{Layer: new(uint32(2)), Fallback: new(false)}},
		Allowed:  []kv.WorkerID{1, 2}, Session: route.Session{ID: "s"}, Priority: queue.Priority{Strict: 3}, ExpectedOutput: 4,
	}
	var asked []route.Request
	pick := func(req *route.Request) (route.Decision, error) {
		asked = append(asked, *req)
		return others(2)(req)
	}
	r := newRig(t, Config{}, &book{pick: pick}, func(_ context.Context, addr string, req *engine.Request, send func(*engine.Delta) error) error {
		if req.Hints != nil {
			t.Errorf("worker %s got the hints %s", addr, req.Hints)
		}
		if addr == "w1" {
			return fault.New(fault.Unavailable, "the connection broke")
		}
		return finish(req, send)
	})
	req := request(1)
	req.Hints = dispatch.EncodeHints(&wishes)
	if _, err := r.generate(req); err != nil {
		t.Fatal(err)
	}
	if len(asked) < 2 {
		t.Fatalf("asked %d times", len(asked))
	}
	for _, got := range asked {
		want := wishes
		want.ID, want.Attempt, want.Model, want.Tokens, want.Exclude = got.ID, got.Attempt, "m", []kv.Token{1}, got.Exclude
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the router is asked (-want +got)\n%s", diff)
		}
	}
	r = newRig(t, Config{}, &book{pick: pick}, nil)
	req.Hints = []byte("{")
	if _, err := r.generate(req); fault.CodeOf(err) != fault.Invalid || err == nil {
		t.Errorf("hints that are no JSON: %v", err)
	}
}

// TestCardOfARouter: a proxy's card says that it is a router, and has nothing specific to one worker.
func TestCardOfARouter(t *testing.T) {
	card := servetest.ModelCard("m")
	card.MaxBatchedTokens, card.Role = 100, engine.RoleDecode
	card.Experts = []engine.HostedExperts{{Layer: 1, Experts: []uint32{2}}}
	if got := unionCard(&catalog.Model{Card: card, Workers: []*catalog.Worker{{Card: &card}}}); !got.Router || got.MaxBatchedTokens != 0 || got.Experts != nil || got.Role != engine.RoleAggregated {
		t.Errorf("the card is %+v", got)
	}
}
