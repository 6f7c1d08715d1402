package plan

import (
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/kv"
)

// anyTraffic draws metrics, seldom missing or impossible ones.
func anyTraffic(t *rapid.T, now kv.Mono) *Traffic {
	switch rapid.IntRange(0, 9).Draw(t, "metrics") {
	case 0:
		return nil
	case 1:
		return &Traffic{At: now, Arrivals: math.NaN()}
	case 2:
		return &Traffic{At: 1, Arrivals: 10}
	}
	f := &Traffic{At: now, Arrivals: float64(rapid.SampledFrom([]int{0, 1, 5, 40, 100, 400, 2000}).Draw(t, "arrivals"))}
	f.InputTokens = float64(rapid.SampledFrom([]int{1, 200, 2000, 30_000}).Draw(t, "input"))
	f.OutputTokens = float64(rapid.SampledFrom([]int{1, 100, 1000}).Draw(t, "output"))
	f.InputSpread, f.CachedShare = rapid.Float64Range(0, 3).Draw(t, "spread"), rapid.Float64Range(0, 1).Draw(t, "cached")
	f.MediaShare, f.MediaTokens = rapid.Float64Range(0, 1).Draw(t, "media"), 500
	f.TTFT, f.ITL = rapid.Float64Range(0, 2000).Draw(t, "ttft"), rapid.Float64Range(0, 100).Draw(t, "itl")
	f.Stale = rapid.Bool().Draw(t, "stale")
	for r := range Encode {
		f.Queued[r] = rapid.Float64Range(0, 100).Draw(t, "queued")
		f.Running[r] = rapid.Float64Range(0, 2000).Draw(t, "running")
	}
	return f
}

// anyConfig draws a fleet whose floors fit its budget.
func anyConfig(t *rapid.T) Config {
	kinds := []string{"aggregated", "prefill+decode", "prefill+decode+encode", "aggregated+encode"}
	kind := rapid.SampledFrom(kinds).Draw(t, "roles")
	c := Config{Roles: testRoles(kind, 0.2), Targets: Targets{TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond}}
	floors := 0
	for i := range c.Roles {
		r := &c.Roles[i]
		r.Floor = rapid.SampledFrom([]int{-1, 1, 2, 3}).Draw(t, "floor")
		r.Ceiling = rapid.IntRange(3, 20).Draw(t, "ceiling")
		r.Accelerators = rapid.IntRange(1, 3).Draw(t, "accelerators")
		floors += max(r.Floor, 0) * r.Accelerators
	}
	if rapid.Bool().Draw(t, "has a budget") {
		c.Budget = max(floors, 1) + rapid.IntRange(0, 30).Draw(t, "budget beyond the floors")
	}
	c.DownAfter = rapid.SampledFrom([]time.Duration{30 * time.Second, 2 * time.Minute}).Draw(t, "window")
	return c
}

// TestOrdersKeepLimits drives a planner and a connector which lags, loses workers, has too few machines and workers
// which never get ready, and holds the invariants at every step:
//
//   - the accelerators of all workers, also starting and draining ones, never exceed the budget,
//   - orders are between floor and ceiling, as soon as accelerators are free for the floor,
//   - without metrics no order changes, except for the floor and for withdrawn orders,
//   - samples between intervals lower no order,
//   - equal calls give equal plans.
func TestOrdersKeepLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := anyConfig(t)
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		twin, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := &fakeConnector{roles: p.cfg.Roles, start: 70 * time.Second, drain: 30 * time.Second}
		for i := range c.roles {
			for range c.roles[i].least() {
				c.workers = append(c.workers, fakeWorker{role: i, placed: true})
			}
		}
		now := kv.Mono(time.Hour)
		type sentOrder struct {
			due    kv.Mono
			orders []int
		}
		var sent []sentOrder
		// send gives the connector the orders. It begins within the settling time; a step may be carried out in any order of
		// the roles.
		send := func(at kv.Mono, orders []int) {
			lag := rapid.SampledFrom([]time.Duration{0, 0, p.cfg.Interval, 3 * p.cfg.Interval / 2}).Draw(t, "lag")
			due := at.Add(lag)
			if n := len(sent); n > 0 {
				due = max(due, sent[n-1].due)
			}
			if sent = append(sent, sentOrder{due, orders}); due == at {
				for _, role := range rapid.Permutation(indexes(len(orders))).Draw(t, "first role") {
					for _, s := range sent {
						c.obey(at, role, s.orders[role])
					}
				}
				sent = nil
			}
			if p.cfg.Budget > 0 && c.most > p.cfg.Budget {
				t.Fatalf("%d accelerators were used, and the budget is %d", c.most, p.cfg.Budget)
			}
		}
		for range rapid.IntRange(5, 60).Draw(t, "intervals") {
			for i := range rapid.IntRange(0, 3).Draw(t, "samples") {
				at := now.Add(time.Duration(7*(i+1)) * time.Second)
				arrivals := rapid.SampledFrom([]int{-1, 0, 5, 400, 2000}).Draw(t, "sampled arrivals")
				s := IntervalSample{Arrivals: float64(arrivals)}
				s.Queued[c.roles[0].Role] = rapid.Float64Range(0, 100).Draw(t, "sampled queue")
				before := p.currentOrders()
				plan, raised := p.HandleSample(at, s)
				if again, alike := twin.HandleSample(at, s); alike != raised || !reflect.DeepEqual(plan, again) {
					t.Fatalf("equal samples: %+v and %+v", plan, again)
				}
				for i, n := range p.currentOrders() {
					if n < before[i] || n > before[i] && !raised {
						t.Fatalf("%v: a sample has the order %d follow %d: %+v", c.roles[i].Role, n, before[i], plan)
					}
				}
				if raised {
					checkPlan(t, p, &plan)
					send(at, p.currentOrders())
				}
			}
			now = now.Add(p.cfg.Interval)
			c.drain = rapid.SampledFrom([]time.Duration{0, 30 * time.Second, 10 * time.Minute}).Draw(t, "drain")
			c.start = rapid.SampledFrom([]time.Duration{10 * time.Second, time.Minute, time.Hour}).Draw(t, "start")
			c.broken, c.refuses = rapid.IntRange(0, 5).Draw(t, "broken") == 0, rapid.Bool().Draw(t, "refuses")
			c.accelerators = rapid.SampledFrom([]int{0, 0, 8, 200}).Draw(t, "machines")
			if rapid.IntRange(0, 5).Draw(t, "crash") == 0 {
				c.crash(now, rapid.IntRange(0, len(c.roles)-1).Draw(t, "crashed role"), 2)
			}
			for len(sent) > 0 && sent[0].due <= now {
				for role, n := range sent[0].orders {
					c.obey(now, role, n)
				}
				sent = sent[1:]
			}
			c.advance(now)
			o := Observation{Traffic: anyTraffic(t, now), Fleet: c.fleet(now)}
			if rapid.IntRange(0, 9).Draw(t, "fleet") == 0 {
				o.Fleet = nil
			}
			plan := p.HandleInterval(now, o)
			if again := twin.HandleInterval(now, o); !reflect.DeepEqual(plan, again) {
				t.Fatalf("equal calls: %+v and %+v", plan, again)
			}
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
			checkPlan(t, p, &plan)
			if len(plan.Roles) == 0 {
				continue
			}
			send(now, p.currentOrders())
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func checkPlan(t *rapid.T, p *Planner, plan *Plan) {
	for i := range plan.Roles {
		r, state := &plan.Roles[i], &p.roles[i]
		if r.Order > state.cfg.Ceiling || r.Feasible > state.cfg.Ceiling {
			t.Fatalf("%v: %d are ordered and %d feasible, and the ceiling is %d", r.Role, r.Order, r.Feasible, state.cfg.Ceiling)
		}
		if r.Order < state.cfg.least() {
			t.Fatalf("%v: %d are ordered, and the floor is %d", r.Role, r.Order, state.cfg.least())
		}
		if plan.Hold != "" && r.Change != 0 && r.Withdrawn == 0 && r.Order != state.cfg.least() {
			t.Fatalf("%v: changed by %d without metrics: %s", r.Role, r.Change, r.Reason)
		}
		if r.Reason == "" || r.Change < 0 && r.Withdrawn == 0 && r.Feasible > r.Order {
			t.Fatalf("%v: an order without a good reason: %+v", r.Role, *r)
		}
	}
	if p.cfg.Budget > 0 && plan.Accelerators > p.cfg.Budget {
		t.Fatalf("%d accelerators are taken, and the budget is %d", plan.Accelerators, p.cfg.Budget)
	}
}

// anyStation draws the workers of a role with their work.
func anyStation(t *rapid.T) station {
	c := Config{
		Roles:   testRoles("prefill+decode+encode", 0.2),
		Targets: Targets{TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond},
	}
	c.EnsureDefaults()
	u := usage{
		known: true, input: float64(rapid.IntRange(1, 20_000).Draw(t, "input")),
		output: float64(rapid.IntRange(1, 2000).Draw(t, "output")),
		cached: rapid.Float64Range(0, 1).Draw(t, "cached"), inputSpread: rapid.Float64Range(0, 3).Draw(t, "spread"),
		mediaShare: rapid.Float64Range(0, 1).Draw(t, "media"), mediaTokens: 500, mediaSpread: 1,
	}
	load := c.makeWorkload(&u, rapid.Float64Range(0.01, 200).Draw(t, "rate"))
	role := WorkerRole(rapid.IntRange(0, workerRoles-1).Draw(t, "role"))
	return station{
		role: role, model: mockerTable(), coder: c.Roles[2].Encoder, load: &load, seqs: 256, cache: 1 << 20,
		budget: float64(rapid.SampledFrom([]int{512, 2048, 8192}).Draw(t, "budget")), encodeTarget: 250,
	}
}

// TestSizesAreMonotone: with more workers no fewer requests keep the targets, and with more requests no fewer workers
// are needed.
func TestSizesAreMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyStation(t)
		n := rapid.IntRange(1, 100).Draw(t, "workers")
		few, _ := s.attain(n)
		more, _ := s.attain(n + rapid.IntRange(1, 20).Draw(t, "more workers"))
		if few > more+1e-6 || few < 0 || more > 1+1e-9 {
			t.Fatalf("%v: %g keep the targets with %d workers, %g with more", s.role, few, n, more)
		}
		size := s.findSize(0.99)
		busier := *s.load
		busier.rate *= rapid.Float64Range(1, 3).Draw(t, "times")
		s.load = &busier
		if larger := s.findSize(0.99); larger.workers < size.workers {
			t.Fatalf("%v: %d workers for more requests, %d before", s.role, larger.workers, size.workers)
		}
	})
}

// TestLeastNumber compares with a search one by one.
func TestLeastNumber(t *testing.T) {
	for want := 1; want < 300; want++ {
		if got := leastNumber(func(n int) bool { return n >= want }); got != want {
			t.Fatalf("%d is found, want %d", got, want)
		}
	}
	if got := leastNumber(func(int) bool { return false }); got != maxWorkers {
		t.Errorf("%d is found where no number is enough", got)
	}
}

// TestRaiseAfterLowering: a connector which has not seen a lower order yet may drain workers, and start the ones of the
// next order beside them. Their accelerators are taken together.
func TestRaiseAfterLowering(t *testing.T) {
	p, err := New(Config{
		Roles: testRoles("prefill+decode", 0.2), Targets: Targets{TTFT: time.Second, ITL: time.Second},
		Budget: 9,
	})
	if err != nil {
		t.Fatal(err)
	}
	prefill, decode := &p.roles[0], &p.roles[1]
	prefill.order, prefill.fleet.Ready, decode.order, decode.fleet.Ready = 5, 5, 1, 1
	prefill.lowerOrder(0, 3, &p.cfg)
	p.grantWants(0, []int{5, 1}, make([]string, 2))
	if p.grantWants(0, []int{5, 4}, make([]string, 2)); prefill.order != 5 || decode.order != 2 {
		t.Errorf("%d and %d workers are ordered: 7 and 2 may exist or drain, want 5 and 2", prefill.order, decode.order)
	}
}
