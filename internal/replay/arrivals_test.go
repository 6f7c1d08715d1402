package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// rows is a source of given requests.
type rows struct {
	all    []Request
	next   int
	closed bool
}

func (s *rows) Next(r *Request) error {
	if s.next == len(s.all) {
		return io.EOF
	}
	*r = s.all[s.next]
	s.next++
	return nil
}

func (s *rows) Close() error {
	s.closed = true
	return nil
}

// every returns n requests, one each period.
func every(n int, period time.Duration) *rows {
	s := &rows{}
	for i := range n {
		s.all = append(s.all, Request{Index: i, Line: i + 1, At: time.Duration(i) * period, Input: 10 + i, Output: 1, Delay: time.Second})
	}
	return s
}

// collect reads a source to its end.
func collect(t *testing.T, s Source) []Request {
	t.Helper()
	var out []Request
	for {
		var r Request
		err := s.Next(&r)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
}

func arrive(t *testing.T, s Source, a Arrival) Source {
	t.Helper()
	out, err := ApplyArrival(s, a)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDistancesFollowTheirDistribution compares them by Kolmogorov and Smirnov; see
// TestDraws for the bound.
func TestDistancesFollowTheirDistribution(t *testing.T) {
	const n, rate = 20_000, 12.5
	for _, c := range []struct {
		a   Arrival
		cdf func(float64) float64
	}{
		{Arrival{Process: Poisson, Rate: rate}, distuv.Exponential{Rate: rate}.CDF},
		{Arrival{Process: Gamma, Rate: rate}, distuv.Gamma{Alpha: .25, Beta: .25 * rate}.CDF},
		{Arrival{Process: Gamma, Rate: rate, CV: 0.5}, distuv.Gamma{Alpha: 4, Beta: 4 * rate}.CDF},
		{Arrival{Process: Gamma, Rate: rate, CV: 1}, distuv.Exponential{Rate: rate}.CDF},
	} {
		t.Run(fmt.Sprintf("%s cv=%v", c.a.Process, c.a.CV), func(t *testing.T) {
			c.a.Seed = 4
			var before time.Duration
			var gaps []float64
			for _, r := range collect(t, arrive(t, every(n, time.Hour), c.a)) {
				gaps = append(gaps, (r.At - before).Seconds())
				before = r.At
			}
			if d := distance(gaps, c.cdf); d > 1.63/math.Sqrt(n) {
				t.Errorf("the statistic is %v", d)
			}
			if got := n / before.Seconds(); math.Abs(got-rate) > rate*4*max(c.a.CV, 1)/math.Sqrt(n) {
				t.Errorf("the rate is %v, want %v", got, rate)
			}
		})
	}
}

func TestArrivalsKeepOrderAndSayMoments(t *testing.T) {
	for _, c := range []struct {
		name  string
		a     Arrival
		first []time.Duration // moments
		n     int
	}{
		{"as written", Arrival{}, []time.Duration{0, 3 * time.Second, 6 * time.Second}, 100},
		{"twice as fast, later", Arrival{Speedup: 2, Offset: time.Minute}, []time.Duration{60e9, 61.5e9, 63e9}, 100},
		{"uniform", Arrival{Process: Uniform, Rate: 3}, []time.Duration{0, 333333333, 666666666, 1e9}, 100},
		{"limit", Arrival{Limit: 2}, []time.Duration{0, 3e9}, 2},
		{"window", Arrival{From: 4 * time.Second, Until: 12 * time.Second}, []time.Duration{2e9, 5e9}, 2},
		{"window and process", Arrival{Process: Uniform, Rate: 1, From: 4 * time.Second, Until: 13 * time.Second}, []time.Duration{0, 1e9, 2e9}, 3},
		{"closed", Arrival{Process: Closed}, []time.Duration{-1, -1}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := every(100, 3*time.Second)
			s := arrive(t, source, c.a)
			all := collect(t, s)
			if len(all) != c.n {
				t.Fatalf("%d requests, want %d", len(all), c.n)
			}
			for i, r := range all {
				if i < len(c.first) && r.At != c.first[i] {
					t.Errorf("request %d is at %v, want %v", i, r.At, c.first[i])
				}
				if r.Index != i || i > 0 && (r.At < all[i-1].At || r.Line <= all[i-1].Line) {
					t.Errorf("request %d is %+v", i, r)
				}
			}
			if want := clampDuration(1e9 / max(c.a.Speedup, 1)); all[0].Delay != want {
				t.Errorf("the delay is %v, want %v", all[0].Delay, want)
			}
			if s.Close() != nil || !source.closed {
				t.Error("the source is open")
			}
		})
	}
}

func TestArrivalsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		a    Arrival
		want string
	}{
		{Arrival{Process: Poisson}, "needs a rate"},
		{Arrival{Process: Uniform, Rate: math.NaN()}, "a rate of NaN"},
		{Arrival{Process: Uniform, Rate: -1}, "a rate of -1"},
		{Arrival{Process: Gamma, Rate: 1, CV: 100}, "variation of 100"},
		{Arrival{Speedup: -1}, "speed-up of -1"},
		{Arrival{From: 2, Until: 1}, "is empty"},
		{Arrival{Limit: -1}, "negative"},
	} {
		if _, err := ApplyArrival(every(1, 1), c.a); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.a, err, c.want)
		}
	}
	timeless := func(a Arrival) error {
		return arrive(t, &rows{all: []Request{{At: -1, Line: 7}}}, a).Next(&Request{})
	}
	for _, a := range []Arrival{{}, {From: 1}} {
		if err := timeless(a); err == nil || !strings.Contains(err.Error(), "(line 7) has no time") {
			t.Errorf("%+v of a workload without times: %v", a, err)
		}
	}
	if err := timeless(Arrival{Process: Poisson, Rate: 1}); err != nil {
		t.Error(err)
	}
}

// TestSlowArrivalsStayInRange: the latest moments are bounded, not wrapped.
func TestSlowArrivalsStayInRange(t *testing.T) {
	for _, a := range []Arrival{{Process: Gamma, Rate: 1e-6, CV: 10}, {Process: Uniform, Rate: 1e-6}, {Speedup: 1e-6}} {
		var before time.Duration
		for i, r := range collect(t, arrive(t, every(10_000, 24*time.Hour), a)) {
			if r.At < before || r.At > maxRequestTime {
				t.Fatalf("%+v: request %d is at %v after %v", a, i, r.At, before)
			}
			before = r.At
		}
	}
}

func TestParseArrival(t *testing.T) {
	for text, want := range map[string]Arrival{
		"trace":              {Process: AsWritten},
		"trace:speedup=2.5":  {Process: AsWritten, Speedup: 2.5},
		"trace:grid=3s":      {Process: AsWritten, Grid: 3 * time.Second},
		"poisson:rate=10":    {Process: Poisson, Rate: 10},
		"poisson":            {Process: Poisson},
		"gamma:rate=1, cv=3": {Process: Gamma, Rate: 1, CV: 3},
		"closed":             {Process: Closed},
	} {
		if got, err := ParseArrival(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                      "none of trace, uniform",
		"weibull":               `"weibull" is none of`,
		"poisson:10":            `"10" is not key=value`,
		"poisson:cv=1":          "poisson has no parameter cv; it has rate",
		"poisson:rate=fast":     "poisson: rate=fast: must be a number from 1e-06 to 1e+06",
		"poisson:rate=1,rate=2": "rate is given twice",
		"gamma:cv=NaN":          "cv=NaN: must be a number",
		"trace:grid=-1s":        "grid=-1s: must be a time",
		"closed:rate=1":         "closed has no parameters, so not rate",
	} {
		if _, err := ParseArrival(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestGridArrivals: times are rounded down to the grid, after the speed-up.
func TestGridArrivals(t *testing.T) {
	a := Arrival{Process: AsWritten, Speedup: 2, Grid: 3 * time.Second}
	for i, r := range collect(t, arrive(t, every(20, time.Second), a)) {
		if want := (time.Duration(i) * time.Second / 2).Truncate(3 * time.Second); r.At != want {
			t.Errorf("request %d is at %v, want %v", i, r.At, want)
		}
	}
}

func TestGoldenArrivals(t *testing.T) {
	var out []byte
	for _, text := range []string{"poisson:rate=10", "gamma:rate=10,cv=3", "gamma:rate=10,cv=0.3", "uniform:rate=7", "trace:speedup=3"} {
		a, err := ParseArrival(text)
		if err != nil {
			t.Fatal(err)
		}
		a.Seed = 42
		out = fmt.Appendf(out, "%s", text)
		for _, r := range collect(t, arrive(t, every(12, time.Second), a)) {
			out = fmt.Appendf(out, " %d", r.At)
		}
		out = append(out, '\n')
	}
	goldenFile(t, "arrivals.txt", out)
}

func TestArrivalsPassErrorsOn(t *testing.T) {
	want := errors.New("line 3: broken")
	if err := arrive(t, broken{want}, Arrival{}).Next(&Request{}); !errors.Is(err, want) {
		t.Error(err)
	}
}

type broken struct{ err error }

func (b broken) Next(*Request) error { return b.err }
func (b broken) Close() error        { return nil }
