package migrate

import "time"

// pace makes each wait twice the last one, from least to most, and up to a half
// more that differs from task to task, so that those who failed together do not
// return together.
type pace struct {
	least, most time.Duration
	last        time.Duration // without what differs; 0 before the first
	begun       bool
	seed        uint64
}

func (p *pace) next() time.Duration {
	p.last = min(max(2*p.last, p.least), p.most)
	p.seed += 0x9e3779b97f4a7c15
	return p.last + time.Duration(mix(p.seed)%uint64(p.last/2+1))
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

// mix is the output function of SplitMix64 (Steele, Lea, Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
