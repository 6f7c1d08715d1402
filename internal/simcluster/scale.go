package simcluster

import (
	"errors"
	"math"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/plan"
	"penstock/core/splitmix"
	"penstock/internal/replay"
)

// Scaling has the number of workers change during a run. Config.Workers is the largest number then. The zero value, without
// a Scaler, leaves all workers running.
type Scaling struct {
	// Scaler decides. Initial is the number of workers at the beginning.
	Scaler  Scaler
	Initial int
	// Interval is the time between two decisions, StartUp what a worker takes from its order to its first request. A worker
	// which leaves serves the requests which it has, for DrainLimit at most; the rest migrates. Without them it is gone at
	// once.
	Interval, StartUp, DrainLimit time.Duration
	// SampleEvery is the time between two samples of an interval, for a Scaler which is a Sampler; 0 is for none.
	SampleEvery time.Duration
	// MetricsLost is the share of intervals whose metrics are lost, and StartsFailed the share of ordered workers which never
	// get ready.
	MetricsLost, StartsFailed float64
	// First is what requests are like before one has finished.
	First plan.Traffic
}

// Scaler decides how many workers there are to be.
type Scaler interface {
	// DecideWorkers returns how many workers are to exist, without the ones which drain: from 0, and at most all.
	DecideWorkers(r *ScaleReport) int
}

// Sampler is a Scaler which also decides between two intervals.
type Sampler interface {
	// DecideSample returns how many workers are to exist, and false if it leaves them as they are.
	DecideSample(now time.Duration, s plan.IntervalSample) (int, bool)
}

// ScaleReport is what a Scaler is told at the end of an interval.
type ScaleReport struct {
	Now time.Duration // since the start of the run
	// Traffic is nil if the metrics of the interval were lost.
	Traffic *plan.Traffic
	Fleet   plan.RoleFleet
}

// ScalingUse is what workers a run took.
type ScalingUse struct {
	// WorkerTime is the sum over the workers, from the order of each to the end of its drain, or to the end of the run.
	WorkerTime time.Duration
	// Steps counts the decisions which changed the number of workers; Most is the largest number at once, with the ones
	// which start and drain.
	Steps, Most int
}

// ScalingRecorder is a Recorder which also receives the use of workers, at the end of a run with a Scaler.
type ScalingRecorder interface {
	RecordScaling(u ScalingUse)
}

func (c *Config) validateScaling() error {
	s := &c.Scaling
	if s.Scaler == nil {
		return nil
	}
	var errs []error
	if s.Initial < 0 || s.Initial > c.Workers {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: %d of %d workers cannot run at the beginning", s.Initial, c.Workers))
	}
	if s.Interval < time.Second || max(s.Interval, s.StartUp, s.DrainLimit) > maxDelay || min(s.StartUp, s.DrainLimit) < 0 {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: decisions must be between a second and %v apart, and start-up and drain between 0 and that", maxDelay))
	}
	if !(s.MetricsLost >= 0 && s.MetricsLost <= 1 && s.StartsFailed >= 0 && s.StartsFailed <= 1) {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: the shares %g of lost metrics and %g of failed starts are not between 0 and 1", s.MetricsLost, s.StartsFailed))
	}
	if s.SampleEvery < 0 || s.SampleEvery > 0 && s.SampleEvery < time.Second {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: samples must be a second apart, or 0 for none"))
	}
	if c.PrefillWorkers > 0 || c.EncodeWorkers > 0 {
		errs = append(errs, fault.New(fault.Invalid, "simcluster: only aggregated workers can change in number: leave out prefill and encode workers"))
	}
	return errors.Join(errs...)
}

// presence says whether a worker exists.
type presence uint8

const (
	present  presence = iota // it serves, or restarts after a crash
	absent                   // it does not exist
	starting                 // it is ordered
	leaving                  // it finishes its requests
)

// fleetScaler is the state of scaling.
type fleetScaler struct {
	states  []presence
	since   []kv.Mono // of each worker: its order, or the beginning of its drain
	ordered []kv.Mono
	runs    []uint32 // of each worker, counts its orders: events of earlier ones are ignored
	random  randomSource
	use     ScalingUse
	means   plan.Traffic
	sums    intervalSums
}

// intervalSums has the sums over the requests of an interval.
type intervalSums struct {
	arrivals, sampled                        float64
	finished, input, cached, output          float64
	computed, computedSquares, outputSquares float64
	ttft, answersWithGaps, gapMs             float64
}

// openScaling makes the workers beyond the initial ones absent.
func (c *cluster) openScaling() {
	s := &c.scaling
	if c.cfg.Scaling.Scaler == nil {
		return
	}
	n := c.cfg.Workers
	s.states, s.since, s.ordered, s.runs = make([]presence, n), make([]kv.Mono, n), make([]kv.Mono, n), make([]uint32, n)
	s.random = randomSource{splitmix.Source(deriveSeed(c.cfg.Seed, 2))}
	s.means = c.cfg.Scaling.First
	for i := c.cfg.Scaling.Initial; i < n; i++ {
		c.workers[i].alive, c.workers[i].registered = false, false
		s.states[i] = absent
	}
	s.use.Most = c.cfg.Scaling.Initial
	c.startInterval()
}

// startInterval schedules the samples of an interval, and its end.
func (c *cluster) startInterval() {
	s := &c.cfg.Scaling
	if _, samples := s.Scaler.(Sampler); samples && s.SampleEvery > 0 {
		for after := s.SampleEvery; after < s.Interval; after += s.SampleEvery {
			c.queue.push(c.now.Add(after), eventScaleSample, 0, 0)
		}
	}
	c.queue.push(c.now.Add(s.Interval), eventScale, 0, 0)
}

// exists reports whether a worker is one whose crashes and restarts count.
func (s *fleetScaler) exists(worker uint32) bool {
	return int(worker) >= len(s.states) || s.states[worker] == present
}

// countArrival counts a request which starts, with its prompt tokens.
func (s *fleetScaler) countArrival() { s.sums.arrivals++ }

// countAnswer counts a request which finished.
func (s *fleetScaler) countAnswer(a *replay.Sample) {
	if a.Error != "" || a.Output == 0 {
		return
	}
	u := &s.sums
	computed := float64(a.Input - a.Cached)
	u.finished, u.input, u.cached, u.output = u.finished+1, u.input+float64(a.Input), u.cached+float64(a.Cached), u.output+float64(a.Output)
	u.computed += computed
	u.computedSquares += float64(computed * computed)
	u.outputSquares += float64(float64(a.Output) * float64(a.Output))
	u.ttft += toMillis(a.First - a.Sent)
	if a.Output > 1 {
		u.answersWithGaps++
		u.gapMs += toMillis(a.Last-a.First) / float64(a.Output-1)
	}
}

// spreadOf returns the standard deviation over the mean of n numbers, by their sum and the sum of their squares.
func spreadOf(n, sum, squares float64) float64 {
	mean := sum / n
	if mean <= 0 {
		return 0
	}
	return math.Sqrt(max(squares/n-float64(mean*mean), 0)) / mean
}

func toMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// takeTraffic returns the metrics of the interval which ends, and begins the next one. Means without a request are the
// ones before.
func (c *cluster) takeTraffic() plan.Traffic {
	s := &c.scaling
	u, t := s.sums, s.means
	s.sums = intervalSums{}
	t.At, t.Arrivals, t.TTFT, t.ITL = c.now, u.arrivals, 0, 0
	if n := u.finished; n > 0 {
		t.InputTokens, t.OutputTokens, t.CachedShare, t.TTFT = u.input/n, u.output/n, u.cached/max(u.input, 1), u.ttft/n
		if n > 1 {
			t.InputSpread, t.OutputSpread = spreadOf(n, u.computed, u.computedSquares), spreadOf(n, u.output, u.outputSquares)
		}
	}
	if u.answersWithGaps > 0 {
		t.ITL = u.gapMs / u.answersWithGaps
	}
	s.means = t
	for i := range c.workers {
		if w := &c.workers[i]; w.alive && !w.draining {
			waiting := w.countWaiting()
			t.Running[plan.Aggregated] += float64(max(w.heldCalls-waiting, 0))
		}
	}
	t.Queued[plan.Aggregated] = c.countQueued()
	return t
}

// countWaiting returns the requests of a worker which do not run.
func (w *simWorker) countWaiting() int { return w.sched.Stats().Waiting + len(w.inbox) }

// countQueued returns the requests which wait in routers and at workers which do not drain.
func (c *cluster) countQueued() float64 {
	n := 0
	for i := range c.workers {
		if w := &c.workers[i]; w.alive && !w.draining {
			n += w.countWaiting()
		}
	}
	for i := range c.routers {
		n += len(c.routers[i].waiting)
	}
	return float64(n)
}

// sampleFleet has the Scaler see a sample, and carries out what it decides.
func (c *cluster) sampleFleet() {
	s := &c.scaling
	sample := plan.IntervalSample{Arrivals: s.sums.arrivals - s.sums.sampled}
	sample.Queued[plan.Aggregated] = c.countQueued()
	s.sums.sampled = s.sums.arrivals
	if s.random.drawChance(c.cfg.Scaling.MetricsLost) {
		return
	}
	if order, decided := c.cfg.Scaling.Scaler.(Sampler).DecideSample(sinceStart(c.now), sample); decided {
		c.carryOut(order)
	}
}

// scaleFleet has the Scaler decide, and carries the decision out.
func (c *cluster) scaleFleet() {
	s := &c.scaling
	c.startInterval()
	report := ScaleReport{Now: sinceStart(c.now), Fleet: s.describeFleet(c)}
	if t := c.takeTraffic(); !s.random.drawChance(c.cfg.Scaling.MetricsLost) {
		report.Traffic = &t
	}
	c.carryOut(c.cfg.Scaling.Scaler.DecideWorkers(&report))
}

// carryOut orders or releases workers until as many exist as are to.
func (c *cluster) carryOut(order int) {
	s := &c.scaling
	order = min(max(order, 0), c.cfg.Workers)
	existing := 0
	for _, p := range s.states {
		if p == present || p == starting {
			existing++
		}
	}
	before := existing
	for ; existing < order && c.orderWorker(); existing++ {
	}
	for ; existing > order; existing-- {
		c.releaseWorker()
	}
	if existing != before {
		s.use.Steps++
	}
	there := 0
	for _, p := range s.states {
		if p != absent {
			there++
		}
	}
	s.use.Most = max(s.use.Most, there)
}

// describeFleet counts the workers. One which has crashed starts.
func (s *fleetScaler) describeFleet(c *cluster) plan.RoleFleet {
	var f plan.RoleFleet
	for i, p := range s.states {
		switch {
		case p == present && c.workers[i].alive:
			f.Ready++
		case p == present, p == starting:
			f.Starting++
		case p == leaving:
			f.Draining++
		}
	}
	return f
}

// orderWorker orders the first absent worker; it returns false if there is none.
func (c *cluster) orderWorker() bool {
	s := &c.scaling
	for i, p := range s.states {
		if p != absent {
			continue
		}
		s.states[i], s.ordered[i] = starting, c.now
		s.runs[i]++
		if !s.random.drawChance(c.cfg.Scaling.StartsFailed) {
			c.queue.push(c.now.Add(c.cfg.Scaling.StartUp), eventWorkerReady, uint32(i), s.runs[i])
		}
		return true
	}
	return false
}

// beginWorker has an ordered worker serve.
func (c *cluster) beginWorker(worker, run uint32) {
	s := &c.scaling
	if s.states[worker] == starting && s.runs[worker] == run {
		s.states[worker] = present
		c.restartWorker(worker)
	}
}

// releaseWorker withdraws a worker which starts, the last one first, or drains the one with the fewest requests.
func (c *cluster) releaseWorker() {
	s := &c.scaling
	victim := -1
	for i, p := range s.states {
		if p == starting || p == present && (victim < 0 || s.states[victim] == present && c.workers[i].heldCalls <= c.workers[victim].heldCalls) {
			victim = i
		}
	}
	if victim < 0 {
		return
	}
	w := &c.workers[victim]
	if s.states[victim] == starting || !w.alive {
		c.removeScaled(victim)
		return
	}
	s.states[victim], s.since[victim] = leaving, c.now
	w.draining, w.registered = true, false
	c.forgetHolder(w.id)
	w.reportLoad(c)
	c.announceMembers()
	c.checkDrain(uint32(victim), s.runs[victim])
}

// drainCheckEvery is how often it is looked whether a worker has drained.
const drainCheckEvery = time.Second

// checkDrain removes a worker which leaves, when it has no request or DrainLimit has passed.
func (c *cluster) checkDrain(worker, run uint32) {
	s := &c.scaling
	w := &c.workers[worker]
	switch {
	case s.states[worker] != leaving || s.runs[worker] != run:
	case w.heldCalls > 0 && w.alive && !hasElapsed(s.since[worker], c.now, c.cfg.Scaling.DrainLimit):
		c.queue.push(c.now.Add(drainCheckEvery), eventDrainCheck, worker, run)
	default:
		c.haltWorker(w, fault.Draining)
		c.removeScaled(int(worker))
	}
}

// removeScaled makes a worker absent, and counts its time.
func (c *cluster) removeScaled(worker int) {
	s := &c.scaling
	s.states[worker] = absent
	s.use.WorkerTime += c.now.Sub(s.ordered[worker])
	if w := &c.workers[worker]; w.registered {
		w.registered = false
		c.forgetHolder(w.id)
		c.announceMembers()
	}
}

// finishScaling returns the use of workers at the end of the run.
func (c *cluster) finishScaling() ScalingUse {
	use := c.scaling.use
	for i, p := range c.scaling.states {
		if p != absent {
			use.WorkerTime += c.now.Sub(c.scaling.ordered[i])
		}
	}
	return use
}
