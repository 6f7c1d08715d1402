package paged

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestRandomTransfers: while others write into reserved blocks and read held ones at any time, no sequence is
// computed with K and V of another one, and the scheduler does what the twin does.
func TestRandomTransfers(t *testing.T) {
	var all transferRig
	for seed := range uint64(240) {
		rng := rand.New(rand.NewPCG(seed, 6))
		cfg := someConfig(rng.IntN)
		if seed%4 > 0 { // scarce blocks, of which many are shared
			cfg.Reuse, cfg.Chunking, cfg.Blocks, cfg.MaxWaiting, cfg.Remote = On, On, 8+rng.IntN(12), 6, nil
		}
		r, err := newRig(cfg)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := drive(r, &random{rng, 6000}, withTransfers); err != nil {
			t.Fatalf("seed %d, %+v: %v\n%s", seed, cfg, err, strings.Join(r.trace, "\n"))
		}
		all.again += r.transfers.again
		all.imports += r.transfers.imports
		all.shared += r.transfers.shared
		all.reclaimed += r.transfers.reclaimed
		all.reads += r.transfers.reads
	}
	if all.again < 150 || all.imports < 1000 || all.shared < 40 || all.reclaimed < 150 || all.reads < 10000 {
		t.Errorf("only %d transfers after a preemption, %d imports, %d of blocks which others had computed, %d reservations taken away, %d reads", all.again, all.imports, all.shared, all.reclaimed, all.reads)
	}
}

// TestTransferOutlivesReservation: the oracle of TestRandomTransfers finds a shell which goes on writing to the blocks of
// a sequence that was preempted.
func TestTransferOutlivesReservation(t *testing.T) {
	found := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 6))
		cfg := someConfig(rng.IntN)
		cfg.Reuse, cfg.Chunking, cfg.Blocks, cfg.MaxWaiting, cfg.Remote = On, On, 8+rng.IntN(12), 6, nil
		r, err := newRig(cfg)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		r.transfers.forget = true
		if err := drive(r, &random{rng, 6000}, withTransfers); err != nil {
			if !strings.Contains(err.Error(), "holds the K and V of another prefix") {
				t.Fatalf("seed %d, %+v: %v", seed, cfg, err)
			}
			found++
		}
	}
	if found < 10 {
		t.Errorf("found in %d runs of 60", found)
	}
}

// transferRig is the shell of transfers: writers of other workers which write into reserved blocks, and readers which
// write held blocks to other workers. Both know the blocks from when they began, and go on until the rig ends them.
type transferRig struct {
	writers, readers map[SeqID]*blockUser
	// Counts for tests: of transfers which began after a preemption, of imports, of imports which took registered blocks instead, of transfers which were ended by a
	// preemption, and of reads of blocks whose sequence was not the only holder.
	again, imports, shared, reclaimed, reads int
	// forget keeps transfers of preempted sequences open.
	forget bool
}

// blockUser writes or reads the blocks of the tokens from start to end.
type blockUser struct {
	start, end int
	blocks     []int32 // of the sequence, from its first
	prefixes   []int   // of the sequence
}

// unwritten is what a writer leaves in a slot before it is done.
const unwritten = -1

func (r *rig) newUser(id SeqID, start, end int) *blockUser {
	_, blocks := r.s.SequenceBlocks(id)
	q := r.seqs[id]
	return &blockUser{start: start, end: end, blocks: slices.Clone(blocks), prefixes: r.mem.prefixes(q.Salt, q.Tokens, q.Media)}
}

func (m *cacheModel) slot(u *blockUser, p int) [2]int32 {
	return [2]int32{u.blocks[p/m.size], int32(p % m.size)}
}

// followStep ends the transfers of preempted sequences before the batch is computed, and starts transfers into the
// blocks of reserved ones.
func (r *rig) followStep() {
	for _, id := range r.step.Preempted {
		if r.transfers.writers[id] != nil {
			r.transfers.reclaimed++
		}
		if !r.transfers.forget {
			r.closeTransfer(id)
		}
	}
	for _, v := range r.step.Reserved {
		if q := r.twin.find(v.ID); q.until > v.Ready {
			r.transfers.writers[v.ID] = r.newUser(v.ID, v.Ready, q.until)
		}
	}
}

// openReaders begins to read what is held.
func (r *rig) openReaders() {
	for _, q := range r.twin.kept {
		if r.transfers.readers[q.ID] == nil {
			r.transfers.readers[q.ID] = r.newUser(q.ID, 0, len(q.tokens))
		}
	}
}

func (r *rig) closeTransfer(id SeqID) {
	delete(r.transfers.writers, id)
	delete(r.transfers.readers, id)
}

// useBlocks writes and reads: a writer everything which it may write, though not yet what is right, and a reader
// everything. It also compares the tables with what they know.
func (r *rig) useBlocks() error {
	for _, id := range slices.Sorted(maps.Keys(r.transfers.writers)) {
		u := r.transfers.writers[id]
		for p := u.start; p < u.end; p++ {
			r.mem.slots[r.mem.slot(u, p)] = unwritten
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.transfers.readers)) {
		u := r.transfers.readers[id]
		r.transfers.reads++
		if ready, blocks := r.s.SequenceBlocks(id); ready != u.end || !slices.Equal(blocks, u.blocks) {
			return fmt.Errorf("sequence %d is held with %d tokens in %v, now %d in %v", id, u.end, u.blocks, ready, blocks)
		}
		for p := u.start; p < u.end; p++ {
			if at := r.mem.slot(u, p); r.mem.slots[at] != u.prefixes[p] {
				return fmt.Errorf("sequence %d is held: position %d in slot %v holds the K and V of another prefix", id, p, at)
			}
		}
	}
	return nil
}

// importTokens writes the tokens of a sequence up to end, and imports them.
func (r *rig) importTokens(id SeqID, end int) error {
	r.logf("import %d up to %d", id, end)
	u := r.transfers.writers[id]
	q := r.twin.find(id)
	ok := r.twin.imports(q, end)
	if ok && u == nil {
		return fmt.Errorf("sequence %d awaits tokens, and no step has said so", id)
	}
	if ok {
		if ready, blocks := r.s.SequenceBlocks(id); ready != u.start || !slices.Equal(blocks[ready/r.mem.size:], u.blocks[ready/r.mem.size:]) {
			return fmt.Errorf("sequence %d awaits tokens from %d in %v, and has a table %v from %d", id, u.start, u.blocks, blocks, ready)
		}
		for ; u.start < end; u.start++ {
			r.mem.slots[r.mem.slot(u, u.start)] = u.prefixes[u.start]
		}
		if u.start == u.end {
			r.closeTransfer(id)
		}
	}
	if got, want := r.s.ImportTokens(id, end), r.twin.importTokens(id, end); got != want || want != ok {
		return fmt.Errorf("ImportTokens is %v, twin says %v", got, want)
	}
	if ok {
		r.transfers.imports++
		if _, blocks := r.s.SequenceBlocks(id); !slices.Equal(blocks, u.blocks) {
			r.transfers.shared++
		}
	}
	return r.verify()
}

// finishTransfer ends a transfer without its tokens.
func (r *rig) finishTransfer(id SeqID) error {
	r.logf("finish the transfer of %d", id)
	delete(r.transfers.writers, id)
	if got, want := r.s.FinishTransfer(id), r.twin.finishTransfer(id); got != want {
		return fmt.Errorf("FinishTransfer is %v, twin says %v", got, want)
	} else if got {
		delete(r.passed, id)
	}
	return r.verify()
}

// awaitTransfer begins a transfer of a sequence which waits, mostly of all blocks which can be imported.
func (r *rig) awaitTransfer(id SeqID, pick func(int) int) error {
	q, size := r.twin.find(id), r.twin.cfg.BlockSize
	end := (len(q.tokens) - 1) / size * size
	if pick(4) == 0 {
		end = pick(len(q.tokens)+2*size) - size
	}
	r.logf("await tokens of %d up to %d", id, end)
	if tokens := r.s.SequenceTokens(id); !slices.Equal(tokens, q.tokens) {
		return fmt.Errorf("sequence %d has the tokens %v, twin says %v", id, tokens, q.tokens)
	}
	got, want := r.s.AwaitTransfer(id, end), r.twin.awaitTransfer(id, end)
	if got != want {
		return fmt.Errorf("AwaitTransfer is %v, twin says %v", got, want)
	}
	if got {
		delete(r.passed, id)
		if q.ran {
			r.transfers.again++
		}
	}
	return r.verify()
}

// someTransfer makes a sequence one which gets blocks of another worker, or one which holds them for another.
func (r *rig) someTransfer(seq *Sequence, pick func(int) int) {
	size := r.twin.cfg.BlockSize
	switch pick(4) {
	case 0, 1: // more which share blocks, and more which are served soon
		seq.Salt, seq.Media, seq.Unfinished = kv.Salt{}, nil, nil
	case 2:
		seq.Unfinished = nil
	}
	whole := max(len(seq.Tokens)-1, 0) / size
	switch pick(8) {
	case 0, 1, 2:
		seq.TransferEnd = whole * size
	case 3:
		seq.TransferEnd = pick(whole+1) * size
	case 4:
		seq.TransferEnd = pick(size*(whole+3)) - size // rarely possible
	case 5:
		seq.Hold = true
	case 6:
		seq.Hold, seq.TransferEnd = pick(2) == 0, pick(2)*size
	}
	seq.LateTransfer = pick(2) == 0
}

// importSome imports for a sequence, mostly all which it awaits.
func (r *rig) importSome(id SeqID, pick func(int) int) error {
	q, size := r.twin.find(id), r.twin.cfg.BlockSize
	switch pick(8) {
	case 0:
		return r.importTokens(id, pick(len(q.tokens)+2*size)-size)
	case 1, 2:
		return r.importTokens(id, q.computed+(1+pick(3))*size)
	}
	return r.importTokens(id, q.until)
}

// TestLateTransferBlocksQueue: a long sequence with a late transfer is admitted, though short ones always arrive which
// would fit, and short ones with unfinished ranges hold blocks.
func TestLateTransferBlocksQueue(t *testing.T) {
	s, err := New(Config{Blocks: 10, BlockSize: 4, MaxSeqs: 8, TokenBudget: 64, MaxContext: 40, MaxWaiting: 1000})
	if err != nil {
		t.Fatal(err)
	}
	last := SeqID(0)
	add := func(tokens int, change func(*Sequence)) SeqID {
		last++
		seq := Sequence{ID: last, Prompt: tokens}
		for i := range tokens {
			seq.Tokens = append(seq.Tokens, kv.Token(int(last)*100+i))
		}
		if change != nil {
			change(&seq)
		}
		if err := s.AddSequence(seq); err != nil {
			t.Fatal(err)
		}
		return last
	}
	var short []SeqID
	for range 3 {
		short = append(short, add(5, nil))
	}
	add(5, func(q *Sequence) { q.Unfinished = []TokenRange{{0, 5}} })
	long := add(36, func(q *Sequence) { q.TransferEnd, q.LateTransfer = 4, true })
	var step Step
	for range 50 {
		s.Step(&step)
		s.Commit(nil)
		if slices.Contains(step.Reserved, Reservation{ID: long}) {
			if _, blocks := s.SequenceBlocks(long); len(blocks) != 9 || !s.ImportTokens(long, 4) {
				t.Errorf("the sequence has %d blocks, and its tokens cannot be imported", len(blocks))
			}
			return
		}
		s.RemoveSequence(short[0])
		short = append(short[1:], add(5, nil))
	}
	t.Error("the sequence was not admitted in 50 steps")
}
