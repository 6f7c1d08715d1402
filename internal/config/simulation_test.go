package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"penstock/core/media"
	"penstock/internal/engine/sim"
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
		if l.ModelName() != c.name || l.TokenBudget() != c.budget || l.CacheBlocks() != c.blocks {
			t.Errorf("%q: model %s, %d tokens, %d blocks, want %s, %d and %d", c.env, l.ModelName(), l.TokenBudget(), l.CacheBlocks(), c.name, c.budget, c.blocks)
		}
	}
}

// TestLists: numbers are separated by commas in variables and flags, and are a list in a file.
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
		if err != nil || !slices.Equal(l.Simulation.Prefill, want) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if l, err := Load("", []string{"PENSTOCK_SIM_PREFILL="}, nil); err != nil || len(l.Simulation.Prefill) != 0 {
		t.Errorf("an empty variable: %+v, %v", l, err)
	}
}

func TestBadSimulation(t *testing.T) {
	for text, want := range map[string]string{
		"sim-timing: fast":                       `sim-timing: "fast" is not one of mocker, mocker-0.2,`,
		"sim-speedup: 0":                         "sim-speedup: 0 is not between 0.001 and 1e+06",
		"sim-speedup: .nan":                      "sim-speedup: NaN is not between",
		"sim-decode-speedup: .inf":               "sim-decode-speedup: +Inf is not between",
		"sim-load-factor: 0.5":                   "sim-load-factor: 0.5 is not between 1 and 1000",
		"sim-jitter: 0.5":                        "sim-jitter: 0.5 is not between 0 and 0.3",
		"sim-prefill: [1, .nan]":                 "sim-prefill: NaN is not between",
		"sim-decode: [1,2,3,4,5,6]":              "sim-decode: it has 6 numbers, and 5 are taken",
		"sim-encoder: '64:1,32:1'":               "sim-encoder: ",
		"sim-encoder: 'image:1:1;image:1:1'":     "sim-encoder: ",
		"sim-encoders: -1":                       "sim-encoders: -1 is not between 0 and 1024",
		"sim-media-faults: broken":               `sim-media-faults: "broken" is not KIND or KIND:TOKENS`,
		"sim-media-faults: 'corrupt:-1'":         "sim-media-faults: ",
		"sim-profile: x\nsim-decode: [1]":        "sim-profile: a profile is in place of all coefficients",
		"engine: sim\nsim-profile: /nonexistent": "sim-profile: ",
		"sim-startup: -1s":                       "sim-startup: -1s must not be negative",
		"sim-prefix-caching: maybe":              `sim-prefix-caching: "maybe" is not one of on, off`,
		"sim-chunked-prefill: 1":                 `sim-chunked-prefill: "1" is not one of on, off`,
		"sim-moe: 61":                            "sim-moe: \"61\" is not LAYERS:EXPERTS",
		"sim-moe: '61:8:9'":                      "not more groups than experts",
		"sim-moe: '1:2:2:2'":                     "sim-moe: ",
		"sim-moe: '0:2'":                         "sim-moe: ",
		"sim-cxl: '0'":                           "sim-cxl: \"0\" is not POOL:BLOCKS",
		"sim-cxl: '0:0'":                         "sim-cxl: ",
		"sim-cxl: '-1:5'":                        "sim-cxl: ",
		"sim-cxl: '0:5:x'":                       "sim-cxl: ",
		"sim-cxl: '0:5:1ms:1'":                   "sim-cxl: ",
		"sim-context-length: 1":                  "sim-context-length: 1 is not between 2",
		"sim-output: -1":                         "sim-output: -1 is not between 0",
		"sim-text: verse":                        `sim-text: "verse" is not one of passage, echo`,
		"engine: sims":                           `engine: "sims" is not an engine: write tiny, sim, or KIND=URL`,
		"engine: sim\nmodel: other":              `model: "other" is not built in, only penstock-sim is in engine sim`,
		"model: penstock-sim":                    `model: "penstock-sim" is not built in, only penstock-tiny is in engine tiny`,
		"engine: sim\nmax-num-seqs: 9000":        "max-num-batched-tokens: 8192 is less than the 9000",
	} {
		_, err := Load(write(t, text), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

// TestSimulated: the settings produce the right timing model.
func TestSimulated(t *testing.T) {
	preset := func(name string) sim.Timing {
		timing, err := sim.PresetTiming(name)
		if err != nil {
			t.Fatal(err)
		}
		return timing
	}
	for _, c := range []struct {
		name, text, says string
		change           func(*sim.Timing)
	}{
		{"defaults", "", "mocker", nil},
		{"a preset", "sim-timing: smg-like\nsim-speedup: 10\n", "smg-like, 10 times as fast", func(t *sim.Timing) {
			smg := preset("smg-like")
			t.Prefill, t.Decode, t.Speedup = smg.Prefill, smg.Decode, 10
		}},
		{"coefficients", "sim-prefill: [1, 2, 3, 4, 5, 6]\nsim-decode: [7, 8, 9, 10, 11]\n", "coefficients of its own", func(t *sim.Timing) {
			t.Prefill = sim.Prefill{Pass: 1, Token: 2, TokenSquared: 3, Prompt: 4, PromptSquared: 5, Context: 6}
			t.Decode = sim.Decode{Base: 7, Use: 8, UseSquared: 9, Sequence: 10, Context: 11}
		}},
		{"some coefficients", "sim-decode: [0, 0, 0, 2]\n", "mocker and coefficients of its own", func(t *sim.Timing) {
			t.Decode = sim.Decode{Sequence: 2}
		}},
		{"media take no time", "sim-encoder: ''\n", "mocker", func(t *sim.Timing) { t.Encoder = nil }},
		{"times of kinds", "sim-encoder: '1:2;video:3:4,5:6'\n", "mocker", func(t *sim.Timing) {
			t.Encoder = []sim.EncoderPoint{{Tokens: 1, Millis: 2}}
			t.EncoderOf = map[media.Kind][]sim.EncoderPoint{media.Video: {{Tokens: 3, Millis: 4}, {Tokens: 5, Millis: 6}}}
		}},
		{"the rest", "sim-encoder: '256:12.5,1024:40'\nsim-decode-speedup: 2\nsim-load-factor: 3\nmax-num-seqs: 100\nsim-jitter: 0.1\nsim-seed: 5\nsim-startup: 2s\nsim-encoders: 3\n", "mocker", func(t *sim.Timing) {
			t.Encoder = []sim.EncoderPoint{{Tokens: 256, Millis: 12.5}, {Tokens: 1024, Millis: 40}}
			t.DecodeSpeedup, t.Jitter, t.Seed, t.Startup = 2, 0.1, 5, 2*time.Second
			t.Load = sim.Load{Factor: 3, Seqs: 100}
		}},
	} {
		l, err := Load(write(t, "engine: sim\n"+c.text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.ResolveSimulation()
		if err != nil {
			t.Fatal(err)
		}
		want := preset("mocker")
		want.Encoder = []sim.EncoderPoint{{Tokens: 1024, Millis: 4.8}, {Tokens: 6144, Millis: 12.3}}
		if c.change != nil {
			c.change(&want)
		}
		if n := map[bool]int{false: 1, true: 3}[c.name == "the rest"]; got.Encoders != n {
			t.Errorf("%s: %d encoders, want %d", c.name, got.Encoders, n)
		}
		if diff := cmp.Diff(want, got.Timing); diff != "" {
			t.Errorf("%s: the model of time is (-want +got)\n%s", c.name, diff)
		}
		if text := l.DescribeSimulation(); text != c.says {
			t.Errorf("%s: it says %q, want %q", c.name, text, c.says)
		}
	}
	timing, _ := findSetting("sim-timing")
	for _, name := range sim.PresetNames() {
		if !strings.Contains(timing.help, name) {
			t.Errorf("the help of sim-timing does not name %s", name)
		}
	}
}

func TestMoE(t *testing.T) {
	for text, want := range map[string]sim.MoE{"": {}, "61:256": {Layers: 61, Experts: 256}, "61:256:8": {Layers: 61, Experts: 256, Groups: 8}} {
		l, err := Load("", []string{"PENSTOCK_SIM_MOE=" + text}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.ParseMoE(); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestCXL(t *testing.T) {
	for text, want := range map[string]CXLPool{"": {}, "3:64": {Pool: 3, Blocks: 64}, "0:1:5ms": {Blocks: 1, Delay: 5 * time.Millisecond}} {
		l, err := Load("", []string{"PENSTOCK_SIM_CXL=" + text}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.ParseCXL(); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// TestSimulationFlags: a command which is not a role has the worker settings for timing and batches, with the
// defaults of the simulated engine.
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
	s, err := flags.Resolve()
	if err != nil || s.MaxSeqs != 256 || s.TokenBudget != 8192 {
		t.Errorf("defaults: %+v, %v", s, err)
	}
	if err := fs.Parse([]string{"--max-num-seqs=16", "--max-num-batched-tokens=64"}); err != nil {
		t.Fatal(err)
	}
	if s, err := flags.Resolve(); err != nil || s.MaxSeqs != 16 || s.TokenBudget != 64 {
		t.Errorf("as given: %+v, %v", s, err)
	}
	if err := fs.Parse([]string{"--sim-speedup=-1", "--sim-jitter=7"}); err != nil {
		t.Fatal(err)
	}
	_, err = flags.Resolve()
	if err == nil || !strings.Contains(err.Error(), "sim-speedup: -1") || !strings.Contains(err.Error(), "sim-jitter: 7") {
		t.Errorf("bad flags: %v", err)
	}
}
