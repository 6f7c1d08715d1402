// Package mimic is servers that speak as other engines do: vLLM, SGLang, TensorRT-LLM and
// llama.cpp. Their HTTP, their events over ZeroMQ, their metrics and their failures are those
// of the real ones as far as a client of theirs can see; what they serve comes from any engine
// of the contract, in practice the simulator. They stand in for machines with accelerators in
// tests of adapters, of routers of other makes, and on a laptop.
//
// The contract has no engine tell its tokens with its cache events, and the engines that are
// imitated do. A server knows them from the requests that it serves: a ledger holds the tokens of
// every block that is cached or may come to be, and gives blocks names of the engine's kind.
package mimic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// Dialect is the engine that a server imitates.
type Dialect string

// The dialects.
const (
	VLLM       Dialect = "vllm"        // of 2026: events are maps, replay has topics, token endpoints exist
	VLLMLegacy Dialect = "vllm-legacy" // of 2025: events are arrays, replay has none, tokens go through /v1/completions
	SGLang     Dialect = "sglang"
	TRTLLM     Dialect = "trtllm" // TensorRT-LLM's own server, trtllm-serve
	LlamaCPP   Dialect = "llamacpp"
)

// Dialects returns the dialects, as settings name them.
func Dialects() []Dialect { return []Dialect{VLLM, VLLMLegacy, SGLang, TRTLLM, LlamaCPP} }

// vllm reports whether d is one of vLLM's.
func (d Dialect) vllm() bool { return d == VLLM || d == VLLMLegacy }

// Config says what a server imitates, and around what. Zero fields have defaults.
type Config struct {
	Dialect Dialect
	// EngineVersion is the release of the engine that is imitated, where there are several; "" is the newest. See
	// [EngineVersions].
	EngineVersion string
	// Open makes the engine of a data-parallel rank. The server runs it, and makes another one
	// where what it imitates forgets its cache: on a restart and where the cache is reset. All
	// have the same card, and should be a KVSource and a LoadSource.
	Open  func(rank int) (engine.Engine, error)
	Ranks int // 1
	// Pipe is between text and tokens. It may be nil: then there are no endpoints with text. Where it has a
	// Family, the model sees the media of that.
	Pipe *prep.Pipeline
	// Fetch is for media behind URLs of http and https; nil refuses those. MediaLimits are how many objects of a kind
	// a prompt may show (--limit-mm-per-prompt), where that is bounded.
	Fetch       Fetch
	MediaLimits map[media.Kind]int
	// ProcessorArgs are the arguments with which the engine calls the processor of its model's media
	// (--mm-processor-kwargs): a JSON object; "" for none.
	ProcessorArgs string
	// Models are the served names, the first the model's own; those of the card.
	Models []string
	// Root is what /v1/models calls the model's root; the first name.
	Root string
	// Adapters are LoRA adapters that are loaded from the start.
	Adapters []Adapter

	// HTTPAddr is HOST:PORT of the server; 127.0.0.1:0. KVEvents, KVReplay and Snapshot are
	// endpoints of ZeroMQ (tcp://127.0.0.1:5557, tcp://*:5557), that of rank i at port + i, or at
	// free ports if the port is 0; "" has none. An endpoint without wildcard for KVEvents
	// is bound too, unless Dial says to connect, as vLLM would.
	HTTPAddr                     string
	KVEvents, KVReplay, Snapshot string
	Dial                         Dial
	Topic                        string // of events; may have any text
	// BufferSteps bounds the batches kept for replay; 10,000. FirstSeq is the number of the first: 0.
	BufferSteps int
	FirstSeq    uint64

	// Seed makes the engine's names of blocks and draws faults.
	Seed uint64
	// KeepAlive is how long an idle connection stays open: 5 s as vLLM's; -1 is no bound.
	KeepAlive time.Duration
	// Ping is the silence after which llama.cpp writes a comment into a stream; 30 s.
	Ping time.Duration
	// Slots is how many requests llama.cpp serves at once; 4.
	Slots int
	// Startup is for how long the server answers 503 after its start.
	Startup time.Duration
	// MaxBody bounds the body of a request; 32 MiB.
	MaxBody int64
	// Features switches what versions and settings of engines have or lack.
	Features Features
	// Faults are set from the start; see [Server.Faults].
	Faults []Fault
	// Headers are added to every answer of a request.
	Headers map[string]string
	// APIKey, if not empty, must be shown as a bearer of /v1 and the engine's own generate paths.
	APIKey string
}

// Dial says who connects where events are published.
type Dial uint8

// The ways: the server listens, or it connects to a subscriber that does.
const (
	Bind Dial = iota
	Connect
)

// Switch turns something of an engine on or off; the zero value is how the engine
// comes.
type Switch uint8

// The positions.
const (
	AsUsual Switch = iota
	On
	Off
)

// on reports the position, which is usual unless said.
func (s Switch) on(usual bool) bool { return s == On || s != Off && usual }

// Features are what versions and settings of engines have or lack.
type Features struct {
	Tokens  Switch // vLLM's /inference/v1/generate and render endpoints; on for "vllm"
	Details Switch // vLLM reports cached tokens (--enable-prompt-tokens-details); on
	Metrics Switch // /metrics exists; on
	Dev     Switch // vLLM's development endpoints (sleep, reset of the cache); on
	// Cumulative has SGLang's stream repeat what it said before; on, as SGLang does.
	Cumulative Switch
	// ExtraKeys has vLLM's events tell of cache salts, as they do not before 0.17; on.
	ExtraKeys Switch
	// UUIDs has the engine know media by what clients call them; on but for SGLang, which has no word for it in its
	// OpenAI API. vLLM is so unless both its caches of media and of prefixes are off.
	UUIDs Switch
	// MapEvents has events as maps; on for all but "vllm-legacy" and releases of SGLang which have arrays.
	MapEvents Switch
	// Push has TensorRT-LLM publish events over ZeroMQ too, which empties its pulled list;
	// on if KVEvents is set.
	Push Switch
	// BinaryHashes has names of blocks as 32 bytes in place of integers; off.
	BinaryHashes Switch
	// Duplicates stores every block twice, and removes it twice; off.
	Duplicates Switch
	// Offload says of every stored block once more that it is in host memory, without
	// its tokens as vLLM's CPU offloading does; off.
	Offload Switch
	// Hybrid publishes the events of a second, sliding-window group, whose hashes are fewer than its
	// tokens; off.
	Hybrid Switch
	// Sequences has vLLM take the first 32 pictures of a JPEG sequence, at one a second, and SGLang take none;
	// Sampling has both sample two frames a second of other videos. Without, the model's processor is given every
	// frame. RoundUp has sounds of other rates than 16 kHz rounded up to whole samples. On.
	Sequences, Sampling, RoundUp Switch
}

// Adapter is a LoRA adapter.
type Adapter struct{ Name, Path string }

// ensureDefaults fills in what is zero.
func (c *Config) ensureDefaults() {
	set := func(field *int, v int) {
		if *field == 0 {
			*field = v
		}
	}
	set(&c.Ranks, 1)
	set(&c.BufferSteps, 10_000)
	set(&c.Slots, 4)
	if c.HTTPAddr == "" {
		c.HTTPAddr = "127.0.0.1:0"
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 5 * time.Second
	}
	if c.Ping == 0 {
		c.Ping = 30 * time.Second
	}
	if c.MaxBody == 0 {
		c.MaxBody = 32 << 20
	}
}

// Validate reports every problem at once but that Open is missing. It judges c with its defaults
// filled in.
func (c *Config) Validate() error {
	d := *c
	d.ensureDefaults()
	return d.validate()
}

func (c *Config) validate() error {
	var errs []error
	report := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("mimic config: "+format, args...))
		}
	}
	report(slices.Contains(Dialects(), c.Dialect), "dialect %.40q is not one of %s", c.Dialect, dialectNames())
	versions := EngineVersions(c.Dialect)
	report(c.EngineVersion == "" || slices.Contains(versions, c.EngineVersion),
		"engine version %.40q of dialect %.40q: want one of %q", c.EngineVersion, c.Dialect, versions)
	report(c.Ranks >= 1 && c.Ranks <= 64, "there are %d ranks; it must be 1 to 64", c.Ranks)
	report(c.BufferSteps >= 1 && c.BufferSteps <= 1<<20, "%d batches kept for replay; it must be 1 to %d", c.BufferSteps, 1<<20)
	report(c.Slots >= 1 && c.Slots <= 4096, "%d slots; it must be 1 to 4096", c.Slots)
	report(c.ProcessorArgs == "" || json.Valid([]byte(c.ProcessorArgs)), "the arguments of the processor are no JSON object: %.40q", c.ProcessorArgs)
	report(c.KVReplay == "" || c.KVEvents != "", "there is replay of events, and no events")
	for i, f := range c.Faults {
		if err := f.Validate(); err != nil {
			report(false, "fault %d: %v", i, err)
		}
	}
	return errors.Join(errs...)
}

// dialectNames are the dialects, for people.
func dialectNames() string {
	var names []string
	for _, d := range Dialects() {
		names = append(names, string(d))
	}
	return strings.Join(names, ", ")
}
