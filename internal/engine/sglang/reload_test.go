package sglang

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
)

// TestReloadedAdapter checks that blocks which an adapter cached before it was unloaded are not predicted
// after it was loaded again. If both happened between two listings of the adapters, one request reveals it
// for all. In both cases later blocks of the adapter are predicted.
func TestReloadedAdapter(t *testing.T) {
	for name, c := range map[string]struct {
		seen  bool // a listing came without the adapter
		block int
		apart uint64 // requests that find less than predicted
	}{
		"seen": {true, 16, 0}, "unseen": {false, 16, 1}, "seen, blocks of two pages": {true, 32, 0}, "unseen, blocks of two pages": {false, 32, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, card := rig.StartServer(t, enginemock.SGLang, func(m *enginemock.Config) {
				withEvents(m)
				m.EngineVersion, m.Adapters = "0.5.23", []enginemock.Adapter{{Name: "poet", Path: "/poet"}}
			})
			cfg := config(t, s, card)
			cfg.Spec.BlockSize = c.block
			e := opened(t, cfg)
			ctx, cancel := context.WithTimeout(enginetest.Start(t, e), fixturetest.TimeLeft(t)/2)
			defer cancel()
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()

			prompt := func(first kv.Token) []kv.Token {
				tokens := make([]kv.Token, 100)
				for i := range tokens {
					tokens[i] = first + kv.Token(i)
				}
				return tokens
			}
			h, _ := kv.NewHasher(c.block, kv.Salt{LoRA: "poet"})
			last := func(first kv.Token) kv.SeqHash { return h.AppendSeqHashes(nil, prompt(first), nil)[96/c.block-1] }
			poem := func(first kv.Token) *engine.Request {
				return &engine.Request{
					ID: "poem", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt(first), Salt: kv.Salt{LoRA: "poet"},
					Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
				}
			}
			ask := func(first kv.Token) { enginetest.MustGenerate(t, ctx, e, poem(first)) }
			wait := func(what string, f func(seqs map[kv.SeqHash]bool) bool) {
				t.Helper()
				if err := replica.WaitFor(ctx, f); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			ask(300)
			ask(500)
			wait("what the adapter cached is not known", func(seqs map[kv.SeqHash]bool) bool { return seqs[last(300)] && seqs[last(500)] })

			change(t, s, "/unload_lora_adapter", `{"lora_name":"poet"}`)
			if c.seen {
				// A request which is not found has the adapters listed before it is time.
				if err := s.Faults().Set(enginemock.Fault{Kind: enginemock.FaultError, Status: http.StatusNotFound, Count: 1}); err != nil {
					t.Fatal(err)
				}
				if _, err := enginetest.Generate(ctx, e, poem(700)); err == nil {
					t.Error("a request for an adapter which was unloaded is served")
				}
				listing, enough := context.WithCancel(ctx)
				if e.WatchAdapters(listing, func(names []string) {
					if !slices.Contains(names, "poet") {
						enough()
					}
				}); ctx.Err() != nil {
					t.Fatal("the list of adapters was not read")
				}
				wait("what the adapter cached is believed after it was unloaded", func(seqs map[kv.SeqHash]bool) bool { return !seqs[last(300)] && !seqs[last(500)] })
			}
			change(t, s, "/load_lora_adapter", `{"lora_name":"poet","lora_path":"/poet"}`)
			before := e.Stats()
			ask(300)
			ask(500)
			after := e.Stats()
			if got := after.Mismatched - before.Mismatched; got != c.apart {
				t.Errorf("%d wrong predictions after the adapter was loaded again, want %d", got, c.apart)
			}
			wait("what the adapter caches again is not known", func(seqs map[kv.SeqHash]bool) bool { return seqs[last(300)] && seqs[last(500)] })
			before = e.Stats()
			ask(300)
			after = e.Stats()
			if predicted, reported := after.Predicted-before.Predicted, after.Reported-before.Reported; predicted != 96 || reported != 96 {
				t.Errorf("%d tokens are predicted and %d found, want 96", predicted, reported)
			}
			if slices.Contains(codes(e), engine.WarnOrphans) {
				t.Errorf("warnings: %v", e.Warnings())
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
		})
	}
}

// change makes the server load or unload an adapter.
func change(t *testing.T, s *enginemock.Server, path, body string) {
	t.Helper()
	resp, err := http.Post(s.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(path, resp.Status)
	}
}
