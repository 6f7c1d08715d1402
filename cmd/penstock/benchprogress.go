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
	benchLineInterval = 5 * time.Second // between lines if there is no terminal
	benchMedianWindow = 512             // latest responses of which a line shows the median
)

// benchProgress is the state behind the progress line of a bench.
type benchProgress struct {
	total   int
	showBar bool
	mu      struct {
		sync.Mutex
		seen, errors int
		recent       [benchMedianWindow]time.Duration // times to the first token
		answers      int
		late         time.Duration // maximum since the last line
	}
}

// recordSample records a finished request.
func (p *benchProgress) recordSample(s *replay.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.seen++
	p.mu.late = max(p.mu.late, s.Sent-s.Due)
	if s.Error != "" {
		p.mu.errors++
		return
	}
	p.mu.recent[p.mu.answers%benchMedianWindow] = s.First - s.Sent
	p.mu.answers++
}

// formatLine returns the progress line after the given time and resets the maximum lateness.
func (p *benchProgress) formatLine(after time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.mu.answers, benchMedianWindow)
	recent := slices.Clone(p.mu.recent[:n])
	late := p.mu.late
	p.mu.late = 0

	var b strings.Builder
	if p.showBar {
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
