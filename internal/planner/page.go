package planner

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"penstock/core/plan"
)

// maxPage bounds a page of metrics and a table of workers, in bytes.
const maxPage = 16 << 20

// metricNames are the names under which one kind of server has what a planner needs; "" is none.
type metricNames struct {
	kind string
	// mark is a gauge which each of its pages has, with traffic and without.
	mark string
	// modelLabel is the label with the name of the model.
	modelLabel string
	// firstToken and gap are histograms, in seconds.
	firstToken, gap string
	// ended, prompt, cached and output are counters.
	ended, prompt, cached, output string
	// waiting and running are gauges. Their requests are the ones of aggregated workers, or wait for them.
	waiting, running string
}

// pageKinds lists the servers whose pages are understood.
var pageKinds = []metricNames{
	{
		kind: "a Penstock frontend", mark: "penstock_frontend_inflight", modelLabel: "model",
		firstToken: "penstock_frontend_time_to_first_token_seconds", gap: "penstock_frontend_inter_token_latency_seconds",
		ended: "penstock_frontend_requests_total", prompt: "penstock_frontend_prompt_tokens_total",
		cached: "penstock_frontend_cached_tokens_total", output: "penstock_frontend_output_tokens_total",
		waiting: "penstock_router_queue_requests", // what runs and waits in workers is in the table of workers
	},
	{
		kind: "vLLM", mark: "vllm:num_requests_running", modelLabel: "model_name",
		firstToken: "vllm:time_to_first_token_seconds", gap: "vllm:inter_token_latency_seconds",
		ended: "vllm:request_success_total", prompt: "vllm:prompt_tokens_total",
		cached: "vllm:prefix_cache_hits_total", output: "vllm:generation_tokens_total",
		waiting: "vllm:num_requests_waiting", running: "vllm:num_requests_running",
	},
}

// generationEndpoints are the values of the label "endpoint" of requests which workers generate for.
var generationEndpoints = []string{"chat_completions", "completions", "responses", "messages"}

// pageReading is a page of metrics which was read.
type pageReading struct {
	at time.Time // by the clock of its server; when it was received if that tells no time
	// sum identifies the bytes.
	sum [sha256.Size]byte
	// families are the names of counters and histograms which are there, in order.
	families []string
	series   map[string]float64 // counters, by what they count and their labels
	gauges   map[string]float64 // by what they count
	// hasOwnTimes says that the page has figures of its process which differ in each reading.
	hasOwnTimes bool
	counts      bool // whether some request was ever counted
	engine      bool // whether it is the page of an engine, and not of a frontend
}

// The names of what series count.
const (
	countFirst       = "first"
	countFirstTime   = "first seconds"
	countGap         = "gap"
	countGapTime     = "gap seconds"
	countEnded       = "ended"
	countFailed      = "failed"
	countPrompt      = "prompt"
	countCached      = "cached"
	countOutput      = "output"
	gaugeWaiting     = "waiting"
	gaugeRunning     = "running"
	maxSeriesInPage  = 1 << 18
	maxLinesInPage   = 1 << 19
	ownTimesFamily   = "process_cpu_seconds_total"
	ownMemoryFamily  = "go_memstats_alloc_bytes_total"
	serverErrorClass = "5"
)

// parsePage reads a page in the Prometheus text format. It counts the series of a model, of all models if that is "".
func parsePage(text []byte, modelName string) (*pageReading, error) {
	if lines := bytes.Count(text, []byte{'\n'}); lines > maxLinesInPage { // a parsed line takes many times its bytes
		return nil, fmt.Errorf("it has %d lines, at most %d are read", lines, maxLinesInPage)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("it is not in the Prometheus text format: %w", err)
	}
	at := slices.IndexFunc(pageKinds, func(n metricNames) bool { return families[n.mark] != nil })
	if at < 0 {
		return nil, fmt.Errorf("it has neither %s of %s nor %s of %s", pageKinds[0].mark, pageKinds[0].kind, pageKinds[1].mark, pageKinds[1].kind)
	}
	names := &pageKinds[at]
	r := &pageReading{sum: sha256.Sum256(text), series: map[string]float64{}, gauges: map[string]float64{}}
	r.engine = names.running != ""
	r.hasOwnTimes = families[ownTimesFamily] != nil || families[ownMemoryFamily] != nil
	read := func(name string, count func(labels map[string]string, m *dto.Metric)) {
		f := families[name]
		if f == nil || name == "" {
			return
		}
		if f.GetType() != dto.MetricType_GAUGE {
			r.families = append(r.families, name)
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if of, has := labels[names.modelLabel]; modelName == "" || !has || of == modelName {
				count(labels, m)
			}
		}
	}
	invalid := ""
	checked := func(what string, v float64) float64 {
		if !(v >= 0 && v <= math.MaxFloat64) {
			invalid = fmt.Sprintf("%s is %g", what, v)
		}
		return v
	}
	add := func(what string, m *dto.Metric, v float64) { r.series[what+seriesKey(m)] += checked(what, v) }
	histogram := func(name, count, sum string) {
		read(name, func(_ map[string]string, m *dto.Metric) {
			add(count, m, float64(m.GetHistogram().GetSampleCount()))
			add(sum, m, m.GetHistogram().GetSampleSum())
		})
	}
	counter := func(name, what string) {
		read(name, func(_ map[string]string, m *dto.Metric) { add(what, m, plainValue(m)) })
	}
	gauge := func(name, what string) {
		read(name, func(_ map[string]string, m *dto.Metric) { r.gauges[what] += checked(what, plainValue(m)) })
	}
	histogram(names.firstToken, countFirst, countFirstTime)
	histogram(names.gap, countGap, countGapTime)
	read(names.ended, func(labels map[string]string, m *dto.Metric) {
		endpoint, has := labels["endpoint"]
		switch {
		case has && !slices.Contains(generationEndpoints, endpoint):
		case strings.HasPrefix(labels["status"], serverErrorClass):
			add(countFailed, m, plainValue(m))
		case labels["status"] == "" || labels["status"] == "200" || labels["status"] == "499":
			add(countEnded, m, plainValue(m))
		}
	})
	counter(names.prompt, countPrompt)
	counter(names.cached, countCached)
	counter(names.output, countOutput)
	gauge(names.waiting, gaugeWaiting)
	gauge(names.running, gaugeRunning)
	if invalid != "" {
		return nil, fmt.Errorf("a figure is not valid: %s", invalid)
	}
	if len(r.series) > maxSeriesInPage {
		return nil, fmt.Errorf("it has %d series of requests, at most %d are read", len(r.series), maxSeriesInPage)
	}
	for _, v := range r.series {
		r.counts = r.counts || v > 0
	}
	slices.Sort(r.families)
	return r, nil
}

// plainValue returns the value of a counter, a gauge or an untyped metric.
func plainValue(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return m.GetUntyped().GetValue()
}

// seriesKey returns the labels of a series, in order.
func seriesKey(m *dto.Metric) string {
	labels := slices.SortedFunc(slices.Values(m.GetLabel()), func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	var b strings.Builder
	for _, l := range labels {
		fmt.Fprintf(&b, ",%s=%q", l.GetName(), l.GetValue())
	}
	return b.String()
}

// pageTime returns when a response was made, by the clock of its server: a cache between keeps the time of what it has.
func pageTime(h http.Header, received time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return received
}

// readBounded reads a body of at most maxPage bytes.
func readBounded(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPage+1))
	if err == nil && len(data) > maxPage {
		err = fmt.Errorf("it is larger than %d bytes", maxPage)
	}
	return data, err
}

// pageMeter turns readings of one page into counts of intervals.
type pageMeter struct {
	last     *pageReading
	received time.Time // of last
	// sampled is the last reading which was new since last, nil if there is none.
	sampled   *pageReading
	sampledAt time.Time
}

// minAdvance is the least time between two readings of a page by its server's clock, which has seconds.
const minAdvance = time.Second

// pageCounts are what a page counted in an interval.
type pageCounts struct {
	plan.IntervalCounts
	// advance is by how much the clock of the page's server advanced: 0 if the page is frozen.
	advance time.Duration
	// problem says what is wrong, "" if nothing is. Unless known is set, the counts are not known then.
	problem string
	known   bool
	// counted is until when: before the reading if the page is the one of the last sample, which is stale then.
	counted time.Time
	stale   bool
}

// countInterval returns what was counted since the last reading, as if that were an interval ago. A page which a cache
// keeps since a sample tells of the time until that sample: what comes later counts in the next interval.
func (p *pageMeter) countInterval(r *pageReading, received time.Time, interval time.Duration) (c pageCounts) {
	if p.sampled != nil {
		if _, problem := findAdvance(p.sampled, r, received.Sub(p.sampledAt)); problem != "" {
			r, received, c.stale = p.sampled, p.sampledAt, true
		}
	}
	c.counted = received
	last, elapsed := p.last, received.Sub(p.received)
	defer func() {
		// The same bytes tell nothing of the time since the reading before.
		if !c.known || c.advance > 0 || r.sum != last.sum {
			p.last, p.received, p.sampled = r, received, nil
		}
	}()
	if last == nil || elapsed <= 0 {
		c.problem = "they were read once, and counts need two readings"
		return c
	}
	if missing := missingFamily(last.families, r.families); missing != "" && last.counts {
		c.problem = fmt.Sprintf("they are partial: %s was there before", missing)
		return c
	}
	if added := missingFamily(r.families, last.families); added != "" && last.counts { // it may have counted for long
		c.problem = fmt.Sprintf("%s was not there before, and counts need two readings", added)
		return c
	}
	c.known = true
	c.advance, c.problem = findAdvance(last, r, elapsed)
	scale := interval.Seconds() / elapsed.Seconds()
	for key, v := range r.series {
		before := last.series[key]
		if v < before { // the process restarted
			before = 0
		}
		what, _, _ := strings.Cut(key, ",")
		if to := countOf(&c.IntervalCounts, what); to != nil {
			*to += (v - before) * scale
		}
	}
	c.Waiting[plan.Aggregated] = r.gauges[gaugeWaiting]
	c.Running[plan.Aggregated] = r.gauges[gaugeRunning]
	return c
}

// findAdvance returns by how much a page's clock advanced between two readings, and why it is frozen if that is 0.
func findAdvance(last, r *pageReading, elapsed time.Duration) (advance time.Duration, problem string) {
	advance = r.at.Sub(last.at)
	switch {
	case advance < minAdvance && elapsed >= 2*minAdvance:
		return 0, "they are frozen: their server did not make them again"
	case r.sum == last.sum && (r.hasOwnTimes || r.gauges[gaugeRunning] > 0):
		return 0, "they are frozen: no byte has changed"
	}
	return max(advance, minAdvance), ""
}

// countSample returns what was counted since the last reading of countInterval, as if that were elapsed ago. That reading
// stays the last one.
func (p *pageMeter) countSample(r *pageReading, received time.Time, elapsed time.Duration) pageCounts {
	interval := *p
	c := interval.countInterval(r, received, elapsed)
	if c.problem == "" && !c.stale {
		p.sampled, p.sampledAt = r, received
	}
	return c
}

func countOf(c *plan.IntervalCounts, what string) *float64 {
	switch what {
	case countFirst:
		return &c.FirstTokens
	case countFirstTime:
		return &c.FirstTokenSeconds
	case countGap:
		return &c.Gaps
	case countGapTime:
		return &c.GapSeconds
	case countEnded:
		return &c.Ended
	case countFailed:
		return &c.Failed
	case countPrompt:
		return &c.PromptTokens
	case countCached:
		return &c.CachedTokens
	case countOutput:
		return &c.OutputTokens
	}
	return nil
}

// missingFamily returns the first name of before which now lacks, "" if there is none. Both are in order.
func missingFamily(before, now []string) string {
	for _, name := range before {
		if _, found := slices.BinarySearch(now, name); !found {
			return name
		}
	}
	return ""
}

// addCounts adds the counts of another page.
func addCounts(to, c *plan.IntervalCounts) {
	to.FirstTokens += c.FirstTokens
	to.Failed += c.Failed
	to.FirstTokenSeconds += c.FirstTokenSeconds
	to.Gaps += c.Gaps
	to.GapSeconds += c.GapSeconds
	to.Ended += c.Ended
	to.PromptTokens += c.PromptTokens
	to.CachedTokens += c.CachedTokens
	to.OutputTokens += c.OutputTokens
	for i := range to.Waiting {
		to.Waiting[i] += c.Waiting[i]
		to.Running[i] += c.Running[i]
	}
}
