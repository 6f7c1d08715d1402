package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// life is one request with the pauses of its answer.
type life struct {
	s      Sample
	pauses []time.Duration
}

// lives makes up n requests by seed, in order of Done: times spread over six
// orders of magnitude, a tenth of the answers broken.
func lives(n int, seed uint64) []life {
	g := newRandomSource(seed, 77)
	out := make([]life, n)
	var sent time.Duration
	for i := range out {
		sent += time.Duration(g.Below(400)) * time.Millisecond / 10
		spread := func() time.Duration { return time.Duration(1 + g.Below(1<<(4+g.Below(27)))) }
		s := Sample{
			Index: i, Due: sent, Sent: sent + spread()/1000, Input: g.Below(5000),
			Output: g.Below(6), Worker: uint64(1 + g.Below(5)),
		}
		s.Cached = g.Below(s.Input + 1)
		s.First = s.Sent + spread()
		s.Last = s.First
		var pauses []time.Duration
		for range s.Output - 1 {
			p := spread()
			pauses = append(pauses, p)
			s.Last += p
		}
		s.Done = s.Last
		if g.Below(10) == 0 {
			s.Error = []string{"timeout", "overloaded"}[g.Below(2)]
		}
		out[i] = life{s, pauses}
	}
	slices.SortStableFunc(out, func(a, b life) int { return int(min(max(a.s.Done-b.s.Done, -1), 1)) })
	return out
}

// record tells r of all of it.
func record(r *Recorder, all []life) {
	for i := range all {
		for _, p := range all[i].pauses {
			r.RecordGap(p, 1)
		}
		r.RecordSample(&all[i].s)
	}
}

// naiveDistribution sorts.
func naiveDistribution(times []time.Duration) Distribution {
	if len(times) == 0 {
		return Distribution{}
	}
	times = slices.Sorted(slices.Values(times))
	var sum float64
	for _, t := range times {
		sum += float64(t)
	}
	at := func(q float64) float64 {
		return float64(times[min(len(times)-1, max(0, int(math.Ceil(q*float64(len(times))-1e-9))-1))]) / 1e6
	}
	return Distribution{
		Count: int64(len(times)), Mean: sum / float64(len(times)) / 1e6, Min: at(0),
		P50: at(.5), P90: at(.9), P95: at(.95), P99: at(.99), P999: at(.999), Max: at(1),
	}
}

// naiveRow computes a row from all samples at once.
func naiveRow(cfg RecorderConfig, all []life) Row {
	row := Row{Policy: cfg.Policy, Workers: cfg.Workers, ErrorKinds: map[string]int{}}
	var ttft, itl, tpot, e2e, late []time.Duration
	work := map[uint64]int64{}
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	good := 0
	for _, l := range all {
		s := l.s
		row.Requests++
		first, last = min(first, s.Sent), max(last, s.Done)
		late = append(late, s.Sent-s.Due)
		itl = append(itl, l.pauses...)
		if s.Error != "" {
			row.Errors++
			row.ErrorKinds[s.Error]++
			continue
		}
		row.InputTokens += int64(s.Input)
		row.CachedTokens += int64(s.Cached)
		row.OutputTokens += int64(s.Output)
		work[s.Worker] += int64(s.Input - s.Cached + s.Output)
		e2e = append(e2e, s.Done-s.Sent)
		ok := float64(s.Done-s.Sent)/1e6 <= cfg.SLO.E2E
		if s.Output > 0 {
			ttft = append(ttft, s.First-s.Sent)
			ok = ok && float64(s.First-s.Sent)/1e6 <= cfg.SLO.TTFT
		}
		if s.Output > 1 {
			mean := (s.Last - s.First) / time.Duration(s.Output-1)
			tpot = append(tpot, mean)
			ok = ok && float64(mean)/1e6 <= cfg.SLO.ITL
		}
		if ok {
			good++
		}
	}
	row.TTFT, row.ITL, row.TPOT, row.E2E = naiveDistribution(ttft), naiveDistribution(itl), naiveDistribution(tpot), naiveDistribution(e2e)
	row.CachedShare = float64(row.CachedTokens) / float64(row.InputTokens)
	var most, sum int64
	for _, w := range work {
		most, sum = max(most, w), sum+w
	}
	row.Imbalance = float64(most) / (float64(sum) / float64(cfg.Workers))
	row.Duration = float64(last-first) / 1e9
	row.RequestsPerSecond = float64(row.Requests-row.Errors) / row.Duration
	row.OutputPerSecond = float64(row.OutputTokens) / row.Duration
	row.Goodput = &Goodput{cfg.SLO, float64(good) / float64(row.Requests), float64(good) / row.Duration}
	d := naiveDistribution(late)
	row.Lateness = &d
	row.Late = d.P99 > max(1, min(100, row.TTFT.Mean/20))
	return row
}

// near compares floats as a histogram of three digits can.
func near() cmp.Option {
	return cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 0.001*max(math.Abs(a), math.Abs(b))+2e-6 })
}

func TestRowIsThatOfAllSamplesAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		cfg := RecorderConfig{Policy: "kv", Workers: 7, SLO: SLO{TTFT: 100, ITL: 50, E2E: 1000}, Sender: RealSender}
		all := lives(1+int(seed*seed*9), seed)
		r := NewRecorder(cfg)
		record(r, all)
		want := naiveRow(cfg, all)
		if len(want.ErrorKinds) == 0 {
			want.ErrorKinds = nil
		}
		if want.InputTokens == 0 {
			want.CachedShare, want.Imbalance = 0, 0
		}
		if diff := cmp.Diff(want, r.Run().Row, near()); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

func TestMeansAreExact(t *testing.T) {
	q := newTimeHistogram()
	q.addTimes(3*time.Nanosecond, 1)
	q.addTimes(math.MaxInt64, 3_000_000) // far beyond what 64 bits hold in sum
	q.addTimes(-time.Second, 1)
	if got, want := q.meanNanoseconds(), int64(math.MaxInt64/3_000_002*3_000_000); got < want || float64(got) > float64(want)*1.000001 {
		t.Errorf("mean is %d, want about %d", got, want)
	}
	d := q.toDistribution()
	if d.Min != 0 || d.Max != float64(math.MaxInt64)/1e6 || d.Count != 3_000_002 {
		t.Errorf("distribution is %+v", d)
	}
}

func TestRanks(t *testing.T) {
	for _, c := range []struct{ n, perMille, want int64 }{
		{1, 500, 1},
		{2, 500, 1},
		{3, 500, 2},
		{100, 990, 99},
		{101, 990, 100},
		{1000, 999, 999},
		{1001, 999, 1000},
		{1, 999, 1},
		{math.MaxInt64, 999, math.MaxInt64 - math.MaxInt64/1000},
	} {
		if got := nearestRank(c.n, c.perMille); got != c.want {
			t.Errorf("the %d/1000 of %d values is the %d., want %d.", c.perMille, c.n, got, c.want)
		}
	}
}

func TestTimelineIsBounded(t *testing.T) {
	r := NewRecorder(RecorderConfig{})
	want := map[time.Duration]timelineStep{}
	g := newRandomSource(5, 5)
	const step = 819200 * time.Millisecond // 100 ms doubled until 450,000 s have 600 points
	for i := range 20_000 {
		sent := time.Duration(g.Below(450_000_000)) * time.Millisecond
		r.RecordSample(&Sample{Index: i, Sent: sent, First: sent + 2, Last: sent + 8, Done: sent + 8, Input: 5, Cached: 2, Output: 3})
		w := want[sent/step]
		w.addStep(&timelineStep{sent: 1, input: 5, cached: 2, output: 3, ttft: 2, answers: 1, itl: 3, itlAnswers: 1})
		want[sent/step] = w
	}
	plots := r.Run().Plots
	if plots.Step != step.Seconds() || len(plots.Timeline) > 600 || len(plots.Timeline) < 300 {
		t.Fatalf("%d points of %v s", len(plots.Timeline), plots.Step)
	}
	for i, p := range plots.Timeline {
		w := want[time.Duration(i)]
		if p != (Point{Sent: w.sent, Input: w.input, Cached: w.cached, Output: w.output, TTFT: 2e-6, ITL: 3e-6}) {
			t.Errorf("point %d is %+v, want %+v", i, p, w)
		}
	}
}

func TestPlotsHoldEverything(t *testing.T) {
	bounds := plotBounds()
	for i := range bounds[1:] {
		if f := float64(bounds[i+1]) / float64(bounds[i]); math.Abs(f-math.Pow(2, 1./plotOctave)) > 0.001 {
			t.Fatalf("bound %d is %v times the one before it", i+1, f)
		}
	}
	if bounds[plotCount-1] < int64(longestTime) {
		t.Fatal("the bounds end before the longest time")
	}
	q := newTimeHistogram()
	values := []time.Duration{0, 1, 999, 1000, 1001, 1090, 1091, time.Millisecond, time.Hour, 1 << 62}
	for _, v := range values {
		q.addTimes(v, 2)
	}
	h := q.toHistogram()
	var sum int64
	for i, n := range h.Count {
		sum += n
		if i > 0 && h.Upper[i] <= h.Upper[i-1] {
			t.Errorf("bound %d is not above the one before it", i)
		}
	}
	if sum != int64(2*len(values)) || h.Count[0] != 8 || h.Count[len(h.Count)-1] != 2 {
		t.Errorf("%d values are in the plot: %v", sum, h)
	}
}

func TestWarmUpIsLeftOutAndSaid(t *testing.T) {
	all := lives(400, 3)
	for _, cfg := range []RecorderConfig{{WarmupRequests: 100}, {Warmup: 2 * time.Second}} {
		r, plain := NewRecorder(cfg), NewRecorder(RecorderConfig{})
		var rest []life
		for _, l := range all {
			if l.s.Index >= cfg.WarmupRequests && l.s.Sent >= cfg.Warmup {
				rest = append(rest, l)
			}
		}
		record(r, all)
		record(plain, rest)
		got, want := r.Run(), plain.Run()
		// Pauses have no request: those of the first counted answer came before it.
		got.Row.ITL, want.Row.ITL = Distribution{}, Distribution{}
		got.Plots.ITL, want.Plots.ITL = Histogram{}, Histogram{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v: %s", cfg, diff)
		}
		text := fmt.Sprintf("%d of 400 requests", 400-len(rest))
		if notes := r.Notes(); len(notes) != 1 || !strings.Contains(notes[0], text) || len(rest) == 400 {
			t.Errorf("notes are %q, want %q in them", notes, text)
		}
	}
	r := NewRecorder(RecorderConfig{WarmupRequests: 1000})
	record(r, all)
	if n := r.Run().Row.ITL.Count; n != 0 {
		t.Errorf("%d pauses of a warm-up are counted", n)
	}
	if notes := strings.Join(r.Notes(), " "); !strings.Contains(notes, "Everything was warm-up") {
		t.Errorf("notes are %q", notes)
	}
}

func TestLateClientsAreToldOf(t *testing.T) {
	for _, c := range []struct {
		ttft, late time.Duration
		want       bool
	}{
		{10 * time.Millisecond, 900 * time.Microsecond, false}, // noise
		{10 * time.Millisecond, 1100 * time.Microsecond, true},
		{time.Second, 49 * time.Millisecond, false}, // a twentieth
		{time.Second, 51 * time.Millisecond, true},
		{time.Minute, 99 * time.Millisecond, false},
		{time.Minute, 101 * time.Millisecond, true},
	} {
		r := NewRecorder(RecorderConfig{Sender: RealSender})
		for i := range 1000 {
			s := Sample{Index: i, Output: 1}
			if i < 20 {
				s.Sent = c.late
			}
			s.First = s.Sent + c.ttft
			s.Done = s.First
			r.RecordSample(&s)
		}
		if got := r.Run().Row.Late; got != c.want || len(r.Notes()) > 0 != c.want {
			t.Errorf("late by %v with a TTFT of %v: marked %v, notes %q", c.late, c.ttft, got, r.Notes())
		}
	}
	if NewRecorder(RecorderConfig{}).Run().Row.Lateness != nil {
		t.Error("a virtual client has a lateness")
	}
}

func TestImbalance(t *testing.T) {
	for _, c := range []struct {
		name    string
		workers int
		work    map[uint64]int
		want    float64
	}{
		{"nothing", 4, nil, 0},
		{"equal", 2, map[uint64]int{1: 10, 2: 10}, 1},
		{"one idle", 2, map[uint64]int{1: 10}, 2},
		{"number not known", 0, map[uint64]int{1: 10, 2: 30}, 1.5},
		{"worker not known", 0, map[uint64]int{0: 10}, 0},
		{"some not known", 0, map[uint64]int{0: 90, 1: 10, 2: 30}, 1.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewRecorder(RecorderConfig{Workers: c.workers})
			for w, n := range c.work {
				r.RecordSample(&Sample{Worker: w, Input: n, Cached: 3, Output: 3})
			}
			if got := r.Run().Row.Imbalance; got != c.want {
				t.Errorf("imbalance is %v, want %v", got, c.want)
			}
		})
	}
}

func TestRecorderIsBounded(t *testing.T) {
	r := NewRecorder(RecorderConfig{})
	for i := range 2 * maxWorkers {
		r.RecordSample(&Sample{Index: i, Sent: time.Duration(i) * time.Minute, Worker: uint64(1 + i), Error: ""})
		r.RecordSample(&Sample{Index: i, Error: fmt.Sprint("kind ", i)})
	}
	run := r.Run()
	if n := len(run.Plots.PerWorker); n != maxWorkers+1 {
		t.Errorf("%d workers", n)
	}
	if n := len(run.Row.ErrorKinds); n != maxErrorKinds+1 || run.Row.ErrorKinds[otherErrors] != 2*maxWorkers-maxErrorKinds {
		t.Errorf("%d kinds of error, %d others", n, run.Row.ErrorKinds[otherErrors])
	}
	if n := len(run.Plots.Timeline); n > maxPoints {
		t.Errorf("%d points", n)
	}
}

func TestRecorderAllocatesNothing(t *testing.T) {
	r := NewRecorder(RecorderConfig{SLO: SLO{TTFT: 1}, Sender: RealSender})
	all := lives(100, 1)
	record(r, all)
	if n := testing.AllocsPerRun(100, func() { record(r, all) }); n != 0 {
		t.Errorf("%v allocations for 100 requests", n)
	}
}

// TestGoldenRun holds a result in bytes, as JSON prints it: it is the same on every
// machine.
func TestGoldenRun(t *testing.T) {
	r := NewRecorder(RecorderConfig{Policy: "kv", Workers: 5, SLO: SLO{TTFT: 100}, Sender: RealSender})
	record(r, lives(60, 8))
	got, err := json.MarshalIndent(r.Run(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	goldenFile(t, "run.json", append(got, '\n'))
}

func BenchmarkRecorder(b *testing.B) {
	r := NewRecorder(RecorderConfig{})
	all := lives(1000, 1)
	b.ReportAllocs()
	for b.Loop() {
		record(r, all)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/request")
}
