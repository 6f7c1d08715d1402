package paged

import (
	"testing"
	"unsafe"

	"penstock/core/kv"
)

// decoding returns a scheduler with n decoding sequences of length tokens, and a function which advances
// them by one token. They can grow by the given number of tokens without an allocation.
func decoding(t testing.TB, n, length, growth int) (s *Scheduler, advance func()) {
	s, err := New(Config{
		Blocks: 2 * n * (length + growth) / 16, BlockSize: 16,
		MaxSeqs: n, TokenBudget: n * length, MaxContext: 2 * (length + growth), MaxWaiting: n,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := s.AddSequence(Sequence{ID: SeqID(i), Tokens: prompt(i*length, length), Prompt: length}); err != nil {
			t.Fatal(err)
		}
	}
	step := Step{Work: make([]Work, 0, n)}
	sampled := make([]SampledToken, 0, n)
	advance = func() {
		s.Step(&step)
		sampled = sampled[:0]
		for i := range step.Work {
			if w := &step.Work[i]; w.Sample {
				sampled = append(sampled, SampledToken{ID: w.ID, Token: 7})
			}
		}
		s.Commit(sampled)
	}
	advance()
	for q := s.running.head; q != nil; q = q.next {
		q.tokens = append(make([]kv.Token, 0, length+growth+1), q.tokens...)
		q.blocks = append(make([]int32, 0, (length+growth)/16+2), q.blocks...)
	}
	return s, advance
}

// TestDecodeAllocatesNothing: in steady state a step allocates only for the growth of each sequence's token
// list and block table.
func TestDecodeAllocatesNothing(t *testing.T) {
	const steps = 200
	s, advance := decoding(t, 64, 40, 5*steps)
	var events []kv.Event
	for range 2 * steps { // the pool and the log reach their sizes
		advance()
		events = s.AppendEvents(events[:0])
	}
	// Registration fills the index. Grow the map to its final size first, and empty it again.
	for i := range 64 * 5 * steps / 16 {
		s.pool.index[kv.SeqHash(i)] = 0
	}
	for i := range 64 * 5 * steps / 16 {
		delete(s.pool.index, kv.SeqHash(i))
	}
	s.pool.blocks = append(make([]physicalBlock, 0, s.cfg.Blocks), s.pool.blocks...)
	s.pool.tokens = append(make([]kv.Token, 0, s.cfg.Blocks*16), s.pool.tokens...)
	for range steps {
		advance()
	}
	if n := testing.AllocsPerRun(steps, advance); n != 0 {
		t.Errorf("a step of 64 decoding sequences allocates %v times", n)
	}
	if got := s.Stats().Running; got != 64 {
		t.Fatalf("%d sequences run, want 64", got)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestBlockedQueueAllocatesNothing: a queue head which does not fit costs no memory in later steps.
func TestBlockedQueueAllocatesNothing(t *testing.T) {
	s, err := New(Config{Blocks: 8, BlockSize: 16, MaxSeqs: 4, TokenBudget: 256, MaxContext: 128, MaxWaiting: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := s.AddSequence(Sequence{ID: SeqID(i), Tokens: prompt(0, 100), Prompt: 100}); err != nil {
			t.Fatal(err)
		}
	}
	var step Step
	s.Step(&step)
	s.Commit(nil)
	s.Step(&step)
	s.Commit(nil)
	if n := testing.AllocsPerRun(100, func() {
		s.gate.closed = false
		s.Step(&step)
		s.Commit(nil)
	}); n != 0 {
		t.Errorf("a step with a blocked queue allocates %v times", n)
	}
	if got := s.Stats(); got.Waiting == 0 || !s.gate.closed {
		t.Fatalf("the queue is not blocked: %+v", got)
	}
}

// TestIdleSchedulerIsSmall: unused capacity costs nothing.
func TestIdleSchedulerIsSmall(t *testing.T) {
	s, err := New(Config{Blocks: 1 << 20, BlockSize: 512, MaxSeqs: 1024, TokenBudget: 8192, MaxContext: 1 << 20, MaxWaiting: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	if n := cap(s.pool.blocks) + cap(s.pool.tokens) + cap(s.hits) + cap(s.pool.log.blocks); n != 0 {
		t.Errorf("%d elements are allocated before anything is served", n)
	}
	serve(t, s, 1, prompt(0, 2000))
	if got := len(s.pool.blocks); got != 4 {
		t.Errorf("2000 tokens in blocks of 512 made %d blocks", got)
	}
	if got := unsafe.Sizeof(physicalBlock{}); got > 40 {
		t.Errorf("a block costs %d bytes beside its tokens, want at most 40", got)
	}
}
