package sglang

import (
	"context"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
)

// TestAdaptersOfReleases checks that the blocks of an adapter are never taken for the model's. Events of
// releases before 0.5.22 lack adapters: then prompts that start like an adapter's are not predicted, with a
// warning.
func TestAdaptersOfReleases(t *testing.T) {
	for version, told := range map[string]bool{"0.5.17": false, "0.5.23": true} {
		t.Run(version, func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) {
				withEvents(c)
				c.EngineVersion, c.Adapters = version, []enginemock.Adapter{{Name: "poet", Path: "/poet"}}
			})
			e := opened(t, config(t, s, card))
			ctx, cancel := context.WithTimeout(enginetest.Start(t, e), fixturetest.TimeLeft(t)/2)
			defer cancel()
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()
			ask := func(name string, salt kv.Salt, first kv.Token) kv.SeqHash {
				prompt := make([]kv.Token, 100)
				for i := range prompt {
					prompt[i] = first + kv.Token(i)
				}
				enginetest.MustGenerate(t, ctx, e, &engine.Request{
					ID: name, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Salt: salt, Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
				})
				h, _ := kv.NewHasher(16, salt)
				return h.AppendSeqHashes(nil, prompt, nil)[5]
			}
			poet := ask("poet", kv.Salt{LoRA: "poet"}, 300)
			plain := ask("plain", kv.Salt{}, 500)
			if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[plain] && seqs[poet] == told }); err != nil {
				t.Error("the model's blocks are not known, or the adapter's are while they are not told")
			}
			h, _ := kv.NewHasher(16, kv.Salt{})
			prompt := make([]kv.Token, 100)
			for i := range prompt {
				prompt[i] = 300 + kv.Token(i)
			}
			_ = replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool {
				if seqs[h.AppendSeqHashes(nil, prompt, nil)[5]] {
					t.Error("the adapter's blocks are taken for the model's")
				}
				return true
			})
			warned := slices.ContainsFunc(e.Warnings(), func(w engine.Warning) bool {
				return w.Code == engine.WarnMispredict && strings.Contains(w.Detail, "adapters")
			})
			if warned == told {
				t.Errorf("events tell of adapters: %v, warnings: %v", told, e.Warnings())
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
		})
	}
}
