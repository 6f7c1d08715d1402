package paged

import (
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// rig drives a scheduler together with everything which can contradict it: its own invariants, a naive
// twin, a model of the KV cache and a replica which follows its events.
type rig struct {
	s    *Scheduler
	twin *twin
	mem  *cacheModel
	seqs map[SeqID]*Sequence // with the output appended to Tokens

	replica map[kv.SeqHash]bool // registered blocks, by the events
	step    Step
	planned bool // step is not committed
	want    Step // the twin's
	trace   []string
	// reserved and passes count reservations and sequences which were passed over, passed has the latter, since
	// one of their ranges was finished.
	reserved, passes int
	passed           map[SeqID]bool
	transfers        transferRig
}

func newRig(cfg Config) (*rig, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &rig{
		s:      s,
		twin:   &twin{cfg: cfg},
		mem:    newShadow(cfg.BlockSize),
		seqs:   map[SeqID]*Sequence{},
		passed: map[SeqID]bool{},
		transfers: transferRig{
			writers: map[SeqID]*blockUser{}, readers: map[SeqID]*blockUser{},
		},
		replica: map[kv.SeqHash]bool{},
	}, nil
}

func (r *rig) logf(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *rig) add(seq Sequence) error {
	r.logf("add %+v", seq)
	err := r.s.AddSequence(seq)
	if took := r.twin.add(seq); took != (err == nil) {
		return fmt.Errorf("Add: %v, twin took it: %v", err, took)
	}
	if err == nil {
		own := seq
		own.Tokens = slices.Clone(seq.Tokens)
		r.seqs[seq.ID] = &own
	}
	return r.verify()
}

func (r *rig) finish(id SeqID, index int) error {
	r.logf("finish %d of %d", index, id)
	if got, want := r.s.FinishRange(RangeID{id, index}), r.twin.finish(id, index); got != want {
		return fmt.Errorf("FinishRange is %v, twin says %v", got, want)
	} else if got {
		delete(r.passed, id)
	}
	return r.verify()
}

func (r *rig) reopen(id SeqID) error {
	r.logf("reopen %d", id)
	if got, want := r.s.ReopenRanges(id), r.twin.reopen(id); got != want {
		return fmt.Errorf("ReopenRanges is %v, twin says %v", got, want)
	}
	return r.verify()
}

func (r *rig) remove(id SeqID) error {
	r.logf("remove %d", id)
	r.closeTransfer(id)
	ok := r.s.RemoveSequence(id)
	if want := r.twin.remove(id); ok != want {
		return fmt.Errorf("Remove is %v, twin says %v", ok, want)
	}
	delete(r.seqs, id)
	delete(r.passed, id)
	return r.verify()
}

// plan calls Step on both.
func (r *rig) plan() error {
	evicted, head, cached, closed := r.s.pool.evictions, r.s.waiting.head, 0, r.s.gate.closed
	if head != nil {
		cached = r.s.CachedPrefix(*r.seqs[head.id])
		r.s.CachedPrefix(Sequence{Tokens: prompt(7_000_000, 3*r.s.cfg.BlockSize)}) // changes nothing
		if n := r.s.CachedTokens(head.id); n != cached {
			return fmt.Errorf("sequence %d: %d tokens are cached, and %d of its tokens", head.id, n, cached)
		}
	}
	r.s.Step(&r.step)
	for _, w := range r.step.Work {
		if head != nil && w.ID == head.id && evicted == r.s.pool.evictions && w.Start-w.Fetched != cached {
			return fmt.Errorf("sequence %d starts at %d, %d tokens are fetched, and %d were cached", w.ID, w.Start, w.Fetched, cached)
		}
	}
	r.planned = true
	r.reserved += len(r.step.Reserved)
	r.twin.step(&r.want)
	r.logf("step %s", describe(&r.step))
	if got, want := describe(&r.step), describe(&r.want); got != want {
		return fmt.Errorf("step is\n%s, twin says\n%s", got, want)
	}
	if err := r.checkPassed(closed); err != nil {
		return err
	}
	r.followStep()
	for _, w := range r.step.Work {
		if err := r.checkComputable(&w); err != nil {
			return err
		}
		own := r.seqs[w.ID].Tokens[w.Start : w.Start+len(w.Tokens)]
		if !slices.Equal(w.Tokens, own) {
			return fmt.Errorf("sequence %d: tokens are %v, want %v", w.ID, w.Tokens, own)
		}
	}
	for _, id := range r.step.Failed {
		delete(r.seqs, id)
	}
	if len(r.step.Work) == 0 && !slices.ContainsFunc(r.twin.running, func(q *twinSeq) bool { return q.due }) {
		if err := r.checkEmpty(); err != nil {
			return err
		}
	}
	return r.verify()
}

// checkPassed compares the sequences which were passed over. A scheduler which knows that the head of its queue does not
// fit looks at no other, and it passes one over without a look if it knows that there are too few blocks.
func (r *rig) checkPassed(closed bool) error {
	got, want := r.step.PassedOver, r.want.PassedOver
	for _, v := range got {
		if !slices.Contains(want, v) {
			return fmt.Errorf("passed over are %v, twin says %v", got, want)
		}
	}
	for _, v := range want {
		if !slices.Contains(got, v) && !closed && !r.passed[v.ID] {
			return fmt.Errorf("passed over are %v, twin says %v", got, want)
		}
	}
	for _, v := range got {
		r.passed[v.ID] = true
		r.passes++
	}
	for _, v := range r.step.Reserved {
		delete(r.passed, v.ID)
	}
	return nil
}

// checkEmpty checks a step without work while no token is late.
func (r *rig) checkEmpty() error {
	late := slices.ContainsFunc(r.step.Reserved, func(v Reservation) bool { return r.twin.find(v.ID).LateTransfer })
	switch n := len(r.step.Preempted); {
	case late: // others may have given up their blocks for it
	case n == 0:
		return r.planAgain()
	case r.s.held.len == 0:
		return fmt.Errorf("a step without work preempts %v", r.step.Preempted)
	}
	return nil
}

// planAgain checks that after a step without work which preempted no sequence there is none before something happens: a shell waits for it. A
// token which is late is such a thing.
func (r *rig) planAgain() error {
	var again, want Step
	r.s.Step(&again)
	r.twin.step(&want)
	if got := describe(&again); got != describe(&want) || len(again.Work) > 0 {
		return fmt.Errorf("after a step without work the next one is\n%s, twin says\n%s", got, describe(&want))
	}
	return nil
}

// checkComputable reports a token of w which cannot be computed.
func (r *rig) checkComputable(w *Work) error {
	if len(w.Tokens) == 0 && w.Fetched == 0 {
		return fmt.Errorf("sequence %d has nothing to do", w.ID)
	}
	q := r.twin.find(w.ID)
	for i, x := range q.Unfinished {
		if !q.finished[i] && len(w.Tokens) > 0 && x.Start < w.Start+len(w.Tokens) && x.End > w.Start {
			return fmt.Errorf("sequence %d: tokens %d+%d are of the unfinished %v", w.ID, w.Start, len(w.Tokens), x)
		}
	}
	return nil
}

// compute runs the planned batch in the cache model.
func (r *rig) compute() error {
	return r.mem.compute(r.step.Work, func(id SeqID) ([]int, bool) {
		q, ok := r.seqs[id]
		if !ok {
			return nil, true
		}
		return r.mem.prefixes(q.Salt, q.Tokens, q.Media), false
	})
}

// commit commits these tokens.
func (r *rig) commit(sampled []SampledToken) error {
	r.logf("commit %v", sampled)
	took := map[SeqID]bool{} // only the first token of each
	for _, t := range sampled {
		if q := r.s.byID[t.ID]; q != nil && !took[t.ID] && (q.awaitsToken || q.planned > 0 && q.readyTokens()+q.planned == len(q.tokens)) {
			took[t.ID] = true
			r.seqs[t.ID].Tokens = append(r.seqs[t.ID].Tokens, t.Token)
		}
	}
	r.s.Commit(sampled)
	r.planned = false
	r.twin.commit(sampled)
	r.openReaders()
	return r.verify()
}

func (r *rig) clear() error {
	r.logf("clear")
	if got, want := r.s.Clear(), r.twin.clear(); got != want {
		return fmt.Errorf("Clear forgot %d blocks, twin says %d", got, want)
	}
	return r.verify()
}

// drain takes the events, compares them with the twin's one by one, and applies them. Callers drain often
// enough that the log is never lost.
func (r *rig) drain() error {
	events := r.s.AppendEvents(nil)
	r.logf("events %d", len(events))
	var got []string
	if err := replay(r.replica, events, &got); err != nil {
		return err
	}
	if want := r.twin.events; !slices.Equal(got, want) {
		return fmt.Errorf("events are %v, twin says %v", got, want)
	}
	r.twin.events = nil
	if err := r.same(r.replica); err != nil {
		return fmt.Errorf("after events: %w", err)
	}
	dumped := map[kv.SeqHash]bool{}
	if err := replay(dumped, r.s.AppendDump(nil), nil); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	if err := r.same(dumped); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return nil
}

// same reports whether set is the twin's set of registered blocks.
func (r *rig) same(set map[kv.SeqHash]bool) error {
	for _, b := range r.twin.cache {
		if !set[b.seq] {
			return fmt.Errorf("block %x is missing", b.seq)
		}
	}
	if len(set) != len(r.twin.cache) {
		return fmt.Errorf("%d blocks, twin has %d", len(set), len(r.twin.cache))
	}
	return nil
}

// verify checks what holds after every operation.
func (r *rig) verify() error {
	if err := r.s.Check(); err != nil {
		return err
	}
	if err := r.useBlocks(); err != nil {
		return err
	}
	if got, want := r.s.Stats(), r.twin.figures(); got != want {
		return fmt.Errorf("stats are %+v, twin says %+v", got, want)
	}
	for _, b := range r.twin.cache {
		if _, ok := r.s.pool.index[b.seq]; !ok {
			return fmt.Errorf("block %x is not registered", b.seq)
		}
	}
	if got, want := len(r.s.pool.index), len(r.twin.cache); got != want {
		return fmt.Errorf("%d blocks are registered, twin says %d", got, want)
	}
	return nil
}

// replay applies events to the set of prefixes, with the knowledge of kv only: a block is stored once and
// after its parent, and removed once and before its parent.
func replay(set map[kv.SeqHash]bool, events []kv.Event, seen *[]string) error {
	note := func(format string, args ...any) {
		if seen != nil {
			*seen = append(*seen, fmt.Sprintf(format, args...))
		}
	}
	for _, e := range events {
		switch e.Kind {
		case kv.Cleared:
			clear(set)
			note("cleared")
		case kv.Stored:
			if len(e.Blocks) == 0 {
				return errors.New("stored event without blocks")
			}
			if (e.Start == 0) != (e.Parent == 0) || e.Start > 0 && !set[e.Parent] {
				return fmt.Errorf("blocks stored at %d after %x, which is not there", e.Start, e.Parent)
			}
			parent := e.Parent
			for i, b := range e.Blocks {
				parent = kv.ExtendSeq(parent, e.Start+uint32(i), b)
				if set[parent] {
					return fmt.Errorf("%x stored twice", parent)
				}
				set[parent] = true
				note("stored %x", parent)
			}
		case kv.Removed:
			if len(e.Seqs) == 0 {
				return errors.New("removed event without blocks")
			}
			for _, seq := range e.Seqs {
				if !set[seq] {
					return fmt.Errorf("%x removed, which is not there", seq)
				}
				delete(set, seq)
				note("removed %x", seq)
			}
		default:
			return fmt.Errorf("event of kind %v", e.Kind)
		}
	}
	return nil
}

// describe prints a step without the block numbers, which a twin cannot know.
func describe(s *Step) string {
	text := ""
	for _, w := range s.Work {
		text += fmt.Sprintf("work %d: %d+%d, table %d, prefill %d, sample %v, cached %d, fetched %d\n",
			w.ID, w.Start, len(w.Tokens), len(w.Blocks), w.Prefill, w.Sample, w.Cached, w.Fetched)
	}
	if len(s.Preempted) > 0 {
		text += fmt.Sprintf("preempted %v\n", s.Preempted)
	}
	if len(s.Reserved) > 0 {
		text += fmt.Sprintf("reserved %v\n", s.Reserved)
	}
	if len(s.Failed) > 0 {
		text += fmt.Sprintf("failed %v\n", s.Failed)
	}
	return text
}
