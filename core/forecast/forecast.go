// Package forecast judges what is believed of a worker's cache by what the worker
// reports. Cache events that are lost, or that hash otherwise than the requests do, break nothing:
// requests are merely sent to workers that do not have what they were chosen for. That shows here.
package forecast

const (
	// Window is how many reports that say something a judgement is made of.
	Window = 32
	// MinBlocks is from how many blocks on a prediction, or a report, says something:
	// the first blocks of a prompt are shared by chance.
	MinBlocks = 4
)

// Verdict is a judgement of the predictions.
type Verdict uint8

// The verdicts.
const (
	Open  Verdict = iota // too few reports say anything
	Fair                 // nothing is wrong
	Over                 // the worker finds less than half of what it is believed to hold
	Blind                // the worker reuses blocks, and is never believed to hold any
)

var verdictNames = [...]string{"open", "fair", "over", "blind"}

// String returns the verdict's name as tables print it.
func (v Verdict) String() string { return verdictNames[v] }

// Record is what is remembered of one worker. The zero value is ready.
type Record struct {
	hopes window // of the requests for which something was known
	finds window // of those for which something was reported
}

// pair is what was known and reported for one request, in blocks.
type pair struct{ predicted, reported int }

// window is the latest pairs, with their sums.
type window struct {
	ring [Window]pair
	n    int // all that there were
	// predicted, and met, which is the part of it that was found.
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

// Add takes what its worker was known to hold of one request, what it was predicted to find
// in all, and what it reported, in blocks, and reports whether the verdict is another now.
// What is predicted beyond what is known, because the request before had the same
// prompt, is no promise: the two may be computed side by side.
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

// Verdict returns the judgement by the latest reports.
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

// Evidence returns what the verdict is made of, in blocks over Window requests: how many
// were predicted, and how many of those, or if it is Blind of all, were found.
func (r *Record) Evidence() (predicted, found int) {
	if r.Verdict() == Blind {
		return 0, r.finds.reported
	}
	return r.hopes.predicted, r.hopes.met
}
