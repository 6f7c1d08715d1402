package vllm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// rig is a running adapter in front of an engine mock of vLLM.
type rig struct {
	*Engine
	server *enginemock.Server
	ctx    context.Context
}

// run starts a server and an adapter that follows its events.
func run(t *testing.T, change func(*enginemock.Config), set func(*remote.Spec)) *rig {
	t.Helper()
	s, card := served(t, change)
	at := spec(t, s.URL())
	at.Events, at.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
	if set != nil {
		set(&at)
	}
	e := opened(t, at, card)
	return &rig{e, s, enginetest.Start(t, e)}
}

// request asks for n tokens after a prompt that depends on seed.
func request(seed uint64, prompt, n int) *engine.Request {
	r := &engine.Request{ID: "test", Attempt: 1, Choices: 1, Logprobs: -1, Model: "tiny", Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true}}
	for i := range prompt {
		r.Prompt = append(r.Prompt, kv.Token(10+(seed*131+uint64(i)*7)%80))
	}
	return r
}

// cached serves a request and returns how many tokens of its prompt were cached.
func (r *rig) cached(t *testing.T, req *engine.Request) int {
	t.Helper()
	return enginetest.MustGenerate(t, r.ctx, r.Engine, req)[0].Cached
}

// knows waits until the adapter knows a number of the server's blocks.
func (r *rig) knows(t *testing.T, blocks int) {
	t.Helper()
	replica := enginetest.NewCacheReplica()
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.WatchKV(ctx, replica.Sink) }()
	if err := replica.WaitFor(ctx, func(seqs map[kv.SeqHash]bool) bool { return len(seqs) == blocks }); err != nil {
		t.Errorf("the adapter knows %d blocks, want %d", len(replica.Seqs()), blocks)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch: %v", err)
	}
}

func codes(ws []engine.Warning) (out []string) {
	for _, w := range ws {
		if w.Detail == "" || len(w.Detail)+len(w.Remedy) > 400 {
			out = append(out, "bad text")
		}
		out = append(out, w.Code)
	}
	return out
}

// TestPredictedIsReported checks that the server finds what its events predict.
func TestPredictedIsReported(t *testing.T) {
	r := run(t, nil, nil)
	length := func(seed uint64) int { return 96 + int(seed%2)*4 } // full blocks, and more
	for seed := range uint64(4) {
		if got := r.cached(t, request(seed, length(seed), 4)); got != 0 {
			t.Errorf("a new prompt: %d tokens cached", got)
		}
	}
	r.knows(t, 2+4*6) // the probe's blocks, and the full blocks of each prompt
	for seed := range uint64(4) {
		n := length(seed)
		if got, want := r.cached(t, request(seed, n, 4)), (n-1)/16*16; got != want {
			t.Errorf("a known prompt of %d: %d tokens cached, want %d", n, got, want)
		}
	}
	s := r.Stats()
	if s.Compared != 8 || s.Mismatched != 0 || s.Predicted != s.Reported || s.Reported != 2*80+2*96 {
		t.Errorf("predicted beside reported: %+v", s)
	}
	if w := codes(r.Warnings()); len(w) != 0 {
		t.Errorf("warnings %v", w)
	}
}

// TestJoinedBlocks checks that blocks of several of the server's blocks are stored when all of those are
// stored.
func TestJoinedBlocks(t *testing.T) {
	r := run(t, nil, func(s *remote.Spec) { s.BlockSize = 32 })
	if got := r.cached(t, request(1, 100, 4)); got != 0 {
		t.Errorf("a new prompt: %d tokens cached", got)
	}
	r.knows(t, 2+3) // the probe's blocks and the prompt's
	if got := r.cached(t, request(1, 100, 4)); got != 96 {
		t.Errorf("a known prompt: %d tokens cached, want 96", got)
	}
	if s := r.Stats(); s.Compared != 2 || s.Mismatched != 0 || s.Predicted != 96 {
		t.Errorf("predicted beside reported: %+v", s)
	}
	if w := codes(r.Warnings()); len(w) != 0 {
		t.Errorf("warnings %v", w)
	}
}

// TestFeedIsRepaired checks that lost batches are replayed, and that a restarted server counts as empty.
func TestFeedIsRepaired(t *testing.T) {
	r := run(t, nil, nil)
	r.cached(t, request(1, 100, 4))
	r.knows(t, 2+6)
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultDropEvents, Count: 1}); err != nil {
		t.Fatal(err)
	}
	r.cached(t, request(2, 100, 4))
	r.cached(t, request(3, 100, 4)) // shows the gap
	r.knows(t, 2+3*6)
	if s := r.Stats(); s.Gaps != 1 || s.Repeated == 0 || s.Unrepaired != 0 {
		t.Errorf("%+v", s)
	}
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	// Its first batch after the restart says so.
	for {
		if _, err := enginetest.Generate(r.ctx, r.Engine, request(4, 100, 4)); err == nil {
			break
		} else if fault.CodeOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
	}
	r.knows(t, 6)
	if got := r.cached(t, request(4, 100, 4)); got != 96 {
		t.Errorf("after the restart: %d tokens cached, want 96", got)
	}
	if s := r.Stats(); s.Restarts == 0 {
		t.Errorf("%+v", s)
	}
}

// TestFeedIsLost checks that after a gap without replay the cache is cleared, with a warning.
func TestFeedIsLost(t *testing.T) {
	r := run(t, func(c *enginemock.Config) { c.KVReplay = "" }, nil)
	for seed := uint64(4); r.Stats().Batches == 0; seed++ { // events from before the server knows the subscription are lost
		r.cached(t, request(seed, 20, 1))
	}
	known := request(1, 100, 4)
	r.cached(t, known)
	h, err := kv.NewHasher(16, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	r.has(t, h.AppendSeqHashes(nil, known.Prompt, nil)[5])
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultGarbleEvents, Count: 1}); err != nil {
		t.Fatal(err)
	}
	r.cached(t, request(2, 100, 4))
	r.cached(t, request(3, 100, 4))
	r.knows(t, 6)
	if w := codes(r.Warnings()); !slices.Contains(w, engine.WarnEventsBad) {
		t.Errorf("warnings %v", w)
	}
	if s := r.Stats(); s.Unreadable == 0 {
		t.Errorf("%+v", s)
	}
}

// TestFeedIsGarbled checks that an unreadable batch is replayed.
func TestFeedIsGarbled(t *testing.T) {
	r := run(t, nil, nil)
	r.cached(t, request(1, 100, 4))
	r.knows(t, 2+6)
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultGarbleEvents, Count: 1}); err != nil {
		t.Fatal(err)
	}
	r.cached(t, request(2, 100, 4))
	r.knows(t, 2+2*6)
	if w := codes(r.Warnings()); len(w) != 0 {
		t.Errorf("warnings %v", w)
	}
	if s := r.Stats(); s.Unreadable != 1 || s.Repeated == 0 || s.Unrepaired != 0 {
		t.Errorf("%+v", s)
	}
}

// TestEventsWithoutSalts checks that for a server whose events lack salts, as in 2025, salted blocks are not
// taken for others, and salted prompts do not count as mispredicted; there is a warning.
func TestEventsWithoutSalts(t *testing.T) {
	r := run(t, func(c *enginemock.Config) { c.Dialect, c.Features.ExtraKeys = enginemock.VLLMLegacy, enginemock.Off }, nil)
	salted := request(1, 100, 4)
	salted.Salt.Namespace = "tenant"
	for _, want := range []int{0, 96} {
		if got := r.cached(t, salted); got != want {
			t.Errorf("salted: %d tokens cached, want %d", got, want)
		}
	}
	r.cached(t, request(2, 100, 4))
	r.knows(t, 2+6)
	if got := r.cached(t, request(1, 100, 4)); got != 0 {
		t.Errorf("without the salt: %d tokens cached", got)
	}
	if got := r.cached(t, request(2, 100, 4)); got != 96 {
		t.Errorf("another prompt: %d tokens cached, want 96", got)
	}
	if w := codes(r.Warnings()); !slices.Equal(w, []string{engine.WarnMispredict}) {
		t.Errorf("warnings %v", w)
	}
	if s := r.Stats(); s.Mismatched != 0 || s.Predicted != 96 {
		t.Errorf("%+v", s)
	}
}

// TestWithoutEvents checks that without events the cache is predicted from requests, with a warning.
func TestWithoutEvents(t *testing.T) {
	r := run(t, func(c *enginemock.Config) { c.KVEvents, c.KVReplay = "", "" }, nil)
	if card := r.Card(); !card.KVPredicted {
		t.Error("the card does not say that the cache is guessed")
	}
	if w := codes(r.Warnings()); !slices.Equal(w, []string{engine.WarnNoEvents}) {
		t.Errorf("warnings %v", w)
	}
	for _, want := range []int{0, 96} {
		if got := r.cached(t, request(1, 100, 4)); got != want {
			t.Errorf("%d tokens cached, want %d", got, want)
		}
	}
	r.knows(t, 6)
	if s := r.Stats(); s.Mismatched != 0 || s.Predicted != 96 {
		t.Errorf("%+v", s)
	}
}

// TestNoReport checks the warning for a server that does not report cached tokens, and that a missing report
// does not count as 0.
func TestNoReport(t *testing.T) {
	r := run(t, func(c *enginemock.Config) { c.Features.Details = enginemock.Off }, nil)
	if w := codes(r.Warnings()); !slices.Equal(w, []string{engine.WarnNoCachedTokens}) {
		t.Errorf("warnings %v", w)
	}
	for range 2 {
		if got := r.cached(t, request(1, 100, 4)); got != engine.CachedUnknown {
			t.Errorf("%d tokens cached, want unknown", got)
		}
	}
	if s := r.Stats(); s.Compared != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFailures checks that each kind of failure of a server gives the right error.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		f    enginemock.Fault
		code fault.Code
		says string
	}{
		{enginemock.Fault{Kind: enginemock.FaultError, Count: 1}, fault.EngineError, "500"},
		{enginemock.Fault{Kind: enginemock.FaultError, Status: 400, Count: 1}, fault.Invalid, "refuses"},
		{enginemock.Fault{Kind: enginemock.FaultLimit, Count: 1}, fault.Overloaded, "no room"},
		{enginemock.Fault{Kind: enginemock.FaultStreamError, After: 3, Count: 1}, fault.EngineError, ""},
		{enginemock.Fault{Kind: enginemock.FaultLoading}, fault.Unavailable, "503"},
		{enginemock.Fault{Kind: enginemock.FaultDisconnect, After: 3, Count: 1}, fault.Unavailable, "broke off"},
		{enginemock.Fault{Kind: enginemock.FaultReset, Count: 1}, fault.Unavailable, ""},
	} {
		t.Run(string(c.f.Kind)+fmt.Sprint(c.f.Status), func(t *testing.T) {
			r := run(t, nil, nil)
			if err := r.server.Faults().Set(c.f); err != nil {
				t.Fatal(err)
			}
			_, err := enginetest.Generate(r.ctx, r.Engine, request(9, 40, 400))
			switch {
			case err == nil && (c.f.Kind == enginemock.FaultDisconnect || c.f.Kind == enginemock.FaultReset):
				// The fault came before the first byte of the response, and the request was sent once more.
			case c.f.Kind == enginemock.FaultReset:
				t.Errorf("a connection that was reset as a request came in: %v: %v", err, errors.Unwrap(err))
			case err == nil || fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says):
				t.Errorf("%v (%v), want %v", err, fault.CodeOf(err), c.code)
			}
			if l := r.Load(); l.Running+l.Waiting+l.UsedBlocks+l.PrefillTokens != 0 {
				t.Errorf("left in the account: %+v", l)
			}
		})
	}
}

// TestGenerateEndpoint runs the conformance suite with the other dialect.
func TestGenerateEndpoint(t *testing.T) {
	enginetest.Test(t, enginetest.Options{Redraws: true, New: func(t testing.TB) engine.Engine {
		s, card := served(t, nil)
		at := spec(t, s.URL())
		at.Events, at.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
		return enginemocktest.WithoutGrammar(openedBy(t, at, card, func(p *serverProbe) { p.endpoints = p.endpoints[1:] }))
	}})
}

// hiding is a server in front of another one that hides some paths.
func hiding(t testing.TB, of string, paths ...string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(paths, r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); transport.CloseIdleConnections() })
	return s.URL
}

// TestOpenRefuses checks that an error for impossible settings says what to set.
func TestOpenRefuses(t *testing.T) {
	s, card := served(t, nil)
	for name, c := range map[string]struct {
		set  func(*remote.Spec)
		says string
	}{
		"block size": {func(s *remote.Spec) { s.BlockSize = 24 }, "set it to 16, or a multiple"},
		"mode":       {func(s *remote.Spec) { s.Mode = "fast" }, "mode"},
		"no tokens": {func(s *remote.Spec) {
			s.Mode = remote.ModeTokens
			u, _ := url.Parse(hiding(t, s.URL.String(), pathCompletions, pathGenerate))
			s.URL = u
		}, "--enable-scale-out"},
		"nothing at all": {func(s *remote.Spec) {
			u, _ := url.Parse(hiding(t, s.URL.String(), append(passthroughPaths(), pathGenerate)...))
			s.URL = u
		}, "neither tokens nor texts"},
		"no block size": {func(s *remote.Spec) {
			u, _ := url.Parse(hiding(t, s.URL.String(), pathMetrics))
			s.URL = u
		}, "set block-size"},
	} {
		at := spec(t, s.URL())
		c.set(&at)
		e, err := Open(t.Context(), Config{Spec: at, Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: card.VocabSize, EOS: card.EOS})
		if err == nil {
			e.Client().Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestOpenFinds checks that the card has what the server reports.
func TestOpenFinds(t *testing.T) {
	adapters := func(c *enginemock.Config) {
		c.Adapters = []enginemock.Adapter{{Name: "ad-b", Path: "/b"}, {Name: "ad-a", Path: "/a"}}
		c.Models = []string{"tiny", "also"}
		c.Faults = []enginemock.Fault{{Kind: enginemock.FaultLoading, Count: 3}}
	}
	r := run(t, adapters, func(s *remote.Spec) { s.BlockSize = 32 })
	card := r.Card()
	if card.Name != "tiny" || !slices.Equal(card.Aliases, []string{"also"}) || !slices.Equal(card.Adapters, []string{"ad-a", "ad-b"}) ||
		card.BlockSize != 32 || card.Blocks != 32 || card.ContextLength != 512 || card.Engine != "vllm" || !card.StructuredOutput {
		t.Errorf("%+v", card)
	}
	if want := passthroughPaths()[:2]; !slices.Equal(r.PassthroughPaths()[:2], want) {
		t.Errorf("passes %v", r.PassthroughPaths())
	}
	// An adapter's blocks are its own, and so are a salt's.
	for i, change := range []func(*engine.Request){
		func(*engine.Request) {},
		func(r *engine.Request) { r.Salt.LoRA = "ad-a" },
		func(r *engine.Request) { r.Salt.LoRA = "ad-b" },
		func(r *engine.Request) { r.Salt.Namespace = "other" },
	} {
		for _, want := range []int{0, 96} {
			req := request(5, 100, 4)
			change(req)
			if got := r.cached(t, req); got != want {
				t.Errorf("variant %d: %d tokens cached, want %d", i, got, want)
			}
		}
	}
}

// TestRanks checks that each data-parallel rank has an adapter of its own, with only that rank's requests and
// events.
func TestRanks(t *testing.T) {
	s, card := served(t, func(c *enginemock.Config) { c.Ranks = 2 })
	var rigs []*rig
	for rank := range 2 {
		at := spec(t, s.URL())
		at.Rank, at.Ranks, at.Events = rank, 2, zmq(t, s.RankAddr(rank))
		e := opened(t, at, card)
		rigs = append(rigs, &rig{e, s, enginetest.Start(t, e)})
	}
	for i, r := range rigs {
		for _, want := range []int{0, 96} {
			if got := r.cached(t, request(7, 100, 4)); got != want {
				t.Errorf("rank %d: %d tokens cached, want %d", i, got, want)
			}
		}
	}
}

// TestPreprocess checks that prompts are equal to the server's.
func TestPreprocess(t *testing.T) {
	r := run(t, nil, nil)
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Preprocess(r.ctx, &engine.PreprocessRequest{ID: "p", Attempt: 1, Model: "tiny", Text: "Where does the water go?"})
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, token := range p.Tokens {
		text, _ = pipe.Tokenizer.AppendBytes(text, token)
	}
	if string(text) != "Where does the water go?" {
		t.Errorf("the tokens are of %q", text)
	}
}

// TestPass checks that a chat is passed through, and that its usage is recorded.
func TestPass(t *testing.T) {
	r := run(t, nil, func(s *remote.Spec) { s.Mode = remote.ModePassthrough })
	if err := r.Generate(r.ctx, request(1, 10, 2), func(*engine.Delta) error { return nil }); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("tokens in mode pass: %v", err)
	}
	body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":%q}],"max_tokens":4,"stream":true}`, strings.Repeat("Where does the water go? ", 20))
	for _, hot := range []bool{false, true} {
		var data strings.Builder
		var last engine.PassthroughChunk
		err := r.PassThrough(r.ctx, &engine.PassthroughRequest{ID: "p", Attempt: 1, Model: "tiny", Path: "/v1/chat/completions", Stream: true, Body: []byte(body)}, func(p *engine.PassthroughChunk) error {
			data.Write(p.Data)
			last = *p
			return nil
		})
		if err != nil || !last.Last || last.OutputTokens != 4 || last.PromptTokens < 32 || hot != (last.Cached > 0) {
			t.Errorf("%v %+v", err, last)
		}
		if s := data.String(); !strings.HasSuffix(s, "data: [DONE]\n\n") || strings.Contains(s, `"prompt_tokens"`) {
			t.Errorf("the client gets %s", s)
		}
	}
}

// TestStorm checks that requests canceled at any moment, with breaking connections, leave no load, no
// goroutine (TestMain) and no connection behind, and an engine that serves.
func TestStorm(t *testing.T) {
	r := run(t, nil, nil)
	if err := r.server.Faults().Set(enginemock.Fault{Kind: enginemock.FaultDisconnect, Probability: 0.2, After: 3}); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for i := range 600 {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ctx, cancel := context.WithCancel(r.ctx)
			defer cancel()
			req, seen, pos := request(uint64(i%9), 40+i%30, 24), 0, 0
			if i%5 == 0 {
				cancel()
			}
			_ = r.Generate(ctx, req, func(d *engine.Delta) error {
				if d.Pos != pos && !d.Accepted {
					t.Errorf("request %d: tokens at %d after %d", i, d.Pos, pos)
				}
				pos += len(d.Tokens)
				if seen++; seen > i%8 {
					cancel()
				}
				return nil
			})
			if pos > 24 {
				t.Errorf("request %d: %d tokens", i, pos)
			}
		})
	}
	wg.Wait()
	_ = r.server.Faults().Set()
	for slices.Contains(codes(r.Warnings()), engine.WarnUnreachable) {
		runtime.Gosched()
	}
	enginetest.MustGenerate(t, r.ctx, r.Engine, request(1, 40, 8))
	if l := r.Load(); l.PrefillTokens != 0 {
		t.Errorf("left in the account: %+v", l)
	}
}
