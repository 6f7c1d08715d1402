package replay

import (
	"cmp"
	"time"
)

const (
	maxPoints = 600
	firstStep = 100 * time.Millisecond
)

// timeline counts events over time in at most maxPoints steps of equal length: when a run outgrows them, the
// step doubles.
type timeline struct {
	step   time.Duration
	points []timelineStep
}

// timelineStep accumulates a Point.
type timelineStep struct {
	sent, errors          int
	input, cached, output int64
	ttft, itl             int64 // sums, in nanoseconds
	answers, itlAnswers   int64 // how many are in each sum
}

// stepAt returns the step of a time.
func (l *timeline) stepAt(when time.Duration) *timelineStep {
	l.step = cmp.Or(l.step, firstStep)
	when = max(when, 0)
	for when/l.step >= maxPoints {
		l.mergePairs()
	}
	i := int(when / l.step)
	for len(l.points) <= i {
		l.points = append(l.points, timelineStep{})
	}
	return &l.points[i]
}

// mergePairs merges every two steps.
func (l *timeline) mergePairs() {
	n := (len(l.points) + 1) / 2
	for i := range n {
		sum := l.points[2*i]
		if 2*i+1 < len(l.points) {
			sum.addStep(&l.points[2*i+1])
		}
		l.points[i] = sum
	}
	l.points = l.points[:n]
	l.step *= 2
}

func (t *timelineStep) addStep(o *timelineStep) {
	t.sent += o.sent
	t.errors += o.errors
	t.input += o.input
	t.cached += o.cached
	t.output += o.output
	t.ttft += o.ttft
	t.itl += o.itl
	t.answers += o.answers
	t.itlAnswers += o.itlAnswers
}

// toPoints returns the points for a report.
func (l *timeline) toPoints() []Point {
	out := make([]Point, len(l.points))
	for i, t := range l.points {
		out[i] = Point{Sent: t.sent, Errors: t.errors, Input: t.input, Cached: t.cached, Output: t.output}
		if t.answers > 0 {
			out[i].TTFT = toMilliseconds(t.ttft / t.answers)
		}
		if t.itlAnswers > 0 {
			out[i].ITL = toMilliseconds(t.itl / t.itlAnswers)
		}
	}
	return out
}
