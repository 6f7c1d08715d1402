package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	progressEvery = 200 * time.Millisecond
	progressWidth = 30
)

// progress shows how far long work is: a bar on a terminal, a line for each part
// that is finished elsewhere. Its methods may be called from any goroutine.
type progress struct {
	out   io.Writer
	bar   bool
	total int
	done  atomic.Int64

	mu   sync.Mutex // of out
	stop chan struct{}
	gone sync.WaitGroup
}

// newProgress begins to show work of so many steps. The caller ends it.
func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, bar: isTerminal(out), total: total, stop: make(chan struct{})}
	if p.bar {
		p.gone.Go(p.draw)
	}
	return p
}

// isTerminal says whether a person is likely to look at w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && file.Name() != os.DevNull
}

// step counts one step as done.
func (p *progress) step() { p.done.Add(1) }

// finished tells of a part that is done.
func (p *progress) finished(line string) {
	if p.bar {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, line)
}

// end takes the bar away.
func (p *progress) end() {
	close(p.stop)
	p.gone.Wait()
}

// draw draws the bar until the end.
func (p *progress) draw() {
	begin := time.Now()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			fmt.Fprint(p.out, "\r\x1b[K")
			return
		case <-tick.C:
			fmt.Fprint(p.out, "\r"+progressBar(int(p.done.Load()), p.total, time.Since(begin))+"\x1b[K")
		}
	}
}

// progressBar returns the bar, with the time that is left if work goes on as it did.
func progressBar(done, total int, since time.Duration) string {
	done = min(done, total)
	share := float64(done) / float64(max(total, 1))
	full := int(share * progressWidth)
	text := fmt.Sprintf("[%s%s] %3.0f %%", strings.Repeat("#", full), strings.Repeat(".", progressWidth-full), 100*share)
	if done > 0 && done < total {
		left := time.Duration(float64(since) * (1/share - 1))
		text += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return text
}
