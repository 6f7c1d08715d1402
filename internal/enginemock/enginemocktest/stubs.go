package enginemocktest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/engine/sim"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/enginemock"
)

// LoadSettings loads the settings of a command from variables without their prefix.
func LoadSettings(t testing.TB, command config.Command, env ...string) *config.Loaded {
	t.Helper()
	for i := range env {
		env[i] = "PENSTOCK_" + env[i]
	}
	cfg, err := config.Load("", env, config.NoFlags(command))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// WriteCheckpoint writes a checkpoint for a simulated model: everything except the weights.
func WriteCheckpoint(t *testing.T, configJSON, generation string) string {
	t.Helper()
	dir := t.TempDir()
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	for name, data := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": tokenizerConfig, "config.json": []byte(configJSON), "generation_config.json": []byte(generation),
	} {
		if len(data) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// SmallSettings returns the settings of a small built-in model.
func SmallSettings(t testing.TB) *config.Loaded {
	t.Helper()
	return LoadSettings(t, config.Up, "KV_CACHE_BLOCKS=40", "MAX_NUM_SEQS=16", "WORKERS=1")
}

// FakeEngine mocks a remote engine: it reports over HTTP what it serves.
type FakeEngine struct {
	*httptest.Server
	Loading atomic.Bool
	Key     string
	Models  string // JSON of /v1/models
}

// StartFakeEngine starts a fake engine which serves a model whose files are at root.
func StartFakeEngine(t *testing.T, model, root string) *FakeEngine {
	t.Helper()
	o := &FakeEngine{Models: fmt.Sprintf(`{"data":[{"id":"lora","parent":%q},{"id":%q,"root":%q}]}`, model, model, root)}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case o.Loading.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/health":
		case o.Key != "" && r.Header.Get("Authorization") != "Bearer "+o.Key:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			_, _ = w.Write([]byte(o.Models))
		case r.URL.Path == "/model_info":
			_, _ = w.Write([]byte(`{"model_path":"org/model","tokenizer_path":"org/tokenizer"}`))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(o.Close)
	return o
}

// StubAdapter is the adapter of an engine, around a simulated one.
type StubAdapter struct {
	*sim.Engine
	ReportedCard engine.Card
	Problems     []engine.Warning
	Unheard      bool     // its events do not arrive
	Shift        kv.Token // added to the tokens which the engine makes of texts
}

// Card implements engine.Engine.
func (s *StubAdapter) Card() engine.Card { return s.ReportedCard }

// Stats returns the counters of an adapter.
func (s *StubAdapter) Stats() remote.Stats { return remote.Stats{Gaps: 1, Connected: !s.Unheard} }

// Warnings implements engine.WarningSource.
func (s *StubAdapter) Warnings() []engine.Warning { return slices.Clone(s.Problems) }

// Preprocess implements engine.Preprocessor.
func (s *StubAdapter) Preprocess(_ context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return nil, err
	}
	if len(req.Chat) > 0 {
		return nil, fault.New(fault.Unimplemented, "no chats")
	}
	p := &engine.Preprocessed{Attempt: req.Attempt, Tokens: pipe.Tokenizer.Encode(nil, req.Text, prep.EncodeOptions{})}
	p.Tokens[len(p.Tokens)-1] += s.Shift
	return p, nil
}

// Stubs makes adapters which report what is on the wire, as the real ones do. change may alter each.
type Stubs struct {
	mu     sync.Mutex
	Made   []string // "kind url rank/ranks"
	Change func(of *config.RemoteEngine, s *StubAdapter)
	Refuse func(of *config.RemoteEngine) error
}

// OpenStub opens the adapter of one rank of an engine whose model has the tokenizer ref.
func (s *Stubs) OpenStub(of *config.RemoteEngine, rank, ranks int, ref engine.TokenizerRef) (engine.Engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Made = append(s.Made, fmt.Sprintf("%s %d/%d", of.Kind, rank, ranks))
	if s.Refuse != nil {
		if err := s.Refuse(of); err != nil {
			return nil, err
		}
	}
	builtin, err := token.Builtin()
	if err != nil {
		return nil, err
	}
	eos, _ := builtin.EOS()
	timing, err := sim.PresetTiming(sim.PresetNames()[0])
	if err != nil {
		return nil, err
	}
	timing.Speedup = 1000
	name := of.Name
	if name == "" {
		name = "m"
	}
	block := 16
	if of.BlockSize > 0 {
		block = of.BlockSize
	}
	e, err := sim.New(sim.Config{
		Name: name, Tokenizer: ref, Vocabulary: sim.Vocabulary{Size: builtin.VocabSize(), Mask: builtin.MaskedIDs(), EOS: []kv.Token{eos}}, BlockSize: block, Blocks: 256, ContextLength: 4096,
		MaxSeqs: 16, TokenBudget: 4096, MaxWaiting: 64, Timing: timing, Output: 8, Text: sim.BuiltinText(func(string) []kv.Token { return []kv.Token{300, 301, 302} }),
	})
	if err != nil {
		return nil, err
	}
	stub := &StubAdapter{Engine: e, ReportedCard: e.Card()}
	stub.ReportedCard.Engine = of.Kind
	if s.Change != nil {
		s.Change(of, stub)
	}
	return stub, nil
}

// LogBuffer is a log that can be read while it is written.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what was written.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// StartEngineMock runs an engine mock of the model in dir, and returns its value of --engine.
func StartEngineMock(t *testing.T, dialect enginemock.Dialect, dir string, change func(*enginemock.Config)) (spec string, s *enginemock.Server) {
	t.Helper()
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	facts, generation, err := checkpoint.ReadFacts(dir)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary := sim.Vocabulary{Size: max(facts.VocabSize, pipe.Tokenizer.VocabSize())}
	if vocabulary.EOS = checkpoint.EndOfSequence(&facts, &generation, vocabulary.Size); len(vocabulary.EOS) == 0 {
		if id, ok := pipe.Tokenizer.(*token.Tokenizer).EOS(); ok {
			vocabulary.EOS = []kv.Token{id}
		}
	}
	timing, err := sim.PresetTiming(sim.PresetNames()[0])
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = 100
	cfg := enginemock.Config{
		Dialect: dialect, Pipe: pipe, Models: []string{"m"}, Root: dir, Seed: 1, KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0",
		Open: func(int) (engine.Engine, error) {
			return sim.New(sim.Config{
				Name: "m", Tokenizer: engine.TokenizerRef{Kind: "dir", Dir: dir}, Vocabulary: vocabulary,
				Text: sim.BuiltinText(func(text string) []kv.Token { return pipe.Tokenizer.Encode(nil, text, prep.EncodeOptions{}) }), BlockSize: 16, Blocks: 512, ContextLength: 4096, MaxSeqs: 16, TokenBudget: 4096, MaxWaiting: 64, Timing: timing, Output: 20,
			})
		},
	}
	if dialect == enginemock.LlamaCPP || dialect == enginemock.TRTLLM {
		cfg.KVEvents, cfg.KVReplay = "", ""
	}
	if change != nil {
		change(&cfg)
	}
	if s, err = enginemock.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	kind := strings.TrimSuffix(string(dialect), "-legacy")
	spec = kind + "=" + s.URL()
	if cfg.KVEvents != "" {
		spec += fmt.Sprintf(",events=%s,replay=%s", s.EventsAddr(), s.ReplayAddr())
	}
	return spec, s
}
