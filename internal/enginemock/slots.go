package enginemock

import (
	"context"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// slotPool is the slots of llama.cpp, its own cache: as many conversations as it serves at once, each with
// the tokens which it computed last. A request gets the free slot with the longest common prefix if that is
// long enough, else the least recently used one; it waits while all are busy.
type slotPool struct {
	mu struct {
		sync.Mutex
		all     []*slot
		clock   uint64
		waiting int
		changed chan struct{}
	}
}

// slot is one of them.
type slot struct {
	pool *slotPool
	id   int
	// Guarded by pool.mu.
	tokens []kv.Token
	used   uint64
	busy   bool
	// Of the request that uses it.
	cached, prompt int
	began          time.Time
	first          time.Time
	generated      int
}

// minSimilarity is the share of a prompt which a slot must hold to be preferred (--slot-prompt-similarity).
const minSimilarity = 0.10

func newSlotPool(n int) *slotPool {
	s := &slotPool{}
	s.mu.changed = make(chan struct{})
	for i := range n {
		s.mu.all = append(s.mu.all, &slot{pool: s, id: i})
	}
	return s
}

// acquireSlot returns the slot for a prompt, once there is one: the requested one, if any. With reuse false
// the whole prompt is computed.
func (s *slotPool) acquireSlot(ctx context.Context, prompt []kv.Token, asked *int, reuse *bool) (*slot, error) {
	pinned := asked != nil && *asked >= 0
	if pinned && *asked >= len(s.mu.all) {
		return nil, fault.New(fault.Invalid, "id_slot %d is not one of the %d slots", *asked, len(s.mu.all))
	}
	for {
		s.mu.Lock()
		var best *slot
		if pinned {
			if c := s.mu.all[*asked]; !c.busy {
				best = c
			}
		} else {
			best = s.pickLocked(prompt)
		}
		if best != nil {
			best.cached = 0
			if reuse == nil || *reuse {
				// The last token of a prompt is always computed.
				best.cached = min(commonPrefix(best.tokens, prompt), max(len(prompt)-1, 0))
			}
			best.tokens = append(best.tokens[:0], prompt...)
			best.busy, best.prompt, best.generated = true, len(prompt), 0
			best.began, best.first = time.Now(), time.Time{}
			s.mu.Unlock()
			return best, nil
		}
		changed := s.mu.changed
		s.mu.waiting++
		s.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		s.mu.waiting--
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// pickLocked returns the free slot for a prompt; nil if none is free.
func (s *slotPool) pickLocked(prompt []kv.Token) *slot {
	var near, oldest *slot
	most := 0
	for _, c := range s.mu.all {
		if c.busy {
			continue
		}
		if oldest == nil || c.used < oldest.used {
			oldest = c
		}
		if n := commonPrefix(c.tokens, prompt); n > most && float64(n) >= minSimilarity*float64(len(prompt)) {
			near, most = c, n
		}
	}
	if near != nil {
		return near
	}
	return oldest
}

// commonPrefix counts the tokens of the common prefix.
func commonPrefix(a, b []kv.Token) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// addTokens records output. The slot may be nil.
func (c *slot) addTokens(tokens []kv.Token) {
	if c == nil {
		return
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.first.IsZero() {
		c.first = time.Now()
	}
	c.generated += len(tokens)
	c.tokens = append(c.tokens, tokens...)
}

// releaseSlot returns the slot to the pool.
func (c *slot) releaseSlot() {
	s := c.pool
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.clock++
	c.busy, c.used = false, s.mu.clock
	if n := len(c.tokens); n > 0 && c.generated > 0 {
		c.tokens = c.tokens[:n-1] // the last token was sampled and not computed
	}
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// eraseSlot empties a slot.
func (s *slotPool) eraseSlot(id int) (n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < 0 || id >= len(s.mu.all) || s.mu.all[id].busy {
		return 0, false
	}
	n = len(s.mu.all[id].tokens)
	s.mu.all[id].tokens = nil
	return n, true
}

// countBusy returns how many slots are busy and how many requests wait for one.
func (s *slotPool) countBusy() (busy, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.mu.all {
		if c.busy {
			busy++
		}
	}
	return busy, s.mu.waiting
}

// eraseAll empties all slots, as a restart does.
func (s *slotPool) eraseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.mu.all {
		c.tokens = nil
	}
}

// llamaTimings are llama.cpp's timings of an answer.
func (c *slot) llamaTimings(predicted int) object {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	now := time.Now()
	first := c.first
	if first.IsZero() {
		first = now
	}
	computed := c.prompt - c.cached
	prompt, rest := ms(first.Sub(c.began)), ms(now.Sub(first))
	per := func(total float64, n int) float64 { return total / float64(max(n, 1)) }
	rate := func(total float64, n int) float64 {
		if total == 0 {
			return 0
		}
		return float64(n) / total * 1e3
	}
	return object{
		"cache_n": c.cached, "prompt_n": computed, "prompt_ms": prompt, "prompt_per_token_ms": per(prompt, computed), "prompt_per_second": rate(prompt, computed),
		"predicted_n": predicted, "predicted_ms": rest, "predicted_per_token_ms": per(rest, predicted), "predicted_per_second": rate(rest, predicted),
	}
}
