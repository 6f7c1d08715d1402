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

// progress is what came of one call so far. The goroutine that serves the call writes it, the monitor reads it.
// Times are nanoseconds since the server was born; no time is 0.
type progress struct {
	id      string
	attempt uint32
	prompt  int  // tokens
	streams bool // tokens are sent as they come, so that the lack of them means something
	began   kv.Mono

	last   atomic.Int64 // when the last token was taken by the caller, 0 before the first one came
	taking atomic.Bool  // the caller takes what came: it is not the engine which is waited for
	first  atomic.Int64 // how long the first token took; 0 once it was noted
	hits   atomic.Int64 // tokens of the prompt that need not be computed, plus one; 0 if that is not known
	gap    atomic.Int64 // the longest time between two tokens since they were noted last, of gaps
	gaps   atomic.Int64
	end    chan error // of capacity 1: ends the call
}

// came notes that the engine produced something at a time, which the caller is about to take.
func (p *progress) came(now kv.Mono) {
	p.taking.Store(true)
	last := kv.Mono(p.last.Load())
	if last == 0 {
		p.first.Store(int64(max(now.Sub(p.began), 1)))
		return
	}
	p.gaps.Add(1)
	if gap := int64(now.Sub(last)); gap > p.gap.Load() { // the reader may have begun anew meanwhile
		p.gap.Store(gap)
	}
}

// taken notes that the caller has taken it.
func (p *progress) taken(now kv.Mono) {
	p.last.Store(int64(now))
	p.taking.Store(false)
}

// stop ends the call, unless it is being ended.
func (p *progress) stop(err error) (first bool) {
	select {
	case p.end <- err:
		return true
	default:
		return false
	}
}

// learn notes how long its tokens took since it was called last.
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

// stream is its stream; ok is false while nothing is waited for of the engine that could be told from outside.
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

// calls are those in progress, and those of which is not learned yet how long their tokens took.
type calls struct {
	mu struct {
		sync.Mutex
		all  map[*progress]struct{}
		over []*progress // at most maxOver
	}
}

// maxOver bounds the calls that are kept beyond their end, for a second: of more, some are enough to learn from.
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

// learn notes how long the tokens of all calls took since it was called last.
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

// inProgress returns those in progress, in no order. Some may end meanwhile.
func (c *calls) inProgress() []*progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.mu.all))
}
