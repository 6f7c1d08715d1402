package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// splitFleet is a fleet whose router has settings about where prompts are computed.
type splitFleet struct {
	*fleet
	set      disagg.SplitSettings
	reported []string // rules, by attempt
}

var _ SplitRouter = (*splitFleet)(nil)

func (f *splitFleet) SplitSettings(req *route.Request) disagg.SplitSettings {
	if req.ID != "r" {
		f.note("settings of %s", req.ID)
	}
	return f.set
}

func (f *splitFleet) RecordSplit(_ string, attempt uint32, s *engine.SplitReport) {
	f.reported = append(f.reported, string(rune('0'+attempt))+" "+s.Rule)
}

// TestSplitTravels: what the caller of a router process asks for goes before what that router has, both reach the worker
// in every attempt, and what the workers report reaches the router, by attempt, and the caller.
func TestSplitTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d := newFleet(2, nil)
		router := &splitFleet{fleet: f, set: disagg.SplitSettings{Policy: new(disagg.NeverRemote), MaxPrefillQueueSize: new(7)}}
		d.Router = router
		attempts := 0
		f.answer = func(addr string, body []byte, recv func(frame []byte) error) error {
			var req engine.Request
			if err := engine.DecodeRequest(body, &req); err != nil {
				return err
			}
			attempts++
			got := req.Split.Apply(disagg.DefaultSplit())
			if want := (disagg.SplitConfig{Policy: disagg.AlwaysRemote, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 7, DecodeWeight: 1}); got != want {
				t.Errorf("attempt %d asks for %+v, want %+v", req.Attempt, got, want)
			}
			delta := engine.Delta{Attempt: req.Attempt, Tokens: []kv.Token{1}, Split: &engine.SplitReport{Rule: "by " + addr}}
			if err := recv(engine.AppendDelta(nil, &delta)); err != nil {
				return err
			}
			if addr == "w1" {
				return fault.New(fault.Unavailable, "gone")
			}
			return recv(engine.AppendDelta(nil, &engine.Delta{Attempt: req.Attempt, Pos: 1, Tokens: []kv.Token{99}}))
		}
		g := &Generation{Request: engine.Request{Prompt: []kv.Token{7, 8, 9}, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 6}}}
		g.Request.Split.Policy = new(disagg.AlwaysRemote)
		g.Route, g.Workers, g.Sink = route.Request{ID: "r"}, f.model, &sink{g: g}
		if err := d.Generate(t.Context(), g, 1); err != nil || attempts != 2 {
			t.Errorf("%d attempts: %v", attempts, err)
		}
		if want := []string{"1 by w1", "2 by w2"}; !slices.Equal(router.reported, want) {
			t.Errorf("the router heard %q, want %q", router.reported, want)
		}
	})
}
