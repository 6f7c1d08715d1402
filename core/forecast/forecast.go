// Package accuracy compares the predictions about a worker's cache with what the worker reports. Cache events
// which are lost, or which hash differently from the requests, break nothing visible: requests are only sent
// to workers which do not have the expected blocks. This package detects that.
package forecast

const (
	// Window is how many conclusive reports a rating is based on.
	Window = 32
	// MinBlocks is the number of blocks from which a prediction, or a report, is conclusive: the first blocks
	// of a prompt are shared by chance.
	MinBlocks = 4
)

// Rating is a rating of the predictions.
type Verdict uint8

// The ratings.
const (
	Open  Verdict = iota // too few conclusive reports
	Fair                 // nothing is wrong
	Over                 // the worker finds less than half of what was predicted
	Blind                // the worker reuses blocks, but none are ever predicted
)

var verdictNames = [...]string{"open", "fair", "over", "blind"}

// String returns the rating's name as tables print it.
func (v Verdict) String() string { return verdictNames[v] }

// Record holds the latest reports of one worker. The zero value is ready.
type Record struct {
	hopes window // requests with a conclusive prediction
	finds window // requests with a conclusive report
}

// sample is what was predicted and reported for one request, in blocks.
type pair struct{ predicted, reported int }

// sampleWindow is the latest samples, with their sums.
type window struct {
	ring [Window]pair
	n    int // number of samples ever added
	// confirmed is the part of predicted which was reported.
	predicted, met, reported int
}

func (w *window) add(p pair) {
	old := &w.ring[w.n%Window] // zero before the ring is full
	w.predicted += p.predicted - old.predicted
	w.met += min(p.predicted, p.reported) - min(old.predicted, old.reported)
	w.reported += p.reported - old.reported
	*old = p
	w.n++
}

func (w *window) full() bool { return w.n >= Window }

// AddReport adds a report: what the worker was known to hold of one request, what it was predicted to find in
// total, and what it reported, in blocks. It reports whether the rating changed. Predictions beyond what is
// known, because an earlier request had the same prompt, are not rated: the two prompts may be computed at
// the same time.
func (r *Record) Add(known, predicted, reported int) (changed bool) {
	was := r.Verdict()
	p := pair{known, reported}
	if known >= MinBlocks {
		r.hopes.add(p)
	}
	if reported >= MinBlocks && (known > 0 || predicted == 0) {
		r.finds.add(p)
	}
	return r.Verdict() != was
}

// Rating returns the rating by the latest reports.
func (r *Record) Verdict() Verdict {
	switch {
	case r.hopes.full() && 2*r.hopes.met < r.hopes.predicted:
		return Over
	case r.finds.full() && r.finds.predicted == 0:
		return Blind
	case r.hopes.full() || r.finds.full():
		return Fair
	}
	return Open
}

// Evidence returns what the rating is based on, in blocks over Window requests: how many were predicted and
// how many of them were found, or for Unpredicted how many were found at all.
func (r *Record) Evidence() (predicted, found int) {
	if r.Verdict() == Blind {
		return 0, r.finds.reported
	}
	return r.hopes.predicted, r.hopes.met
}
