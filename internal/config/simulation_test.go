package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestEnginesOwn(t *testing.T) {
	for _, c := range []struct {
		env            []string
		name           string
		budget, blocks int
	}{
		{nil, "penstock-tiny", 512, 0},
		{[]string{"PENSTOCK_ENGINE=sim"}, "penstock-sim", 8192, 65536},
		{[]string{"PENSTOCK_ENGINE=sim", "PENSTOCK_MODEL=penstock-sim", "PENSTOCK_KV_CACHE_BLOCK_SIZE=512"}, "penstock-sim", 8192, 2048},
		{[]string{"PENSTOCK_ENGINE=sim", "PENSTOCK_MAX_NUM_BATCHED_TOKENS=2048", "PENSTOCK_KV_CACHE_BLOCKS=100", "PENSTOCK_SERVED_MODEL_NAME=a,b"}, "a", 2048, 100},
		{[]string{"PENSTOCK_MODEL_PATH=."}, "config", 512, 0},
	} {
		l, err := Load("", c.env, nil)
		if err != nil {
			t.Fatal(err)
		}
		if l.ModelName() != c.name || l.TokenBudget() != c.budget || l.Blocks() != c.blocks {
			t.Errorf("%q: model %s, %d tokens, %d blocks, want %s, %d and %d", c.env, l.ModelName(), l.TokenBudget(), l.Blocks(), c.name, c.budget, c.blocks)
		}
	}
}

// TestLists: numbers are separated by commas in variables and flags, and are a list
// in a file.
func TestLists(t *testing.T) {
	want := []float64{16.5, 0.015, 4.2e-7}
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags := AddFlags(fs, Up)
	if err := fs.Parse([]string{"--sim-prefill=16.5,0.015,4.2e-7"}); err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func() (*Loaded, error){
		"file": func() (*Loaded, error) { return Load(write(t, "sim-prefill: [16.5, 0.015, 4.2e-7]\n"), nil, nil) },
		"env":  func() (*Loaded, error) { return Load("", []string{"PENSTOCK_SIM_PREFILL=16.5,0.015, 4.2e-7"}, nil) },
		"flag": func() (*Loaded, error) { return Load("", nil, flags) },
	} {
		l, err := load()
		if err != nil || !slices.Equal(l.SimPrefill, want) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if l, err := Load("", []string{"PENSTOCK_SIM_PREFILL="}, nil); err != nil || len(l.SimPrefill) != 0 {
		t.Errorf("an empty variable: %+v, %v", l, err)
	}
}

func TestBadSimulation(t *testing.T) {
	for text, want := range map[string]string{
		"sim-speedup: 0":                     "sim-speedup: 0 is not above 0 and at most",
		"sim-speedup: .nan":                  "sim-speedup: NaN is not above 0",
		"sim-decode-speedup: .inf":           "sim-decode-speedup: +Inf is not above 0",
		"sim-jitter: 1.5":                    "sim-jitter: 1.5 is not a share",
		"sim-prefill: [1, .nan]":             "sim-prefill: NaN is not a number of milliseconds",
		"sim-decode: [1,2,3,4,5,6,7,8,9,10]": "sim-decode: 10 coefficients, at most 9",
		"sim-startup: -1s":                   "sim-startup: -1s must not be negative",
		"sim-context-length: 1":              "sim-context-length: 1 is not between 2",
		"sim-output: -1":                     "sim-output: -1 is not between 0",
		"sim-text: verse":                    `sim-text: "verse" is not one of passage, echo`,
		"engine: sims":                       `engine: "sims" is not one of tiny, sim`,
		"engine: sim\nmodel: other":          `model: "other" is not built in, only penstock-sim is in engine sim`,
		"model: penstock-sim":                `model: "penstock-sim" is not built in, only penstock-tiny is in engine tiny`,
		"engine: sim\nmax-num-seqs: 9000":    "max-num-batched-tokens: 8192 is less than the 9000",
	} {
		_, err := Load(write(t, text), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

// TestSimulationFlags: a command that is no role has those of a worker that shape
// time and batches, with the defaults of the simulated engine.
func TestSimulationFlags(t *testing.T) {
	fs := pflag.NewFlagSet("replay", pflag.ContinueOnError)
	flags := AddSimulationFlags(fs)
	for _, name := range []string{"sim-timing", "sim-speedup", "max-num-seqs", "max-num-batched-tokens"} {
		if fs.Lookup(name) == nil {
			t.Errorf("there is no --%s", name)
		}
	}
	for _, name := range []string{"engine", "sim-text", "sim-output", "max-waiting", "http-addr"} {
		if fs.Lookup(name) != nil {
			t.Errorf("there is --%s, which means nothing here", name)
		}
	}
	s, err := flags.Simulated()
	if err != nil || s.MaxSeqs != 256 || s.TokenBudget != 8192 {
		t.Errorf("defaults: %+v, %v", s, err)
	}
	if err := fs.Parse([]string{"--max-num-seqs=16", "--max-num-batched-tokens=64"}); err != nil {
		t.Fatal(err)
	}
	if s, err := flags.Simulated(); err != nil || s.MaxSeqs != 16 || s.TokenBudget != 64 {
		t.Errorf("as given: %+v, %v", s, err)
	}
	if err := fs.Parse([]string{"--sim-speedup=-1", "--sim-jitter=7"}); err != nil {
		t.Fatal(err)
	}
	_, err = flags.Simulated()
	if err == nil || !strings.Contains(err.Error(), "sim-speedup: -1") || !strings.Contains(err.Error(), "sim-jitter: 7") {
		t.Errorf("bad flags: %v", err)
	}
}
