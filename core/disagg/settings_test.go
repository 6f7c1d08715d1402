package disagg

import "testing"

// TestSplitSettings: what is set of each place goes before what is set of the next one, value by value, and a limit
// selects the policy threshold where the place which sets it has no policy.
func TestSplitSettings(t *testing.T) {
	worker := SplitConfig{Policy: ByCost, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2, DecodeWeight: 1}
	with := func(policy SplitPolicy, local, queue int) SplitConfig {
		return SplitConfig{policy, local, queue, 1}
	}
	policy := func(p SplitPolicy) SplitSettings { return SplitSettings{Policy: &p} }
	local := func(n int) SplitSettings { return SplitSettings{MaxLocalPrefillLength: &n} }
	queue := func(n int) SplitSettings { return SplitSettings{MaxPrefillQueueSize: &n} }
	for _, c := range []struct {
		name                       string
		request, runTime, frontend SplitSettings
		router                     SplitSettings // of a router process behind the frontend
		want                       SplitConfig
	}{
		{name: "nothing is set", want: worker},
		{name: "the router's", router: policy(NeverRemote), want: with(NeverRemote, 1000, 2)},
		{name: "the frontend's over the router's", frontend: policy(AlwaysRemote), router: policy(NeverRemote), want: with(AlwaysRemote, 1000, 2)},
		{name: "run time over the frontend's", runTime: policy(NeverRemote), frontend: policy(AlwaysRemote), want: with(NeverRemote, 1000, 2)},
		{name: "the request's over all", request: policy(ByCost), runTime: policy(NeverRemote), frontend: policy(AlwaysRemote), want: worker},
		{name: "a limit selects threshold", frontend: local(0), want: with(ByThreshold, 0, 2)},
		{name: "the other one does too", request: queue(0), frontend: policy(AlwaysRemote), want: with(ByThreshold, 1000, 0)},
		{name: "a limit beside a policy", request: SplitSettings{Policy: new(AlwaysRemote), MaxPrefillQueueSize: new(7)}, want: with(AlwaysRemote, 1000, 7)},
		{name: "a limit below a policy", request: policy(NeverRemote), runTime: local(5), want: with(NeverRemote, 5, 2)},
		{name: "a limit of the last place", request: local(1), router: queue(4), want: with(ByThreshold, 1, 4)},
		{name: "each limit of another place", request: local(1), runTime: queue(2), frontend: local(3), router: queue(4), want: with(ByThreshold, 1, 2)},
	} {
		asked := c.request.Over(c.runTime).Over(c.frontend).Over(c.router)
		if got := asked.Apply(worker); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	// A place which changes its own values keeps its policy.
	if got := local(5).Or(policy(AlwaysRemote)).Apply(worker); got != with(AlwaysRemote, 5, 2) {
		t.Errorf("a limit of a place with a policy: %+v", got)
	}
}
