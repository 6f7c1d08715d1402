package enginemock

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/internal/engine"
)

// serverStats counts what the engines' metrics report.
type serverStats struct {
	mu struct {
		sync.Mutex
		ranks map[int]*rankCounters
	}
}

// rankCounters are the counters of one rank.
type rankCounters struct {
	prompt, generated                 uint64 // tokens
	queries, hits                     uint64 // tokens looked up in the prefix cache, and found
	ended                             map[string]uint64
	requests, aborted                 uint64
	adapters                          map[string]int // running requests
	timeToFirst, interToken, endToEnd histogram      // seconds
	perToken                          histogram
	promptSize, outputSize            histogram // tokens
}

// histogram counts values by upper bounds.
type histogram struct {
	bounds []float64
	counts []uint64
	sum    float64
	n      uint64
}

func (h *histogram) addValue(v float64) {
	if h.counts == nil {
		h.counts = make([]uint64, len(h.bounds))
	}
	for i, b := range h.bounds {
		if v <= b {
			h.counts[i]++
		}
	}
	h.sum += v
	h.n++
}

// The bounds of the engines' histograms.
func firstBounds() []float64 {
	return []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
}

func betweenBounds() []float64 {
	return []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
}

func wholeBounds() []float64 {
	return []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
}

func sizeBounds() []float64 {
	return []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
}

func newRankCounters() *rankCounters {
	return &rankCounters{
		ended: map[string]uint64{}, adapters: map[string]int{},
		timeToFirst: histogram{bounds: firstBounds()}, interToken: histogram{bounds: betweenBounds()}, perToken: histogram{bounds: betweenBounds()},
		endToEnd: histogram{bounds: wholeBounds()}, promptSize: histogram{bounds: sizeBounds()}, outputSize: histogram{bounds: sizeBounds()},
	}
}

// resetCounters resets all counters.
func (s *serverStats) resetCounters() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ranks = nil
}

// rankLocked returns the counters of a rank.
func (s *serverStats) rankLocked(rank int) *rankCounters {
	if s.mu.ranks == nil {
		s.mu.ranks = map[int]*rankCounters{}
	}
	t := s.mu.ranks[rank]
	if t == nil {
		t = newRankCounters()
		s.mu.ranks[rank] = t
	}
	return t
}

// requestStats measures one request.
type requestStats struct {
	stats       *serverStats
	rank        int
	adapter     string
	began, last time.Time
	prompt, out int
	finished    bool
}

// startRequest counts an accepted request.
func (s *serverStats) startRequest(rank, prompt int, adapter string) *requestStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rankLocked(rank)
	t.requests++
	t.prompt += uint64(prompt)
	t.promptSize.addValue(float64(prompt))
	if adapter != "" {
		t.adapters[adapter]++
	}
	return &requestStats{stats: s, rank: rank, adapter: adapter, began: time.Now(), prompt: prompt}
}

// countTokens counts output.
func (m *requestStats) countTokens(p *outputPart) {
	now := time.Now()
	s := m.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rankLocked(m.rank)
	t.generated += uint64(len(p.tokens))
	if m.out == 0 {
		t.timeToFirst.addValue(now.Sub(m.began).Seconds())
	} else if n := len(p.tokens); n > 0 {
		t.interToken.addValue(now.Sub(m.last).Seconds() / float64(n))
	}
	m.last = now
	m.out += len(p.tokens)
}

// countFinish counts the end of a choice.
func (m *requestStats) countFinish(reason string) {
	s := m.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rankLocked(m.rank).ended[reason]++
	m.finished = true
}

// countCached counts the tokens found in the prefix cache.
func (m *requestStats) countCached(u usage) {
	s := m.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rankLocked(m.rank)
	t.queries += uint64(u.prompt)
	t.hits += uint64(max(u.cached, 0))
}

// finishRequest counts the end of a request.
func (m *requestStats) finishRequest() {
	s := m.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.rankLocked(m.rank)
	d := time.Since(m.began).Seconds()
	t.endToEnd.addValue(d)
	t.outputSize.addValue(float64(m.out))
	if m.out > 0 {
		t.perToken.addValue(d / float64(m.out))
	}
	if !m.finished {
		t.ended["abort"]++
		t.aborted++
	}
	if m.adapter != "" {
		if t.adapters[m.adapter]--; t.adapters[m.adapter] == 0 {
			delete(t.adapters, m.adapter)
		}
	}
}

// metricsPage is a page in Prometheus text format: all samples of a name are together.
type metricsPage struct {
	order    []string
	families map[string]*strings.Builder
}

// familyText returns the builder for the samples of a name.
func (p *metricsPage) familyText(kind, name string) *strings.Builder {
	b := p.families[name]
	if b == nil {
		if p.families == nil {
			p.families = map[string]*strings.Builder{}
		}
		b = &strings.Builder{}
		fmt.Fprintf(b, "# HELP %s %s.\n# TYPE %s %s\n", name, strings.ReplaceAll(name, "_", " "), name, kind)
		p.families[name] = b
		p.order = append(p.order, name)
	}
	return b
}

// addSample writes one sample.
func (p *metricsPage) addSample(kind, name, labels string, v float64) {
	writeSample(p.familyText(kind, name), name, labels, v)
}

func writeSample(b *strings.Builder, name, labels string, v float64) {
	b.WriteString(name)
	if labels != "" {
		b.WriteString("{" + labels + "}")
	}
	b.WriteString(" " + strconv.FormatFloat(v, 'g', -1, 64) + "\n")
}

// addHistogram writes a histogram.
func (p *metricsPage) addHistogram(name, labels string, h *histogram) {
	out := p.familyText("histogram", name)
	comma := ""
	if labels != "" {
		comma = ","
	}
	for i, b := range h.bounds {
		n := uint64(0)
		if h.counts != nil {
			n = h.counts[i]
		}
		writeSample(out, name+"_bucket", labels+comma+`le="`+strconv.FormatFloat(b, 'f', -1, 64)+`"`, float64(n))
	}
	writeSample(out, name+"_bucket", labels+comma+`le="+Inf"`, float64(h.n))
	writeSample(out, name+"_count", labels, float64(h.n))
	writeSample(out, name+"_sum", labels, h.sum)
}

// writeTo answers with the page.
func (p *metricsPage) writeTo(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, name := range p.order {
		_, _ = io.WriteString(w, p.families[name].String())
	}
}

// delayMetrics waits if a fault is due.
func (s *Server) delayMetrics(ctx context.Context) error {
	x, hit := s.faults.takeDue(FaultSlowMetrics)
	if !hit {
		return nil
	}
	return waitFor(ctx, cmp.Or(time.Duration(x.For), 10*time.Second))
}

// serveMetrics serves a page, delayed if a fault is due.
func (s *Server) serveMetrics(fill func(*metricsPage, int, *rankCounters, engine.Load)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.delayMetrics(r.Context()) != nil {
			return
		}
		var p metricsPage
		for i, rank := range s.ranks {
			load, _ := s.loadOf(rank)
			s.stats.mu.Lock()
			fill(&p, i, s.stats.rankLocked(i), load)
			s.stats.mu.Unlock()
		}
		p.writeTo(w)
	}
}

// reportedBlockSize is the block size to report; a fault doubles it.
func (s *Server) reportedBlockSize() int {
	if _, hit := s.faults.takeDue(FaultBlockSize); hit {
		return 2 * s.card.BlockSize
	}
	return s.card.BlockSize
}

// usedShare is used/total; 0 if total is 0.
func usedShare(used, total int) float64 {
	if total == 0 {
		return 0
	}
	return float64(used) / float64(total)
}

// formatLabel encodes a label.
func formatLabel(name, v string) string { return name + `="` + v + `"` }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
