// Package accuracy compares the predictions about a worker's cache with what the worker reports. Cache events
// which are lost, or which hash differently from the requests, break nothing visible: requests are only sent
// to workers which do not have the expected blocks. This package detects that.
package accuracy

const (
	// Window is how many conclusive reports a rating is based on.
	Window = 32
	// MinBlocks is the number of blocks from which a prediction, or a report, is conclusive: the first blocks
	// of a prompt are shared by chance.
	MinBlocks = 4
)

// Rating is a rating of the predictions.
type Rating uint8

// The ratings.
const (
	Undecided     Rating = iota // too few conclusive reports
	Fair                        // nothing is wrong
	Overpredicted               // the worker finds less than half of what was predicted
	Unpredicted                 // the worker reuses blocks, but none are ever predicted
)

var ratingNames = [...]string{"open", "fair", "over", "blind"}

// String returns the rating's name as tables print it.
func (v Rating) String() string { return ratingNames[v] }

// Record holds the latest reports of one worker. The zero value is ready.
type Record struct {
	predictions sampleWindow // requests with a conclusive prediction
	reports     sampleWindow // requests with a conclusive report
}

// sample is what was predicted and reported for one request, in blocks.
type sample struct{ predicted, reported int }

// sampleWindow is the latest samples, with their sums.
type sampleWindow struct {
	ring  [Window]sample
	count int // number of samples ever added
	// confirmed is the part of predicted which was reported.
	predicted, confirmed, reported int
}

func (w *sampleWindow) addSample(p sample) {
	old := &w.ring[w.count%Window] // zero before the ring is full
	w.predicted += p.predicted - old.predicted
	w.confirmed += min(p.predicted, p.reported) - min(old.predicted, old.reported)
	w.reported += p.reported - old.reported
	*old = p
	w.count++
}

func (w *sampleWindow) isFull() bool { return w.count >= Window }

// AddReport adds a report: what the worker was known to hold of one request, what it was predicted to find in
// total, and what it reported, in blocks. It reports whether the rating changed. Predictions beyond what is
// known, because an earlier request had the same prompt, are not rated: the two prompts may be computed at
// the same time.
func (r *Record) AddReport(known, predicted, reported int) (changed bool) {
	was := r.Rating()
	p := sample{known, reported}
	if known >= MinBlocks {
		r.predictions.addSample(p)
	}
	if reported >= MinBlocks && (known > 0 || predicted == 0) {
		r.reports.addSample(p)
	}
	return r.Rating() != was
}

// Rating returns the rating by the latest reports.
func (r *Record) Rating() Rating {
	switch {
	case r.predictions.isFull() && 2*r.predictions.confirmed < r.predictions.predicted:
		return Overpredicted
	case r.reports.isFull() && r.reports.predicted == 0:
		return Unpredicted
	case r.predictions.isFull() || r.reports.isFull():
		return Fair
	}
	return Undecided
}

// Evidence returns what the rating is based on, in blocks over Window requests: how many were predicted and
// how many of them were found, or for Unpredicted how many were found at all.
func (r *Record) Evidence() (predicted, found int) {
	if r.Rating() == Unpredicted {
		return 0, r.reports.reported
	}
	return r.predictions.predicted, r.predictions.confirmed
}
