package worker

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/stall"
)

// callProgress is the progress of one call. The goroutine that serves the call writes it, the monitor
// reads it. Times are nanoseconds since the server's start; no time is 0.
type progress struct {
	id      string
	attempt uint32
	prompt  int  // tokens
	streams bool // tokens are sent as they arrive, so that a lack of them is a sign
	began   kv.Mono

	last   atomic.Int64 // when the caller took the last token, 0 before the first one arrived
	taking atomic.Bool  // the caller is taking output: the engine is not what the call waits for
	first  atomic.Int64 // the time to the first token; 0 once it is reported
	hits   atomic.Int64 // cached tokens of the prompt, plus one; 0 if unknown
	gap    atomic.Int64 // the longest time between two tokens since the last report, among gaps
	gaps   atomic.Int64
	end    chan error // of capacity 1: ends the call
}

// recordOutput records that the engine produced something at a time, which the caller is about to take.
func (p *progress) came(now kv.Mono) {
	p.taking.Store(true)
	last := kv.Mono(p.last.Load())
	if last == 0 {
		p.first.Store(int64(max(now.Sub(p.began), 1)))
		return
	}
	p.gaps.Add(1)
	if gap := int64(now.Sub(last)); gap > p.gap.Load() { // the reader may have reset it meanwhile
		p.gap.Store(gap)
	}
}

// recordTaken records that the caller has taken the output.
func (p *progress) taken(now kv.Mono) {
	p.last.Store(int64(now))
	p.taking.Store(false)
}

// endCall ends the call, unless it is already being ended.
func (p *progress) stop(err error) (first bool) {
	select {
	case p.end <- err:
		return true
	default:
		return false
	}
}

// reportTimes reports its token times since the last call of reportTimes.
func (p *progress) learn(m *stall.Machine) {
	if !p.streams {
		return
	}
	if took := time.Duration(p.first.Swap(0)); took > 0 {
		computed := 0
		if hits := p.hits.Load(); hits > 0 {
			computed = max(0, p.prompt-int(hits-1))
		}
		m.First(took, computed)
	}
	if n := p.gaps.Swap(0); n > 0 {
		m.Gap(time.Duration(p.gap.Swap(0)), int(n))
	}
}

// stallStream is its stream; ok is false while the call does not wait for visible output of the engine.
func (p *progress) stream() (s stall.Stream, ok bool) {
	if !p.streams || p.taking.Load() {
		return s, false
	}
	s = stall.Stream{Prompt: p.prompt, Since: p.began}
	if last := kv.Mono(p.last.Load()); last > 0 {
		s.Begun, s.Since = true, last
	}
	return s, true
}

// callTracker holds the calls in progress, and finished calls whose token times are not reported yet.
type calls struct {
	mu struct {
		sync.Mutex
		all  map[*progress]struct{}
		over []*progress // at most maxOver
	}
}

// maxOver bounds the finished calls kept, for up to a second: a sample is enough to learn from.
const maxOver = 256

func newCalls() *calls {
	c := &calls{}
	c.mu.all = map[*progress]struct{}{}
	return c
}

func (c *calls) add(p *progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.all[p] = struct{}{}
}

func (c *calls) remove(p *progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.all, p)
	if p.streams && len(c.mu.over) < maxOver {
		c.mu.over = append(c.mu.over, p)
	}
}

// reportTimes reports the token times of all calls since it was last called.
func (c *calls) learn(m *stall.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.mu.all {
		p.learn(m)
	}
	for _, p := range c.mu.over {
		p.learn(m)
	}
	clear(c.mu.over)
	c.mu.over = c.mu.over[:0]
}

// inProgress returns the calls in progress, in no order. Some may end meanwhile.
func (c *calls) inProgress() []*progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.mu.all))
}
