package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"penstock/internal/engine/sim"
)

// Simulation are the settings of the simulated engine.
type Simulation struct {
	SimTiming        string    `key:"sim-timing" on:"up,worker,replay" help:"model of the time that a simulated engine takes, by name: mocker"`
	SimPrefill       []float64 `key:"sim-prefill" on:"up,worker,replay" help:"milliseconds in which a pass computes T prompt tokens, as the coefficients of a polynomial in T, the constant first (16.5,0.0152,4.2e-7); in place of that of sim-timing"`
	SimDecode        []float64 `key:"sim-decode" on:"up,worker,replay" help:"milliseconds in which a pass gives each of its sequences a token, as the coefficients of a polynomial in the share of KV-cache blocks in use, the constant first (5.74,54,-25.7); in place of that of sim-timing"`
	SimProfile       string    `key:"sim-profile" on:"up,worker,replay" help:"file with measured times (NPZ) to interpolate, in place of sim-timing"`
	SimSpeedup       float64   `key:"sim-speedup" on:"up,worker,replay" help:"how many times as fast as the model of time says a simulated engine is"`
	SimDecodeSpeedup float64   `key:"sim-decode-speedup" on:"up,worker,replay" help:"how many times as fast decode is on top of sim-speedup, as with speculative decoding"`
	SimJitter        float64   `key:"sim-jitter" on:"up,worker,replay" help:"how much the times of passes vary: the largest deviation, as a share of the time, 0 to 1"`
	SimSeed          uint64    `key:"sim-seed" on:"up,worker" help:"seed of what is drawn in a simulated engine: jitter, and lengths of answers"`
	SimStartup       Seconds   `key:"sim-startup" on:"up,worker" help:"time that a simulated engine takes to start, in which requests wait"`
	SimContextLength int       `key:"sim-context-length" on:"up,worker" help:"tokens of prompt and answer that a simulated engine takes; a smaller KV cache shortens it"`
	SimOutput        int       `key:"sim-output" on:"up,worker" help:"mean length in tokens of an answer to which the client set no limit; 0 goes on to the end of the context"`
	SimText          string    `key:"sim-text" on:"up,worker" help:"what a simulated engine answers: passage (a text to read) or echo (the prompt)"`
}

// The choices of SimText.
const (
	SimPassage = "passage"
	SimEcho    = "echo"
)

// replay is the command that is no role and has some of the settings.
const replay Command = "replay"

func simulation() Simulation {
	return Simulation{
		SimTiming:        "mocker",
		SimPrefill:       []float64{},
		SimDecode:        []float64{},
		SimSpeedup:       1,
		SimDecodeSpeedup: 1,
		SimContextLength: 262144,
		SimOutput:        256,
		SimText:          SimPassage,
	}
}

// Simulated is what the settings of the simulated engine come to.
type Simulated struct {
	// Timing is the model of time.
	Timing sim.Timing
	// MaxSeqs and TokenBudget bound a batch, in sequences and in tokens.
	MaxSeqs, TokenBudget int
	// Startup is how long an engine takes to start.
	Startup time.Duration
}

// Simulated returns what the settings of the simulated engine come to. It reads
// the file that they may name.
func (c *Config) Simulated() (Simulated, error) {
	timing, err := c.timing()
	return Simulated{Timing: timing, MaxSeqs: c.MaxNumSeqs, TokenBudget: c.TokenBudget(), Startup: time.Duration(c.SimStartup)}, err
}

// timing makes the model of time.
func (s *Simulation) timing() (sim.Timing, error) {
	return sim.Timing{}, nil
}

// SimulationFlags are the settings of the simulated engine on the command line of a
// command that starts none.
type SimulationFlags struct{ flags *Flags }

// AddSimulationFlags defines on fs the settings of the simulated engine that shape
// its time and its batches. They have the names, the defaults and the meaning that
// they have for a worker.
func AddSimulationFlags(fs *pflag.FlagSet) *SimulationFlags {
	fl := addFlags(fs, replay, func(f reflect.StructField) bool {
		return isOn(f, replay) || slices.Contains([]string{"max-num-seqs", "max-num-batched-tokens"}, keyOf(f))
	})
	fl.values.Engine = EngineSim
	return &SimulationFlags{fl}
}

// Simulated returns what the flags come to, or everything that is wrong with them.
// The command line has been parsed.
func (f *SimulationFlags) Simulated() (Simulated, error) {
	if err := f.flags.values.Validate(); err != nil {
		return Simulated{}, err
	}
	return f.flags.values.Simulated()
}

// The bounds of the simulation: factors beyond are slips of the pen, and times
// beyond overflow.
const (
	maxFactor = 1e6
	maxDegree = 8
)

// simulation checks the settings of the simulated engine.
func (p *problems) simulation(c *Config) {
	p.coefficients("sim-prefill", c.SimPrefill)
	p.coefficients("sim-decode", c.SimDecode)
	p.factor("sim-speedup", c.SimSpeedup)
	p.factor("sim-decode-speedup", c.SimDecodeSpeedup)
	if !(c.SimJitter >= 0 && c.SimJitter <= 1) {
		p.add("sim-jitter", fmt.Sprintf("%v is not a share between 0 and 1", c.SimJitter))
	}
	p.notNegative("sim-startup", c.SimStartup)
	p.between("sim-context-length", c.SimContextLength, 2, 1<<30)
	p.between("sim-output", c.SimOutput, 0, 1<<24)
	p.oneOf("sim-text", c.SimText, SimPassage, SimEcho)
	if _, err := c.timing(); err != nil {
		*p = append(*p, err)
	}
}

// factor checks by how much time is divided.
func (p *problems) factor(key string, v float64) {
	if !(v > 0 && v <= maxFactor) {
		p.add(key, fmt.Sprintf("%v is not above 0 and at most %v", v, maxFactor))
	}
}

// coefficients checks those of a polynomial; none means that it is not given.
func (p *problems) coefficients(key string, list []float64) {
	if len(list) > maxDegree+1 {
		p.add(key, fmt.Sprintf("%d coefficients, at most %d are taken", len(list), maxDegree+1))
	}
	for _, v := range list {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			p.add(key, fmt.Sprintf("%v is not a number of milliseconds", v))
		}
	}
}
