package paged

import (
	"penstock/core/fault"
	"penstock/core/kv"
)

// AddSequence puts a sequence at the end of the queue. It returns a *fault.Error for a sequence which is
// empty or could never be served (Invalid), for one beyond MaxWaiting (Overloaded), and for an ID in use
// (Conflict).
func (s *Scheduler) AddSequence(seq Sequence) error {
	if err := s.validateSequence(seq); err != nil {
		return err
	}
	hasher, err := kv.NewHasher(s.cfg.BlockSize, seq.Salt)
	if err != nil {
		return fault.New(fault.Internal, "paged: hasher: %w", err)
	}
	s.arrivals++
	q := newSeqState(seq, s.arrivals, hasher, s.cfg.BlockSize)
	if s.cfg.Reuse == Off {
		q.reuse = Off
	}
	s.byID[q.id] = q
	s.waiting.pushBack(q)
	s.stats.PrefillTokens += q.prefillLeft()
	return nil
}

// validateSequence returns why seq cannot be queued, or nil.
func (s *Scheduler) validateSequence(seq Sequence) error {
	switch n := len(seq.Tokens); {
	case n == 0:
		return fault.InvalidParam("prompt", "the prompt has no tokens: send at least one")
	case seq.Prompt < 1 || seq.Prompt > n:
		return fault.New(fault.Invalid, "the prompt is said to be %d of %d tokens: it must be at least 1 and at most all", seq.Prompt, n)
	case n >= s.MaxTokens():
		return fault.InvalidParam("prompt", "the prompt has %d tokens, and %d are the most that prompt and output may have together: shorten it", n, s.MaxTokens())
	}
	if _, used := s.byID[seq.ID]; used {
		return fault.New(fault.Conflict, "sequence %d is already being served: use another id", seq.ID)
	}
	// Preempted sequences were admitted before and do not count.
	if s.waiting.len-s.preempted >= s.cfg.MaxWaiting {
		return fault.New(fault.Overloaded, "%d requests are already waiting: retry later", s.waiting.len)
	}
	return nil
}
