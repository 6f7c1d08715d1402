package router

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/disagg"
	"penstock/core/route"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// TestSplitPrecedence: a request's own settings go before what was set of its model at run time, and that before the
// configured ones, value by value. What none of them sets is unset. A model which comes back with another block size
// keeps what was set.
func TestSplitPrecedence(t *testing.T) {
	r := serving(t, Config{Split: disagg.SplitSettings{Policy: new(disagg.AlwaysRemote), MaxLocalPrefillLength: new(1)}}, obs.NewMetrics())
	in := instance(t, "m", 4)
	r.setInstances([]disco.Instance{in})
	expect := func(name string, o route.SplitOverride, want disagg.SplitSettings) {
		t.Helper()
		got := r.SplitSettings(&route.Request{Model: "m", Override: route.Override{SplitOverride: o}})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	change := func(b disaggBody) {
		t.Helper()
		p, err := r.findPool("m")
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			err = r.changeDisaggLocked(p, &b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	none := route.SplitOverride{}
	configured := disagg.SplitSettings{Policy: new(disagg.AlwaysRemote), MaxLocalPrefillLength: new(1)}
	expect("configured", none, configured)
	change(disaggBody{SplitOverride: route.SplitOverride{MaxPrefillQueueSize: new(5)}})
	atRunTime := disagg.SplitSettings{Policy: new(disagg.ByThreshold), MaxLocalPrefillLength: new(1), MaxPrefillQueueSize: new(5)}
	expect("at run time", none, atRunTime)
	expect("by the request", route.SplitOverride{DisaggPolicy: new("never"), MaxPrefillQueueSize: new(0)},
		disagg.SplitSettings{Policy: new(disagg.NeverRemote), MaxLocalPrefillLength: new(1), MaxPrefillQueueSize: new(0)})
	r.setInstances([]disco.Instance{instance(t, "m", 8)})
	expect("with another block size", none, atRunTime)
	change(disaggBody{Reset: true})
	expect("after a reset", none, configured)
	if got := r.SplitSettings(&route.Request{Model: "unknown"}); !cmp.Equal(got, configured) {
		t.Errorf("of an unknown model: %+v", got)
	}
}
