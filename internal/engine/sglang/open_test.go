package sglang

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/zmtp"
)

func withEvents(c *enginemock.Config) {
	c.KVEvents, c.KVReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
}

func codes(e *Engine) (all []string) {
	for _, w := range e.Warnings() {
		all = append(all, w.Code)
	}
	return all
}

// TestFindsEvents checks that the engine's announcement is sufficient to follow its cache.
func TestFindsEvents(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	cfg := config(t, s, card)
	cfg.Spec.Events, cfg.Spec.Replay = zmtp.Endpoint{}, zmtp.Endpoint{}
	e := opened(t, cfg)
	if c := e.Card(); c.KVPredicted || c.BlockSize != 16 || c.Blocks != 64 || c.ContextLength != 512 || c.Name != "tiny" {
		t.Errorf("%+v", c)
	}
	if w := codes(e); len(w) != 0 {
		t.Errorf("warnings %v", w)
	}
}

// TestFindsReplay checks that an announced replay endpoint is used, and that the settings take precedence.
func TestFindsReplay(t *testing.T) {
	p := &serverProbe{
		Probe:  remote.Probe{Config: &Config{Spec: remote.Spec{URL: &url.URL{Scheme: "http", Host: "10.0.0.5:30000"}, Rank: 2, Ranks: 4}, Log: slog.New(slog.DiscardHandler)}},
		server: serverInfo{KVEvents: &kvEvents{Publisher: "zmq", Host: "*", Port: 5557, Replay: 5657}},
	}
	at := func(want string) {
		t.Helper()
		if got, err := p.replayEndpoint(); err != nil || got.String() != want {
			t.Errorf("replay at %s, %v, want %s", got, err, want)
		}
	}
	at("tcp://10.0.0.5:5659")
	p.server.KVEvents.Host = "10.0.0.6"
	at("tcp://10.0.0.6:5659")
	p.Config.Spec.Replay, _ = zmtp.ParseEndpoint("tcp://10.0.0.7:6000")
	at("tcp://10.0.0.7:6000")
	p.Config.Spec.Replay, p.server.KVEvents.Replay = zmtp.Endpoint{}, 0
	if got, err := p.replayEndpoint(); err != nil || !got.IsZero() {
		t.Errorf("replay at %s, %v, and the engine has none", got, err)
	}
}

// TestReplayAlone checks that replay= needs no events= if the engine announces where it publishes.
func TestReplayAlone(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	cfg := config(t, s, card)
	cfg.Spec.Events = zmtp.Endpoint{}
	opened(t, cfg)
	s, card = rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) { c.EngineVersion, c.KVEvents = "0.5.9", "tcp://127.0.0.1:0" })
	cfg = config(t, s, card)
	cfg.Spec.Events, cfg.Spec.Replay = zmtp.Endpoint{}, enginemocktest.ParseEndpoint(t, "tcp://127.0.0.1:9")
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "set events=") {
		t.Errorf("an engine that does not say where it publishes: %v", err)
	}
}

func TestBlockSize(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
	cfg := config(t, s, card)
	cfg.Spec.BlockSize = 24
	if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "multiple") {
		t.Errorf("blocks that do not fit: %v", err)
	}
	cfg.Spec.BlockSize = 32
	if c := opened(t, cfg).Card(); c.BlockSize != 32 || c.Blocks != 32 {
		t.Errorf("joined blocks: %+v", c)
	}
	for _, c := range []struct{ page, set, want int }{{1, 0, defaultBlock}, {1, 24, 24}, {0, 0, defaultBlock}, {64, 0, 64}} {
		p := &serverProbe{Probe: remote.Probe{Config: &Config{Spec: remote.Spec{BlockSize: c.set}}}, server: serverInfo{PageSize: c.page}}
		if got, err := p.blockSize(); got != c.want || err != nil {
			t.Errorf("pages of %d, block-size %d: %d, %v, want %d", c.page, c.set, got, err, c.want)
		}
	}
}

func TestWarnsWithoutEvents(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, nil)
	e := opened(t, config(t, s, card))
	if w := codes(e); !e.Card().KVPredicted || !slices.Equal(w, []string{engine.WarnNoEvents}) {
		t.Errorf("guessed %v, warnings %v", e.Card().KVPredicted, w)
	}
	if remedy := e.Warnings()[0].Remedy; !strings.Contains(remedy, `--kv-events-config '{"publisher":"zmq"`) {
		t.Errorf("the remedy is %q", remedy)
	}
}

// TestRemedyOfUnannouncedEvents checks that the remedy names events= for a release that does not announce its
// endpoint, since the engine's flag alone has no effect here.
func TestRemedyOfUnannouncedEvents(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) {
		withEvents(c)
		c.EngineVersion = "0.5.9"
	})
	cfg := config(t, s, card)
	cfg.Spec.Events, cfg.Spec.Replay = zmtp.Endpoint{}, zmtp.Endpoint{}
	for _, w := range opened(t, cfg).Warnings() {
		if w.Code == engine.WarnNoEvents && !strings.Contains(w.Remedy, "events=tcp://HOST:5557") {
			t.Errorf("the remedy is %q", w.Remedy)
		}
	}
}

// TestPredictions checks that cached tokens are as predicted: by events, also where blocks join several
// pages, and without events.
func TestPredictions(t *testing.T) {
	for name, how := range map[string]struct {
		change func(*enginemock.Config)
		block  int
	}{"events": {withEvents, 16}, "joined": {withEvents, 32}, "guessed": {nil, 16}} {
		t.Run(name, func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.SGLang, how.change)
			cfg := config(t, s, card)
			cfg.Spec.BlockSize = how.block
			e := opened(t, cfg)
			ctx := enginetest.Start(t, e)
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()
			for i := range 30 {
				prompt := make([]kv.Token, 80)
				for j := range prompt {
					prompt[j] = kv.Token(1 + i%5 + j)
				}
				prompt[70] = kv.Token(200 + i)
				enginetest.MustGenerate(t, ctx, e, &engine.Request{
					ID: fmt.Sprint("prompt-", i), Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 3, IgnoreEOS: true},
				})
				h, _ := kv.NewHasher(how.block, kv.Salt{})
				last := h.AppendSeqHashes(nil, prompt, nil)
				if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[last[len(last)-1]] }); err != nil {
					t.Fatalf("the blocks of prompt %d were never reported", i)
				}
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
			stats := e.Stats()
			if stats.Compared != 30 || stats.Mismatched != 0 || stats.Reported != 25*64 {
				t.Errorf("%d tokens predicted, %d reported, of %d requests, %d of which are apart", stats.Predicted, stats.Reported, stats.Compared, stats.Mismatched)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	for kind, want := range map[enginemock.FaultKind]fault.Code{
		enginemock.FaultError: fault.EngineError, enginemock.FaultStreamError: fault.EngineError, enginemock.FaultDisconnect: fault.Unavailable,
		enginemock.FaultLimit: fault.Overloaded,
	} {
		t.Run(string(kind), func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.SGLang, withEvents)
			e := opened(t, config(t, s, card))
			ctx := enginetest.Start(t, e)
			req := &engine.Request{ID: "fault", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Stop: engine.Stop{MaxTokens: 400, IgnoreEOS: true}}
			if err := s.Faults().Set(enginemock.Fault{Kind: kind, Count: 1, After: 4}); err != nil {
				t.Fatal(err)
			}
			_, err := enginetest.Generate(ctx, e, req)
			if err == nil && kind == enginemock.FaultDisconnect {
				return // the fault came before the first byte, and the call was repeated
			}
			if fault.CodeOf(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
			enginetest.MustGenerate(t, ctx, e, req)
		})
	}
}

func TestPreprocess(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, nil)
	e := opened(t, config(t, s, card))
	ctx := enginetest.Start(t, e)
	p, err := e.Preprocess(ctx, &engine.PreprocessRequest{ID: "p", Attempt: 3, Text: "Where does the water go?"})
	if err != nil || len(p.Tokens) == 0 || p.Attempt != 3 {
		t.Errorf("%+v, %v", p, err)
	}
	chat := &engine.PreprocessRequest{ID: "p", Attempt: 1, Chat: []byte(`{"messages":[{"role":"user","content":"x"}]}`)}
	if p, err := e.Preprocess(ctx, chat); err != nil || len(p.Tokens) == 0 {
		t.Errorf("a conversation: %+v, %v", p, err)
	}
	if _, err = e.Preprocess(ctx, &engine.PreprocessRequest{Attempt: 1, Chat: []byte("{")}); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("no JSON: %v", err)
	}
	s, card = rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) { c.EngineVersion = "0.5.9" })
	old := opened(t, config(t, s, card))
	if _, err := old.Preprocess(enginetest.Start(t, old), chat); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("a conversation, which an old engine takes no questions about: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, nil)
	e := opened(t, config(t, s, card))
	ctx := enginetest.Start(t, e)
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Stop: engine.Stop{MaxTokens: 2}, Sampling: engine.Sampling{PresencePenalty: 3}}
	_, err := enginetest.Generate(ctx, e, req)
	if f, ok := err.(*fault.Error); !ok || f.Code != fault.Invalid || f.Param != "presence_penalty" {
		t.Errorf("%v", err)
	}
}

// TestSnapshot loses a batch for good: the cache of an engine with snapshots stays known.
func TestSnapshot(t *testing.T) {
	for name, want := range map[string]int{"with": 1, "without": 2} {
		t.Run(name, func(t *testing.T) {
			s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) {
				c.KVEvents = "tcp://127.0.0.1:0" // and no replay or snapshot endpoint
				if name == "with" {
					c.Snapshot = "tcp://127.0.0.1:0"
				}
			})
			e := opened(t, config(t, s, card))
			ctx := enginetest.Start(t, e)
			replica := enginetest.NewCacheReplica()
			watching, stop := context.WithCancel(ctx)
			watched := make(chan error, 1)
			go func() { watched <- e.WatchKV(watching, replica.Sink) }()
			h, _ := kv.NewHasher(16, kv.Salt{})
			ask := func(first kv.Token) kv.SeqHash {
				prompt := make([]kv.Token, 50)
				for i := range prompt {
					prompt[i] = first + kv.Token(i)
				}
				enginetest.MustGenerate(t, ctx, e, &engine.Request{ID: "s", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 2, IgnoreEOS: true}})
				return h.AppendSeqHashes(nil, prompt, nil)[2]
			}
			known := func(seq kv.SeqHash) {
				t.Helper()
				if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return seqs[seq] }); err != nil {
					t.Fatal("a block was never reported")
				}
			}
			// Events from before the subscription are lost.
			for i := kv.Token(1); len(replica.Seqs()) == 0 && i < 300; i++ {
				ask(i)
			}
			before := ask(300)
			known(before)
			if err := s.Faults().Set(enginemock.Fault{Kind: enginemock.FaultGap, Count: 1}); err != nil {
				t.Fatal(err)
			}
			known(ask(350))
			known(ask(400))
			if got := replica.Restarts(); got != want {
				t.Errorf("the watcher was started over %d times, want %d", got, want)
			}
			if got := replica.Seqs()[before]; got != (name == "with") {
				t.Errorf("what was cached before is known: %v", got)
			}
			stop()
			if err := <-watched; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPassesAdapters checks that a passthrough request for an adapter is answered by the adapter, not by the
// model.
func TestPassesAdapters(t *testing.T) {
	s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) { c.Adapters = []enginemock.Adapter{{Name: "poet", Path: "/poet"}} })
	cfg := config(t, s, card)
	cfg.Spec.Mode = remote.ModePassthrough
	e := opened(t, cfg)
	ctx := enginetest.Start(t, e)
	body := fmt.Sprintf(`{"model":"poet","prompt":%q,"max_tokens":1}`, strings.Repeat("a long prompt of several blocks ", 8))
	for i, want := range []struct {
		model string
		again bool
	}{{"tiny", false}, {"poet", false}, {"poet", true}, {"tiny", true}} {
		cached := 0
		err := e.PassThrough(ctx, &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: want.model, Path: "/v1/completions", Body: []byte(body)}, func(p *engine.PassthroughChunk) error {
			if p.Last {
				cached = p.Cached
			}
			return nil
		})
		if err != nil || (cached > 0) != want.again {
			t.Errorf("request %d, of %s: %d cached, %v", i, want.model, cached, err)
		}
	}
}
