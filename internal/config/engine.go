package config

import (
	"fmt"
	"path/filepath"

	"penstock/internal/engine"
)

// The built-in engines.
const (
	EngineTiny = "tiny"
	EngineSim  = "sim"
)

// builtinModelName returns the model of a built-in engine; "" for other engines.
func builtinModelName(name string) string {
	switch name {
	case EngineTiny:
		return "penstock-tiny"
	case EngineSim:
		return "penstock-sim"
	}
	return ""
}

// IsBuiltinModel reports whether name is that of a built-in model.
func IsBuiltinModel(name string) bool {
	return name == builtinModelName(EngineTiny) || name == builtinModelName(EngineSim)
}

// TokenBudget returns how many tokens a worker's engine computes in one step: MaxBatchedTokens, or the
// engine's default. The CPU engine takes small steps, so that a long prompt does not delay others for
// seconds. The simulated engine has the step size of the engines which it simulates.
func (c *Config) TokenBudget() int {
	switch {
	case c.MaxBatchedTokens != 0:
		return c.MaxBatchedTokens
	case c.EngineKind() == EngineSim:
		return 8192
	}
	return 512
}

// simCacheTokens is the default capacity of a simulated worker, in tokens.
const simCacheTokens = 1 << 20

// CacheBlocks returns the capacity of a worker's cache in blocks; 0 leaves it to the engine.
func (c *Config) CacheBlocks() int {
	if c.KVCacheBlocks == 0 && c.EngineKind() == EngineSim {
		return max(1, simCacheTokens/max(1, c.KVCacheBlockSize))
	}
	return c.KVCacheBlocks
}

// ModelName returns the name which clients use for the model of this process's workers. For a remote engine
// it is "" if no setting gives one.
func (c *Config) ModelName() string {
	switch {
	case len(c.ServedModelName) > 0:
		return c.ServedModelName[0]
	case c.HasRemoteEngines():
		return "" // the engine reports it
	case c.ModelPath == "":
		return builtinModelName(c.EngineKind())
	}
	if dir, err := filepath.Abs(c.ModelPath); err == nil {
		return filepath.Base(dir) // Abs gives "." a name too
	}
	return filepath.Base(c.ModelPath)
}

// checkModel checks that the engine has the model.
func (p *problems) checkModel(c *Config) {
	have := builtinModelName(c.EngineKind())
	if c.ModelPath != "" || have == "" || c.Model == "" || c.Model == have {
		return
	}
	p.report("model", fmt.Sprintf("%.100q is not built in, only %s is in engine %s; serve a checkpoint with model-path, and name it with served-model-name", c.Model, have, c.EngineKind()))
}

// checkBatch checks that every sequence of a batch gets a token in each step.
func (p *problems) checkBatch(c *Config) {
	if c.HasRemoteEngines() {
		return // the engine decides
	}
	if budget := c.TokenBudget(); budget < c.MaxNumSeqs {
		p.report("max-num-batched-tokens", fmt.Sprintf("%d is less than the %d of max-num-seqs, and each of them needs a token in a step", budget, c.MaxNumSeqs))
	}
}

// ParseHostedExperts returns the experts which a worker hosts; nil if the setting is empty.
func (c *Config) ParseHostedExperts() []engine.HostedExperts {
	experts, _ := engine.ParseExperts(c.HostedExperts) // validated before
	return experts
}

// HubCacheDir returns the directory in which Hugging Face programs cache downloaded checkpoints, by their
// standard variables; "" if none of them is set.
func (l *Loaded) HubCacheDir() string { return l.hubCacheDir }

func findHubCacheDir(environ []string) string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := lookupEnv(environ, name); dir != "" {
			return dir
		}
	}
	for _, of := range []struct{ name, below string }{
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
		{"HOME", ".cache/huggingface/hub"},
		{"USERPROFILE", ".cache/huggingface/hub"},
	} {
		if dir := lookupEnv(environ, of.name); dir != "" {
			return filepath.Join(dir, filepath.FromSlash(of.below))
		}
	}
	return ""
}
