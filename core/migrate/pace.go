package migrate

import (
	"time"

	"penstock/core/splitmix"
)

// pace makes each wait twice the last one, from least to most, and up to a half
// more that differs from task to task, so that those who failed together do not
// return together.
type pace struct {
	least, most time.Duration
	last        time.Duration // without what differs; 0 before the first
	begun       bool
	draw        splitmix.Source
}

func (p *pace) next() time.Duration {
	p.last = min(max(2*p.last, p.least), p.most)
	return p.last + time.Duration(p.draw.Next()%uint64(p.last/2+1))
}

// nextButFirst is next, but no wait at all the first time.
func (p *pace) nextButFirst() time.Duration {
	if !p.begun {
		p.begun = true
		return 0
	}
	return p.next()
}

func (p *pace) reset() { p.last, p.begun = 0, false }
