package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"
)

// drawArrivals returns Poisson counts of a rate which changes with the interval.
func drawArrivals(n int, rate func(i int) float64) []float64 {
	src := rand.NewPCG(3, 3)
	out := make([]float64, n)
	for i := range out {
		if mean := rate(i); mean > 0 {
			out[i] = distuv.Poisson{Lambda: mean, Src: src}.Rand()
		}
	}
	return out
}

// TestMethodFitsTraffic: the backtest chooses the method which the traffic suits, and its error is stated.
func TestMethodFitsTraffic(t *testing.T) {
	const season = 480
	for _, c := range []struct {
		name string
		rate func(i int) float64
		want string
		most float64 // error
	}{
		{"constant", func(int) float64 { return 20 }, "long mean", 0.25},
		{"line", func(i int) float64 { return 20 + 30*float64(i) }, "trend", 0.06},
		{"day", func(i int) float64 { return 400 - 300*math.Cos(2*math.Pi*float64(i)/season) }, "season", 0.06},
		{"levels", func(i int) float64 { return []float64{50, 1000, 200, 2000}[i/37%4] }, "last", 2},
	} {
		f := newForecaster(3, season)
		for _, y := range drawArrivals(4*season, c.rate) {
			f.addArrivals(y)
		}
		got := f.describeForecast(1, 1)
		if got.Method != c.want || !(got.Error >= 0 && got.Error < c.most) {
			t.Errorf("%s: by %s with an error of %.3f, want %s: %v", c.name, got.Method, got.Error, c.want, got.Errors)
		}
	}
}

// TestSeasonSeesPeak: with the season a peak is in the forecast before it comes.
func TestSeasonSeesPeak(t *testing.T) {
	const season = 480
	rate := func(i int) float64 { return 400 - 300*math.Cos(2*math.Pi*float64(i)/season) }
	f := newForecaster(20, season)
	arrivals := drawArrivals(3*season+100, rate)
	for _, y := range arrivals {
		f.addArrivals(y)
	}
	at := len(arrivals) - 1
	expected, raised, _ := f.forecastAhead(1)
	if want := rate(at + 20); math.Abs(expected-want) > 0.1*want || raised < expected {
		t.Errorf("%.0f expected and raised to %.0f in 20 intervals, want %.0f (now %.0f)", expected, raised, want, rate(at))
	}
}

// TestErrorsBeyondChance: constant Poisson traffic is raised by little, since the queueing model knows its chance;
// traffic which jumps is raised by much.
func TestErrorsBeyondChance(t *testing.T) {
	calm, jumps := newForecaster(3, 0), newForecaster(3, 0)
	for _, y := range drawArrivals(1000, func(int) float64 { return 100 }) {
		calm.addArrivals(y)
	}
	for _, y := range drawArrivals(1000, func(i int) float64 { return 100 + 80*float64(i/7%2) }) {
		jumps.addArrivals(y)
	}
	expected, raised, _ := calm.forecastAhead(1)
	if math.Abs(expected-100) > 8 || raised > expected+8 {
		t.Errorf("constant: %.1f expected, raised to %.1f", expected, raised)
	}
	if expected, raised, _ = jumps.forecastAhead(1); raised < expected+20 {
		t.Errorf("jumps: %.1f expected, raised to %.1f", expected, raised)
	}
}

// TestFall: a mean which still has a spike in it is no forecast of two intervals which are far below it.
func TestFall(t *testing.T) {
	f := newForecaster(3, 0)
	for _, y := range drawArrivals(200, func(i int) float64 { return 30 + 300*float64(i/190) }) {
		f.addArrivals(y)
	}
	f.current = methodLongMean
	for range 2 {
		f.addArrivals(30)
	}
	f.current = methodLongMean
	if got, raised, surprise := f.forecastAhead(0); !surprise || got != 30 || raised != 30 {
		t.Errorf("%.0f expected, raised to %.0f, after two intervals of 30; a surprise: %v", got, raised, surprise)
	}
	f.current = methodTrend
	if _, _, surprise := f.forecastAhead(0); surprise {
		t.Error("a line, which says what will be, is replaced by what is")
	}
}

// TestGaps: intervals without metrics are no intervals without traffic, and no forecast is scored by them.
func TestGaps(t *testing.T) {
	f := newForecaster(3, 480)
	for i, y := range drawArrivals(600, func(int) float64 { return 100 }) {
		if i%3 == 0 {
			f.skipInterval()
			continue
		}
		f.addArrivals(y)
	}
	got := f.describeForecast(1, 1)
	if math.Abs(got.Expected-100) > 15 || got.Error > 0.15 {
		t.Errorf("with gaps: %+v", got)
	}
}
