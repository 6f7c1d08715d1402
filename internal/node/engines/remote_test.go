package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/engine"
)

// openerOf opens the adapters of stubs.
func openerOf(s *enginemocktest.Stubs) AdapterOpener {
	return func(_ context.Context, of *config.RemoteEngine, rank, ranks int, _ string, m *RemoteModel, _ *slog.Logger) (engine.Engine, error) {
		return s.OpenStub(of, rank, ranks, m.Ref)
	}
}

// TestEngineWithoutTokens: a local tokenizer is of no use with an engine which accepts no tokens.
func TestEngineWithoutTokens(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a := enginemocktest.StartFakeEngine(t, "m", dir)
	s := &enginemocktest.Stubs{Change: func(_ *config.RemoteEngine, s *enginemocktest.StubAdapter) {
		s.ReportedCard.Tokenizer = engine.TokenizerRef{Kind: engine.TokenizerOfEngine}
	}}
	of := enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+a.URL)
	e := NewSupervisor(SupervisorConfig{Settings: of, OpenAdapter: openerOf(s), Log: slog.New(slog.DiscardHandler)}).all[0]
	o, err := e.open(t.Context(), "", Facts{root: dir})
	if err != nil || o.tokenizer != "engine" || o.chat {
		t.Errorf("%+v (%v)", o, err)
	}
	s.Change = nil
	if o, err = e.open(t.Context(), "", Facts{root: dir}); err != nil || o.tokenizer != dir || !o.chat {
		t.Errorf("%+v (%v)", o, err)
	}
}

func TestLook(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", "org/model")
	of := enginemocktest.LoadSettings(t, config.Up, "ENGINE=sglang="+a.URL).RemoteEngines()[0]
	got, err := probeEngine(t.Context(), &of, "")
	if err != nil || got != (Facts{Model: "m", root: "org/tokenizer"}) {
		t.Errorf("%+v (%v)", got, err)
	}
	of.Kind = config.EngineVLLM
	if got, err := probeEngine(t.Context(), &of, ""); err != nil || got.root != "org/model" {
		t.Errorf("%+v (%v)", got, err)
	}
	text := []byte("# HELP vllm:cache_config_info x\nvllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1.0\nvllm:cache_config_info{block_size=\"16\",engine=\"1\"} 1.0\nvllm:other{engine=\"7\"} 1\n")
	if n := vllmRanks(text); n != 2 {
		t.Errorf("%d ranks in the metrics", n)
	}
	a.Key = "right"
	if _, err := probeEngine(t.Context(), &of, "wrong"); err == nil || !strings.Contains(err.Error(), "does not take the key") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v", err)
	}
	a.Close()
	var later *NotReadyError
	if _, err := probeEngine(t.Context(), &of, ""); !errors.As(err, &later) || !strings.Contains(later.Reason, "connection refused") {
		t.Errorf("%v", err)
	}
}

// TestLookAtAnotherKind: an engine which names its kind is not accepted as another kind, which would serve
// without its events; one behind a proxy with an unknown name is accepted.
func TestLookAtAnotherKind(t *testing.T) {
	for owner, kind := range map[string]string{"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm", "llamacpp": "llamacpp", "penstock-python": "python", "library": "", "": ""} {
		a := enginemocktest.StartFakeEngine(t, "m", "org/model")
		a.Models = fmt.Sprintf(`{"data":[{"id":"m","root":"org/model","owned_by":%q}]}`, owner)
		for _, as := range config.RemoteKinds() {
			of := enginemocktest.LoadSettings(t, config.Up, "ENGINE="+as+"="+a.URL).RemoteEngines()[0]
			_, err := probeEngine(t.Context(), &of, "")
			if good := kind == "" || kind == as; good != (err == nil) || !good && !strings.Contains(err.Error(), "write "+kind+"="+a.URL) {
				t.Errorf("%q as %s: %v", owner, as, err)
			}
		}
	}
}

// TestTokenizerOf: the places where the tokenizer of an engine is searched.
func TestTokenizerOf(t *testing.T) {
	dir, empty := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048, "max_position_embeddings": 512}`, `{"temperature": 0.5}`), t.TempDir()
	alone := enginemocktest.WriteCheckpoint(t, "", "") // the tokenizer
	for name, c := range map[string]struct {
		of      config.RemoteEngine
		root    string
		from    string
		note    string
		problem string
	}{
		"named":             {of: config.RemoteEngine{ModelPath: dir}, from: dir},
		"the engine's root": {root: dir, from: dir},
		"the tokenizer":     {of: config.RemoteEngine{ModelPath: alone}, from: alone},
		"built in":          {root: "penstock-sim", from: "this program"},
		"nowhere":           {root: "org/model", from: "engine", note: "tokenizer.json of its model (org/model) with --model-path"},
		"nothing said":      {from: "engine", note: "requests are passed on as they are"},
		"named wrongly":     {of: config.RemoteEngine{ModelPath: empty}, root: dir, problem: "there is neither tokenizer.json nor config.json"},
		"wanted":            {of: config.RemoteEngine{Mode: config.ModeTokens}, root: empty, problem: "it is not in " + empty},
		"not wanted":        {of: config.RemoteEngine{Mode: config.ModePass}, root: dir, from: "engine"},
	} {
		m, err := resolveTokenizer(&c.of, Facts{root: c.root}, "")
		switch {
		case c.problem != "":
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v, want %q", name, err, c.problem)
			}
		case err != nil || m.From != c.from || !strings.Contains(m.noteText(), c.note) || (m.Note == "") != (c.note == ""):
			t.Errorf("%s: %+v (%v)", name, m, err)
		case m.From == dir && (m.facts.context != 512 || m.facts.defaults.Temperature != 0.5 || m.Ref.Digest != m.pipe.Digest):
			t.Errorf("%s: %+v", name, m.facts)
		}
	}
}

// TestAway: an error which a retry may resolve does not end the start.
func TestAway(t *testing.T) {
	for err, want := range map[error]bool{
		fault.New(fault.Unavailable, "gone"):                     true,
		fault.New(fault.Overloaded, "full"):                      true,
		fmt.Errorf("probe: %w", context.DeadlineExceeded):        true,
		fault.New(fault.Invalid, "no"):                           false,
		errors.New("block-size is 48, and the engine's have 32"): false,
	} {
		if got := errors.Is(markTransient(err), errEngineGone); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestSmallIDs(t *testing.T) {
	r := &Supervisor{all: make([]*remoteEngine, 3)}
	for _, c := range []struct{ of, rank, want int }{{1, 0, 2}, {2, 1, 4}, {0, 1, 5}, {2, 1, 4}, {0, 0, 1}} {
		if got := r.smallID(c.of, c.rank); got != kv.WorkerID(c.want) {
			t.Errorf("engine %d rank %d is worker %d, want %d", c.of, c.rank, got, c.want)
		}
	}
}

// TestRanksOf: settings and engine agree on the ranks, or only one of them gives a number.
func TestRanksOf(t *testing.T) {
	for _, c := range []struct{ set, found, want int }{{0, 0, 1}, {0, 2, 2}, {3, 0, 3}, {2, 2, 2}, {3, 2, 0}, {1, 2, 0}} {
		got, err := CountRanks(&config.RemoteEngine{Ranks: c.set}, Facts{ranks: c.found})
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%+v: %d (%v)", c, got, err)
		}
	}
}
