package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/core/stall"
	"penstock/internal/edge/parse"
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
	case c.Engine.MaxBatchedTokens != 0:
		return c.Engine.MaxBatchedTokens
	case c.EngineKind() == EngineSim:
		return 8192
	}
	return 512
}

// simCacheTokens is the default capacity of a simulated worker, in tokens.
const simCacheTokens = 1 << 20

// CacheBlocks returns the capacity of a worker's cache in blocks; 0 leaves it to the engine.
func (c *Config) CacheBlocks() int {
	if c.Engine.Blocks == 0 && c.EngineKind() == EngineSim {
		return max(1, simCacheTokens/max(1, c.Engine.BlockSize))
	}
	return c.Engine.Blocks
}

// MaxEmbeddingCache is the largest embedding cache in GiB.
const MaxEmbeddingCache = 1 << 20

// EmbeddingCacheBytes returns the memory of this process's embedding cache.
func (c *Config) EmbeddingCacheBytes() int { return int(c.Media.EmbeddingCache * (1 << 30)) }

// HasEmbeddingTiers reports whether the embedding cache has tiers below memory.
func (c *Config) HasEmbeddingTiers() bool {
	return c.EngineKind() == EngineTiny && (c.Media.EmbeddingDisk != "" || c.Media.EmbeddingObjects > 0)
}

// checkEmbeddingTiers checks the settings of the tiers of the embedding cache.
func (p *problems) checkEmbeddingTiers(c *Config) {
	if !c.HasEmbeddingTiers() {
		return
	}
	if c.Media.EmbeddingCache == 0 {
		p.report("embedding-cache-capacity-gb", "tiers below memory keep what memory evicts, and there is none: give more than 0, or neither embedding-cache-disk nor embedding-cache-object-store-gb")
	}
}

// ModelName returns the name which clients use for the model of this process's workers. For a remote engine
// it is "" if no setting gives one.
func (c *Config) ModelName() string {
	switch {
	case len(c.Engine.ServedModelName) > 0:
		return c.Engine.ServedModelName[0]
	case c.HasRemoteEngines():
		return "" // the engine reports it
	case c.Engine.ModelPath == "":
		return builtinModelName(c.EngineKind())
	}
	if dir, err := filepath.Abs(c.Engine.ModelPath); err == nil {
		return filepath.Base(dir) // Abs gives "." a name too
	}
	return filepath.Base(c.Engine.ModelPath)
}

// checkEngine checks the settings of engines, except the addresses of remote ones.
func (p *problems) checkEngine(c *Config) {
	e := &c.Engine
	have := builtinModelName(c.EngineKind())
	if e.ModelPath == "" && have != "" && e.Model != "" && e.Model != have {
		p.report("model", fmt.Sprintf("%.100q is not built in, only %s is in engine %s; serve a checkpoint with model-path, and name it with served-model-name", e.Model, have, c.EngineKind()))
	}
	if e.ModelPath != "" {
		p.requireDirectory("model-path", e.ModelPath)
	}
	for _, n := range e.ServedModelName {
		if strings.TrimSpace(n) == "" {
			p.report("served-model-name", "must not be blank")
		}
	}
	p.checkParser("tool-call-parser", parse.Config{Tools: e.ToolCallParser})
	p.checkParser("reasoning-parser", parse.Config{Reasoning: e.ReasoningParser})
	if _, err := engine.ParseExperts(e.HostedExperts); err != nil {
		p.report("hosted-experts", err.Error())
	}
	if s := time.Duration(e.StallTimeout); s != 0 && (s < stall.MinLimit || s > stall.MaxLimit) {
		p.report("stall-timeout", fmt.Sprintf("%v is not 0s, nor between %v and %v", s, stall.MinLimit, stall.MaxLimit))
	}
	// The engine of another program decides itself.
	if budget := c.TokenBudget(); budget < e.MaxNumSeqs && !c.HasRemoteEngines() {
		p.report("max-num-batched-tokens", fmt.Sprintf("%d is less than the %d of max-num-seqs, and each of them needs a token in a step", budget, e.MaxNumSeqs))
	}
}

// ParseHostedExperts returns the experts which a worker hosts; nil if the setting is empty.
func (c *Config) ParseHostedExperts() []engine.HostedExperts {
	experts, _ := engine.ParseExperts(c.Engine.HostedExperts) // validated before
	return experts
}

// requireDirectory checks that path is a directory, which should contain a checkpoint.
func (p *problems) requireDirectory(key, path string) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		p.report(key, fmt.Sprintf("%.100q is not a directory; name one with config.json and *.safetensors", path))
	}
}

// checkParser checks the name of a parser: auto, none or one which package parse knows.
func (p *problems) checkParser(key string, cfg parse.Config) {
	switch cfg.Tools + cfg.Reasoning {
	case autoParser, "none":
		return
	case "":
		p.report(key, "must not be empty: auto or none")
	}
	if _, err := parse.CompileGrammar(cfg); err != nil {
		p.report(key, strings.TrimPrefix(err.Error(), "parse: "))
	}
}
