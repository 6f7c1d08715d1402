package migrate

import (
	"time"

	"penstock/core/splitmix"
)

// waitBackoff doubles each wait, from least to most, and adds up to a half which differs between tasks, so
// that tasks which failed at the same time do not retry at the same time.
type waitBackoff struct {
	least, most time.Duration
	last        time.Duration // without the random part; 0 before the first
	started     bool
	draw        splitmix.Source
}

func (p *waitBackoff) nextWait() time.Duration {
	p.last = min(max(2*p.last, p.least), p.most)
	return p.last + time.Duration(p.draw.Next()%uint64(p.last/2+1))
}

// nextAfterFirst is nextWait, but without a wait the first time.
func (p *waitBackoff) nextAfterFirst() time.Duration {
	if !p.started {
		p.started = true
		return 0
	}
	return p.nextWait()
}

func (p *waitBackoff) resetWait() { p.last, p.started = 0, false }
