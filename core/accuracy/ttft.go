package accuracy

import "time"

// minMeanError is a mean error of predicted times to the first token which is never large: users do not notice it.
const minMeanError = 50 * time.Millisecond

// TTFTRecord holds the latest times to the first token of one worker, predicted and observed. The zero value is
// ready.
type TTFTRecord struct {
	errors, observed [Window]time.Duration
	count            int
	errorSum, sum    time.Duration
	higher           int // of the window, observed above predicted
	signs            [Window]bool
	off              bool
}

// AddTime adds a first token, and reports whether IsOff changed.
func (r *TTFTRecord) AddTime(predicted, observed time.Duration) (changed bool) {
	at := r.count % Window
	if r.signs[at] {
		r.higher--
	}
	e := observed - predicted
	r.signs[at] = e > 0
	if e > 0 {
		r.higher++
	}
	e = max(e, -e)
	r.errorSum += e - r.errors[at]
	r.sum += observed - r.observed[at]
	r.errors[at], r.observed[at] = e, observed
	r.count++
	was := r.off
	switch {
	case r.count < Window:
	case 2*r.errorSum > r.sum && r.errorSum > Window*minMeanError:
		r.off = true
	case 4*r.errorSum < r.sum || 2*r.errorSum < Window*minMeanError:
		r.off = false
	}
	return r.off != was
}

// IsOff reports whether the predictions are off: over Window requests the mean error exceeded half of the mean time,
// and 50 ms, and has not fallen to half of either since.
func (r *TTFTRecord) IsOff() bool { return r.off }

// TTFTEvidence is what a TTFTRecord is based on: means over up to Window requests.
type TTFTEvidence struct {
	Error, Observed time.Duration
	// Higher counts the requests whose first token came later than predicted, of Requests.
	Higher, Requests int
}

// Evidence returns what the rating is based on.
func (r *TTFTRecord) Evidence() TTFTEvidence {
	n := min(r.count, Window)
	if n == 0 {
		return TTFTEvidence{}
	}
	return TTFTEvidence{r.errorSum / time.Duration(n), r.sum / time.Duration(n), r.higher, n}
}
