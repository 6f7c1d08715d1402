// Package enginemock contains servers that behave as other engines do: vLLM, SGLang, TensorRT-LLM and
// llama.cpp. Their HTTP, their events over ZeroMQ, their metrics and their failures match the real engines'
// as far as a client can see; the output comes from any Penstock engine, in practice the simulator. They
// replace machines with accelerators in tests of adapters and of other routers, and on a laptop.
//
// The engine contract has no tokens in cache events, but the mocked engines publish them. A server takes them
// from the requests that it serves: a ledger holds the tokens of every block that is cached or may become so,
// and gives blocks names as the engine does.
package enginemock

import (
	"cmp"
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

// Dialect is the engine that a server mocks.
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

// Config configures an engine mock. Zero fields have defaults.
type Config struct {
	Dialect Dialect
	// EngineVersion is the release of the mocked engine, if there are several; "" is the newest. See
	// [EngineVersions].
	EngineVersion string
	// Open makes the engine of a data-parallel rank. The server runs it, and makes another one when the
	// mocked engine would lose its cache: on a restart and on a cache reset. All have the same card, and
	// should be a KVSource and a LoadSource.
	Open  func(rank int) (engine.Engine, error)
	Ranks int // 1
	// Pipe converts between text and tokens. It may be nil: then there are no endpoints with text. If it has
	// a Family, the model accepts that family's media.
	Pipe *prep.Pipeline
	// Fetch loads media from http and https URLs; nil refuses them. MediaLimits are how many objects of a
	// kind a prompt may contain (--limit-mm-per-prompt); kinds without an entry have no limit.
	Fetch       Fetch
	MediaLimits map[media.Kind]int
	// ProcessorArgs are the engine's arguments to its media processor (--mm-processor-kwargs): a JSON object;
	// "" for none.
	ProcessorArgs string
	// ECRole is vLLM's part in the transfer of encoder outputs, which are files in the directory ECStore.
	ECRole  ECRole
	ECStore string
	// Models are the served names, the first the model's own; the card's by default.
	Models []string
	// Root is the model's root in /v1/models; the first name by default.
	Root string
	// Adapters are LoRA adapters which are loaded from the start.
	Adapters []Adapter

	// HTTPAddr is HOST:PORT of the server; 127.0.0.1:0. KVEvents, KVReplay and Snapshot are ZeroMQ endpoints
	// (tcp://127.0.0.1:5557, tcp://*:5557). Rank i uses port + i, or a free port if the port is 0; "" has
	// none. An endpoint without wildcard for KVEvents is bound too, unless Dial is Connect; vLLM itself would
	// connect.
	HTTPAddr                     string
	KVEvents, KVReplay, Snapshot string
	Dial                         Dial
	Topic                        string // of events; any text
	// BufferSteps bounds the batches kept for replay; 10,000. FirstSeq is the number of the first: 0.
	BufferSteps int
	FirstSeq    uint64

	// Seed determines the engine's block names and random faults.
	Seed uint64
	// KeepAlive is how long an idle connection stays open: 5 s as vLLM's; -1 is unlimited.
	KeepAlive time.Duration
	// Ping is the silence after which llama.cpp writes a comment into a stream; 30 s.
	Ping time.Duration
	// Slots is how many requests llama.cpp serves at once; 4.
	Slots int
	// RoomWait is how long a decode waits at SGLang's prefill server until the prefill of its room begins; 1 s.
	RoomWait time.Duration
	// Startup is how long the server answers 503 after its start.
	Startup time.Duration
	// MaxBody bounds the body of a request; 32 MiB.
	MaxBody int64
	// Features switches features of engine versions and settings.
	Features Features
	// Faults are set from the start; see [Server.Faults].
	Faults []Fault
	// Headers are added to every response.
	Headers map[string]string
	// APIKey, if not empty, is required as the bearer token of /v1 and the engine's own generate paths.
	APIKey string
}

// Dial says which side connects for events.
type Dial uint8

// The server listens, or it connects to a subscriber that does.
const (
	Bind Dial = iota
	Connect
)

// Switch turns a feature of an engine on or off; the zero value is the engine's default.
type Switch uint8

// The positions.
const (
	Default Switch = iota
	On
	Off
)

// isOn reports the position; usual is the default.
func (s Switch) isOn(usual bool) bool { return s == On || s != Off && usual }

// Features are features of engine versions and settings.
type Features struct {
	Tokens  Switch // vLLM's /inference/v1/generate and render endpoints; on for "vllm"
	Details Switch // vLLM reports cached tokens (--enable-prompt-tokens-details); on
	Metrics Switch // /metrics exists; on
	Dev     Switch // vLLM's development endpoints (sleep, cache reset); on
	// Cumulative makes SGLang's stream repeat its earlier output; on, as in SGLang.
	Cumulative Switch
	// ExtraKeys adds cache salts to vLLM's events; versions before 0.17 lack them; on.
	ExtraKeys Switch
	// UUIDs makes the engine identify media by the client's UUIDs; on except for SGLang, whose OpenAI API has
	// no field for them. In vLLM it is off only if both its media cache and its prefix cache are off.
	UUIDs Switch
	// MapEvents encodes events as maps; on for all but "vllm-legacy" and releases of SGLang with arrays.
	MapEvents Switch
	// Push makes TensorRT-LLM publish events over ZeroMQ too, which empties its pulled list; on if KVEvents
	// is set.
	Push Switch
	// BinaryHashes encodes names of blocks as 32 bytes instead of integers; off.
	BinaryHashes Switch
	// Duplicates stores every block twice, and removes it twice; off.
	Duplicates Switch
	// Offload publishes every stored block once more as being in host memory, without its tokens, as vLLM's
	// CPU offloading does; off.
	Offload Switch
	// Hybrid publishes the events of a second, sliding-window group, which have fewer hashes than their
	// tokens fill; off.
	Hybrid Switch
	// KVTransfer is vLLM's NIXL connector; on. FailKVLoads fails a request whose prefill instance does not answer, as
	// kv_load_failure_policy "fail" does, with status 500; off, which is "recompute". HideReceived leaves the tokens whose
	// blocks came from elsewhere out of the reported cached tokens, as vLLM 0.32 does; off.
	KVTransfer, FailKVLoads, HideReceived Switch
	// Sequences makes vLLM use the first 32 pictures of a JPEG sequence, at one a second, and SGLang none;
	// Sampling makes both sample two frames a second of other videos. Without it, the model's processor
	// receives every frame. RoundUp rounds sounds of other rates than 16 kHz up to whole samples. On.
	Sequences, Sampling, RoundUp Switch
}

// Adapter is a LoRA adapter.
type Adapter struct{ Name, Path string }

// ensureDefaults fills in zero fields.
func (c *Config) ensureDefaults() {
	c.Ranks, c.BufferSteps, c.Slots = cmp.Or(c.Ranks, 1), cmp.Or(c.BufferSteps, 10_000), cmp.Or(c.Slots, 4)
	c.HTTPAddr = cmp.Or(c.HTTPAddr, "127.0.0.1:0")
	c.KeepAlive, c.Ping, c.RoomWait = cmp.Or(c.KeepAlive, 5*time.Second), cmp.Or(c.Ping, 30*time.Second), cmp.Or(c.RoomWait, time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 32<<20)
}

// Validate reports every problem at once, except a missing Open. It validates c with defaults filled in.
func (c *Config) Validate() error {
	d := *c
	d.ensureDefaults()
	return d.checkFields()
}

func (c *Config) checkFields() error {
	var errs []error
	report := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("enginemock config: "+format, args...))
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
	c.checkEC(report)
	report(c.KVReplay == "" || c.KVEvents != "", "there is replay of events, and no events")
	for i, f := range c.Faults {
		if err := f.Validate(); err != nil {
			report(false, "fault %d: %v", i, err)
		}
	}
	return errors.Join(errs...)
}

// dialectNames lists the dialects, for people.
func dialectNames() string {
	var names []string
	for _, d := range Dialects() {
		names = append(names, string(d))
	}
	return strings.Join(names, ", ")
}
