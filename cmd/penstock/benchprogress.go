package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/replay"
)

const (
	benchLine   = 5 * time.Second // between lines where there is no terminal
	benchRecent = 512             // answers that the median of a line is of
)

// benchProgress is what the line about a running bench says.
type benchProgress struct {
	total int
	bar   bool
	mu    struct {
		sync.Mutex
		seen, errors int
		recent       [benchRecent]time.Duration // times to the first token
		answers      int
		late         time.Duration // the most since the last look
	}
}

// add takes a request that is over.
func (p *benchProgress) add(s *replay.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.seen++
	p.mu.late = max(p.mu.late, s.Sent-s.Due)
	if s.Error != "" {
		p.mu.errors++
		return
	}
	p.mu.recent[p.mu.answers%benchRecent] = s.First - s.Sent
	p.mu.answers++
}

// line says how it goes after so much time.
func (p *benchProgress) line(after time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.mu.answers, benchRecent)
	recent := slices.Clone(p.mu.recent[:n])
	late := p.mu.late
	p.mu.late = 0

	var b strings.Builder
	if p.bar {
		b.WriteString(progressBar(p.mu.seen, p.total) + " ")
	}
	fmt.Fprintf(&b, "%d/%d requests  %.1f/s", p.mu.seen, p.total, float64(p.mu.seen)/max(after.Seconds(), 1e-3))
	if n > 0 {
		slices.Sort(recent)
		fmt.Fprintf(&b, "  TTFT p50 %s", recent[n/2].Round(10*time.Microsecond))
	}
	fmt.Fprintf(&b, "  %d errors  late by %s", p.mu.errors, late.Round(10*time.Microsecond))
	return b.String()
}
