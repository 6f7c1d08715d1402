package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/replay"
)

const (
	progressRedraw = 200 * time.Millisecond // on a terminal
	progressLine   = 5 * time.Second        // elsewhere
	progressRecent = 512                    // answers that its median is of
	progressBar    = 24                     // characters
)

// progress tells how a run goes: a bar on a terminal, a line now and then
// elsewhere.
type progress struct {
	out      io.Writer
	terminal bool
	total    int
	mu       struct {
		sync.Mutex
		seen, errors int
		recent       [progressRecent]time.Duration // times to the first token
		answers      int
		late         time.Duration // the most since the last look
	}
}

func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, total: total}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// add takes a request that is over.
func (p *progress) add(s *replay.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.seen++
	p.mu.late = max(p.mu.late, s.Sent-s.Due)
	if s.Error != "" {
		p.mu.errors++
		return
	}
	p.mu.recent[p.mu.answers%progressRecent] = s.First - s.Sent
	p.mu.answers++
}

// start shows progress until the function that it returns is called.
func (p *progress) start() (stop func()) {
	every := progressLine
	if p.terminal {
		every = progressRedraw
	}
	begun := time.Now()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show(p.line(time.Since(begun)))
			case <-quit:
				if p.terminal {
					fmt.Fprint(p.out, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (p *progress) show(line string) {
	if p.terminal {
		fmt.Fprint(p.out, "\r"+line+"\x1b[K")
		return
	}
	fmt.Fprintln(p.out, line)
}

// line says how it goes after so much time.
func (p *progress) line(after time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.mu.answers, progressRecent)
	recent := slices.Clone(p.mu.recent[:n])
	late := p.mu.late
	p.mu.late = 0

	var b strings.Builder
	if p.terminal && p.total > 0 {
		full := min(progressBar*p.mu.seen/p.total, progressBar)
		fmt.Fprintf(&b, "[%s%s] ", strings.Repeat("#", full), strings.Repeat(".", progressBar-full))
	}
	fmt.Fprintf(&b, "%d/%d requests  %.1f/s", p.mu.seen, p.total, float64(p.mu.seen)/max(after.Seconds(), 1e-3))
	if n > 0 {
		slices.Sort(recent)
		fmt.Fprintf(&b, "  TTFT p50 %s", recent[n/2].Round(10*time.Microsecond))
	}
	fmt.Fprintf(&b, "  %d errors  late by %s", p.mu.errors, late.Round(10*time.Microsecond))
	return b.String()
}
