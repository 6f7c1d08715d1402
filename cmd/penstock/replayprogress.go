package main

import (
	"fmt"
	"sync/atomic"
	"time"
)

// replayProgress is what the line about running replays says. Its methods may be
// called from any goroutine.
type replayProgress struct {
	*progress
	total int
	done  atomic.Int64 // requests, of all runs
}

// step counts one request as done.
func (p *replayProgress) step() { p.done.Add(1) }

// line says how far it is, and the time that is left if work goes on as it did.
func (p *replayProgress) line(after time.Duration) string {
	done := min(int(p.done.Load()), p.total)
	share := float64(done) / float64(max(p.total, 1))
	text := fmt.Sprintf("%s %3.0f %%", progressBar(done, p.total), 100*share)
	if done > 0 && done < p.total {
		left := time.Duration(float64(after) * (1/share - 1))
		text += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return text
}
