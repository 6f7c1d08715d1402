package vllm

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/engine/sim"
	"penstock/internal/fixturetest"
	"penstock/internal/zmtp"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// pipeline returns the built-in pipeline, opened once.
var pipeline = sync.OnceValues(func() (*prep.Pipeline, error) { return chat.Open(chat.Ref{Kind: "builtin"}) })

// simulated returns a constructor of simulated engines with a small cache, for which a server stands in.
func simulated(t testing.TB) (open func(rank int) (engine.Engine, error), card engine.Card, pipe *prep.Pipeline) {
	t.Helper()
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = 1000
	eos, _ := builtin.EOS()
	open = func(rank int) (engine.Engine, error) {
		return sim.New(sim.Config{
			Name: "tiny", Vocabulary: sim.Vocabulary{Size: pipe.Tokenizer.VocabSize(), Mask: builtin.MaskedIDs(), EOS: []kv.Token{eos}},
			BlockSize: 16, Blocks: 64, ContextLength: 512, Timing: timing, Worker: uint64(rank),
		})
	}
	e, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	return open, e.Card(), pipe
}

// spec returns the spec of a server at a URL.
func spec(t testing.TB, at string) remote.Spec {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	return remote.Spec{Kind: "vllm", URL: u, Rank: remote.AnyRank, Ranks: 1, SaltWait: time.Minute}
}

func zmq(t testing.TB, s string) (e zmtp.Endpoint) {
	t.Helper()
	if s == "" {
		return e
	}
	e, err := zmtp.ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// opened returns an engine of the spec whose model is that of card.
func opened(t testing.TB, s remote.Spec, card engine.Card) *Engine {
	t.Helper()
	return openedBy(t, s, card, func(*serverProbe) {})
}

// openedBy is opened, with a change to the probe.
func openedBy(t testing.TB, s remote.Spec, card engine.Card, change func(*serverProbe)) *Engine {
	t.Helper()
	p, err := newProbe(&Config{Spec: s, Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: card.VocabSize, EOS: card.EOS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Client.Close)
	change(p)
	e, err := p.openEngine(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return e
}
