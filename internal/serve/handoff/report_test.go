package handoff

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestReport: the first delta with tokens, and no other one, says what was decided about the prompt, by what the request
// asks for, and what came of it. Prefill workers are asked for nothing.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, rigConfig{blocks: []int{16, 64}})
		// answer returns the report in the answer to a request.
		answer := func(req *engine.Request) engine.SplitReport {
			t.Helper()
			req.Choices = 2 // each has a delta
			deltas, reports := 0, []*engine.SplitReport{}
			err := r.decoder.Generate(r.ctx, req, func(d *engine.Delta) error {
				if len(d.Tokens) > 0 {
					deltas++
				}
				if d.Split != nil {
					if reports = append(reports, d.Split); deltas != 1 {
						t.Errorf("%s: a report beside %d tokens, after %d deltas", req.ID, len(d.Tokens), deltas)
					}
				}
				return nil
			})
			if <-r.outcomes; err != nil || len(reports) != 1 || deltas < 2 {
				t.Fatalf("%s: %d reports in %d deltas, %v", req.ID, len(reports), deltas, err)
			}
			got := *reports[0]
			if !(got.LocalMs > 0) || !(got.RemoteMs > 0) {
				t.Errorf("%s: no costs: %+v", req.ID, got)
			}
			got.LocalMs, got.RemoteMs = 0, 0
			return got
		}
		expect := func(req *engine.Request, want engine.SplitReport) {
			t.Helper()
			want.Tokens, want.PrefillWorkers = len(req.Prompt), 1
			if diff := cmp.Diff(want, answer(req)); diff != "" {
				t.Errorf("%s: %s", req.ID, diff)
			}
		}
		const always = "the policy is always"
		expect(newRequest(1, 300, 5), engine.SplitReport{Policy: disagg.AlwaysRemote, Remote: true, Rule: always, By: kv.Worker{ID: 10}})

		never := newRequest(2, 300, 5)
		never.Split.Policy = new(disagg.NeverRemote)
		expect(never, engine.SplitReport{Policy: disagg.NeverRemote, Rule: "the policy is never"})

		short := newRequest(3, 300, 5)
		short.Split.MaxLocalPrefillLength = new(300)
		expect(short, engine.SplitReport{Policy: disagg.ByThreshold, MaxLocalPrefillLength: 300, Rule: "the prefill is short"})

		r.prefills[0].kill()
		got := answer(newRequest(4, 300, 5))
		if got.Failure == "" || !got.Remote || got.Rule != always || got.By.ID != 0 {
			t.Errorf("when the prefill worker is dead: %+v", got)
		}
		r.expectIdle()
	})
}

// TestReportedCosts: whatever a cost is, a report can have it.
func TestReportedCosts(t *testing.T) {
	for _, ms := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300} {
		d := disagg.Decision{LocalCost: disagg.PathCost{Wait: ms}, RemoteCost: disagg.PathCost{Tail: ms}}
		frame := engine.AppendDelta(nil, &engine.Delta{Attempt: 1, Split: newReport(&d)})
		if err := engine.DecodeDelta(frame, new(engine.Delta)); err != nil {
			t.Errorf("%v: %v", ms, err)
		}
	}
}
