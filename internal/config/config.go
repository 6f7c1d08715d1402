// Package config is the one tree of settings. A setting has a default, a key in
// penstock.yaml, an environment variable and a flag, each stronger than the one
// before, and remembers which of them it came from.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"penstock/internal/edge/parse"
	"penstock/internal/obs"
)

// Config is the effective tree. Field tags define each setting once: "key" is
// its name in penstock.yaml and, behind two dashes, on the command line; its
// environment variable is PENSTOCK_ and the name in capitals; "help" is what
// --help says; "on" lists the commands whose flag it is.
type Config struct {
	HTTPAddr string `key:"http-addr" on:"up" help:"address of the HTTP API, HOST:PORT; port 0 picks a free one"`
	DataDir  string `key:"data-dir" on:"up" help:"directory of JetStream; empty uses a temporary one that goes with the process"`

	NATSListen string `key:"nats-listen" on:"up" help:"also open the embedded NATS server to others at HOST:PORT"`
	Namespace  string `key:"namespace" on:"up" help:"fleet that instances register in and find each other by"`
	Component  string `key:"component" on:"up" help:"component name of the workers"`
	Endpoint   string `key:"endpoint" on:"up" help:"endpoint name of the workers"`

	Engine          string   `key:"engine" on:"up" help:"engine of the workers: tiny (a real transformer on the CPU)"`
	Workers         int      `key:"workers" on:"up" help:"number of workers"`
	Model           string   `key:"model" on:"up" help:"built-in model to serve; not used with --model-path"`
	ModelPath       string   `key:"model-path" on:"up" help:"directory of a Hugging Face checkpoint (config.json, safetensors, tokenizer.json)"`
	ServedModelName []string `key:"served-model-name" on:"up" help:"name that clients use, repeatable; the first is the model's own"`

	ToolCallParser  string `key:"tool-call-parser" on:"up" help:"form in which the model writes calls of functions: auto (what its template, vocabulary or name tell), none, or a name such as hermes, llama3_json, mistral, deepseek_v3, harmony"`
	ReasoningParser string `key:"reasoning-parser" on:"up" help:"form in which the model writes reasoning: auto, none, or a name such as qwen3, deepseek_r1, gpt_oss, mistral, granite"`

	Preprocess string `key:"preprocess" on:"up" help:"who tokenizes and runs chat templates: local (the frontend), or engine (the workers' engines, for models whose tokenizer or template is refused here)"`

	KVCacheBlockSize int `key:"kv-cache-block-size" on:"up" help:"tokens per KV-cache block"`
	KVCacheBlocks    int `key:"kv-cache-blocks" on:"up" help:"KV-cache blocks per worker; 0 sizes the cache from the model"`
	MaxNumSeqs       int `key:"max-num-seqs" on:"up" help:"sequences that a worker runs at once"`
	MaxBatchedTokens int `key:"max-num-batched-tokens" on:"up" help:"tokens that a worker computes in one step; longer prompts are prefilled in chunks"`
	MaxWaiting       int `key:"max-waiting" on:"up" help:"requests that a worker queues before it refuses more"`

	RouterMode          string  `key:"router-mode" on:"up" help:"how workers are chosen: kv, round-robin, random, power-of-two, least-loaded or direct"`
	OverlapScoreWeight  float64 `key:"kv-overlap-score-weight" on:"up" help:"weight of the prefill left after cache reuse against decode load; 0 routes by load alone"`
	RouterTemperature   float64 `key:"router-temperature" on:"up" help:"0 takes the cheapest worker, more spreads requests over near-equals"`
	RouterSeed          uint64  `key:"router-seed" on:"up" help:"seed of the router's tie breaks and random modes; 0 draws one at start"`
	MigrationLimit      int     `key:"migration-limit" on:"up" help:"times a request may move to another worker after a failure"`
	MigrationWait       Seconds `key:"migration-wait" on:"up" help:"time that a request that lost its worker waits for another while there is none; 0s does not wait"`
	ActiveRequestExpiry Seconds `key:"active-request-expiry" on:"up" help:"age at which a reservation that nobody freed is dropped"`

	CanaryInterval Seconds `key:"canary-interval" on:"up" help:"silence after which a worker asks its engine for a token, to see whether it works; 0s never does"`

	MaxBodyBytes int64   `key:"max-body-bytes" on:"up" help:"largest request body"`
	MaxInflight  int     `key:"max-inflight" on:"up" help:"requests a frontend serves at once before it answers 503"`
	SSEKeepAlive Seconds `key:"sse-keep-alive" on:"up" help:"silence after which a stream says that it lives, with a comment that clients skip"`
	DrainGrace   Seconds `key:"drain-grace" on:"up" help:"time that a frontend goes on taking requests after Ctrl-C, while /health says draining, so that load balancers find another"`
	DrainTimeout Seconds `key:"drain-timeout" on:"up" help:"time that running requests have to finish after Ctrl-C"`

	LogLevel  string `key:"log-level" on:"up" help:"debug, info, warn or error, with exceptions per component (frontend, router, worker, bus, disco, nats): info,router=debug"`
	LogFormat string `key:"log-format" on:"up" help:"text or json"`
}

// Seconds is a duration that is written like 30s or 10m everywhere.
type Seconds time.Duration

// String returns the duration as it is written.
func (s Seconds) String() string { return time.Duration(s).String() }

// UnmarshalYAML reads 30s, 1m30s and the like; a bare number has no unit and is
// refused.
func (s *Seconds) UnmarshalYAML(n *yaml.Node) error {
	d, err := time.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("%.100q is not a duration like 30s or 10m", n.Value)
	}
	*s = Seconds(d)
	return nil
}

// Defaults returns the tree before any file, variable or flag.
func Defaults() Config {
	return Config{
		HTTPAddr:            "127.0.0.1:8000",
		Namespace:           "penstock",
		Component:           "backend",
		Endpoint:            "generate",
		Engine:              "tiny",
		Workers:             2,
		Model:               builtinModel,
		ServedModelName:     []string{},
		ToolCallParser:      auto,
		ReasoningParser:     auto,
		Preprocess:          "local",
		KVCacheBlockSize:    16,
		MaxNumSeqs:          256,
		MaxBatchedTokens:    512,
		MaxWaiting:          1024,
		RouterMode:          "kv",
		OverlapScoreWeight:  1,
		MigrationLimit:      3,
		MigrationWait:       Seconds(10 * time.Second),
		ActiveRequestExpiry: Seconds(10 * time.Minute),
		CanaryInterval:      Seconds(10 * time.Second),
		MaxBodyBytes:        32 << 20,
		MaxInflight:         4096,
		SSEKeepAlive:        Seconds(15 * time.Second),
		DrainTimeout:        Seconds(30 * time.Second),
		LogLevel:            "info",
		LogFormat:           "text",
	}
}

// auto is a parser that is found out.
const auto = "auto"

// builtinModel is the model that needs no files.
const builtinModel = "penstock-tiny"

// maxBlockSize is the largest block of the one engine there is, in tokens.
const maxBlockSize = 1024

// Components lists the parts of the process that log under a name of their own.
func Components() []string { return []string{"frontend", "router", "worker", "bus", "disco", "nats"} }

// Levels reads LogLevel. A component that there is not is an error.
func (c *Config) Levels() (obs.Levels, error) { return obs.ParseLevels(c.LogLevel, Components()) }

// Validate reports everything that is wrong with the tree at once, each problem
// with the key to change.
func (c *Config) Validate() error {
	var p problems
	p.address("http-addr", c.HTTPAddr)
	if c.NATSListen != "" {
		p.address("nats-listen", c.NATSListen)
	}
	p.name("namespace", c.Namespace)
	p.name("component", c.Component)
	p.name("endpoint", c.Endpoint)
	p.oneOf("engine", c.Engine, "tiny")
	p.between("workers", c.Workers, 1, 1024)
	if c.ModelPath == "" {
		if c.Model != builtinModel {
			p.add("model", fmt.Sprintf("%.100q is not built in, only %s is; serve a checkpoint with model-path, and name it with served-model-name", c.Model, builtinModel))
		}
	}
	for _, n := range c.ServedModelName {
		if strings.TrimSpace(n) == "" {
			p.add("served-model-name", "must not be blank")
		}
	}
	p.parser("tool-call-parser", parse.Config{Tools: c.ToolCallParser})
	p.parser("reasoning-parser", parse.Config{Reasoning: c.ReasoningParser})
	p.oneOf("preprocess", c.Preprocess, "local", "engine")
	p.between("kv-cache-block-size", c.KVCacheBlockSize, 2, maxBlockSize)
	p.between("kv-cache-blocks", c.KVCacheBlocks, 0, 1<<24)
	p.between("max-num-seqs", c.MaxNumSeqs, 1, 65536)
	p.between("max-num-batched-tokens", c.MaxBatchedTokens, 1, 1<<20)
	p.between("max-waiting", c.MaxWaiting, 1, 1<<20)
	p.oneOf("router-mode", c.RouterMode, "kv", "round-robin", "random", "power-of-two", "least-loaded", "direct")
	p.weight("kv-overlap-score-weight", c.OverlapScoreWeight)
	p.weight("router-temperature", c.RouterTemperature)
	p.between("migration-limit", c.MigrationLimit, 0, 100)
	p.notNegative("migration-wait", c.MigrationWait)
	p.positive("active-request-expiry", c.ActiveRequestExpiry)
	p.notNegative("canary-interval", c.CanaryInterval)
	p.between("max-body-bytes", int(c.MaxBodyBytes), 1024, 1<<40)
	p.between("max-inflight", c.MaxInflight, 1, 1<<24)
	p.positive("sse-keep-alive", c.SSEKeepAlive)
	p.notNegative("drain-grace", c.DrainGrace)
	p.positive("drain-timeout", c.DrainTimeout)
	if c.MaxBatchedTokens < c.MaxNumSeqs {
		p.add("max-num-batched-tokens", fmt.Sprintf("%d is less than the %d of max-num-seqs, and each of them needs a token in a step", c.MaxBatchedTokens, c.MaxNumSeqs))
	}
	if _, err := c.Levels(); err != nil {
		p.add("log-level", err.Error())
	}
	p.oneOf("log-format", c.LogFormat, "text", "json")
	if c.ModelPath != "" {
		if st, err := os.Stat(c.ModelPath); err != nil || !st.IsDir() {
			p.add("model-path", fmt.Sprintf("%.100q is not a directory; name one with config.json and *.safetensors", c.ModelPath))
		}
	}
	return errors.Join(p...)
}

type problems []error

func (p *problems) add(key, what string) {
	*p = append(*p, fmt.Errorf("%s: %s", key, what))
}

func (p *problems) address(key, v string) {
	if _, port, err := net.SplitHostPort(v); err != nil || port == "" {
		p.add(key, fmt.Sprintf("%.100q is not HOST:PORT, for example 127.0.0.1:8000", v))
	}
}

func (p *problems) name(key, v string) {
	ok := v != "" && len(v) <= 64 && strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
	if !ok {
		p.add(key, fmt.Sprintf("%.100q must be 1 to 64 letters, digits, '-' or '_'", v))
	}
}

func (p *problems) oneOf(key, v string, choices ...string) {
	for _, c := range choices {
		if v == c {
			return
		}
	}
	p.add(key, fmt.Sprintf("%.100q is not one of %s", v, strings.Join(choices, ", ")))
}

// parser checks the name of a parser, which is auto, none or one that package parse
// knows.
func (p *problems) parser(key string, cfg parse.Config) {
	switch cfg.Tools + cfg.Reasoning {
	case auto, "none":
		return
	case "":
		p.add(key, "must not be empty: auto or none")
	}
	if _, err := parse.Compile(cfg); err != nil {
		p.add(key, strings.TrimPrefix(err.Error(), "parse: "))
	}
}

func (p *problems) between(key string, v, lo, hi int) {
	if v < lo || v > hi {
		p.add(key, fmt.Sprintf("%d is not between %d and %d", v, lo, hi))
	}
}

// maxWeight keeps products of a weight and a number of blocks exact enough.
const maxWeight = 1e9

func (p *problems) weight(key string, v float64) {
	if !(v >= 0 && v <= maxWeight) {
		p.add(key, fmt.Sprintf("%v is not between 0 and %v", v, maxWeight))
	}
}

func (p *problems) notNegative(key string, v Seconds) {
	if v < 0 {
		p.add(key, fmt.Sprintf("%v must not be negative; 0s turns it off", v))
	}
}

func (p *problems) positive(key string, v Seconds) {
	if v <= 0 {
		p.add(key, fmt.Sprintf("%v must be positive, for example 30s", v))
	}
}
