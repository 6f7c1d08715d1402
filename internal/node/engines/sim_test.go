package engines

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestSimulatedCard: a simulated model has the card of the built-in model, or the facts of its checkpoint.
func TestSimulatedCard(t *testing.T) {
	tok, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	size := tok.VocabSize()
	own, _ := tok.EOS()
	full := enginemocktest.WriteCheckpoint(t, fmt.Sprintf(`{"vocab_size": %d, "max_position_embeddings": 40960, "eos_token_id": 5}`, size+100), `{"eos_token_id": [7, 9]}`)
	bare := enginemocktest.WriteCheckpoint(t, `{"text_config": {"vocab_size": 7}}`, "")
	for _, c := range []struct {
		name, dir      string
		settings       []string
		vocab, context int
		eos            []kv.Token
	}{
		{name: "penstock-sim", vocab: size, context: 262144, eos: []kv.Token{own}},
		{name: "penstock-sim", settings: []string{"SIM_CONTEXT_LENGTH=4096"}, vocab: size, context: 4096, eos: []kv.Token{own}},
		{name: "penstock-sim", settings: []string{"KV_CACHE_BLOCKS=100"}, vocab: size, context: 1600, eos: []kv.Token{own}},
		{name: filepath.Base(full), dir: full, vocab: size + 100, context: 40960, eos: []kv.Token{7, 9}},
		{name: "a", dir: full, settings: []string{"SERVED_MODEL_NAME=a", "SIM_CONTEXT_LENGTH=1000"}, vocab: size + 100, context: 1000, eos: []kv.Token{7, 9}},
		{name: filepath.Base(bare), dir: bare, vocab: size, context: 262144, eos: []kv.Token{own}},
	} {
		settings := append([]string{"ENGINE=sim", "WORKERS=3", "HTTP_ADDR=127.0.0.1:0"}, c.settings...)
		if c.dir != "" {
			settings = append(settings, "MODEL_PATH="+c.dir)
		}
		m, err := OpenLocal(t.Context(), enginemocktest.LoadSettings(t, config.Up, settings...), MediaSources{})
		if err != nil {
			t.Errorf("%q: %v", c.settings, err)
			continue
		}
		card := m.Card()
		if len(m.Engines) != 3 || card.Engine != "sim" || card.Name != c.name || card.VocabSize != c.vocab || card.ContextLength != c.context || !slices.Equal(card.EOS, c.eos) {
			t.Errorf("%q: %d engines of %+v, want %+v", c.settings, len(m.Engines), card, c)
		}
		if card.Tokenizer.Digest != m.Pipe.Digest {
			t.Errorf("%q: the tokenizer on the card is %+v", c.settings, card.Tokenizer)
		}
	}
	// A value in an unknown form is skipped; a file that is not an object is damaged.
	_, err = OpenLocal(t.Context(), enginemocktest.LoadSettings(t, config.Worker, "ENGINE=sim", "NATS_LISTEN=127.0.0.1:0", "MODEL_PATH="+enginemocktest.WriteCheckpoint(t, `{"vocab_size": 7`, "")), MediaSources{})
	if err == nil {
		t.Error("a broken config.json was accepted")
	}
	_, err = OpenLocal(t.Context(), enginemocktest.LoadSettings(t, config.Worker, "ENGINE=sim", "NATS_LISTEN=127.0.0.1:0", "SIM_CHUNKED_PREFILL=off"), MediaSources{})
	if err == nil || !strings.Contains(err.Error(), "lower sim-context-length") {
		t.Errorf("steps that do not hold a prompt: %v", err)
	}
}

// TestSimulatedEngineConforms: with the node's wrapper it passes the engine conformance suite.
func TestSimulatedEngineConforms(t *testing.T) {
	cfg := enginemocktest.LoadSettings(t, config.Worker, "ENGINE=sim", "NATS_LISTEN=127.0.0.1:0", "SIM_SPEEDUP=1000", "KV_CACHE_BLOCKS=40", "MAX_NUM_SEQS=16")
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		e, _ := servedEngine(t, cfg)
		return e
	}})
	e, _ := servedEngine(t, cfg)
	if _, ok := e.(engine.Preprocessor); !ok {
		t.Error("it makes no prompts")
	}
	if _, ok := e.(engine.Embedder); ok {
		t.Error("it claims to make embeddings")
	}
	started, ok := e.(interface{ Started() <-chan struct{} })
	if !ok || started.Started() == nil {
		t.Error("it does not say when it has started")
	}
}

// errEnough ends a watch after its first events, which describe the labels.
var errEnough = errors.New("enough")

// TestSimulatedEvents: settings decide which cache events a simulated engine sends.
func TestSimulatedEvents(t *testing.T) {
	req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 2}}
	for i := range 50 {
		req.Prompt = append(req.Prompt, kv.Token(300+i))
	}
	for _, c := range []struct {
		setting        string
		blocks, labels int
	}{
		{"SIM_SPEEDUP=100", 3, 0},
		{"SIM_MOE=61:256:8", 3, 3},
		{"SIM_PREFIX_CACHING=off", 0, 0},
	} {
		cfg := enginemocktest.LoadSettings(t, config.Worker, "ENGINE=sim", "NATS_LISTEN=127.0.0.1:0", c.setting)
		m, err := OpenLocal(t.Context(), cfg, MediaSources{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := enginetest.Start(t, m.Engines[0])
		if _, err := enginetest.Generate(ctx, m.Engines[0], req); err != nil {
			t.Fatal(err)
		}
		blocks, labels := 0, 0
		err = m.Engines[0].WatchKV(ctx, func(events []kv.Event) error {
			for _, ev := range events {
				blocks, labels = blocks+len(ev.Blocks), labels+len(ev.Labels)
			}
			return errEnough
		})
		if !errors.Is(err, errEnough) || blocks != c.blocks || labels != c.labels {
			t.Errorf("%s: %d blocks and %d labels, %v, want %d and %d", c.setting, blocks, labels, err, c.blocks, c.labels)
		}
	}
}
