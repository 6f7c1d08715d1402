package config

import (
	"fmt"
	"path/filepath"

	"penstock/internal/engine"
)

// The engines of this program.
const (
	EngineTiny = "tiny"
	EngineSim  = "sim"
)

// builtinModel is the model of an engine that needs no files; "" if there is no
// such engine.
func builtinModel(name string) string {
	switch name {
	case EngineTiny:
		return "penstock-tiny"
	case EngineSim:
		return "penstock-sim"
	}
	return ""
}

// BuiltinModel reports whether a name is that of a model that is built in.
func BuiltinModel(name string) bool {
	return name == builtinModel(EngineTiny) || name == builtinModel(EngineSim)
}

// TokenBudget is how many tokens a worker's engine computes in one step: what
// MaxBatchedTokens says, or what the engine has by itself. The CPU takes small
// steps, so that a long prompt does not hold up the others for seconds; the
// simulated engine takes those of the engines that it stands for.
func (c *Config) TokenBudget() int {
	switch {
	case c.MaxBatchedTokens != 0:
		return c.MaxBatchedTokens
	case c.Engine() == EngineSim:
		return 8192
	}
	return 512
}

// simTokens is the capacity of a simulated worker whose blocks are not given, in
// tokens.
const simTokens = 1 << 20

// Blocks is the capacity of a worker's cache in blocks; 0 leaves it to the engine.
func (c *Config) Blocks() int {
	if c.KVCacheBlocks == 0 && c.Engine() == EngineSim {
		return max(1, simTokens/max(1, c.KVCacheBlockSize))
	}
	return c.KVCacheBlocks
}

// ModelName is the name that clients use for the model of this process's workers. Of an
// engine that another program runs it is "" if no setting gives one.
func (c *Config) ModelName() string {
	switch {
	case len(c.ServedModelName) > 0:
		return c.ServedModelName[0]
	case c.Remote():
		return "" // the engine says
	case c.ModelPath == "":
		return builtinModel(c.Engine())
	}
	if dir, err := filepath.Abs(c.ModelPath); err == nil {
		return filepath.Base(dir) // "." has a name too
	}
	return filepath.Base(c.ModelPath)
}

// engine checks which model there is to serve.
func (p *problems) engine(c *Config) {
	have := builtinModel(c.Engine())
	if c.ModelPath != "" || have == "" || c.Model == "" || c.Model == have {
		return
	}
	p.add("model", fmt.Sprintf("%.100q is not built in, only %s is in engine %s; serve a checkpoint with model-path, and name it with served-model-name", c.Model, have, c.Engine()))
}

// batch checks that every sequence of a batch gets a token in each step.
func (p *problems) batch(c *Config) {
	if c.Remote() {
		return // the engine's own affair
	}
	if budget := c.TokenBudget(); budget < c.MaxNumSeqs {
		p.add("max-num-batched-tokens", fmt.Sprintf("%d is less than the %d of max-num-seqs, and each of them needs a token in a step", budget, c.MaxNumSeqs))
	}
}

// Experts returns the experts that a worker hosts; nil if nothing is said.
func (c *Config) Experts() []engine.HostedExperts {
	experts, _ := engine.ParseExperts(c.HostedExperts) // is valid
	return experts
}
