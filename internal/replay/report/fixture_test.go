package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"penstock/internal/replay"
)

// The results below are made up: plausible shapes, drawn from a seed.

// made makes one run of n requests over workers whose first token comes after
// about median ms.
func made(policy string, workers, n int, median, cached float64) (replay.Row, replay.Plots) {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(len(policy)*1000+workers)))
	long := func(median float64) float64 { // a long tail: three quarters are below twice the median
		u := rng.Float64()
		return median * (0.4 + 0.6*math.Sqrt(u/(1-u+1e-5)))
	}
	ttft, itl, e2e := newTally(), newTally(), newTally()
	p := replay.Plots{Step: 30, Timeline: make([]replay.Point, 120)}
	share := make([]replay.WorkerShare, workers)
	for i := range share {
		share[i].Worker = uint64(i + 1)
	}
	row := replay.Row{Policy: policy, Workers: workers, Requests: n, Duration: 3612.4}
	for i := range n {
		at := &p.Timeline[i*len(p.Timeline)/n]
		input, output := 4000+rng.IntN(16000), 60+rng.IntN(600)
		hit := min(1, max(0, cached*(0.7+0.6*rng.Float64())*min(1, 0.3+2*float64(i)/float64(n))))
		first, between := long(median)*(1.4-hit), 8+long(2.5)
		ttft.add(first)
		itl.add(between)
		e2e.add(first + between*float64(output))
		got := int(hit * float64(input))
		at.Sent++
		at.Input += int64(input)
		at.Cached += int64(got)
		at.Output += int64(output)
		at.TTFT += first
		at.ITL += between
		row.InputTokens += int64(input)
		row.CachedTokens += int64(got)
		row.OutputTokens += int64(output)
		if workers > 0 {
			w := &share[(i+rng.IntN(1+i%3)*(len(policy)%5))%workers]
			w.Requests++
			w.Computed += int64(input - got)
			w.Cached += int64(got)
			w.Output += int64(output)
		}
	}
	most, all := int64(0), int64(0)
	for _, w := range share {
		most, all = max(most, w.Computed+w.Output), all+w.Computed+w.Output
	}
	if all > 0 {
		row.Imbalance = float64(most) * float64(workers) / float64(all)
	}
	for i := range p.Timeline {
		if at := &p.Timeline[i]; at.Sent > 0 {
			at.TTFT /= float64(at.Sent)
			at.ITL /= float64(at.Sent)
		}
	}
	row.TTFT, row.ITL, row.E2E = ttft.distribution(), itl.distribution(), e2e.distribution()
	row.TPOT = row.ITL
	p.TTFT, p.ITL, p.E2E, p.PerWorker = ttft.Histogram, itl.Histogram, e2e.Histogram, share
	if row.InputTokens > 0 {
		row.CachedShare = float64(row.CachedTokens) / float64(row.InputTokens)
	}
	row.RequestsPerSecond, row.OutputPerSecond = float64(n)/row.Duration, float64(row.OutputTokens)/row.Duration
	return row, p
}

// tally is a histogram whose bounds grow by a tenth, and what is needed beside it.
type tally struct {
	replay.Histogram
	n        int64
	sum      float64
	min, max float64
}

func newTally() *tally {
	t := &tally{}
	for upper := 0.1; upper < 1e6; upper *= 1.1 {
		t.Upper = append(t.Upper, upper)
	}
	t.Count = make([]int64, len(t.Upper))
	return t
}

func (t *tally) add(v float64) {
	i := 0
	for i < len(t.Upper)-1 && v > t.Upper[i] {
		i++
	}
	t.Count[i]++
	if t.n == 0 || v < t.min {
		t.min = v
	}
	t.n, t.sum, t.max = t.n+1, t.sum+v, max(t.max, v)
}

func (t *tally) distribution() replay.Distribution {
	if t.n == 0 {
		return replay.Distribution{}
	}
	at := func(q float64) float64 {
		seen := int64(0)
		for i, c := range t.Count {
			if seen += c; float64(seen) >= q*float64(t.n) {
				return min(t.Upper[i], t.max)
			}
		}
		return t.max
	}
	return replay.Distribution{
		Count: t.n, Mean: t.sum / float64(t.n), Min: t.min, Max: t.max,
		P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), P999: at(0.999),
	}
}

func (t *tally) String() string { return fmt.Sprint(t.n) }

// replayResult is five policies on two numbers of workers.
func replayResult() *replay.Result {
	r := &replay.Result{Command: "replay", Version: "v0.3.0", Settings: []replay.Setting{
		{Name: "trace", Value: "mooncake_synthetic.jsonl"},
		{Name: "workers", Value: "8,64"},
		{Name: "policy", Value: "kv,round-robin,random,least-loaded,power-of-two"},
		{Name: "block-size", Value: "16"},
		{Name: "blocks-per-worker", Value: "65536"},
		{Name: "speedup", Value: "1"},
		{Name: "seed", Value: "1"},
	}}
	for _, workers := range []int{8, 64} {
		ideal := replay.Ideal{Workers: workers}
		ideal.Infinite.CachedShare, ideal.SameCapacity.CachedShare = 0.592, 0.418+float64(workers)/512
		for i, policy := range []string{"kv", "round-robin", "random", "least-loaded", "power-of-two"} {
			median := []float64{210, 620, 700, 480, 530}[i] / float64(1+workers/40)
			cached := []float64{0.44, 0.13, 0.12, 0.14, 0.13}[i] * (1.05 - float64(workers)/640)
			row, plots := made(policy, workers, 3993, median, cached)
			row.Ideal = &ideal
			r.Rows, r.Plots = append(r.Rows, row), append(r.Plots, plots)
		}
		r.Ideals = append(r.Ideals, ideal)
	}
	r.Ideal = &r.Ideals[0]
	return r
}

// benchResult is one run against a server that does not name its workers, by a late
// client, with errors and an objective.
func benchResult() *replay.Result {
	row, plots := made("server", 0, 812, 340, 0.3)
	row.Requests, row.Errors = 840, 28
	row.ErrorKinds = map[string]int{"overloaded": 21, "timeout": 6, "status_500": 1}
	row.Late = true
	row.Lateness = &replay.Distribution{Count: 840, Mean: 14.2, Min: 0.02, P50: 3.1, P90: 44, P95: 61, P99: 118, P999: 240, Max: 251}
	row.Goodput = &replay.Goodput{SLO: replay.SLO{TTFT: 500, ITL: 20}, Share: 0.614, RequestsPerSecond: 0.143}
	for i := 60; i < 74; i++ {
		plots.Timeline[i].Errors = 2
	}
	plots.PerWorker = nil
	return &replay.Result{
		Command: "bench", Version: "v0.3.0", Rows: []replay.Row{row}, Plots: []replay.Plots{plots},
		Settings: []replay.Setting{{Name: "url", Value: "http://127.0.0.1:8000"}, {Name: "requests", Value: "840"}, {Name: "rate", Value: "0.25"}},
		Notes:    []string{"The client was late: the 99th percentile of its lateness was 118 ms. Use fewer streams, or another machine."},
	}
}

// emptyResult is a run in which nothing was asked.
func emptyResult() *replay.Result {
	return &replay.Result{Command: "bench", Version: "v0.3.0", Rows: []replay.Row{{Policy: "server"}}, Plots: []replay.Plots{{}}}
}

// manyResult is forty runs, of which the greatest has 300 workers.
func manyResult() *replay.Result {
	r := &replay.Result{Command: "replay", Version: "v0.3.0"}
	for _, workers := range []int{2, 8, 32, 300} {
		for i := range 10 {
			row, plots := made(fmt.Sprintf("kv, overlap weight %d", i), workers, 600, 900/float64(workers)+float64(20*i), 0.05*float64(i))
			r.Rows, r.Plots = append(r.Rows, row), append(r.Plots, plots)
		}
	}
	return r
}

// sizesResult is two policies at two sizes of blocks.
func sizesResult() *replay.Result {
	r := &replay.Result{Command: "replay", Version: "v0.3.0"}
	for _, size := range []int{16, 512} {
		ideal := replay.Ideal{Workers: 8, BlockSize: size, Blocks: 1 << 20 / size}
		ideal.Infinite = replay.Share{CachedShare: 0.6, Estimated: size == 16}
		ideal.SameCapacity.CachedShare = 0.5 - float64(size)/10000
		for i, policy := range []string{"kv", "random"} {
			row, plots := made(policy, 8, 500, float64(200+300*i+size), 0.4)
			row.BlockSize, row.Blocks, row.Ideal = size, ideal.Blocks, &ideal
			r.Rows, r.Plots = append(r.Rows, row), append(r.Plots, plots)
		}
		r.Ideals = append(r.Ideals, ideal)
	}
	return r
}

// hostileText does something wherever it is not only shown.
const hostileText = `</script><script>window.hurt=1</script><img src=x onerror="window.hurt=1">'"` + "`${window.hurt=1}`" +
	"{{.}}<!--]]>\u2028\u202e\x1b[31m\x00javascript:window.hurt=1"

// hostileResult has hostileText wherever a result has a text.
func hostileResult() *replay.Result {
	r := replayResult()
	r.Command, r.Version = hostileText, hostileText
	r.Rows, r.Plots = r.Rows[:2], r.Plots[:2]
	r.Rows[0].Policy = hostileText
	r.Rows[1].Policy = "=cmd|' /C calc'!A1" + strings.Repeat("x", 300)
	for i := range r.Rows {
		r.Rows[i].Errors, r.Rows[i].ErrorKinds = 1, map[string]int{hostileText: 1}
	}
	r.Settings = []replay.Setting{{Name: hostileText, Value: hostileText}, {Name: "note", Value: "it's $(reboot)"}}
	r.Notes = []string{hostileText}
	return r
}
