package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// OutcomeCounts counts the outcomes of requests.
type OutcomeCounts struct {
	Sent    int
	Right   int // complete answers, byte for byte as known
	Refused int // 429 and 503 with Retry-After
	Failed  int // other failures
	Left    int // aborted by the client

	Duplicated, Missing, Altered       int // answers
	DuplicatedTokens, MissingTokens    int
	Moved                              int            // answers which changed their worker
	Tokens                             int            // of right answers
	First, Pause, Took                 Durations      // of right answers
	Token                              Durations      // of right answers: the mean time between texts
	Errors                             map[string]int // why requests failed, by message
	Differences                        []string       // the first few
	FirstFailure, LastFailure, Refusal time.Time      // Refusal is the last
}

const (
	// maxErrors bounds the messages kept, maxDifferences the comparisons.
	maxErrors, maxDifferences = 32, 4
)

// addOutcome adds one outcome of a request; left means that the client ended it.
func (t *OutcomeCounts) addOutcome(o *Outcome, want *KnownRequest, left bool) {
	t.Sent++
	switch {
	case o.Err == nil:
		t.compareAnswer(o, want)
		return
	case left:
		t.Left++
		return
	case (o.Status == http.StatusServiceUnavailable || o.Status == http.StatusTooManyRequests) && o.RetryAfter != "":
		t.Refused++
		t.Refusal = time.Now()
	default:
		t.Failed++
		t.LastFailure = time.Now()
		if t.FirstFailure.IsZero() {
			t.FirstFailure = t.LastFailure
		}
	}
	t.addError(o.Err.Error())
}

func (t *OutcomeCounts) addError(what string) {
	if t.Errors == nil {
		t.Errors = map[string]int{}
	}
	if _, known := t.Errors[what]; !known && len(t.Errors) >= maxErrors {
		what = "(others)"
	}
	t.Errors[what]++
}

// compareAnswer compares a complete answer.
func (t *OutcomeCounts) compareAnswer(o *Outcome, want *KnownRequest) {
	if o.CountMoves() > 0 {
		t.Moved++
	}
	d := o.Answer.Diff(&want.Want)
	switch d.Flaw {
	case NoFlaw:
		t.Right++
		t.Tokens += o.Answer.Output
		t.First.Add(o.First)
		t.Pause.Add(o.Pause)
		t.Took.Add(o.Took)
		if o.Texts > 1 {
			t.Token.Add(o.Last / time.Duration(o.Texts-1))
		}
		return
	case Duplicated:
		t.Duplicated++
		t.DuplicatedTokens += d.Tokens
	case Missing:
		t.Missing++
		t.MissingTokens += d.Tokens
	case Altered:
		t.Altered++
	}
	if len(t.Differences) < maxDifferences {
		t.Differences = append(t.Differences, want.Name+": "+d.Detail)
	}
}

// CountWrong returns how many answers were wrong.
func (t *OutcomeCounts) CountWrong() int { return t.Duplicated + t.Missing + t.Altered }

// MergeCounts adds other counts.
func (t *OutcomeCounts) MergeCounts(o *OutcomeCounts) {
	t.Sent += o.Sent
	t.Right += o.Right
	t.Refused += o.Refused
	t.Failed += o.Failed
	t.Left += o.Left
	t.Duplicated += o.Duplicated
	t.Missing += o.Missing
	t.Altered += o.Altered
	t.DuplicatedTokens += o.DuplicatedTokens
	t.MissingTokens += o.MissingTokens
	t.Moved += o.Moved
	t.Tokens += o.Tokens
	t.First.Merge(&o.First)
	t.Pause.Merge(&o.Pause)
	t.Took.Merge(&o.Took)
	t.Token.Merge(&o.Token)
	for _, what := range slices.Sorted(maps.Keys(o.Errors)) {
		for range o.Errors[what] {
			t.addError(what)
		}
	}
	if t.FirstFailure.IsZero() || !o.FirstFailure.IsZero() && o.FirstFailure.Before(t.FirstFailure) {
		t.FirstFailure = o.FirstFailure
	}
	if o.LastFailure.After(t.LastFailure) {
		t.LastFailure = o.LastFailure
	}
	if o.Refusal.After(t.Refusal) {
		t.Refusal = o.Refusal
	}
	t.Differences = append(t.Differences, o.Differences...)
	t.Differences = t.Differences[:min(len(t.Differences), maxDifferences)]
}

// Durations is a sample of durations: all of them up to a bound, beyond it a uniform choice.
type Durations struct {
	kept []time.Duration
	seen int
	max  time.Duration
	r    *rand.Rand
}

// maxKept bounds a sample's memory.
const maxKept = 1 << 16

// Add adds a duration.
func (d *Durations) Add(v time.Duration) {
	d.seen++
	d.max = max(d.max, v)
	if len(d.kept) < maxKept {
		d.kept = append(d.kept, v)
		return
	}
	if d.r == nil {
		d.r = rand.New(rand.NewPCG(1, 1))
	}
	if at := d.r.IntN(d.seen); at < maxKept {
		d.kept[at] = v
	}
}

// Merge adds another sample.
func (d *Durations) Merge(o *Durations) {
	for _, v := range o.kept {
		d.Add(v)
	}
	d.max = max(d.max, o.max)
}

// Count returns how many were added.
func (d *Durations) Count() int { return d.seen }

// Max returns the longest, 0 without any.
func (d *Durations) Max() time.Duration { return d.max }

// Percentile returns the smallest duration which p percent do not exceed (nearest rank), 0 without any.
func (d *Durations) Percentile(p float64) time.Duration {
	if len(d.kept) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d.kept))
	rank := int(p/100*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// String summarizes the sample.
func (d *Durations) String() string {
	return fmt.Sprintf("p50 %v p99 %v max %v of %d", d.Percentile(50).Round(10*time.Microsecond), d.Percentile(99).Round(10*time.Microsecond), d.max.Round(10*time.Microsecond), d.seen)
}
