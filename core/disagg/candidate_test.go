package disagg

import (
	"testing"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// candidate returns a worker which holds so many tokens and has so many to compute.
func candidate(id kv.WorkerID, cached, queued int) PrefillCandidate {
	return PrefillCandidate{Worker: incarnationOf(id, 1), Cached: cached, QueuedTokens: queued}
}

// testTransfer is 4 ms and 0.01 ms a token from another host, and a tenth of that from this one.
var testTransfer = [distances]TransferTime{OtherHost: {4, 0.01}, SameHost: {0.4, 0.001}}

// TestDecideAmong: a job is addressed to a worker for its cache and its place, never for a short wait.
func TestDecideAmong(t *testing.T) {
	near := func(c PrefillCandidate) PrefillCandidate {
		c.From = SameHost
		return c
	}
	c := DefaultSplit()
	c.Policy = AlwaysRemote
	for _, tt := range []struct {
		name    string
		workers []PrefillCandidate
		queued  int // tokens in the queue
		want    kv.WorkerID
		cached  int
	}{
		{"equal workers", []PrefillCandidate{candidate(1, 0, 0), candidate(2, 0, 0)}, 0, 0, 0},
		{"one has less to compute", []PrefillCandidate{candidate(1, 0, 9000), candidate(2, 0, 0)}, 9000, 0, 0},
		{"one holds the prefix", []PrefillCandidate{candidate(1, 0, 0), candidate(2, 3000, 0)}, 0, 2, 3000},
		{"one holds more", []PrefillCandidate{candidate(1, 3200, 0), candidate(2, 3000, 0)}, 0, 1, 3200},
		{"two hold as much, one has less to compute", []PrefillCandidate{candidate(1, 3000, 900), candidate(2, 3000, 800)}, 1700, 2, 3000},
		{"the holder has more to compute than is saved", []PrefillCandidate{candidate(1, 0, 0), candidate(2, 3000, 9000)}, 9000, 0, 0},
		{"one block more is worth little to compute", []PrefillCandidate{candidate(1, 3016, 100), candidate(2, 3000, 0)}, 100, 2, 3000},
		{"what waits in the queue waits for all", []PrefillCandidate{candidate(1, 0, 0), candidate(2, 3000, 0)}, 90_000, 2, 3000},
		{"only one", []PrefillCandidate{candidate(1, 3000, 0)}, 0, 0, 3000},
		{"one is on this host", []PrefillCandidate{candidate(1, 0, 0), near(candidate(2, 0, 0))}, 0, 2, 0},
		{"all are on this host", []PrefillCandidate{near(candidate(1, 0, 0)), near(candidate(2, 0, 0))}, 0, 0, 0},
		{"on this host it would wait", []PrefillCandidate{candidate(1, 0, 0), near(candidate(2, 0, 9000))}, 9000, 0, 0},
		{"the other host has the prefix", []PrefillCandidate{candidate(1, 3000, 0), near(candidate(2, 0, 0))}, 0, 1, 3000},
		{"both have it", []PrefillCandidate{candidate(1, 3000, 0), near(candidate(2, 3000, 0))}, 0, 2, 3000},
	} {
		in := SplitInputs{Tokens: 4000, BlockSize: 16, QueuedTokens: tt.queued}
		d := DecideAmong(&c, &in, &Candidates{Workers: tt.workers, Transfer: testTransfer}, testRates(t), testRates(t))
		if d.To.Worker.ID != tt.want || d.Inputs.RemoteCached != tt.cached || !d.Remote || d.Pinned || d.Inputs.PrefillWorkers != len(tt.workers) {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
	// Of equal costs the nearest is chosen, and then the one with the least to compute.
	equal := [distances]TransferTime{{1, 0}, {1, 0}}
	workers := []PrefillCandidate{candidate(1, 3000, 0), near(candidate(2, 3000, 0)), near(candidate(3, 3000, 0))}
	in := SplitInputs{Tokens: 4000, BlockSize: 16}
	if d := DecideAmong(&c, &in, &Candidates{Workers: workers, Transfer: equal}, testRates(t), testRates(t)); d.To.Worker.ID != 2 {
		t.Errorf("of three equal ones: %+v", d)
	}
}

// TestRemoteCachedDecides: what a prefill worker holds makes a remote prefill cheaper than a local one.
func TestRemoteCachedDecides(t *testing.T) {
	c := DefaultSplit()
	for _, cached := range []int{0, 3900} {
		for _, workers := range [][]PrefillCandidate{{candidate(1, cached, 0)}, {candidate(1, cached, 0), candidate(2, 0, 0)}} {
			in := SplitInputs{Tokens: 4000, BlockSize: 16}
			d := DecideAmong(&c, &in, &Candidates{Workers: workers, Transfer: testTransfer}, testRates(t), testRates(t))
			if d.Remote != (cached > 0) || d.Inputs.RemoteCached != cached || (d.To != Incarnation{}) != (cached > 0 && len(workers) > 1) {
				t.Errorf("%d tokens at one of %d: %+v", cached, len(workers), d)
			}
		}
	}
}

// TestFailuresOfChosen: the saving which failures cost is the saving of the worker to which the job is addressed.
func TestFailuresOfChosen(t *testing.T) {
	c := DefaultSplit()
	in := SplitInputs{Tokens: 4000, BlockSize: 16, Decoding: 10, FailureMs: 3, FailureShare: 0.5}
	among := &Candidates{Workers: []PrefillCandidate{candidate(1, 0, 0), candidate(2, 3000, 0)}, Transfer: testTransfer}
	d := DecideAmong(&c, &in, among, testRates(t), testRates(t))
	saving := d.LocalCost.Sum() - d.RemoteCost.sumWithoutFailures()
	if got := d.RemoteCost.Failures; d.To.Worker.ID != 2 || saving <= 0 || got != 3+saving/2 {
		t.Errorf("failures cost %v ms, and %v ms are saved: %+v", got, saving, d)
	}
}

// TestPinned: the worker which a request names gets its job, if the policy is for a remote prefill. Without that worker
// the prompt is computed here.
func TestPinned(t *testing.T) {
	for _, tt := range []struct {
		policy  SplitPolicy
		workers []PrefillCandidate
		want    kv.WorkerID
		why     SplitReason
	}{
		{AlwaysRemote, []PrefillCandidate{candidate(2, 0, 9000)}, 2, PolicyIsAlways},
		{AlwaysRemote, nil, 0, NamedIsUnknown},
		{NeverRemote, nil, 0, PolicyIsNever},
		{NeverRemote, []PrefillCandidate{candidate(2, 0, 0)}, 0, PolicyIsNever},
		{ByCost, []PrefillCandidate{candidate(2, 0, 0)}, 0, CheaperLocal},
		{ByCost, []PrefillCandidate{candidate(2, 3900, 0)}, 2, CheaperRemote},
	} {
		c := DefaultSplit()
		c.Policy = tt.policy
		in := SplitInputs{Tokens: 4000, BlockSize: 16}
		d := DecideAmong(&c, &in, &Candidates{Workers: tt.workers, Transfer: testTransfer, Pinned: true}, testRates(t), testRates(t))
		if d.To.Worker.ID != tt.want || d.Reason != tt.why || d.Remote != (tt.want != 0) || d.Pinned != d.Remote {
			t.Errorf("%v, %v: %+v", tt.policy, tt.workers, d)
		}
	}
}

// TestChoiceCostsLess: an addressed job never costs more than one in the queue, and none of its workers costs less.
func TestChoiceCostsLess(t *testing.T) {
	local, remote := testRates(t), testRates(t)
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string, max int) int { return rapid.IntRange(0, max).Draw(t, name) }
		in := SplitInputs{
			Tokens: 1 + number("tokens", 20_000), BlockSize: 16, Cached: number("cached", 4000), QueuedJobs: number("jobs", 9), RunningJobs: number("running", 9),
			QueuedTokens: number("queued", 50_000),
		}
		among := &Candidates{Transfer: testTransfer}
		for i := range number("workers", 6) {
			w := candidate(kv.WorkerID(i+1), number("held", 20_000), number("to compute", 9000))
			w.Jobs, w.From = number("its jobs", 4), Distance(number("from", 1))
			among.Workers = append(among.Workers, w)
		}
		c := DefaultSplit()
		c.Policy = AlwaysRemote
		d := DecideAmong(&c, &in, among, local, remote)
		queued := Decide(&c, &in, local, remote)
		if d.Remote != queued.Remote || d.Reason != queued.Reason || d.RemoteCost.Sum() > queued.RemoteCost.Sum() {
			t.Errorf("%+v, in the queue %+v", d, queued)
		}
		if (d.To == Incarnation{}) {
			return
		}
		if d.RemoteCost.Sum() >= queued.RemoteCost.Sum() || d.RemoteCost.Wait < queued.RemoteCost.Wait {
			t.Errorf("%+v is addressed, in the queue it is %+v", d, queued)
		}
		for i := range among.Workers {
			only := Candidates{Workers: among.Workers[i : i+1], Transfer: testTransfer, Pinned: true}
			alone := queued.costAt(&only.Workers[0], &only, remote)
			if alone.Sum() < d.RemoteCost.Sum() {
				t.Errorf("%+v costs %+v, chosen was %+v", only.Workers[0], alone, d)
			}
		}
	})
}

// TestDistance: a transport with a scope which both have is memory of one host.
func TestDistance(t *testing.T) {
	a, b := testMetadata(1), testMetadata(2)
	if got := DistanceBetween(a, b); got != SameHost {
		t.Errorf("on one host: %v", got)
	}
	b.Transports[0].Scope = "host-b"
	if got := DistanceBetween(a, b); got != OtherHost {
		t.Errorf("on two hosts: %v", got)
	}
	b.Transports = nil
	if got := DistanceBetween(a, b); got != OtherHost {
		t.Errorf("without a way: %v", got)
	}
}

func TestDecideAmongAllocatesNothing(t *testing.T) {
	c, local, remote := DefaultSplit(), testRates(t), testRates(t)
	among := &Candidates{Workers: []PrefillCandidate{candidate(1, 0, 0), candidate(2, 3000, 0)}, Transfer: testTransfer}
	in := SplitInputs{Tokens: 4000, Cached: 100, BlockSize: 16, Decoding: 9}
	var d Decision
	if n := testing.AllocsPerRun(100, func() { d = DecideAmong(&c, &in, among, local, remote) }); n != 0 {
		t.Errorf("%v allocations for %v", n, d.Reason)
	}
}
