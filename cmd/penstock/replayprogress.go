package main

import (
	"fmt"
	"sync/atomic"
	"time"
)

// replayProgress is the state behind the progress line of running replays. Its methods are safe for
// concurrent use.
type replayProgress struct {
	*progressDisplay
	total int
	done  atomic.Int64 // requests, of all runs
}

// countDone counts one request as done.
func (p *replayProgress) countDone() { p.done.Add(1) }

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
