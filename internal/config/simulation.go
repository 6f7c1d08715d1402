package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/kv"
	"penstock/internal/engine/sim"
)

// Simulation are the settings of the simulated engine.
type Simulation struct {
	SimTiming        string    `key:"sim-timing" group:"simulation" on:"up,worker,replay" help:"model of the time that a simulated engine takes: mocker, mocker-0.2, llm-d-like or smg-like"`
	SimPrefill       []float64 `key:"sim-prefill" group:"simulation" on:"up,worker,replay" help:"milliseconds in which a simulated engine computes prompts, in place of those of sim-timing: of the pass, of each token, of the square of the tokens, of each prompt, of the square of each prompt, of each pair of a token and one before it; those left out are 0 (16.5,0.0152,4.2e-7)"`
	SimDecode        []float64 `key:"sim-decode" group:"simulation" on:"up,worker,replay" help:"milliseconds in which it gives its sequences a token, likewise: of the pass, of the share of KV-cache blocks in use, of the square of that share, of each sequence, of each token of context (5.74,54,-25.7)"`
	SimProfile       string    `key:"sim-profile" group:"simulation" on:"up,worker,replay" help:"file of measured times (NPZ) to interpolate, in place of those of sim-timing"`
	SimEncoder       string    `key:"sim-encoder" group:"simulation" on:"up,worker,replay" help:"milliseconds in which images and the like are encoded, by the tokens that they fill: TOKENS:MS, separated by commas (256:12.5,1024:40); straight lines between"`
	SimSpeedup       float64   `key:"sim-speedup" group:"simulation" on:"up,worker,replay" help:"how many times as fast a simulated engine is as its model of time says"`
	SimDecodeSpeedup float64   `key:"sim-decode-speedup" group:"simulation" on:"up,worker,replay" help:"how many times as fast decode is besides, as with speculative decoding"`
	SimLoadFactor    float64   `key:"sim-load-factor" group:"simulation" on:"up,worker,replay" help:"how many times as long everything takes with max-num-seqs sequences as with one; straight line between"`
	SimJitter        float64   `key:"sim-jitter" group:"simulation" on:"up,worker,replay" help:"standard deviation of the times of steps as a share of them, at most 0.3"`
	SimSeed          uint64    `key:"sim-seed" group:"simulation" on:"up,worker" help:"seed of what is drawn in a simulated engine, such as the jitter"`
	SimStartup       Duration  `key:"sim-startup" group:"simulation" on:"up,worker" help:"time that a simulated engine takes to start"`
	SimPrefixCaching string    `key:"sim-prefix-caching" group:"simulation" on:"up,worker" help:"on or off: whether a simulated engine keeps the blocks of sequences that ended, to see what that is worth"`
	SimChunked       string    `key:"sim-chunked-prefill" group:"simulation" on:"up,worker" help:"on or off: whether a simulated engine computes long prompts in several steps; without, max-num-batched-tokens must hold the longest"`
	SimMoE           string    `key:"sim-moe" group:"simulation" on:"up,worker" help:"shape of a mixture of experts, LAYERS:EXPERTS or LAYERS:EXPERTS:GROUPS (61:256:8): the cache events of simulated engines then label each block with an expert"`
	SimCXL           string    `key:"sim-cxl" group:"simulation" on:"up" help:"memory that the simulated engines of this process share, POOL:BLOCKS or POOL:BLOCKS:DELAY (0:65536:5ms): blocks are copied there, and fetched from there in place of being computed"`
	SimContextLength int       `key:"sim-context-length" group:"simulation" on:"up,worker" help:"tokens of prompt and answer that a simulated model takes; 0 is what the checkpoint at model-path says, or 262144"`
	SimOutput        int       `key:"sim-output" group:"simulation" on:"up,worker" help:"mean length in tokens of an answer to which the client set no limit; 0 has it go on to the end of the context"`
	SimText          string    `key:"sim-text" group:"simulation" on:"up,worker" help:"what a simulated model answers: passage (a text to read) or echo (the prompt)"`
}

// The choices of SimText. SimPrefixCaching and SimChunked are On or Off.
const (
	SimPassage = "passage"
	SimEcho    = "echo"
)

// replayCommand is the command replay, which is not a role and has some of the settings.
const replayCommand Command = "replay"

func defaultSimulation() Simulation {
	return Simulation{
		SimTiming:        sim.PresetNames()[0],
		SimPrefill:       []float64{},
		SimDecode:        []float64{},
		SimSpeedup:       1,
		SimDecodeSpeedup: 1,
		SimLoadFactor:    1,
		SimPrefixCaching: On,
		SimChunked:       On,
		SimOutput:        256,
		SimText:          SimPassage,
	}
}

// SimulatedEngine holds the parameters of a simulated engine.
type SimulatedEngine struct {
	// Timing is the timing model, complete and valid.
	Timing sim.Timing
	// MaxSeqs and TokenBudget bound a batch, in sequences and in tokens.
	MaxSeqs, TokenBudget int
}

// ResolveSimulation returns the parameters of the simulated engine. It reads the profile file if the settings
// name one.
func (c *Config) ResolveSimulation() (SimulatedEngine, error) {
	timing, err := c.buildTiming()
	return SimulatedEngine{Timing: timing, MaxSeqs: c.MaxNumSeqs, TokenBudget: c.TokenBudget()}, err
}

// buildTiming returns the timing model.
func (c *Config) buildTiming() (sim.Timing, error) {
	t, err := sim.PresetTiming(c.SimTiming)
	if err != nil {
		return sim.Timing{}, fmt.Errorf("sim-timing: %w", err)
	}
	if len(c.SimPrefill) > 0 {
		t.Prefill = sim.Prefill{}
		fillFields(c.SimPrefill, &t.Prefill.Pass, &t.Prefill.Token, &t.Prefill.TokenSquared, &t.Prefill.Prompt, &t.Prefill.PromptSquared, &t.Prefill.Context)
	}
	if len(c.SimDecode) > 0 {
		t.Decode = sim.Decode{}
		fillFields(c.SimDecode, &t.Decode.Base, &t.Decode.Use, &t.Decode.UseSquared, &t.Decode.Sequence, &t.Decode.Context)
	}
	if c.SimProfile != "" {
		if t.Profile, err = sim.OpenProfile(c.SimProfile); err != nil {
			return sim.Timing{}, fmt.Errorf("sim-profile: %w", err)
		}
	}
	if t.Encoder, err = sim.ParseEncoder(c.SimEncoder); err != nil {
		return sim.Timing{}, fmt.Errorf("sim-encoder: %w", err)
	}
	t.Speedup, t.DecodeSpeedup = c.SimSpeedup, c.SimDecodeSpeedup
	t.Load = sim.Load{Factor: c.SimLoadFactor, Seqs: c.MaxNumSeqs}
	t.Jitter, t.Seed = c.SimJitter, c.SimSeed
	t.Startup = time.Duration(c.SimStartup)
	return t, t.Validate()
}

// ParseMoE returns the shape given by SimMoE; zero if there is none.
func (c *Config) ParseMoE() (sim.MoE, error) {
	if c.SimMoE == "" {
		return sim.MoE{}, nil
	}
	parts := strings.Split(c.SimMoE, ":")
	var shape [3]int
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || i == len(shape) || n < 1 || n > maxExperts {
			parts = nil
			break
		}
		shape[i] = n
	}
	if len(parts) < 2 || shape[2] > shape[1] {
		return sim.MoE{}, fmt.Errorf("sim-moe: %.100q is not LAYERS:EXPERTS or LAYERS:EXPERTS:GROUPS, such as 61:256:8, of 1 to %d each and not more groups than experts", c.SimMoE, maxExperts)
	}
	return sim.MoE{Layers: shape[0], Experts: shape[1], Groups: shape[2]}, nil
}

// CXLPool is a shared memory pool as given by SimCXL: its id, its capacity in blocks, and the delay of a copy
// into it in addition to the transfer time. Blocks is 0 if there is none.
type CXLPool struct {
	Pool   kv.PoolID
	Blocks int
	Delay  time.Duration
}

// ParseCXL returns the pool given by SimCXL; zero if there is none.
func (c *Config) ParseCXL() (CXLPool, error) {
	if c.SimCXL == "" {
		return CXLPool{}, nil
	}
	refuse := func() (CXLPool, error) {
		return CXLPool{}, fmt.Errorf("sim-cxl: %.100q is not POOL:BLOCKS or POOL:BLOCKS:DELAY, such as 0:65536 or 0:65536:5ms, with room for 1 to %d blocks", c.SimCXL, maxPoolBlocks)
	}
	parts := strings.Split(c.SimCXL, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return refuse()
	}
	pool, err := strconv.ParseUint(parts[0], 10, 32)
	blocks, notBlocks := strconv.Atoi(parts[1])
	if err != nil || notBlocks != nil || blocks < 1 || blocks > maxPoolBlocks {
		return refuse()
	}
	cxl := CXLPool{Pool: kv.PoolID(pool), Blocks: blocks}
	if len(parts) == 3 {
		if cxl.Delay, err = time.ParseDuration(parts[2]); err != nil || cxl.Delay < 0 || cxl.Delay > time.Minute {
			return refuse()
		}
	}
	return cxl, nil
}

// maxPoolBlocks bounds the capacity of a simulated pool.
const maxPoolBlocks = 1 << 24

// maxExperts bounds each number in the shape of a mixture of experts.
const maxExperts = 1 << 16

// fillFields sets the first fields to the values; surplus values or fields are ignored.
func fillFields(values []float64, fields ...*float64) {
	for i, v := range values[:min(len(values), len(fields))] {
		*fields[i] = v
	}
}

// DescribeSimulation describes the timing model of the simulated engines and their speedup.
func (c *Config) DescribeSimulation() string {
	text := c.SimTiming
	switch {
	case c.SimProfile != "":
		text = "the profile " + c.SimProfile
	case len(c.SimPrefill) > 0 && len(c.SimDecode) > 0:
		text = "coefficients of its own"
	case len(c.SimPrefill) > 0 || len(c.SimDecode) > 0:
		text += " and coefficients of its own"
	}
	if c.SimSpeedup != 1 {
		text += fmt.Sprintf(", %v times as fast", c.SimSpeedup)
	}
	return text
}

// SimulationFlags are the settings of the simulated engine on the command line of a command which starts no
// engine.
type SimulationFlags struct{ flags *Flags }

// AddSimulationFlags defines on fs the settings of the simulated engine for its timing and batches. They have
// the names, defaults and meanings of a worker's.
func AddSimulationFlags(fs *pflag.FlagSet) *SimulationFlags {
	fl := addFlags(fs, replayCommand, func(f reflect.StructField) bool {
		return appliesTo(f, replayCommand) || slices.Contains([]string{"max-num-seqs", "max-num-batched-tokens"}, settingKey(f))
	})
	fl.values.Engines = Engines{EngineSim}
	return &SimulationFlags{fl}
}

// Resolve returns the parameters given by the flags. Its error reports everything wrong with them. The
// command line must have been parsed.
func (f *SimulationFlags) Resolve() (SimulatedEngine, error) {
	if err := f.flags.values.Validate(); err != nil {
		return SimulatedEngine{}, err
	}
	return f.flags.values.ResolveSimulation()
}

// maxMillis bounds the absolute value of a coefficient, in milliseconds.
const maxMillis = 1e9

// checkSimulation checks the settings of the simulated engine. It opens the profile file only if the engine
// is simulated.
func (p *problems) checkSimulation(c *Config) {
	found := len(*p)
	p.requireOneOf("sim-timing", c.SimTiming, sim.PresetNames()...)
	p.checkCoefficients("sim-prefill", c.SimPrefill, 6)
	p.checkCoefficients("sim-decode", c.SimDecode, 5)
	if _, err := sim.ParseEncoder(c.SimEncoder); err != nil {
		p.report("sim-encoder", err.Error())
	}
	p.requireFloatBetween("sim-speedup", c.SimSpeedup, 1e-3, 1e6)
	p.requireFloatBetween("sim-decode-speedup", c.SimDecodeSpeedup, 1e-3, 1e6)
	p.requireFloatBetween("sim-load-factor", c.SimLoadFactor, 1, 1e3)
	p.requireFloatBetween("sim-jitter", c.SimJitter, 0, sim.MaxJitter)
	p.requireNotNegative("sim-startup", c.SimStartup)
	p.requireOneOf("sim-prefix-caching", c.SimPrefixCaching, On, Off)
	p.requireOneOf("sim-chunked-prefill", c.SimChunked, On, Off)
	if c.SimContextLength != 0 {
		p.requireBetween("sim-context-length", int64(c.SimContextLength), 2, 1<<30)
	}
	p.requireBetween("sim-output", int64(c.SimOutput), 0, 1<<24)
	p.requireOneOf("sim-text", c.SimText, SimPassage, SimEcho)
	if _, err := c.ParseCXL(); err != nil {
		*p = append(*p, err)
	}
	if _, err := c.ParseMoE(); err != nil {
		*p = append(*p, err)
	}
	if c.SimProfile != "" && len(c.SimPrefill)+len(c.SimDecode) > 0 {
		p.report("sim-profile", "a profile is in place of all coefficients; leave out it, or sim-prefill and sim-decode")
	}
	if c.EngineKind() != EngineSim || len(*p) > found {
		return
	}
	if _, err := c.buildTiming(); err != nil {
		*p = append(*p, err)
	}
}

// requireFloatBetween checks that v is from lo to hi.
func (p *problems) requireFloatBetween(key string, v, lo, hi float64) {
	if !(v >= lo && v <= hi) {
		p.report(key, fmt.Sprintf("%v is not between %v and %v", v, lo, hi))
	}
}

// checkCoefficients checks a list of at most limit coefficients in milliseconds; it may be empty.
func (p *problems) checkCoefficients(key string, list []float64, most int) {
	if len(list) > most {
		p.report(key, fmt.Sprintf("it has %d numbers, and %d are taken", len(list), most))
	}
	for _, v := range list {
		p.requireFloatBetween(key, v, -maxMillis, maxMillis)
	}
}
