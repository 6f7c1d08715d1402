package paged

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
)

// source makes choices: from a generator, or from a fuzzer's bytes.
type source interface {
	// pick returns a number in [0,n); ok is false when there are no more.
	pick(n int) (i int, ok bool)
}

type random struct {
	*rand.Rand
	left int
}

func (r *random) pick(n int) (int, bool) {
	r.left--
	return r.IntN(n), r.left >= 0
}

type script []byte

func (s *script) pick(n int) (int, bool) {
	if len(*s) == 0 {
		return 0, false
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n, true
}

var (
	someSalts = []kv.Salt{{}, {}, {}, {LoRA: "a"}, {Namespace: "a"}, {LoRA: "a", Namespace: "b"}}
	someMedia = [][]kv.Media{
		nil,
		nil,
		{{Hash: 1, Start: 3, End: 12}},
		{{Hash: 2, Start: 3, End: 12}},
		{{Hash: 1, Start: 4, End: 12}},
		{{Hash: 2, Start: 14, End: 18}, {Hash: 1, Start: 3, End: 12}},
		{{Hash: 1, Start: 3, End: 12}, {Hash: 1, Start: 9, End: 9}, {Hash: 2, Start: 14, End: 18}},
		{{Hash: 3, Start: -5, End: 0}},
		{{Hash: 3, Start: -5, End: 2}, {Hash: 4, Start: 30, End: 1 << 40}},
	}
)

// someConfig is a small scheduler with scarce resources.
func someConfig(pick func(int) int) Config {
	size := []int{2, 4, 8, 8, 8}[pick(5)]
	c := Config{
		BlockSize:   size,
		Blocks:      3 + pick(20),
		MaxSeqs:     1 + pick(6),
		MaxContext:  2 + pick(14*size),
		MaxWaiting:  1 + pick(6),
		TokenBudget: 0,
		Chunking:    []Switch{On, On, Off}[pick(3)],
		Reuse:       []Switch{On, On, On, On, On, Off}[pick(6)],
	}
	if pick(4) == 0 {
		c.Blocks += 90 // so that there is a reserve
	}
	if pick(3) == 0 {
		c.Remote = someNames(2 + pick(3))
	}
	c.TokenBudget = c.MaxSeqs + pick(4*size)
	if c.Chunking == Off {
		c.TokenBudget = max(c.TokenBudget, c.maxTokens())
	}
	return c
}

// someNames is remote memory with all blocks except those whose hash n divides.
type someNames int

func (n someNames) Has(seq kv.SeqHash) bool { return seq%kv.SeqHash(n) != 0 }

// someTokens returns a prompt which shares its prefix with others: whole blocks of a few kinds, some with
// equal hashes, and a tail.
func someTokens(cfg Config, salt kv.Salt, pick func(int) int) []kv.Token {
	var tokens []kv.Token
	for range pick(6) {
		if cfg.BlockSize == 8 && pick(2) == 0 {
			tokens = append(tokens, forged(salt, kv.Token(pick(2)), 0, [4]kv.Token{})...)
			continue
		}
		for range cfg.BlockSize {
			tokens = append(tokens, kv.Token(len(tokens)%2))
		}
	}
	for range pick(cfg.BlockSize + 1) {
		tokens = append(tokens, kv.Token(pick(2)))
	}
	return tokens
}

// drive performs the choices of src until it ends. It returns the first contradiction.
func drive(r *rig, src source) error {
	ended := false
	pick := func(n int) int {
		i, ok := src.pick(n)
		ended = ended || !ok
		return i
	}
	var id SeqID
	var debts []SampledToken // tokens withheld
	live := func() (SeqID, bool) {
		if len(r.seqs) == 0 {
			return 0, false
		}
		all := slices.Concat(r.twin.running, r.twin.waiting)
		return all[pick(len(all))].ID, true
	}
	for !ended {
		var err error
		switch op := pick(32); {
		case op < 7:
			id++
			salt := someSalts[pick(len(someSalts))]
			tokens := someTokens(r.twin.cfg, salt, pick)
			seq := Sequence{ID: id, Salt: salt, Tokens: tokens, Prompt: len(tokens), Media: someMedia[pick(len(someMedia))]}
			if pick(16) == 0 {
				seq.Reuse = Off
			}
			if len(tokens) > 1 {
				seq.Prompt = 1 + pick(len(tokens))
			}
			if pick(16) == 0 {
				seq.ID = max(1, id-1)
			}
			err = r.add(seq)
		case op < 10:
			if victim, ok := live(); ok {
				err = r.remove(victim)
			}
		case op == 10:
			err = r.remove(id + 1) // unknown
		case op == 11:
			if pick(4) == 0 {
				err = r.clear()
			}
		case op < 14:
			err = r.drain()
		case op == 14:
			err = r.plan() // and the batch fails
		case op == 15:
			if !r.planned { // a failed batch must not be committed
				err = r.commit(debts)
				debts = nil
			}
		default:
			if err = r.plan(); err != nil {
				break
			}
			late := pick(16) // when a sequence is removed, if at all
			if victim, ok := live(); ok && late == 0 {
				if err = r.remove(victim); err != nil {
					break
				}
			}
			if err = r.compute(); err != nil {
				break
			}
			if victim, ok := live(); ok && late == 1 {
				if err = r.remove(victim); err != nil {
					break
				}
			}
			var sampled []SampledToken
			for _, w := range r.step.Work {
				t := SampledToken{ID: w.ID, Token: kv.Token(pick(2))}
				switch {
				case w.Sample && pick(8) == 0:
					debts = append(debts, t)
				case w.Sample, pick(4) == 0: // also some that nobody asked for
					sampled = append(sampled, t)
				}
			}
			err = r.commit(sampled)
		}
		if err != nil {
			return err
		}
	}
	return r.drain()
}

func TestRandomOperations(t *testing.T) {
	total := Stats{}
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := someConfig(rng.IntN)
		r, err := newRig(cfg)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := drive(r, &random{rng, 800}); err != nil {
			t.Fatalf("seed %d, %+v: %v\n%s", seed, cfg, err, strings.Join(r.trace, "\n"))
		}
		st := r.s.Stats()
		total.Preemptions += st.Preemptions
		total.Evictions += st.Evictions
		total.Collisions += st.Collisions
		total.CachedTokens += st.CachedTokens
	}
	// The operations reach the intended cases.
	if total.Preemptions < 100 || total.Evictions < 1000 || total.Collisions < 50 || total.CachedTokens < 1000 {
		t.Errorf("only %+v", total)
	}
}

func FuzzOperations(f *testing.F) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		src := script(b[:min(len(b), 2000)])
		cfg := someConfig(func(n int) int { i, _ := src.pick(n); return i })
		r, err := newRig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := drive(r, &src); err != nil {
			t.Fatalf("%+v: %v\n%s", cfg, err, strings.Join(r.trace, "\n"))
		}
	})
}

// TestEverySequenceIsServed: as long as sequences end in time, all of them do, in a bounded number of
// steps, however scarce blocks are. The oldest advances in every step and is never preempted.
func TestEverySequenceIsServed(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := someConfig(rng.IntN)
		if err := serveAll(cfg, rng); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, cfg, err)
		}
	}
}

func serveAll(cfg Config, rng *rand.Rand) error {
	r, err := newRig(cfg)
	if err != nil {
		return err
	}
	length := map[SeqID]int{} // with the output
	work := 0
	for id := range SeqID(20) {
		tokens := someTokens(cfg, kv.Salt{}, rng.IntN)
		if len(tokens) == 0 || len(tokens) >= r.s.MaxTokens() {
			continue
		}
		if r.s.Stats().Waiting == cfg.MaxWaiting {
			break
		}
		if err := r.add(Sequence{ID: id, Tokens: tokens, Prompt: len(tokens)}); err != nil {
			return err
		}
		length[id] = len(tokens) + 1 + rng.IntN(r.s.MaxTokens()-len(tokens))
		work += length[id]
	}
	for steps := 0; len(length) > 0; steps++ {
		// Each step gives the oldest at least one token, so at worst they are served one after the other.
		if steps > work {
			return fmt.Errorf("%d sequences are left after %d steps", len(length), steps)
		}
		if err := r.plan(); err != nil {
			return err
		}
		oldest := slices.Min(keys(length))
		if len(r.step.Work) == 0 || r.step.Work[0].ID != oldest || slices.Contains(r.step.Preempted, oldest) || len(r.step.Failed) > 0 {
			return fmt.Errorf("sequence %d is the oldest, step is\n%s", oldest, describe(&r.step))
		}
		if err := r.compute(); err != nil {
			return err
		}
		var sampled []SampledToken
		for _, w := range r.step.Work {
			if w.Sample {
				sampled = append(sampled, SampledToken{w.ID, kv.Token(rng.IntN(2))})
			}
		}
		if err := r.commit(sampled); err != nil {
			return err
		}
		for _, t := range sampled {
			if len(r.seqs[t.ID].Tokens) == length[t.ID] {
				delete(length, t.ID)
				if err := r.remove(t.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func keys(m map[SeqID]int) []SeqID {
	var all []SeqID
	for id := range m {
		all = append(all, id)
	}
	return all
}
