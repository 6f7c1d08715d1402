package sglang

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
	"penstock/internal/zmtp"
)

// TestLearnsByReplay checks that an engine which announces its replay endpoint is known from its start,
// without a setting.
func TestLearnsByReplay(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	cfg := config(t, s, card)
	cfg.Spec.Events, cfg.Spec.Replay = zmtp.Endpoint{}, zmtp.Endpoint{}
	prompt := make([]kv.Token, 100)
	for i := range prompt {
		prompt[i] = kv.Token(i + 1)
	}
	before := opened(t, cfg)
	enginetest.MustGenerate(t, enginetest.Start(t, before), before, &engine.Request{
		ID: "warm-up", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
	})
	e := opened(t, cfg)
	ctx, cancel := context.WithTimeout(enginetest.Start(t, e), fixturetest.TimeLeft(t)/2)
	defer cancel()
	replica := enginetest.NewCacheReplica()
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- e.WatchKV(watching, replica.Sink) }()
	h, _ := kv.NewHasher(16, kv.Salt{})
	if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[h.AppendSeqHashes(nil, prompt, nil)[5]] }); err != nil {
		t.Error("the blocks of the warm-up are not known")
	}
	stop()
	if err := <-watched; err != nil {
		t.Error(err)
	}
}

// TestLearnsWarmEngine checks that for an engine which served before it was followed, and does not replay its
// events, hits are predicted after the first requests that find them.
func TestLearnsWarmEngine(t *testing.T) {
	for _, size := range []int{16, 32} {
		t.Run(fmt.Sprint("blocks of ", size), func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) { c.KVEvents = "tcp://127.0.0.1:0" })
			cfg := config(t, s, card)
			cfg.Spec.Replay, cfg.Spec.BlockSize = zmtp.Endpoint{}, size
			system := make([]kv.Token, 128)
			for i := range system {
				system[i] = kv.Token(10 + i)
			}
			ask := func(ctx context.Context, e *Engine, name string, tail int) []kv.Token {
				prompt := slices.Clone(system)
				for i := range 40 {
					prompt = append(prompt, kv.Token(tail+i%7))
				}
				enginetest.MustGenerate(t, ctx, e, &engine.Request{
					ID: name, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
				})
				return prompt
			}
			before := opened(t, cfg)
			ask(enginetest.Start(t, before), before, "warm-up", 300)

			e := opened(t, cfg)
			ctx, cancel := context.WithTimeout(enginetest.Start(t, e), fixturetest.TimeLeft(t)/2)
			defer cancel()
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()
			for i := 0; e.Stats().Batches == 0; i++ { // events from before the subscription are lost
				enginetest.MustGenerate(t, ctx, e, &engine.Request{
					ID: fmt.Sprint("other-", i), Attempt: 1, Choices: 1, Logprobs: -1, Prompt: append([]kv.Token{kv.Token(400 + i)}, system[:19]...), Stop: engine.Stop{MaxTokens: 1},
				})
			}
			begun := e.Stats()
			for i := range 20 {
				prompt := ask(ctx, e, fmt.Sprint("prompt-", i), 310+10*(i%8))
				h, _ := kv.NewHasher(size, kv.Salt{})
				last := h.AppendSeqHashes(nil, prompt, nil)
				if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[last[len(last)-1]] }); err != nil {
					t.Fatalf("the blocks of prompt %d were never reported: %+v", i, e.Stats())
				}
			}
			for e.Stats().Waiting > 0 { // hashes are found shortly after the requests that reveal them
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					t.Fatalf("blocks still wait: %+v, %v", e.Stats(), codes(e))
				}
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
			stats := e.Stats()
			// The first one found the system prompt, which was unknown.
			if stats.Compared-begun.Compared != 20 || stats.Mismatched-begun.Mismatched != 1 || stats.Reported-stats.Predicted != begun.Reported-begun.Predicted+128 {
				t.Errorf("%d tokens predicted, %d reported, of %d requests, %d of which are apart", stats.Predicted, stats.Reported, stats.Compared, stats.Mismatched)
			}
		})
	}
}

// TestOrphansAreShown checks that blocks stored behind unknown ones by requests of another client are counted,
// and that a warning names the remedy.
func TestOrphansAreShown(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) { c.KVEvents = "tcp://127.0.0.1:0" })
	cfg := config(t, s, card)
	cfg.Spec.Replay = zmtp.Endpoint{}
	prompt := make([]kv.Token, 168)
	for i := range prompt {
		prompt[i] = kv.Token(10 + i)
	}
	other := opened(t, cfg)
	others := enginetest.Start(t, other)
	ask := func(name string, prompt []kv.Token) {
		enginetest.MustGenerate(t, others, other, &engine.Request{
			ID: name, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true},
		})
	}
	ask("warm-up", prompt[:128])

	e := opened(t, cfg)
	ctx, cancel := context.WithTimeout(enginetest.Start(t, e), fixturetest.TimeLeft(t)/2)
	defer cancel()
	for i := 0; e.Stats().Batches == 0; i++ { // events from before the subscription are lost
		ask(fmt.Sprint("other-", i), append([]kv.Token{kv.Token(400 + i)}, prompt[:19]...))
	}
	ask("longer", prompt)
	for !slices.ContainsFunc(e.Warnings(), func(w engine.Warning) bool { return w.Code == engine.WarnOrphans && w.Remedy != "" }) {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("no orphan is shown: %+v, %v", e.Stats(), e.Warnings())
		}
	}
	if stats := e.Stats(); stats.Orphans == 0 || stats.Waiting == 0 {
		t.Errorf("no orphan is counted: %+v", stats)
	}
}
