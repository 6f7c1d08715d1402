// Package config holds the one tree of settings. A setting has a default, a key in penstock.yaml, an
// environment variable and a flag. Each of these overrides the one before, and the tree records the origin of
// every value.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"penstock/core/stall"
	"penstock/internal/dispatch"
	"penstock/internal/edge/parse"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// Command is a command which starts roles, and so has settings.
type Command string

// The commands with settings.
const (
	Up       Command = "up"       // every role in one process
	Frontend Command = "frontend" // the HTTP APIs, with a router inside
	Worker   Command = "worker"   // one engine
	Router   Command = "router"   // a router alone, between frontends and workers
)

// Commands lists the commands with settings.
func Commands() []Command { return []Command{Up, Frontend, Worker, Router} }

// Group is a part of the settings, by which the help and docs/settings.md list them.
type Group struct {
	Name  string // as in a field tag
	About string
	Page  string // of the documentation, relative to docs; "" if there is none
}

// Groups lists the groups of settings, the most used first.
func Groups() []Group {
	return []Group{
		{CommonGroup, "Addresses, models, the mode of the router, logs", ""},
		{"router", "Choice of a worker, queue, overload, migration, snapshots", "router.md"},
		{"engine", "Cache, batches, prompts and health of engines", "engines.md"},
		{"media", "Images, videos and sounds", "media.md"},
		{"network", "Discovery, planes, TLS, keys", "ops/fleet.md"},
		{"limits", "Bounds of HTTP and of the shutdown", "ops/tls.md"},
		{"simulation", "The simulated engine and its model of time", "sim.md"},
	}
}

// CommonGroup is the group of the settings which most users need.
const CommonGroup = "common"

// groupAnnotation is the annotation of a flag with the group of its setting.
const groupAnnotation = "group"

// GroupOf returns the group of a flag. A flag which is no setting is common.
func GroupOf(f *pflag.Flag) string {
	if group := f.Annotations[groupAnnotation]; len(group) > 0 {
		return group[0]
	}
	return CommonGroup
}

// Config is the effective tree. Field tags define each setting once. "key" is its name in penstock.yaml and,
// after two dashes, on the command line. Its environment variable is PENSTOCK_ plus the key in upper case.
// "group" is the name of its [Group]. "help" is the text of --help. "on" lists the commands to which the setting belongs. Other commands accept
// it in a file or a variable, which a whole fleet may share, and ignore it.
type Config struct {
	HTTPAddr string `key:"http-addr" group:"common" on:"up,frontend,worker,router" help:"address of the HTTP API, HOST:PORT; port 0 picks a free one; empty is none, for worker and router"`
	DataDir  string `key:"data-dir" group:"common" on:"up,frontend,worker,router" help:"directory of JetStream, if NATS is embedded, and of the worker's id; empty uses what goes with the process"`

	NATSListen    string   `key:"nats-listen" group:"common" on:"up,frontend,worker,router" help:"embed a NATS server that others reach at HOST:PORT (up always embeds one, for itself unless this is given)"`
	NATS          string   `key:"nats" group:"common" on:"frontend,worker,router" help:"URL of the fleet's NATS server, several separated by commas: nats://HOST:PORT, tls://…, with USER:PASSWORD@ if it asks"`
	NATSCreds     string   `key:"nats-creds" group:"network" on:"frontend,worker,router" help:"file with NATS credentials (JWT and seed)"`
	NATSTokenFile string   `key:"nats-token-file" group:"network" on:"up,frontend,worker,router" help:"file with the token that an embedded NATS server asks of others, and that is shown to --nats"`
	NATSTLSCA     string   `key:"nats-tls-ca" group:"network" on:"up,frontend,worker,router" help:"file with the certificates that sign the NATS server's (PEM); empty is the system's. An embedded server with a certificate asks its clients for one that they sign"`
	NATSTLSCert   string   `key:"nats-tls-cert" group:"network" on:"up,frontend,worker,router" help:"file with this process's certificate for NATS (PEM); an embedded server that has one speaks TLS only"`
	NATSTLSKey    string   `key:"nats-tls-key" group:"network" on:"up,frontend,worker,router" help:"file with the key of nats-tls-cert (PEM)"`
	NATSWait      Duration `key:"nats-wait" group:"network" on:"frontend,worker,router" help:"time that --nats has to answer at the start; later interruptions may last"`

	Discovery     string   `key:"discovery" group:"network" on:"frontend,worker,router" help:"where instances find each other: nats, file (a directory that all share), or static (a list of addresses)"`
	DiscoveryDir  string   `key:"discovery-dir" group:"network" on:"frontend,worker,router" help:"directory of --discovery file"`
	StaticWorkers []string `key:"static-workers" group:"network" on:"frontend,router" help:"address of a worker for --discovery static, such as tcp://10.0.0.7:7000; repeatable"`
	Namespace     string   `key:"namespace" group:"common" on:"up,frontend,worker,router" help:"fleet that instances register in and find each other by"`
	Component     string   `key:"component" group:"common" on:"up,frontend,worker,router" help:"component name of the workers: a worker's own, and that of those to whom a frontend or router sends"`
	Endpoint      string   `key:"endpoint" group:"common" on:"up,worker,router" help:"endpoint name that the workers, or the router, register"`
	RouterName    string   `key:"router-component" group:"router" on:"router" help:"component name of the router itself: frontends with this --component send to it"`
	Multimodal    bool     `key:"multimodal" group:"media" bare:"true" on:"router" help:"find out here, and not in frontends, what the images, videos and sounds of requests are: fetch them, count their tokens, and choose workers by them"`
	WorkerID      uint64   `key:"worker-id" group:"network" on:"worker,router" help:"number of this instance in the fleet, below 2^53; 0 draws one, which --data-dir keeps"`
	WorkerName    string   `key:"worker-name" group:"network" on:"worker,router" help:"name of this instance in tables, for people; empty is that of its host"`

	RequestPlane   string   `key:"request-plane" group:"network" on:"frontend,worker,router" help:"what requests travel over to this process: tcp, http or nats; it calls others by what they advertise"`
	RPCAddr        string   `key:"rpc-addr" group:"network" on:"worker,router" help:"address to serve requests at, HOST:PORT; port 0 picks a free one. Empty is a free port at the address of this host from which it reaches the NATS server, 127.0.0.1 if that is on this host"`
	RPCAdvertise   string   `key:"rpc-advertise" group:"network" on:"worker,router" help:"HOST or HOST:PORT at which others reach rpc-addr; empty is what it listens on, and of all interfaces the address from which it reaches the NATS server"`
	EventPlane     string   `key:"event-plane" group:"network" on:"frontend,worker,router" help:"what cache events, load and slots travel over: nats (without a server they end at the process), or zmq (ZeroMQ from process to process, without a server: routers leave no snapshots)"`
	EventAddr      string   `key:"event-addr" group:"network" on:"frontend,worker,router" help:"address to publish events at with --event-plane zmq, HOST:PORT; what was published before is asked for at the port behind it; port 0 picks two free ones. Empty is two free ones at the address of an empty rpc-addr"`
	EventAdvertise string   `key:"event-advertise" group:"network" on:"frontend,worker,router" help:"HOST at which others reach event-addr; empty is that of rpc-advertise, or, as there, what it listens on or reaches the NATS server from"`
	EventPeers     []string `key:"event-peers" group:"network" on:"frontend,worker,router" help:"event-addr of another process, HOST:PORT, for --discovery static; repeatable, and the process itself may be among them"`

	RPCTLSCert   string `key:"rpc-tls-cert" group:"network" on:"frontend,worker,router" help:"file with this process's certificate for the request plane (PEM)"`
	RPCTLSKey    string `key:"rpc-tls-key" group:"network" on:"frontend,worker,router" help:"file with the key of rpc-tls-cert (PEM)"`
	RPCTLSCA     string `key:"rpc-tls-ca" group:"network" on:"frontend,worker,router" help:"file with the certificates that sign those of the request plane (PEM): with it calls go over TLS, and a worker asks its callers for one"`
	RPCTokenFile string `key:"rpc-token-file" group:"network" on:"frontend,worker,router" help:"file with the token that callers show on the request plane"`

	Engines         Engines  `key:"engine" group:"common" on:"up,worker" help:"engine of the workers: tiny (a real transformer on the CPU), sim (the cache and schedule of an engine, the time of a model of one, and a passage as its text), or one that runs already: vllm=URL, sglang=URL, trtllm=URL or llamacpp=URL, and behind commas events=tcp://HOST:PORT, replay=tcp://HOST:PORT, snapshot=tcp://HOST:PORT, ranks=N, mode=auto|tokens|pass, block-size=N, api-key-file=FILE, name=NAME, model-path=DIR, media=KINDS, media-keys=uuid|off, mm-processor-kwargs=JSON, media-check=on|off; up takes several of those"`
	EngineWait      Duration `key:"engine-wait" group:"engine" on:"up,worker" help:"time that an engine that runs already has to answer at the start, of several the first one; those that come later are taken in then"`
	KVEvents        string   `key:"kv-events" group:"engine" on:"worker" help:"ZeroMQ endpoint at which the engine publishes its cache events, such as tcp://10.0.0.5:5557, or one to listen at for an engine that dials, such as tcp://*:5557; data-parallel rank i has the port plus i"`
	KVReplay        string   `key:"kv-replay" group:"engine" on:"worker" help:"ZeroMQ endpoint at which the engine repeats cache events that were missed, such as tcp://10.0.0.5:5558"`
	Workers         int      `key:"workers" group:"common" on:"up" help:"number of workers; engines that run already have one for each data-parallel rank"`
	Model           string   `key:"model" group:"common" on:"up,worker" help:"built-in model to serve, of which each engine has one: penstock-tiny or penstock-sim; empty is the engine's. Not used with --model-path"`
	ModelPath       string   `key:"model-path" group:"common" on:"up,frontend,worker,router" help:"directory of a Hugging Face checkpoint (config.json, safetensors, tokenizer.json), of which engine sim reads all but the weights, and what is between text and tokens for engines that run already; without it, theirs is looked for in the directory that they name and in the cache of the Hugging Face hub; for a frontend and for a router with multimodal, where the tokenizer is if it is not where the workers have it"`
	ServedModelName []string `key:"served-model-name" group:"common" on:"up,worker" help:"name that clients use, repeatable; the first is the model's own"`

	ToolCallParser  string `key:"tool-call-parser" group:"engine" on:"up,worker" help:"form in which the model writes calls of functions: auto (what its template, vocabulary or name tell), none, or a name such as hermes, llama3_json, mistral, deepseek_v3, harmony"`
	ReasoningParser string `key:"reasoning-parser" group:"engine" on:"up,worker" help:"form in which the model writes reasoning: auto, none, or a name such as qwen3, deepseek_r1, gpt_oss, mistral, granite"`

	Preprocess string `key:"preprocess" group:"engine" on:"up,frontend" help:"who tokenizes and runs chat templates: local (the frontend), or engine (the workers' engines, for models whose tokenizer or template is refused here)"`

	KVCacheBlockSize int `key:"kv-cache-block-size" group:"engine" on:"up,worker" help:"tokens per KV-cache block; of an engine that runs already it is found out, and must be this or a divisor of this if it is given"`
	KVCacheBlocks    int `key:"kv-cache-blocks" group:"engine" on:"up,worker" help:"KV-cache blocks per worker; 0 is the engine's own: tiny sizes the cache from the model, sim has 1048576 tokens"`
	MaxNumSeqs       int `key:"max-num-seqs" group:"engine" on:"up,worker" help:"sequences that a worker runs at once"`
	MaxBatchedTokens int `key:"max-num-batched-tokens" group:"engine" on:"up,worker" help:"tokens that a worker computes in one step; longer prompts are prefilled in chunks. 0 is the engine's own: 512 of tiny, 8192 of sim"`
	MaxWaiting       int `key:"max-waiting" group:"engine" on:"up,worker" help:"requests that a worker queues before it refuses more"`

	HostedExperts string `key:"hosted-experts" group:"engine" on:"worker" help:"experts of a mixture-of-experts model that the worker hosts, if not all: LAYERS:EXPERTS or LAYERS:EXPERTS@SHARE, separated by commas (0-60:0-31,0-60:64@0.5), SHARE being how much of the tokens for them it computes itself; routers prefer it for requests that expect them"`

	Simulation

	RouterMode         string   `key:"router-mode" group:"common" on:"up,frontend,router" help:"how workers are chosen: kv, time, round-robin, random, power-of-two, least-loaded or direct"`
	OverlapScoreWeight float64  `key:"kv-overlap-score-weight" group:"router" on:"up,frontend,router" help:"weight of the prefill left after cache reuse against decode load; 0 routes by load alone"`
	NoKVEvents         bool     `key:"no-kv-events" group:"router" bare:"true" on:"up,frontend,router" help:"follow no cache events: what is cached is predicted from what was sent, for 2m0s, corrected by what workers report"`
	PredictedTTL       Duration `key:"router-predicted-ttl" group:"router" on:"up,frontend,router" help:"time for which a prompt is believed to be cached where it was sent, until events say so; 0s waits for the events"`
	RouterTemperature  float64  `key:"router-temperature" group:"router" on:"up,frontend,router" help:"0 takes the cheapest worker, more spreads requests over near-equals"`
	RouterSeed         uint64   `key:"router-seed" group:"router" on:"up,frontend,router" help:"seed of the router's tie breaks and random modes; 0 draws one at start"`
	RouterReplicaSync  string   `key:"router-replica-sync" group:"router" on:"up,frontend,router" help:"on or off: routers of one component tell each other what they have sent to its workers, so that each counts the requests of all"`
	RouterTrackOutput  string   `key:"router-track-output-blocks" group:"router" on:"up,frontend,router" help:"on or off: blocks of answers count as load of their worker as they are generated, and fade towards the expected end of a request that gives one (nvext.agent_hints.osl)"`
	BusyThreshold      float64  `key:"busy-threshold" group:"router" on:"up,frontend,router" help:"share of a worker's KV-cache blocks above which it takes no new requests, 0 to 1; 0 is no bound"`
	BusyPrefillTokens  int      `key:"busy-prefill-tokens" group:"router" on:"up,frontend,router" help:"prompt tokens waiting for prefill on a worker above which it takes no new requests; 0 is no bound"`
	SnapshotThreshold  int      `key:"router-snapshot-threshold" group:"router" on:"up,frontend,router" help:"messages of cache events after which a router leaves a snapshot of what it knows, for those that start later; 0 leaves none"`
	ResetStates        string   `key:"router-reset-states" group:"router" bare:"on" on:"up,frontend,router" help:"on: throw away what earlier routers left of cache events and snapshots, unless others are using it; force: throw it away; off: use it"`

	Routing

	MigrationLimit      int      `key:"migration-limit" group:"router" on:"up,frontend,router" help:"times a request may move to another worker after a failure"`
	MigrationWait       Duration `key:"migration-wait" group:"router" on:"up,frontend,router" help:"time that a request that lost its worker waits for another while there is none; 0s does not wait"`
	ActiveRequestExpiry Duration `key:"active-request-expiry" group:"router" on:"up,frontend,router" help:"time after which a reservation that was neither freed nor renewed is dropped; running requests renew theirs"`

	Media

	CanaryInterval Duration `key:"canary-interval" group:"engine" on:"up,worker" help:"silence after which a worker asks its engine for a token, to see whether it works; 0s never does"`
	StallTimeout   Duration `key:"stall-timeout" group:"engine" on:"up,worker" help:"time without a token after which a stream goes on at another worker although its engine works, from 10s to 5m; 0s learns it from the engine's streams"`

	MaxBodyBytes int64    `key:"max-body-bytes" group:"limits" on:"up,frontend,router" help:"largest request body"`
	MaxInflight  int      `key:"max-inflight" group:"limits" on:"up,frontend,router" help:"requests a frontend or router serves at once before it refuses more (a frontend with 503)"`
	SSEKeepAlive Duration `key:"sse-keep-alive" group:"limits" on:"up,frontend" help:"silence after which a stream says that it lives, with a comment that clients skip"`
	DrainGrace   Duration `key:"drain-grace" group:"limits" on:"up,frontend" help:"time that a frontend goes on taking requests after Ctrl-C or SIGTERM, while /health says draining, so that load balancers find another"`
	DrainTimeout Duration `key:"drain-timeout" group:"limits" on:"up,frontend,worker,router" help:"time that running requests have to finish after Ctrl-C or SIGTERM"`

	TLSCert       string `key:"tls-cert" group:"network" on:"up,frontend,worker,router" help:"file with the certificate of the HTTP API, its chain included (PEM): with it HTTP is HTTPS; a changed file is taken over"`
	TLSKey        string `key:"tls-key" group:"network" on:"up,frontend,worker,router" help:"file with the key of tls-cert (PEM)"`
	APIKeyFile    string `key:"api-key-file" group:"network" on:"up,frontend,worker,router" help:"file with API keys and their limits (YAML): with it every request to the HTTP API must show one; a changed file is taken over"`
	MetricsAccess string `key:"metrics-access" group:"network" on:"up,frontend,worker,router" help:"who may read /metrics when there is an api-key-file: admin (a key with admin: true) or open"`
	AccessLog     string `key:"access-log" group:"common" on:"up,frontend" help:"on or off: a line for each HTTP request that is over, at level info of component access"`

	RequestTimeout Duration `key:"request-timeout" group:"limits" on:"up,frontend" help:"longest time of a whole request, its answer included; 0s is no bound"`
	HeaderTimeout  Duration `key:"header-timeout" group:"limits" on:"up,frontend" help:"longest time in which a client sends the headers of a request, and TLS agrees"`
	BodyTimeout    Duration `key:"body-timeout" group:"limits" on:"up,frontend" help:"longest time in which a client sends the body of a request"`
	WriteTimeout   Duration `key:"write-timeout" group:"limits" on:"up,frontend" help:"time after which a client that takes nothing of its answer is gone"`
	IdleTimeout    Duration `key:"idle-timeout" group:"limits" on:"up,frontend" help:"time after which a connection without a request is closed"`
	MaxConnections int      `key:"max-connections" group:"limits" on:"up,frontend,worker,router" help:"connections of HTTP at once; one more is closed as it comes"`
	MaxHeaderBytes int      `key:"max-header-bytes" group:"limits" on:"up,frontend" help:"largest headers of a request"`

	LogLevel  string `key:"log-level" group:"common" on:"up,frontend,worker,router" help:"debug, info, warn or error, with exceptions per component (frontend, router, worker, engine, bus, disco, nats, rpc, relay, access, traces): info,router=debug"`
	LogFormat string `key:"log-format" group:"common" on:"up,frontend,worker,router" help:"text or json"`
}

// Duration is a duration which is written like 30s or 10m everywhere.
type Duration time.Duration

// String returns the duration as users write it.
func (s Duration) String() string { return time.Duration(s).String() }

// UnmarshalYAML reads durations such as 30s and 1m30s. It refuses a bare number, which has no unit.
func (s *Duration) UnmarshalYAML(n *yaml.Node) error {
	d, err := time.ParseDuration(n.Value)
	if err != nil {
		return err // explainNode and explainValue explain it to the user
	}
	*s = Duration(d)
	return nil
}

// Defaults returns the tree of a command before any file, variable or flag.
func Defaults(command Command) Config {
	c := Config{
		HTTPAddr:            "127.0.0.1:8000",
		NATSWait:            Duration(15 * time.Second),
		Discovery:           "nats",
		StaticWorkers:       []string{},
		Namespace:           "penstock",
		Component:           "backend",
		Endpoint:            "generate",
		RouterName:          "router",
		RequestPlane:        "tcp",
		EventPlane:          "nats",
		EventPeers:          []string{},
		Engines:             Engines{EngineTiny},
		EngineWait:          Duration(10 * time.Minute),
		Workers:             2,
		ServedModelName:     []string{},
		ToolCallParser:      autoParser,
		ReasoningParser:     autoParser,
		Preprocess:          "local",
		KVCacheBlockSize:    16,
		MaxNumSeqs:          256,
		MaxWaiting:          1024,
		Simulation:          defaultSimulation(),
		Routing:             defaultRouting(),
		Media:               defaultMedia(),
		RouterMode:          "kv",
		OverlapScoreWeight:  1,
		PredictedTTL:        Duration(2 * time.Second),
		SnapshotThreshold:   10_000,
		ResetStates:         Off,
		RouterReplicaSync:   On,
		RouterTrackOutput:   Off,
		MigrationLimit:      3,
		MigrationWait:       Duration(10 * time.Second),
		ActiveRequestExpiry: Duration(10 * time.Minute),
		CanaryInterval:      Duration(10 * time.Second),
		MaxBodyBytes:        32 << 20,
		MaxInflight:         4096,
		SSEKeepAlive:        Duration(15 * time.Second),
		DrainTimeout:        Duration(30 * time.Second),
		MetricsAccess:       AccessAdmin,
		AccessLog:           On,
		HeaderTimeout:       Duration(10 * time.Second),
		BodyTimeout:         Duration(time.Minute),
		WriteTimeout:        Duration(time.Minute),
		IdleTimeout:         Duration(2 * time.Minute),
		MaxConnections:      16384,
		MaxHeaderBytes:      64 << 10,
		LogLevel:            "info",
		LogFormat:           "text",
	}
	if command == Up {
		c.AccessLog = Off // the terminal shows messages for people
	}
	if command == Worker || command == Router {
		c.HTTPAddr = "" // several of them share a machine, and their API is rarely used
	}
	if command == Frontend {
		c.DrainGrace = Duration(5 * time.Second) // load balancers poll every few seconds
	}
	return c
}

// ResetForce is a choice of ResetStates; the others are On and Off.
const ResetForce = "force"

// autoParser is the name of a parser which is detected from the model.
const autoParser = "auto"

// maxBlockSize is the largest block of the supported engines, in tokens.
const maxBlockSize = 1024

// LogComponents lists the components which log under a name of their own.
func LogComponents() []string {
	return []string{"frontend", "router", "worker", "engine", "bus", "disco", "nats", "rpc", "relay", "access", "traces"}
}

// ParseLogLevels parses LogLevel. An unknown component is an error.
func (c *Config) ParseLogLevels() (obs.Levels, error) {
	return obs.ParseLevels(c.LogLevel, LogComponents())
}

// Validate reports everything wrong with the tree at once, each problem with its key.
func (c *Config) Validate() error {
	var p problems
	p.checkOptionalAddress("http-addr", c.HTTPAddr)
	p.checkOptionalAddress("nats-listen", c.NATSListen)
	p.checkFleet(c)
	p.checkHTTP(c)
	p.checkName("namespace", c.Namespace)
	p.checkName("component", c.Component)
	p.checkName("endpoint", c.Endpoint)
	p.checkEngines(c)
	p.checkModel(c)
	p.requirePositive("engine-wait", c.EngineWait)
	p.requireBetween("workers", int64(c.Workers), 1, 1024)
	for _, n := range c.ServedModelName {
		if strings.TrimSpace(n) == "" {
			p.report("served-model-name", "must not be blank")
		}
	}
	p.checkParser("tool-call-parser", parse.Config{Tools: c.ToolCallParser})
	p.checkParser("reasoning-parser", parse.Config{Reasoning: c.ReasoningParser})
	p.requireOneOf("preprocess", c.Preprocess, "local", "engine")
	p.requireBetween("kv-cache-block-size", int64(c.KVCacheBlockSize), 2, maxBlockSize)
	p.requireBetween("kv-cache-blocks", int64(c.KVCacheBlocks), 0, 1<<24)
	p.requireBetween("max-num-seqs", int64(c.MaxNumSeqs), 1, 65536)
	p.requireBetween("max-num-batched-tokens", int64(c.MaxBatchedTokens), 0, 1<<20)
	p.requireBetween("max-waiting", int64(c.MaxWaiting), 1, 1<<20)
	p.requireOneOf("router-mode", c.RouterMode, "kv", "time", "round-robin", "random", "power-of-two", "least-loaded", "direct")
	p.checkWeight("kv-overlap-score-weight", c.OverlapScoreWeight)
	p.checkWeight("router-temperature", c.RouterTemperature)
	p.requireOneOf("router-replica-sync", c.RouterReplicaSync, On, Off)
	p.requireOneOf("router-track-output-blocks", c.RouterTrackOutput, On, Off)
	p.checkShare("busy-threshold", c.BusyThreshold)
	p.requireBetween("busy-prefill-tokens", int64(c.BusyPrefillTokens), 0, 1<<30)
	if _, err := engine.ParseExperts(c.HostedExperts); err != nil {
		p.report("hosted-experts", err.Error())
	}
	p.requireBetween("router-snapshot-threshold", int64(c.SnapshotThreshold), 0, 1<<30)
	p.requireOneOf("router-reset-states", c.ResetStates, Off, On, ResetForce)
	p.checkRouting(c)
	p.checkMedia(c)
	p.requireBetween("migration-limit", int64(c.MigrationLimit), 0, 100)
	p.requireNotNegative("router-predicted-ttl", c.PredictedTTL)
	p.requireNotNegative("migration-wait", c.MigrationWait)
	p.requireAtLeast("active-request-expiry", c.ActiveRequestExpiry, 3*dispatch.RenewInterval) // renewals may be late
	p.requireNotNegative("canary-interval", c.CanaryInterval)
	if s := time.Duration(c.StallTimeout); s != 0 && (s < stall.MinLimit || s > stall.MaxLimit) {
		p.report("stall-timeout", fmt.Sprintf("%v is not 0s, nor between %v and %v", s, stall.MinLimit, stall.MaxLimit))
	}
	p.requireBetween("max-body-bytes", c.MaxBodyBytes, 1024, 1<<40)
	p.requireBetween("max-inflight", int64(c.MaxInflight), 1, 1<<24)
	p.requirePositive("sse-keep-alive", c.SSEKeepAlive)
	p.requireNotNegative("drain-grace", c.DrainGrace)
	p.requirePositive("drain-timeout", c.DrainTimeout)
	p.checkBatch(c)
	p.checkSimulation(c)
	if _, err := c.ParseLogLevels(); err != nil {
		p.report("log-level", err.Error())
	}
	p.requireOneOf("log-format", c.LogFormat, "text", "json")
	if c.ModelPath != "" {
		p.requireDirectory("model-path", c.ModelPath)
	}
	return errors.Join(p...)
}

type problems []error

func (p *problems) report(key, what string) {
	*p = append(*p, fmt.Errorf("%s: %s", key, what))
}

// requireDirectory checks that path is a directory, which should contain a checkpoint.
func (p *problems) requireDirectory(key, path string) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() {
		p.report(key, fmt.Sprintf("%.100q is not a directory; name one with config.json and *.safetensors", path))
	}
}

func (p *problems) checkOptionalAddress(key, v string) {
	if v != "" {
		p.checkAddress(key, v)
	}
}

func (p *problems) checkAddress(key, v string) {
	if err := CheckAddress(v); err != nil {
		p.report(key, err.Error())
	}
}

// CheckAddress returns an error if v is not an address to listen on.
func CheckAddress(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil || port == "" {
		return fmt.Errorf("%.100q is not HOST:PORT with a port from 0 to 65535, for example 127.0.0.1:8000", v)
	}
	return nil
}

// requireNotFile checks that path, if it exists, is a directory.
func (p *problems) requireNotFile(key, path string) {
	if st, err := os.Stat(path); path != "" && err == nil && !st.IsDir() {
		p.report(key, fmt.Sprintf("%.100q is not a directory", path))
	}
}

func (p *problems) checkName(key, v string) {
	ok := v != "" && len(v) <= 64 && strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
	if !ok {
		p.report(key, fmt.Sprintf("%.100q must be 1 to 64 letters, digits, '-' or '_'", v))
	}
}

func (p *problems) requireOneOf(key, v string, choices ...string) {
	for _, c := range choices {
		if v == c {
			return
		}
	}
	p.report(key, fmt.Sprintf("%.100q is not one of %s", v, strings.Join(choices, ", ")))
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

func (p *problems) requireBetween(key string, v, lo, hi int64) {
	if v < lo || v > hi {
		p.report(key, fmt.Sprintf("%d is not between %d and %d", v, lo, hi))
	}
}

// maxWeight bounds weights, so that products of a weight and a number of blocks stay exact enough.
const maxWeight = 1e9

func (p *problems) checkWeight(key string, v float64) {
	if !(v >= 0 && v <= maxWeight) {
		p.report(key, fmt.Sprintf("%v is not between 0 and %v", v, maxWeight))
	}
}

func (p *problems) requireNotNegative(key string, v Duration) {
	if v < 0 {
		p.report(key, fmt.Sprintf("%v must not be negative; 0s turns it off", v))
	}
}

func (p *problems) requireAtLeast(key string, v Duration, least time.Duration) {
	if time.Duration(v) < least {
		p.report(key, fmt.Sprintf("%v is too short: use %v or more", v, least))
	}
}

func (p *problems) requirePositive(key string, v Duration) {
	if v <= 0 {
		p.report(key, fmt.Sprintf("%v must be positive, for example 30s", v))
	}
}
