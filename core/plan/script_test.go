package plan

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// mockerTable is the simulator's default model of time in a few points: 16.5 ms and 15.2 µs a token, and steps by the
// use of 2^20 tokens of cache.
func mockerTable() *TableModel {
	sequences, contexts := []float64{0, 64, 256}, []float64{0, 4096}
	steps := make([][]float64, len(sequences))
	for i, n := range sequences {
		for _, c := range contexts {
			used := min(n*c/(1<<20), 1)
			steps[i] = append(steps[i], 5.74+float64(54.01*used)-float64(25.74*used*used))
		}
	}
	m, err := NewTableModel([]float64{0, 1000, 8192}, []float64{16.5, 32.1, 169.1}, sequences, contexts, steps)
	if err != nil {
		panic(err)
	}
	return m
}

// slowTable returns a model whose worker has so many ms for a token, beside 10 ms for a pass, and steps of 10 ms and a
// tenth of a ms for a sequence.
func slowTable(each float64) *TableModel {
	m, err := NewTableModel([]float64{0, 10_000}, []float64{10, 10 + 10_000*each}, []float64{0, 1000}, []float64{0},
		[][]float64{{10}, {110}})
	if err != nil {
		panic(err)
	}
	return m
}

// testRoles returns the roles of a fleet: aggregated or disaggregated, with or without encode workers.
func testRoles(kind string, each float64) []RoleConfig {
	models := []EngineModel{slowTable(each)}
	coder, err := NewEncoderTable([]float64{0, 1000}, []float64{0, 100})
	if err != nil {
		panic(err)
	}
	var out []RoleConfig
	for _, name := range strings.Split(kind, "+") {
		for r := range WorkerRole(workerRoles) {
			if r.String() == name && r == Encode {
				out = append(out, RoleConfig{Role: r, Encoder: coder})
			} else if r.String() == name {
				out = append(out, RoleConfig{Role: r, Models: models})
			}
		}
	}
	return out
}

// script has a planner, its connector and the traffic.
type script struct {
	cfg       Config
	p         *Planner
	connector *fakeConnector
	now       kv.Mono
	traffic   Traffic
	sampled   time.Duration // of the interval, by samples
	rise      float64       // of arrivals, an interval
	last      string
	plan      Plan
}

// TestScripts runs the golden scripts. An interval is 30 s, a worker takes a prompt token in 0.2 ms unless "each" says
// otherwise, and a step of 10 ms. Commands:
//
//	new roles=ROLE[+ROLE…] [floor=N] [ceiling=N] [budget=N] [accelerators=N] [each=MS] [accelerators-there=N]
//	    [start=D] [drain=D] [workers=N] [interval=D]
//	    a fleet with N ready workers of each role
//	connector [start=D] [drain=D] [accelerators=N] [refuses=BOOL] [broken=BOOL]
//	traffic [arrivals=N] [input=N] [output=N] [cached=SHARE] [spread=X] [media=SHARE] [tokens=N] [ttft=MS] [itl=MS]
//	    [queued=N] [running=N]
//	    changes what the next intervals have; queued and running are of all roles but encode
//	run for=D [metrics=(good|stale|none|frozen|equal|invalid)] [fleet=(known|unknown)] [wave=N] [jitter=D]
//	    prints each plan whose roles are not like in the one before: time, forecast, and for each role
//	    desired/feasible/actual, the order, and the reason. With wave arrivals change by up to N from interval to
//	    interval, and with jitter intervals end by up to D early or late
//	ramp for=D arrivals=N
//	    runs as long, with arrivals which come near N in equal steps
//	sample after=D arrivals=N [queued=N]
//	    a sample so long after the last plan or sample; prints the plan if it raises an order
//	crash role=N [n=N]
//	show
//	    the last plan with its errors of forecasts
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = newScript(t, d)
				return ""
			}
			return s.do(t, d)
		})
	})
}

func newScript(t *testing.T, d *datadriven.TestData) *script {
	kind, each, floor, ceiling, budget, accelerators, workers := "aggregated", 0.2, 0, 0, 0, 0, 1
	d.MaybeScanArgs(t, "roles", &kind)
	if d.HasArg("each") {
		each = number(t, d, "each", 0)
	}
	d.MaybeScanArgs(t, "floor", &floor)
	d.MaybeScanArgs(t, "ceiling", &ceiling)
	d.MaybeScanArgs(t, "budget", &budget)
	d.MaybeScanArgs(t, "accelerators", &accelerators)
	d.MaybeScanArgs(t, "workers", &workers)
	s := &script{cfg: Config{
		Roles: testRoles(kind, each), Budget: budget,
		Targets:  Targets{TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond},
		Interval: duration(t, d, "interval", 0),
	}}
	for i := range s.cfg.Roles {
		r := &s.cfg.Roles[i]
		r.Floor, r.Ceiling, r.Accelerators = floor, ceiling, accelerators
	}
	s.now = kv.Mono(time.Hour)
	s.traffic = Traffic{InputTokens: 500, OutputTokens: 100, InputSpread: 0.5}
	p, err := New(s.cfg)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	s.cfg.EnsureDefaults()
	s.p, s.connector = p, &fakeConnector{roles: s.cfg.Roles, start: time.Minute, drain: 30 * time.Second}
	for i := range s.cfg.Roles {
		for range workers {
			s.connector.workers = append(s.connector.workers, fakeWorker{role: i, placed: true})
		}
	}
	return s
}

func number(t *testing.T, d *datadriven.TestData, key string, otherwise float64) float64 {
	var text string
	if d.MaybeScanArgs(t, key, &text); text == "" {
		return otherwise
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return x
}

func duration(t *testing.T, d *datadriven.TestData, key string, otherwise time.Duration) time.Duration {
	var text string
	if d.MaybeScanArgs(t, key, &text); text == "" {
		return otherwise
	}
	x, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return x
}

func (s *script) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "connector":
		c := s.connector
		c.start, c.drain = duration(t, d, "start", c.start), duration(t, d, "drain", c.drain)
		d.MaybeScanArgs(t, "accelerators", &c.accelerators)
		d.MaybeScanArgs(t, "refuses", &c.refuses)
		d.MaybeScanArgs(t, "broken", &c.broken)
		return ""
	case "traffic":
		f := &s.traffic
		f.Arrivals, f.InputTokens = number(t, d, "arrivals", f.Arrivals), number(t, d, "input", f.InputTokens)
		f.OutputTokens, f.CachedShare = number(t, d, "output", f.OutputTokens), number(t, d, "cached", f.CachedShare)
		f.InputSpread, f.MediaShare = number(t, d, "spread", f.InputSpread), number(t, d, "media", f.MediaShare)
		f.MediaTokens = number(t, d, "tokens", f.MediaTokens)
		f.TTFT, f.ITL = number(t, d, "ttft", f.TTFT), number(t, d, "itl", f.ITL)
		for r := range Encode {
			f.Queued[r], f.Running[r] = number(t, d, "queued", f.Queued[r]), number(t, d, "running", f.Running[r])
		}
		return ""
	case "run":
		return s.run(t, d)
	case "ramp":
		to, n := number(t, d, "arrivals", 0), float64(duration(t, d, "for", 0)/s.p.cfg.Interval)
		s.rise = (to - s.traffic.Arrivals) / n
		out := s.run(t, d)
		s.rise = 0
		return out
	case "sample":
		s.sampled += duration(t, d, "after", 0)
		sample := IntervalSample{Arrivals: number(t, d, "arrivals", 0)}
		for r := range Encode {
			sample.Queued[r] = number(t, d, "queued", 0)
		}
		plan, raised := s.p.HandleSample(s.now.Add(s.sampled), sample)
		if !raised {
			return "no order is raised\n"
		}
		s.plan = plan
		for i := range plan.Roles {
			s.connector.obey(plan.At, i, plan.Roles[i].Order)
		}
		forecast, roles := s.describe()
		return fmt.Sprintf("%v: %s%s", plan.At.Sub(kv.Mono(time.Hour)), forecast, roles)
	case "crash":
		role, n := 0, 1
		d.MaybeScanArgs(t, "role", &role)
		d.MaybeScanArgs(t, "n", &n)
		s.connector.crash(s.now, role, n)
		return ""
	case "show":
		return s.show()
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	metrics, fleet, wave, jitter := "good", "known", number(t, d, "wave", 0), duration(t, d, "jitter", 0)
	d.MaybeScanArgs(t, "metrics", &metrics)
	d.MaybeScanArgs(t, "fleet", &fleet)
	var out strings.Builder
	for end := s.now.Add(duration(t, d, "for", 0)); s.now < end; {
		s.now, s.sampled = s.now.Add(s.p.cfg.Interval), 0
		at := s.now.Add(time.Duration(float64(s.drawWave() * float64(jitter))))
		s.connector.advance(at)
		s.traffic.Arrivals += s.rise
		o := Observation{Traffic: s.measure(metrics, wave), Fleet: s.connector.fleet(at)}
		if fleet == "unknown" {
			o.Fleet = nil
		}
		s.plan = s.p.HandleInterval(at, o)
		if err := s.p.Check(); err != nil {
			d.Fatalf(t, "%v", err)
		}
		for i := range s.plan.Roles {
			s.connector.obey(at, i, s.plan.Roles[i].Order)
		}
		if b := s.p.cfg.Budget; b > 0 && s.connector.used() > b {
			d.Fatalf(t, "%d accelerators are used, and the budget is %d", s.connector.used(), b)
		}
		forecast, roles := s.describe()
		if roles != s.last {
			fmt.Fprintf(&out, "%v: %s%s", s.now.Sub(kv.Mono(time.Hour)), forecast, roles)
			s.last = roles
		}
	}
	return out.String()
}

// countIntervals returns how many intervals there were.
func (s *script) countIntervals() int { return int(s.now.Sub(kv.Mono(time.Hour)) / s.p.cfg.Interval) }

// drawWave returns a number from -1 to 1, which differs from interval to interval.
func (s *script) drawWave() float64 { return (float64(s.countIntervals()*7%5) - 2) / 2 }

// measure returns the metrics of an interval.
func (s *script) measure(how string, wave float64) *Traffic {
	f := s.traffic
	f.At = s.now
	n := s.countIntervals()
	f.Arrivals += float64(wave * s.drawWave())
	if f.TTFT > 0 && how != "equal" {
		f.TTFT += float64(n%10) / 1000 // no two intervals are equal
	}
	switch how {
	case "none":
		return nil
	case "stale":
		f.Stale = true
	case "frozen":
		f.At = s.p.check.last.At
	case "invalid":
		f.Arrivals = -1
	}
	return &f
}

func (s *script) describe() (forecast, roles string) {
	var out strings.Builder
	f := s.plan.Forecast
	if s.plan.Hold == "" {
		fmt.Fprintf(&out, "%.3g/s by %s", f.Raised, f.Method)
		if f.Surprise {
			out.WriteString(", a surprise")
		}
	} else {
		out.WriteString("hold")
	}
	fmt.Fprintf(&out, ", %d accelerators\n", s.plan.Accelerators)
	forecast = out.String()
	out.Reset()
	for _, r := range s.plan.Roles {
		fmt.Fprintf(&out, "  %v %d/%d/%d -> %d: %s\n", r.Role, r.Desired, r.Feasible, r.Actual, r.Order, r.Reason)
	}
	return forecast, out.String()
}

func (s *script) show() string {
	var out strings.Builder
	f := s.plan.Forecast
	fmt.Fprintf(&out, "observed %.3g/s, expected %.3g/s by %s with an error of %.3f, raised to %.3g/s\n", f.Observed,
		f.Expected, f.Method, f.Error, f.Raised)
	for _, e := range f.Errors {
		fmt.Fprintf(&out, "  %s: %.3f\n", e.Method, e.Error)
	}
	for _, r := range s.plan.Roles {
		fmt.Fprintf(&out, "%v: %.4f of requests keep the targets with %d, %.4f with any number; %s\n", r.Role, r.Attainment,
			r.Desired, r.Attainable, r.Model)
	}
	return out.String()
}
