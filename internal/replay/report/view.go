package report

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"penstock/internal/replay"
)

// pageData is the data of the page's script. Its names are short: there may be forty runs of six hundred
// points.
type pageData struct {
	Runs []viewRun `json:"runs"`
}

type viewRun struct {
	Policy    string        `json:"policy"`
	Workers   int           `json:"workers"`
	Size      string        `json:"size"` // of the cluster, in words
	Late      bool          `json:"late,omitempty"`
	Imbalance plotNumber    `json:"imbalance"`
	Cached    *plotNumber   `json:"cached"` // nil if no prompt was served
	Same      *plotNumber   `json:"same"`   // ideals; nil if unknown
	Infinite  *plotNumber   `json:"infinite"`
	TTFT      viewHistogram `json:"ttft"`
	ITL       viewHistogram `json:"itl"`
	E2E       viewHistogram `json:"e2e"`
	Step      plotNumber    `json:"step"` // seconds
	Time      viewTime      `json:"time"`
	// Load has [worker, requests, computed, cached, output] for each worker; the worker's id is a text, since
	// a script's numbers are exact only up to 2^53.
	Load []viewWorker `json:"load"`
	Left int          `json:"left"` // number of workers beyond the limit of Load
	Mean plotNumber   `json:"mean"` // mean work of a worker
}

type viewHistogram struct {
	Upper []plotNumber `json:"upper"` // ms
	Count []int64      `json:"count"`
}

type viewTime struct {
	Sent   []int        `json:"sent"`
	Errors []int        `json:"errors"`
	Input  []int64      `json:"input"`
	Cached []int64      `json:"cached"`
	Output []int64      `json:"output"`
	TTFT   []plotNumber `json:"ttft"`
}

type viewWorker struct {
	Worker                   string
	Requests                 int
	Computed, Cached, Output int64
}

// MarshalJSON writes w as an array.
func (w viewWorker) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{w.Worker, w.Requests, w.Computed, w.Cached, w.Output})
}

// plotNumber is a number written with six digits, enough for drawing.
type plotNumber float64

// MarshalJSON writes n; NaN and infinities become null.
func (n plotNumber) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(json.Number(strconv.FormatFloat(float64(n), 'g', 6, 64)))
}

// maxBars is the number of worker bars for which a page has room.
const maxBars = 1024

func newPageData(r *replay.Result) *pageData {
	v := &pageData{Runs: []viewRun{}}
	differ := clusterSizeFigures(r.Rows)
	for i := range r.Rows {
		row := &r.Rows[i]
		run := viewRun{Policy: sanitizeText(policyName(row), nameLimit), Workers: row.Workers, Size: sizeName(row, differ), Late: row.Late, Imbalance: plotNumber(row.Imbalance)}
		if row.InputTokens > 0 {
			run.Cached = numberPtr(row.CachedShare)
		}
		if row.Ideal != nil {
			run.Same, run.Infinite = numberPtr(row.Ideal.SameCapacity.CachedShare), numberPtr(row.Ideal.Infinite.CachedShare)
		}
		p := &replay.Plots{}
		if i < len(r.Plots) {
			p = &r.Plots[i]
		}
		run.TTFT, run.ITL, run.E2E = newViewHistogram(p.TTFT), newViewHistogram(p.ITL), newViewHistogram(p.E2E)
		run.Step, run.Time = plotNumber(p.Step), newViewTime(p.Timeline)
		run.setLoad(p.PerWorker, row.Workers)
		v.Runs = append(v.Runs, run)
	}
	return v
}

// encodeJSON returns the data for a script element: encoding/json escapes what could end the element.
func (v *pageData) encodeJSON() ([]byte, error) { return json.Marshal(v) }

func numberPtr(f float64) *plotNumber { return (*plotNumber)(&f) }

// newViewHistogram drops the empty buckets at both ends.
func newViewHistogram(h replay.Histogram) viewHistogram {
	n := min(len(h.Upper), len(h.Count))
	first, last := n, -1
	for i := range n {
		if h.Count[i] > 0 {
			first, last = min(first, i), i
		}
	}
	out := viewHistogram{Upper: []plotNumber{}, Count: []int64{}}
	// The bound below the first value is kept: its bar starts there.
	for i := max(0, first-1); i <= last; i++ {
		out.Upper = append(out.Upper, plotNumber(h.Upper[i]))
		out.Count = append(out.Count, h.Count[i])
	}
	return out
}

func newViewTime(points []replay.Point) viewTime {
	t := viewTime{Sent: []int{}, Errors: []int{}, Input: []int64{}, Cached: []int64{}, Output: []int64{}, TTFT: []plotNumber{}}
	for _, p := range points {
		t.Sent = append(t.Sent, p.Sent)
		t.Errors = append(t.Errors, p.Errors)
		t.Input = append(t.Input, p.Input)
		t.Cached = append(t.Cached, p.Cached)
		t.Output = append(t.Output, p.Output)
		t.TTFT = append(t.TTFT, plotNumber(p.TTFT))
	}
	return t
}

// setLoad sets the workers. Idle workers are missing from shares, and lower the mean.
func (run *viewRun) setLoad(shares []replay.WorkerShare, workers int) {
	run.Load = []viewWorker{}
	if len(shares) == 0 {
		return
	}
	work := func(w replay.WorkerShare) int64 { return w.Computed + w.Output }
	var sum int64
	for _, w := range shares {
		sum += work(w)
	}
	run.Mean = plotNumber(float64(sum) / float64(max(workers, len(shares))))
	if len(shares) > maxBars {
		run.Left = len(shares) - maxBars
		shares = slices.SortedStableFunc(slices.Values(shares), func(a, b replay.WorkerShare) int { return cmp.Compare(work(b), work(a)) })[:maxBars]
		slices.SortFunc(shares, func(a, b replay.WorkerShare) int { return cmp.Compare(a.Worker, b.Worker) })
	}
	for _, w := range shares {
		run.Load = append(run.Load, viewWorker{strconv.FormatUint(w.Worker, 10), w.Requests, w.Computed, w.Cached, w.Output})
	}
}
