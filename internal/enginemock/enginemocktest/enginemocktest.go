// Package enginemocktest starts engine mocks for tests of their clients.
package enginemocktest

import (
	"context"
	"net/url"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/enginemock"
	"penstock/internal/zmtp"
)

// builtinModel is the built-in tokenizer and template, and the simulated engine's vocabulary.
type builtinModel struct {
	pipe *prep.Pipeline
	sim  sim.Vocabulary
}

// openBuiltinModel opens the built-in model; once is enough for a process.
func openBuiltinModel() (builtinModel, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return builtinModel{}, err
	}
	builtin, err := token.Builtin()
	if err != nil {
		return builtinModel{}, err
	}
	eos, _ := builtin.EOS()
	return builtinModel{pipe, sim.Vocabulary{Size: pipe.Tokenizer.VocabSize(), Mask: builtin.MaskedIDs(), EOS: []kv.Token{eos}}}, nil
}

// MockRig starts servers around simulated engines of one small model. The zero value is ready.
type MockRig struct {
	once   sync.Once
	opened builtinModel
	err    error
}

// StartServer runs a server until the test ends, around a fast engine with a cache of 64 blocks of 16 tokens
// and a context of 512. change may modify the configuration, and may be nil. The card is the engine's.
func (r *MockRig) StartServer(t testing.TB, dialect enginemock.Dialect, change func(*enginemock.Config)) (*enginemock.Server, engine.Card) {
	t.Helper()
	r.once.Do(func() { r.opened, r.err = openBuiltinModel() })
	if r.err != nil {
		t.Fatal(r.err)
	}
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = 1000
	cfg := enginemock.Config{
		Dialect: dialect, Pipe: r.opened.pipe,
		Open: func(rank int) (engine.Engine, error) {
			return sim.New(sim.Config{Name: "tiny", Vocabulary: r.opened.sim, BlockSize: 16, Blocks: 64, ContextLength: 512, Timing: timing, Worker: uint64(rank)})
		},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := cfg.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := enginemock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the imitated server: %v", err)
		}
	})
	return s, e.Card()
}

// ServerURL returns the address of a server.
func ServerURL(t testing.TB, s *enginemock.Server) *url.URL {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// ParseEndpoint parses an endpoint; "" is none.
func ParseEndpoint(t testing.TB, s string) (e zmtp.Endpoint) {
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

// Adapter is the common interface of the remote engines' adapters.
type Adapter interface {
	engine.Engine
	engine.KVSource
	engine.LoadSource
	engine.WarningSource
	engine.AdapterSource
	engine.PassthroughEngine
}

// WithoutGrammar returns e without structured output, for the engine test suite: a simulator does not
// constrain its output to a schema, whatever engine it mocks. The result is a Preprocessor if e is one.
func WithoutGrammar(e Adapter) engine.Engine {
	u := withoutGrammar{e}
	if p, ok := e.(engine.Preprocessor); ok {
		return struct {
			withoutGrammar
			engine.Preprocessor
		}{u, p}
	}
	return u
}

type withoutGrammar struct{ Adapter }

// Card implements engine.Engine.
func (u withoutGrammar) Card() engine.Card {
	card := u.Adapter.Card()
	card.StructuredOutput = false
	return card
}

// Generate implements engine.Engine.
func (u withoutGrammar) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if req.OutputSchema != nil {
		return engine.RefuseSchema()
	}
	return u.Adapter.Generate(ctx, req, sink)
}
