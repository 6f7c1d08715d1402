package simcluster

import (
	"time"

	"penstock/core/paged"
)

// passTime stands in for the model of time of the simulated engine.
func passTime(plan *paged.Step, stats paged.Stats, total int) time.Duration {
	prefill, tokens := 0, 0
	for i := range plan.Work {
		w := &plan.Work[i]
		if n := len(w.Tokens); n > 1 || !w.Sample {
			prefill += n
		}
		if w.Sample {
			tokens++
		}
	}
	var ms float64
	if prefill > 0 {
		t := float64(prefill)
		ms += float64(4.209989e-7*t*t) + float64(1.518344e-2*t) + 16.50142
	}
	if tokens > 0 {
		p := float64(stats.UsedBlocks) / float64(total)
		ms += max(1, float64(-25.74*p*p)+float64(54.01*p)+5.74)
	}
	return time.Duration(float64(ms * 1e6))
}
