package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/engine/sim"
)

// The choices of sim-text.
const (
	SimPassage = "passage"
	SimEcho    = "echo"
)

// replayCommand is the command replay, which is not a role and has some of the settings.
const replayCommand Command = "replay"

// SimulatedEngine holds the parameters of a simulated engine.
type SimulatedEngine struct {
	// Timing is the timing model, complete and valid.
	Timing sim.Timing
	// MaxSeqs and TokenBudget bound a batch, in sequences and in tokens.
	MaxSeqs, TokenBudget int
	// Encoders is the number of encoders beside the passes.
	Encoders int
	// Splits are the ways to decide where prompts are computed, at least one.
	Splits []disagg.SplitConfig
}

// ResolveSimulation returns the parameters of the simulated engine. It reads the profile file if the settings
// name one.
func (c *Config) ResolveSimulation() (SimulatedEngine, error) {
	timing, err := c.buildTiming()
	splits, splitErr := c.Disagg.SplitConfigs()
	return SimulatedEngine{
		Timing: timing, MaxSeqs: c.Engine.MaxNumSeqs, TokenBudget: c.TokenBudget(), Encoders: c.Simulation.Encoders, Splits: splits,
	}, errors.Join(err, splitErr)
}

// buildTiming returns the timing model.
func (c *Config) buildTiming() (sim.Timing, error) {
	t, err := sim.PresetTiming(c.Simulation.Timing)
	if err != nil {
		return sim.Timing{}, fmt.Errorf("sim-timing: %w", err)
	}
	if len(c.Simulation.Prefill) > 0 {
		t.Prefill = sim.Prefill{}
		fillFields(c.Simulation.Prefill, &t.Prefill.Pass, &t.Prefill.Token, &t.Prefill.TokenSquared, &t.Prefill.Prompt, &t.Prefill.PromptSquared, &t.Prefill.Context)
	}
	if len(c.Simulation.Decode) > 0 {
		t.Decode = sim.Decode{}
		fillFields(c.Simulation.Decode, &t.Decode.Base, &t.Decode.Use, &t.Decode.UseSquared, &t.Decode.Sequence, &t.Decode.Context)
	}
	if c.Simulation.Profile != "" {
		if t.Profile, err = sim.OpenProfile(c.Simulation.Profile); err != nil {
			return sim.Timing{}, fmt.Errorf("sim-profile: %w", err)
		}
	}
	if t.Encoder, t.EncoderOf, err = sim.ParseEncoder(c.Simulation.Encoder); err != nil {
		return sim.Timing{}, fmt.Errorf("sim-encoder: %w", err)
	}
	t.Speedup, t.DecodeSpeedup = c.Simulation.Speedup, c.Simulation.DecodeSpeedup
	t.Load = sim.Load{Factor: c.Simulation.LoadFactor, Seqs: c.Engine.MaxNumSeqs}
	t.Jitter, t.Seed = c.Simulation.Jitter, c.Simulation.Seed
	t.Startup = time.Duration(c.Simulation.Startup)
	return t, t.Validate()
}

// ParseMoE returns the shape given by SimMoE; zero if there is none.
func (c *Config) ParseMoE() (sim.MoE, error) {
	if c.Simulation.MoE == "" {
		return sim.MoE{}, nil
	}
	parts := strings.Split(c.Simulation.MoE, ":")
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
		return sim.MoE{}, fmt.Errorf("sim-moe: %.100q is not LAYERS:EXPERTS or LAYERS:EXPERTS:GROUPS, such as 61:256:8, of 1 to %d each and not more groups than experts", c.Simulation.MoE, maxExperts)
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
	if c.Simulation.CXL == "" {
		return CXLPool{}, nil
	}
	refuse := func() (CXLPool, error) {
		return CXLPool{}, fmt.Errorf("sim-cxl: %.100q is not POOL:BLOCKS or POOL:BLOCKS:DELAY, such as 0:65536 or 0:65536:5ms, with room for 1 to %d blocks", c.Simulation.CXL, maxPoolBlocks)
	}
	parts := strings.Split(c.Simulation.CXL, ":")
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
	text := c.Simulation.Timing
	switch {
	case c.Simulation.Profile != "":
		text = "the profile " + c.Simulation.Profile
	case len(c.Simulation.Prefill) > 0 && len(c.Simulation.Decode) > 0:
		text = "coefficients of its own"
	case len(c.Simulation.Prefill) > 0 || len(c.Simulation.Decode) > 0:
		text += " and coefficients of its own"
	}
	if c.Simulation.Speedup != 1 {
		text += fmt.Sprintf(", %v times as fast", c.Simulation.Speedup)
	}
	return text
}

// SimulationFlags are the settings of the simulated engine on the command line of a command which starts no
// engine.
type SimulationFlags struct{ flags *Flags }

// AddSimulationFlags defines on fs the settings of the simulated engine for its timing and batches. They have
// the names, defaults and meanings of a worker's.
func AddSimulationFlags(fs *pflag.FlagSet) *SimulationFlags {
	fl := addFlags(fs, replayCommand, func(s *setting) bool {
		return s.appliesTo(replayCommand) || slices.Contains([]string{"max-num-seqs", "max-num-batched-tokens"}, s.key)
	})
	fl.values.Engine.Engines = Engines{EngineSim}
	return &SimulationFlags{fl}
}

// Resolve returns the parameters given by the flags. Its error reports everything wrong with them. The
// command line must have been parsed.
func (f *SimulationFlags) Resolve() (SimulatedEngine, error) {
	f.flags.values.Disagg.selectPolicy(f.flags.flagSet.Changed)
	if err := f.flags.values.Validate(); err != nil {
		return SimulatedEngine{}, err
	}
	return f.flags.values.ResolveSimulation()
}

// checkSimulation checks the settings of the simulated engine. It opens the profile file only if the engine
// is simulated.
func (p *problems) checkSimulation(c *Config) {
	p.requireOneOf("sim-timing", c.Simulation.Timing, sim.PresetNames()...)
	p.checkCoefficients("sim-prefill", c.Simulation.Prefill, 6)
	p.checkCoefficients("sim-decode", c.Simulation.Decode, 5)
	if _, _, err := sim.ParseEncoder(c.Simulation.Encoder); err != nil {
		p.report("sim-encoder", err.Error())
	}
	if _, err := sim.ParseMediaFaults(c.Simulation.MediaFaults); err != nil {
		p.report("sim-media-faults", err.Error())
	}
	if c.Simulation.ContextLength != 0 {
		p.checkValue("sim-context-length", c.Simulation.ContextLength, "2..1073741824")
	}
	if _, err := c.ParseCXL(); err != nil {
		*p = append(*p, err)
	}
	if _, err := c.ParseMoE(); err != nil {
		*p = append(*p, err)
	}
	if c.Simulation.Profile != "" && len(c.Simulation.Prefill)+len(c.Simulation.Decode) > 0 {
		p.report("sim-profile", "a profile is in place of all coefficients; leave out it, or sim-prefill and sim-decode")
	}
	if c.EngineKind() != EngineSim || slices.ContainsFunc(*p, func(err error) bool { return strings.HasPrefix(err.Error(), "sim-") }) {
		return
	}
	if _, err := c.buildTiming(); err != nil {
		*p = append(*p, err)
	}
}

// checkCoefficients checks the length of a list of coefficients.
func (p *problems) checkCoefficients(key string, list []float64, most int) {
	if len(list) > most {
		p.report(key, fmt.Sprintf("it has %d numbers, and %d are taken", len(list), most))
	}
}

// simServerCommand is the command which simulates another engine's server. It is not a role of a fleet, and
// has some of a worker's settings.
const simServerCommand Command = "sim"

// simServerKeys are the settings of simServerCommand except the ones with prefix sim-.
func simServerKeys() []string {
	return []string{"model-path", "served-model-name", "kv-cache-block-size", "kv-cache-blocks", "max-num-seqs", "max-num-batched-tokens", "max-waiting", "log-level", "log-format"}
}

// SimServerFlags are the settings of a worker's simulated engine on the command line of a simulated server.
type SimServerFlags struct{ flags *Flags }

// AddSimServerFlags defines the flags on fs, with the names, defaults and meanings of a worker's. "speedup"
// is an alias of "sim-speedup".
func AddSimServerFlags(fs *pflag.FlagSet) *SimServerFlags {
	fl := addFlags(fs, simServerCommand, func(s *setting) bool {
		return strings.HasPrefix(s.key, "sim-") && s.key != "sim-cxl" && s.key != "sim-moe" || slices.Contains(simServerKeys(), s.key)
	})
	fl.values.Engine.Engines = Engines{EngineSim}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "speedup" {
			name = "sim-speedup"
		}
		return pflag.NormalizedName(name)
	})
	return &SimServerFlags{fl}
}

// Load returns the settings of a worker with a simulated engine. Its error reports everything wrong with
// them. The command line must have been parsed.
func (f *SimServerFlags) Load() (*Loaded, error) {
	if err := f.flags.values.Validate(); err != nil {
		return nil, err
	}
	return &Loaded{Config: f.flags.values, Command: Worker, origin: map[string]string{}}, nil
}
