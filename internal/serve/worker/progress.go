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
type callProgress struct {
	id        string
	attempt   uint32
	prompt    int  // tokens
	isStream  bool // tokens are sent as they arrive, so that a lack of them is a sign
	startedAt kv.Mono

	hasMedia bool
	// encoding says that the engine encodes the call's media, and encodedAt when it had, 0 before.
	encoding  atomic.Bool
	encodedAt atomic.Int64

	lastTaken      atomic.Int64 // when the caller took the last token, 0 before the first one arrived
	callerTaking   atomic.Bool  // the caller is taking output: the engine is not what the call waits for
	firstTokenTime atomic.Int64 // the time to the first token; 0 once it is reported
	cachedPlusOne  atomic.Int64 // cached tokens of the prompt, plus one; 0 if unknown
	longestGap     atomic.Int64 // the longest time between two tokens since the last report, among gaps
	gapCount       atomic.Int64
	end            chan error // of capacity 1: ends the call
}

// recordOutput records that the engine produced something at a time, which the caller is about to take.
func (p *callProgress) recordOutput(now kv.Mono) {
	p.callerTaking.Store(true)
	last := kv.Mono(p.lastTaken.Load())
	if last == 0 {
		p.firstTokenTime.Store(int64(max(now.Sub(p.computedSince()), 1)))
		return
	}
	p.gapCount.Add(1)
	if gap := int64(now.Sub(last)); gap > p.longestGap.Load() { // the reader may have reset it meanwhile
		p.longestGap.Store(gap)
	}
}

// computedSince is since when the engine computes the prompt, and nothing else.
func (p *callProgress) computedSince() kv.Mono { return max(p.startedAt, kv.Mono(p.encodedAt.Load())) }

// recordEncoded records that the call's media were encoded at a time.
func (p *callProgress) recordEncoded(now kv.Mono) {
	if p.encoding.Load() {
		p.encodedAt.Store(int64(now))
		p.encoding.Store(false)
	}
}

// recordTaken records that the caller has taken the output.
func (p *callProgress) recordTaken(now kv.Mono) {
	p.lastTaken.Store(int64(now))
	p.callerTaking.Store(false)
}

// endCall ends the call, unless it is already being ended.
func (p *callProgress) endCall(err error) (first bool) {
	select {
	case p.end <- err:
		return true
	default:
		return false
	}
}

// reportTimes reports its token times since the last call of reportTimes.
func (p *callProgress) reportTimes(m *stall.Detector) {
	if !p.isStream {
		return
	}
	if took := time.Duration(p.firstTokenTime.Swap(0)); took > 0 {
		computed := 0
		if hits := p.cachedPlusOne.Load(); hits > 0 {
			computed = max(0, p.prompt-int(hits-1))
		}
		m.RecordFirst(took, computed)
	}
	if n := p.gapCount.Swap(0); n > 0 {
		m.RecordGap(time.Duration(p.longestGap.Swap(0)), int(n))
	}
}

// stallStream is its stream; ok is false while the call does not wait for visible output of the engine.
func (p *callProgress) stallStream() (s stall.StreamState, ok bool) {
	if !p.isStream || p.callerTaking.Load() {
		return s, false
	}
	s = stall.StreamState{Prompt: p.prompt, Since: p.computedSince(), Encoding: p.encoding.Load(), HasMedia: p.hasMedia}
	if last := kv.Mono(p.lastTaken.Load()); last > 0 {
		s.Started, s.Since = true, last
	}
	return s, true
}

// callTracker holds the calls in progress, and finished calls whose token times are not reported yet.
type callTracker struct {
	mu struct {
		sync.Mutex
		all  map[*callProgress]struct{}
		over []*callProgress // at most maxOver
	}
}

// maxOver bounds the finished calls kept, for up to a second: a sample is enough to learn from.
const maxOver = 256

func newCallTracker() *callTracker {
	c := &callTracker{}
	c.mu.all = map[*callProgress]struct{}{}
	return c
}

func (c *callTracker) addCall(p *callProgress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.all[p] = struct{}{}
}

func (c *callTracker) removeCall(p *callProgress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.all, p)
	if p.isStream && len(c.mu.over) < maxOver {
		c.mu.over = append(c.mu.over, p)
	}
}

// reportTimes reports the token times of all calls since it was last called.
func (c *callTracker) reportTimes(m *stall.Detector) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.mu.all {
		p.reportTimes(m)
	}
	for _, p := range c.mu.over {
		p.reportTimes(m)
	}
	clear(c.mu.over)
	c.mu.over = c.mu.over[:0]
}

// inProgress returns the calls in progress, in no order. Some may end meanwhile.
func (c *callTracker) inProgress() []*callProgress {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.mu.all))
}
