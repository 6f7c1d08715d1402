package batch

import (
	"context"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

const vocab = 96

// dice is a computer whose tokens are a hash of seed, choice and position; without a temperature of the
// prompt and position alone.
type dice struct{}

type die struct {
	req      *engine.Request
	seed     uint64
	position int
	stops    []kv.Token
	last     int // position after which it finishes by itself; 0 is never
	seen     int // tokens of a prefill
}

func (d *die) IsFinished() bool { return d.last > 0 && d.position >= d.last }

func (dice) StartRequest(_ context.Context, req *engine.Request, stops []kv.Token) ([]State, error) {
	states := make([]State, req.Choices)
	for i := range states {
		d := &die{req: req, stops: stops, seed: mix(uint64(len(req.Prompt)), uint64(req.Prompt[0]))}
		if req.Sampling.Temperature > 0 {
			d.seed = mix(req.Sampling.Seed, uint64(i))
		}
		if req.Generated != nil {
			d.position = len(req.Generated[i])
		}
		states[i] = d
	}
	return states, nil
}

func (dice) ComputeBatch(_ context.Context, b *Batch) error {
	for i, w := range b.Plan.Work {
		d := b.States[i].(*die)
		if w.Start == 0 {
			d.seen = 0
		}
		d.seen += len(w.Tokens)
		if w.Sample && d.req != nil {
			b.Drawn[i].Logprob = d.next()
		}
	}
	return nil
}

func (d *die) next() engine.Logprob {
	t := d.draw()
	d.position++
	l := engine.Logprob{Token: t, Logprob: -1}
	for i := range max(0, d.req.Logprobs) {
		l.Top = append(l.Top, engine.TokenLogprob{Token: (t + kv.Token(i)) % vocab, Logprob: -1 - float32(i)})
	}
	return l
}

func (d *die) draw() kv.Token {
	for salt := uint64(0); ; salt++ {
		t := kv.Token(mix(d.seed, uint64(d.position)+salt<<32) % vocab)
		if d.position >= d.req.Stop.MinTokens || !slices.Contains(d.stops, t) {
			return t
		}
	}
}

// mix is a hash of two numbers (the finalizer of SplitMix64).
func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b + 1
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// small returns an engine of dice with room for few sequences.
func small(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	cfg := Config{
		Card: engine.Card{
			Name: "small", Engine: "dice", Numerics: "dice", Ranks: 1, EOS: []kv.Token{7},
			Blocks: 120, BlockSize: 4, ContextLength: 320, VocabSize: vocab,
		},
		MaxSeqs: 16, TokenBudget: 48, MaxWaiting: 256,
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg, dice{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// greedy returns a request for n tokens after a prompt that depends on seed in
// every token.
func greedy(seed, prompt, n int) *engine.Request {
	req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true}}
	for i := range prompt {
		req.Prompt = append(req.Prompt, kv.Token(mix(uint64(seed), uint64(i))%vocab))
	}
	return req
}

// gate is a computer that waits for a permission before each computation.
type gate struct {
	Computer
	*enginetest.Gate
}

// closed puts a gate in front of e's computer.
func closed(e *Engine) *gate {
	g := &gate{e.computer, enginetest.NewGate()}
	e.computer = g
	return g
}

func (g *gate) ComputeBatch(ctx context.Context, b *Batch) error {
	g.AwaitLeave()
	return g.Computer.ComputeBatch(ctx, b)
}

func TestConformance(t *testing.T) {
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine { return small(t, nil) }})
}
