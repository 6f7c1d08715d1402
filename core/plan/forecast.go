package plan

import (
	"math"

	"penstock/core/exact"
)

// Forecast says what arrivals a plan expects, how it knows, and how wrong the method was so far.
type Forecast struct {
	// Method is the name of the method: "last", "mean", "long mean", "trend" or "season".
	Method string `json:"method"`
	// Observed is the rate of the last interval and Expected the largest one of the forecast while an ordered worker
	// starts, in requests a second. Raised is the rate for which the fleet is sized: Expected and the error of the
	// forecast, and what waits.
	Observed float64 `json:"observed"`
	Expected float64 `json:"expected"`
	Raised   float64 `json:"raised"`
	// Error is the backtest error of the method: the sum of the absolute errors of its forecasts, made a start-up and an
	// interval ahead, over the sum of the arrivals. Intervals count less the older they are. It is -1 before there is one.
	Error float64 `json:"error"`
	// Errors has the errors of all methods, in a fixed order; -1 for a method without forecasts.
	Errors []MethodError `json:"errors,omitempty"`
	// Surprise says that the latest requests came far faster than the method makes likely, or that the last two intervals
	// had far fewer than a mean, so that they are the forecast.
	Surprise bool `json:"surprise,omitempty"`
}

// MethodError is the backtest error of a method.
type MethodError struct {
	Method string  `json:"method"`
	Error  float64 `json:"error"`
}

// The methods of forecasts. A tie goes to the first one.
const (
	methodLast = iota
	methodMean
	methodLongMean
	methodTrend
	methodSeason

	methods = iota
)

var methodNames = [methods]string{"last", "mean", "long mean", "trend", "season"}

const (
	// lastIntervals, meanIntervals and longIntervals are the intervals of which constant forecasts are the mean;
	// trendIntervals determine a line.
	lastIntervals  = 2
	meanIntervals  = 8
	longIntervals  = 40
	trendIntervals = 20
	// shortForget makes the last 30 intervals count in the deviation by which a forecast is raised.
	shortForget = 0.967
	// errorForget makes the last 100 intervals count in backtest errors.
	errorForget = 0.99
	// fewScores is the number of forecasts without an error which are assumed before there are others.
	fewScores = 5
	// leastScores is the number of forecasts before a method can be chosen, and worthSwitch the share of the error of the
	// method in use below which another one takes its place.
	leastScores = 10
	worthSwitch = 0.95
	// harmonics is the number of waves of the season: the day, and down to a sixth of it.
	harmonics = 6
	// seasonForget times the season is the memory of the waves.
	seasonMemory = 4
	// surprisingDeviations is by how many standard deviations arrivals exceed a forecast which no longer holds.
	surprisingDeviations = 4
	// trendGrowth bounds a line: it never reaches more than this many times the most arrivals from which it was made.
	trendGrowth = 2
)

// forecaster predicts arrivals an interval.
//
// Every method makes its forecast at every interval for one which is lead intervals later, and is scored when that one
// has come: a backtest which goes along, in which no forecast knows what it is compared with.
type forecaster struct {
	lead   int // intervals
	season int // intervals; 0 for none
	count  int // intervals so far, also ones without metrics
	// recent has the arrivals of the last longIntervals, the latest one at (count-1)%longIntervals; -1 without metrics.
	recent  [longIntervals]float64
	known   int // intervals with metrics
	scores  [methods]methodScore
	current int // method in use

	waves  *normalEquations
	wave   []float64 // coefficients
	phases []float64 // scratch: the row of an interval
	waved  int       // intervals of the waves
}

// methodScore has the forecasts of a method which wait for their interval, and decayed sums of its errors.
type methodScore struct {
	pending                []float64 // by interval modulo lead; -1 for none
	absolute, actual, rows float64
	// short is the sum of the errors by which actual arrivals exceeded a forecast, over shortRows forecasts with as many
	// arrivals as shortActual. It decays faster.
	short, shortActual, shortRows float64
	scored                        int
}

func newForecaster(lead, season int) *forecaster {
	f := &forecaster{lead: max(lead, 1), season: season}
	if season >= 4*harmonics {
		f.waves, f.phases = newNormalEquations(1+2*harmonics), make([]float64, 1+2*harmonics)
	} else {
		f.season = 0
	}
	for i := range f.scores {
		f.scores[i].pending = make([]float64, f.lead)
		for j := range f.scores[i].pending {
			f.scores[i].pending[j] = -1
		}
	}
	return f
}

// skipInterval passes an interval without metrics.
func (f *forecaster) skipInterval() {
	f.recent[f.count%longIntervals] = -1
	for m := range f.scores {
		f.scores[m].pending[f.count%f.lead] = -1
	}
	f.count++
}

// addArrivals learns the arrivals of an interval, scores the forecasts for it, and makes new ones.
func (f *forecaster) addArrivals(arrivals float64) {
	for m := range f.scores {
		f.scores[m].scoreForecast(f.count%f.lead, arrivals)
	}
	f.recent[f.count%longIntervals] = arrivals
	f.learnWave(arrivals)
	f.count++
	f.known++
	for m := range f.scores {
		// The interval count+lead-1 has the same place as the one which was scored now.
		f.scores[m].pending[(f.count-1)%f.lead] = f.predict(m, f.lead)
	}
	f.chooseMethod()
}

func (s *methodScore) scoreForecast(at int, actual float64) {
	expected := s.pending[at]
	if expected < 0 {
		return
	}
	off := actual - expected
	s.absolute = float64(s.absolute*errorForget) + math.Abs(off)
	s.shortActual, s.shortRows = float64(s.shortActual*shortForget)+actual, float64(s.shortRows*shortForget)+1
	surprising := float64(surprisingDeviations * sqrt(max(expected, 1)+float64(s.deviation()*s.deviation())))
	s.short = float64(s.short*shortForget) + min(max(off, 0), surprising)
	s.actual = float64(s.actual*errorForget) + actual
	s.rows = float64(s.rows*errorForget) + 1
	s.scored++
}

// deviation returns the standard deviation of errors, estimated from forecasts which were too low.
func (s *methodScore) deviation() float64 {
	return shortDeviation * s.short / (s.shortRows + fewScores)
}

// relativeError returns the backtest error, -1 if there is none.
func (s *methodScore) relativeError() float64 {
	switch {
	case s.rows == 0:
		return -1
	case s.actual <= 0:
		return s.absolute / s.rows // of no traffic: requests an interval
	}
	return s.absolute / s.actual
}

func (f *forecaster) chooseMethod() {
	best := f.current
	for m := range f.scores {
		s, b := &f.scores[m], &f.scores[best]
		if s.scored >= leastScores && (b.scored < leastScores || s.absolute/s.rows < b.absolute/b.rows) {
			best = m
		}
	}
	old, b := &f.scores[f.current], &f.scores[best]
	if old.scored < leastScores || b.absolute/b.rows <= float64(worthSwitch*(old.absolute/old.rows)) {
		f.current = best
	}
}

// predict returns the arrivals which a method expects in the ahead-th interval from now, -1 if it has no forecast.
func (f *forecaster) predict(method, ahead int) float64 {
	switch method {
	case methodLast:
		return f.recentMean(lastIntervals)
	case methodMean:
		return f.recentMean(meanIntervals)
	case methodLongMean:
		return f.recentMean(longIntervals)
	case methodTrend:
		return f.predictTrend(ahead)
	}
	return f.predictSeason(ahead)
}

// eachRecent calls visit with the arrivals of the last n intervals which have metrics, and their age from 0.
func (f *forecaster) eachRecent(n int, visit func(age int, arrivals float64)) {
	for age := range min(n, f.count, longIntervals) {
		if y := f.recent[(f.count-1-age)%longIntervals]; y >= 0 {
			visit(age, y)
		}
	}
}

func (f *forecaster) recentMean(n int) float64 {
	sum, rows := 0.0, 0
	f.eachRecent(n, func(_ int, y float64) { sum, rows = sum+y, rows+1 })
	if rows == 0 {
		return -1
	}
	return sum / float64(rows)
}

// recentSum returns the arrivals of the last n intervals, and false if metrics of some are missing or forgotten.
func (f *forecaster) recentSum(n int) (sum float64, known bool) {
	rows := 0
	f.eachRecent(n, func(_ int, y float64) { sum, rows = sum+y, rows+1 })
	return sum, rows == n
}

// predictTrend continues the line of least squares through the last intervals.
func (f *forecaster) predictTrend(ahead int) float64 {
	var n, x, y, xx, xy, most float64
	f.eachRecent(trendIntervals, func(age int, arrivals float64) {
		at := -float64(age)
		n, x, y = n+1, x+at, y+arrivals
		xx += float64(at * at)
		xy += float64(at * arrivals)
		most = max(most, arrivals)
	})
	varies := float64(n*xx) - float64(x*x)
	if n < 4 || varies <= 0 {
		return -1
	}
	slope := (float64(n*xy) - float64(x*y)) / varies
	level := (y - float64(slope*x)) / n
	return min(max(level+float64(slope*float64(ahead)), 0), trendGrowth*most)
}

// fillPhases makes the row of an interval: 1, and cosine and sine of each wave.
func (f *forecaster) fillPhases(interval int) {
	f.phases[0] = 1
	for k := 1; k <= harmonics; k++ {
		turns := float64(interval*k%f.season) / float64(f.season)
		f.phases[2*k-1], f.phases[2*k] = exact.SinTurns(turns+0.25), exact.SinTurns(turns)
	}
}

func (f *forecaster) learnWave(arrivals float64) {
	if f.season == 0 {
		return
	}
	f.waves.decaySums(1 - 1/float64(seasonMemory*f.season))
	f.fillPhases(f.count)
	f.waves.addRow(f.phases, arrivals, 1)
	if f.waved++; f.waved >= f.season {
		f.wave = f.waves.solve(nil)
	}
}

// waveAt returns the fitted wave at an interval.
func (f *forecaster) waveAt(interval int) float64 {
	f.fillPhases(interval)
	y := 0.0
	for i, c := range f.wave {
		y += float64(c * f.phases[i])
	}
	return max(y, 0)
}

// predictSeason returns the wave, moved to the level of the last intervals: by a factor, so that a day with twice the
// traffic has twice the wave.
func (f *forecaster) predictSeason(ahead int) float64 {
	if f.wave == nil {
		return -1
	}
	actual, fitted := 0.0, 0.0
	f.eachRecent(meanIntervals, func(age int, y float64) {
		actual += y
		fitted += f.waveAt(f.count - 1 - age)
	})
	y := f.waveAt(f.count - 1 + ahead)
	if fitted <= 0 {
		return y
	}
	return float64(y * min(max(actual/fitted, 1.0/trendGrowth), trendGrowth))
}

// shortDeviation times the mean of max(x, 0) is the standard deviation of a normal variable x of mean 0: √(2π).
const shortDeviation = 2.5066282746310002

// forecastAhead returns the arrivals of the busiest one of the next lead intervals, and their raised number: by
// standard deviations of what the errors have beyond the chance of a Poisson process, which the queueing model knows.
// Errors are the ones of forecasts which were too low: a fall of traffic does not make a forecast unsafe. A step of the
// load must not count for an hour: the deviation is of mean errors, and not of their squares, and surprising errors
// count only as far as they are likely.
func (f *forecaster) forecastAhead(deviations float64) (expected, raised float64, surprise bool) {
	if f.recentMean(longIntervals) <= 0 {
		return 0, 0, false
	}
	for ahead := 1; ahead <= f.lead; ahead++ {
		expected = max(expected, f.predict(f.current, ahead))
	}
	excess := 0.0
	if s := &f.scores[f.current]; s.rows > 0 {
		excess = float64(deviations * sqrt(max(float64(s.deviation()*s.deviation())-s.shortActual/s.shortRows, 0)))
	}
	raised = expected + excess
	// The mean of two intervals has half the variance of one.
	few := expected - float64(surprisingDeviations*sqrt(max(expected, 1)/2))
	if last := f.recentMean(lastIntervals); last < few && f.isLevel() {
		return last, last + excess, true
	}
	return expected, raised, false
}

// isLevel reports whether the method in use says what is now, so that arrivals which are far below it show that it
// lags. The others say what will be.
func (f *forecaster) isLevel() bool { return f.current <= methodLongMean }

// describeForecast returns the forecast in requests a second; intervals are of so many seconds.
func (f *forecaster) describeForecast(deviations, seconds float64) Forecast {
	expected, raised, surprise := f.forecastAhead(deviations)
	out := Forecast{
		Method: methodNames[f.current], Observed: max(f.recentMean(1), 0) / seconds,
		Expected: expected / seconds, Raised: raised / seconds,
		Error: f.scores[f.current].relativeError(), Surprise: surprise,
	}
	for m := range f.scores {
		if m == methodSeason && f.season == 0 {
			continue
		}
		out.Errors = append(out.Errors, MethodError{methodNames[m], f.scores[m].relativeError()})
	}
	return out
}
