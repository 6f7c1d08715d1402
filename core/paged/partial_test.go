package paged

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestEncodingStallsNoOther: the steps of texts are the same, one by one, whether sequences which can compute nothing
// are there or not, however scarce blocks, places and the budget are.
func TestEncodingStallsNoOther(t *testing.T) {
	reserved, given := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		cfg := someConfig(rng.IntN)
		cfg.Reuse, cfg.Remote, cfg.MaxWaiting = Off, nil, 1000 // reservations do evict cached blocks
		alone, err := newRig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		mixed, err := newRig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := compareTexts(alone, mixed, rng); err != nil {
			t.Fatalf("seed %d, %+v: %v\n%s", seed, cfg, err, strings.Join(mixed.trace, "\n"))
		}
		reserved += mixed.reserved
		given += int(mixed.s.Stats().Preemptions - alone.s.Stats().Preemptions)
	}
	if reserved < 1000 || given < 300 {
		t.Errorf("only %d reservations, of which %d were given up", reserved, given)
	}
}

// firstEncoding is the id of the first sequence which is always encoding.
const firstEncoding = 1000

func compareTexts(alone, mixed *rig, rng *rand.Rand) error {
	cfg := alone.twin.cfg
	for id := range SeqID(120) {
		if tokens := someTokens(cfg, kv.Salt{}, rng.IntN); len(tokens) > 0 && rng.IntN(3) > 0 {
			seq := Sequence{ID: id, Tokens: tokens, Prompt: len(tokens)}
			if err := alone.add(seq); err != nil {
				return err
			}
			if err := mixed.add(seq); err != nil {
				return err
			}
		}
		if tokens := someTokens(cfg, kv.Salt{}, rng.IntN); len(tokens) > 0 && rng.IntN(2) > 0 {
			all := []TokenRange{{0, 1 + rng.IntN(len(tokens))}}
			if err := mixed.add(Sequence{ID: firstEncoding + id, Tokens: tokens, Prompt: len(tokens), Unfinished: all}); err != nil {
				return err
			}
		}
		if err := mixed.remove(firstEncoding + SeqID(rng.IntN(int(id)+1))); err != nil {
			return err
		}
		for range rng.IntN(4) {
			if err := alone.plan(); err != nil {
				return err
			}
			if err := mixed.plan(); err != nil {
				return err
			}
			want, got := describeTexts(&alone.step), describeTexts(&mixed.step)
			if want != got {
				return fmt.Errorf("texts alone:\n%swith encoding sequences:\n%s", want, got)
			}
			var sampled []SampledToken
			for _, w := range alone.step.Work {
				if w.Sample {
					sampled = append(sampled, SampledToken{ID: w.ID, Token: kv.Token(rng.IntN(2))})
				}
			}
			for _, r := range []*rig{alone, mixed} {
				if err := r.compute(); err != nil {
					return err
				}
				if err := r.commit(sampled); err != nil {
					return err
				}
			}
			for _, sample := range sampled {
				if rng.IntN(8) == 0 {
					if err := alone.remove(sample.ID); err != nil {
						return err
					}
					if err := mixed.remove(sample.ID); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// describeTexts prints what a step has of texts.
func describeTexts(s *Step) string {
	encodes := func(id SeqID) bool { return id >= firstEncoding }
	only := Step{Failed: s.Failed, Preempted: slices.DeleteFunc(slices.Clone(s.Preempted), encodes)}
	only.Work = slices.DeleteFunc(slices.Clone(s.Work), func(w Work) bool { return encodes(w.ID) })
	return describe(&only)
}

// TestPartialSequencesAreServed: all sequences are served when their ranges have been finished, however scarce blocks
// are, and however late that is. Meanwhile the oldest running one which is not encoding advances in every step.
func TestPartialSequencesAreServed(t *testing.T) {
	restarts, imports, reclaimed := 0, 0, 0
	for seed := range uint64(240) {
		rng := rand.New(rand.NewPCG(seed, 5))
		cfg := someConfig(rng.IntN)
		if seed%2 == 0 { // many wait for what is cached
			cfg.Reuse, cfg.Remote, cfg.MaxWaiting = On, nil, 20
		}
		r, err := newRig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n, err := servePartial(r, rng, seed%4 == 1)
		if err != nil {
			t.Fatalf("seed %d, %+v: %v\n%s", seed, cfg, err, strings.Join(r.trace, "\n"))
		}
		restarts += n
		imports += r.transfers.imports
		reclaimed += r.transfers.reclaimed
	}
	if imports < 50 || reclaimed < 20 {
		t.Errorf("only %d imports, and %d reservations taken away", imports, reclaimed)
	}
	if restarts < 20 {
		t.Errorf("only %d times ranges were given up by a sequence which was passed over", restarts)
	}
}

// servePartial returns how often ranges were given up by a sequence which was passed over. Transfers may be late ones.
func servePartial(r *rig, rng *rand.Rand, late bool) (restarts int, err error) {
	cfg := r.twin.cfg
	length := map[SeqID]int{}  // with the output
	due := map[SeqID][]int{}   // steps at which ranges are finished
	arrives := map[SeqID]int{} // steps at which a transfer ends, or a held sequence is removed at the earliest
	work, last := 0, 0
	reopening := reopener{rig: r, due: due, ready: map[SeqID]int{}, again: map[SeqID]int{}}
	if err := r.fillCache(rng); err != nil {
		return 0, err
	}
	for id := range SeqID(20) {
		tokens := someTokens(cfg, kv.Salt{}, rng.IntN)
		if len(tokens) == 0 || len(tokens) >= r.s.MaxTokens() || r.s.Stats().Waiting == cfg.MaxWaiting {
			continue
		}
		seq := Sequence{ID: id, Tokens: tokens, Prompt: len(tokens)}
		if rng.IntN(2) == 0 {
			seq.Unfinished = slices.DeleteFunc(someRanges(seq.Prompt, rng.IntN), func(x TokenRange) bool {
				return x.Start < 0 || x.Start >= x.End || x.End > seq.Prompt
			})
			seq.Reopens = rng.IntN(2) == 0
		}
		switch end := (len(tokens) - 1) / cfg.BlockSize * cfg.BlockSize; {
		case seq.Unfinished != nil:
		case rng.IntN(2) == 0:
			seq.TransferEnd, arrives[id], seq.LateTransfer = end, rng.IntN(60), late
		case rng.IntN(4) == 0:
			seq.Hold, arrives[id] = true, rng.IntN(60)
		}
		last = max(last, arrives[id])
		if err := r.add(seq); err != nil {
			return 0, err
		}
		reopening.ready[id] = r.s.CachedPrefix(seq)
		for range seq.Unfinished {
			at := rng.IntN(60)
			if seq.Reopens && len(due[id]) > 0 {
				at = due[id][0] // all at once
			}
			due[id] = append(due[id], at)
			last = max(last, at)
		}
		length[id] = len(tokens) + 1 + rng.IntN(r.s.MaxTokens()-len(tokens))
		if seq.Hold {
			length[id] = len(tokens)
		}
		work += length[id]
	}
	for steps := 0; len(length) > 0; steps++ {
		// When all are finished, each step gives the oldest at least one token or, without chunking, waits for others to
		// end. What was computed before may be lost.
		if steps > last+2*work+reopening.waits {
			return 0, fmt.Errorf("%d sequences are left after %d steps of %d", len(length), steps, last+2*work+reopening.waits)
		}
		for id := range SeqID(20) {
			for i, at := range due[id] {
				if at == steps && reopening.needsRange(id, i) {
					if err := r.finish(id, i); err != nil {
						return 0, err
					}
				}
			}
		}
		for id := range SeqID(20) {
			if at, ok := arrives[id]; ok && at <= steps {
				if err := r.arrive(id, length); err != nil {
					return 0, err
				}
			}
		}
		if err := r.plan(); err != nil {
			return 0, err
		}
		if err := r.checkOldest(); err != nil {
			return 0, err
		}
		if err := reopening.restart(steps, rng.IntN(5)); err != nil {
			return 0, err
		}
		if err := r.compute(); err != nil {
			return 0, err
		}
		var sampled []SampledToken
		for _, w := range r.step.Work {
			if w.Sample {
				sampled = append(sampled, SampledToken{w.ID, kv.Token(rng.IntN(2))})
			}
		}
		if err := r.commit(sampled); err != nil {
			return 0, err
		}
		for _, t := range sampled {
			if len(r.seqs[t.ID].Tokens) == length[t.ID] {
				delete(length, t.ID)
				if err := r.remove(t.ID); err != nil {
					return 0, err
				}
			}
		}
	}
	return reopening.restarts, nil
}

// arrive ends the transfer of a sequence, with its tokens if it is reserved, and removes one which is held.
func (r *rig) arrive(id SeqID, length map[SeqID]int) error {
	switch q := r.twin.find(id); {
	case q == nil:
		return nil
	case q.Hold && slices.Contains(r.twin.kept, q):
		delete(length, id)
		return r.remove(id)
	case r.twin.imports(q, q.until):
		return r.importTokens(id, q.until)
	}
	return r.finishTransfer(id)
}

// fillCache computes some prompts.
func (r *rig) fillCache(rng *rand.Rand) error {
	for range 4 {
		tokens := someTokens(r.twin.cfg, kv.Salt{}, rng.IntN)
		if len(tokens) == 0 || len(tokens) >= r.s.MaxTokens() {
			continue
		}
		if err := r.add(Sequence{ID: firstEncoding, Tokens: tokens, Prompt: len(tokens)}); err != nil {
			return err
		}
		for range len(tokens) {
			if err := r.plan(); err != nil {
				return err
			}
			if err := r.compute(); err != nil {
				return err
			}
			if err := r.commit(nil); err != nil {
				return err
			}
		}
		if err := r.remove(firstEncoding); err != nil {
			return err
		}
	}
	return nil
}

// reopener is a shell which finishes those ranges of a sequence that it needs, all at once, and gives them up when the
// sequence is preempted, or waits and needs others too.
type reopener struct {
	*rig
	due          map[SeqID][]int
	ready, again map[SeqID]int // again counts how often ranges were reopened since the last preemption
	waits        int           // steps until they were finished again
	restarts     int           // reopened ones of sequences which were passed over
}

// needsRange reports whether a range has to be finished.
func (r *reopener) needsRange(id SeqID, i int) bool {
	q := r.seqs[id]
	return q != nil && (!q.Reopens || q.Unfinished[i].End > r.ready[id])
}

// restart does what a step demands. Ranges are finished again some steps later.
func (r *reopener) restart(steps, later int) error {
	finish := func(id SeqID, ready int) {
		r.ready[id] = ready
		for i := range r.due[id] {
			r.due[id][i] = steps + 1 + later
		}
		r.waits += 1 + later
	}
	for _, id := range r.step.Preempted {
		if q := r.seqs[id]; q.Reopens {
			r.again[id] = 0
			finish(id, r.s.CachedPrefix(*q))
		}
	}
	for _, v := range r.step.Reserved {
		if r.seqs[v.ID].Reopens {
			finish(v.ID, v.Ready)
		}
	}
	for _, v := range r.step.PassedOver {
		awaited := slices.ContainsFunc(r.due[v.ID], func(at int) bool { return at > steps })
		if v.Ready >= r.ready[v.ID] || awaited {
			continue
		}
		if r.again[v.ID]++; r.again[v.ID] > len(r.due[v.ID]) {
			return fmt.Errorf("sequence %d is reopened %d times while it waits", v.ID, r.again[v.ID])
		}
		r.restarts++
		if err := r.reopen(v.ID); err != nil {
			return err
		}
		finish(v.ID, v.Ready)
	}
	return nil
}

// checkOldest reports if the oldest running sequence which is not encoding does not advance, or no sequence is computed
// although one could be. Neither need be beside held sequences, nor the second beside reservations for a transfer.
func (r *rig) checkOldest() error {
	if len(r.step.Failed) > 0 {
		return fmt.Errorf("step is\n%s", describe(&r.step))
	}
	if len(r.twin.kept) > 0 {
		return nil
	}
	for _, q := range r.twin.running {
		if r.twin.needs(q) || r.twin.cfg.Chunking == Off {
			continue
		}
		if !slices.ContainsFunc(r.step.Work, func(w Work) bool { return w.ID == q.ID }) {
			return fmt.Errorf("sequence %d is the oldest which is not encoding, step is\n%s", q.ID, describe(&r.step))
		}
		return nil
	}
	awaits := func(q *twinSeq) bool { return q.until > q.computed }
	if len(r.step.Work) == 0 && len(r.step.Reserved) == 0 && !slices.ContainsFunc(r.twin.paused, awaits) {
		for _, q := range slices.Concat(r.twin.running, r.twin.paused, r.twin.waiting) {
			if !r.twin.needs(q) {
				return fmt.Errorf("sequence %d is not encoding, and nothing is computed", q.ID)
			}
		}
	}
	return nil
}

// TestPausedSequencesCostNothing: a step with paused sequences allocates as much as one without: nothing.
func TestPausedSequencesCostNothing(t *testing.T) {
	const n = 64
	s, err := New(Config{Blocks: 4096, BlockSize: 16, MaxSeqs: 2, TokenBudget: 64, MaxContext: 2048, MaxWaiting: n})
	if err != nil {
		t.Fatal(err)
	}
	var step Step
	for i := range n {
		tokens := prompt(1000*i, 40)
		if err := s.AddSequence(Sequence{ID: SeqID(i), Tokens: tokens, Prompt: 40, Unfinished: []TokenRange{{i % 20, 40}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		s.Step(&step)
		s.Commit(nil)
	}
	if st := s.Stats(); st.Running != 0 || st.Waiting != n || st.Encoding != n || s.paused.len != n {
		t.Fatalf("%+v, %d pause", st, s.paused.len)
	}
	if allocated := testing.AllocsPerRun(100, func() {
		s.Step(&step)
		s.Commit(nil)
		s.FinishRange(RangeID{n, 0})
	}); allocated != 0 {
		t.Errorf("a step with %d paused sequences allocates %v times", n, allocated)
	}
	for i := range n {
		s.RemoveSequence(SeqID(i))
	}
	if st := s.Stats(); st.UsedBlocks != 0 || st.Waiting != 0 || st.Encoding != 0 || st.ReservedBlocks != 0 || st.PrefillTokens != 0 {
		t.Errorf("after all are removed: %+v", st)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
