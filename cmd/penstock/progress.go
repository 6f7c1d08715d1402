package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/replay"
)

const (
	progressRedraw = 200 * time.Millisecond // on a terminal
	progressWidth  = 24                     // of a bar, in characters
)

// progressDisplay shows the progress of long work in one line, which is redrawn on a terminal and written at
// intervals elsewhere, if at all.
type progressDisplay struct {
	out      io.Writer
	terminal bool
	stop     chan struct{}
	drawing  sync.WaitGroup
	mu       sync.Mutex // guards out
}

// newProgressDisplay starts to show line, which gets the elapsed time: on a terminal continuously, elsewhere
// at intervals of elsewhere, 0 for never. The caller calls finish.
func newProgressDisplay(out io.Writer, elsewhere time.Duration, line func(after time.Duration) string) *progressDisplay {
	p := &progressDisplay{out: out, terminal: isTerminal(out), stop: make(chan struct{})}
	every := elsewhere
	if p.terminal {
		every = progressRedraw
	}
	if every > 0 {
		p.drawing.Go(func() { p.drawLoop(every, line) })
	}
	return p
}

// isTerminal reports whether w is probably watched by a person.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && file.Name() != os.DevNull
}

// printLine writes a line where no bar shows the progress.
func (p *progressDisplay) printLine(line string) {
	if p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, line)
}

// finish stops the display and clears its line.
func (p *progressDisplay) finish() {
	close(p.stop)
	p.drawing.Wait()
}

func (p *progressDisplay) drawLoop(every time.Duration, line func(after time.Duration) string) {
	begin := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			if p.terminal {
				fmt.Fprint(p.out, "\r\x1b[K")
			}
			return
		case <-tick.C:
			if p.terminal {
				fmt.Fprint(p.out, "\r"+line(time.Since(begin))+"\x1b[K")
			} else {
				p.printLine(line(time.Since(begin)))
			}
		}
	}
}

// progressBar returns a bar which is full if done equals total.
func progressBar(done, total int) string {
	full := progressWidth * min(done, total) / max(total, 1)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", progressWidth-full) + "]"
}

// replayProgress is the state behind the progress line of running replays. Its methods are safe for
// concurrent use.
type replayProgress struct {
	*progressDisplay
	total int
	done  atomic.Int64 // requests, of all runs
}

// formatLine returns the progress and the estimated time left at the present pace.
func (p *replayProgress) formatLine(after time.Duration) string {
	done := min(int(p.done.Load()), p.total)
	share := float64(done) / float64(max(p.total, 1))
	text := fmt.Sprintf("%s %3.0f %%", progressBar(done, p.total), 100*share)
	if done > 0 && done < p.total {
		left := time.Duration(float64(after) * (1/share - 1))
		text += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return text
}

const (
	benchLineInterval = 5 * time.Second // between lines if there is no terminal
	benchMedianWindow = 512             // number of latest responses whose median a line shows
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
