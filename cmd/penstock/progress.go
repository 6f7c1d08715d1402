package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	progressRedraw = 200 * time.Millisecond // on a terminal
	progressWidth  = 24                     // of a bar, in characters
)

// progress shows how far long work is, in a line that says so: redrawn on a
// terminal, and elsewhere written now and then, if at all.
type progress struct {
	out      io.Writer
	terminal bool
	stop     chan struct{}
	gone     sync.WaitGroup
	mu       sync.Mutex // of out
}

// newProgress begins to show what line says of the work after so much time: on a
// terminal all the time, elsewhere at these intervals, 0 for never. The caller
// ends it.
func newProgress(out io.Writer, elsewhere time.Duration, line func(after time.Duration) string) *progress {
	p := &progress{out: out, terminal: isTerminal(out), stop: make(chan struct{})}
	every := elsewhere
	if p.terminal {
		every = progressRedraw
	}
	if every > 0 {
		p.gone.Go(func() { p.draw(every, line) })
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

// finished tells of a part that is done, where no bar says so.
func (p *progress) finished(line string) {
	if p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, line)
}

// end takes the line away.
func (p *progress) end() {
	close(p.stop)
	p.gone.Wait()
}

func (p *progress) draw(every time.Duration, line func(after time.Duration) string) {
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
				p.finished(line(time.Since(begin)))
			}
		}
	}
}

// progressBar returns a bar that is full when done is total.
func progressBar(done, total int) string {
	full := progressWidth * min(done, total) / max(total, 1)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", progressWidth-full) + "]"
}
