// Package config holds the one tree of settings. A setting has a default, a key in penstock.yaml, an
// environment variable and a flag. Each of these overrides the one before, and the tree records the origin of
// every value.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Command is a command which starts roles, and so has settings.
type Command string

// The commands with settings.
const (
	Up       Command = "up"       // every role in one process
	Frontend Command = "frontend" // the HTTP APIs, with a router inside
	Worker   Command = "worker"   // one engine
	Router   Command = "router"   // a router alone, between frontends and workers
	// PlannerCommand sizes a fleet: it serves no requests.
	PlannerCommand Command = "planner"
)

// HasEngines reports whether processes of the command have workers with engines: a router's have none.
func (c Command) HasEngines() bool { return c == Up || c == Worker }

// ResolvesMedia reports whether processes of the command find out what media are, whatever their settings.
func (c Command) ResolvesMedia() bool { return c != Router && c != PlannerCommand }

// Commands lists the commands with settings.
func Commands() []Command { return []Command{Up, Frontend, Worker, Router, PlannerCommand} }

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
		{"planner", "The planner, which sizes a fleet", "planner.md"},
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

// Config is the effective tree. Field tags define each setting once:
//
//	key           name in penstock.yaml and, after two dashes, on the command line; its environment variable is
//	              PENSTOCK_ plus the key in upper case
//	group         name of its [Group]
//	on            commands to which it belongs; the others accept it in a file or a variable, which a whole fleet
//	              may share, and ignore it
//	default       value as in a variable; without it, it is 0, off or empty. default-COMMAND is that of one command
//	bare          value of the flag when it is given without one
//	valid         values which it may have, see checkValue
//	help          text of --help
//
// A setting without group or on has the group and on of its struct.
type Config struct {
	DataDir string `key:"data-dir" group:"common" on:"up,frontend,worker,router,planner" help:"directory of JetStream, if NATS is embedded, and of the worker's id; empty uses what goes with the process"`

	// HTTP are the settings of the HTTP API.
	HTTP struct {
		Addr           string   `key:"http-addr" group:"common" on:"up,frontend,worker,router,planner" default:"127.0.0.1:8000" default-worker:"" default-router:"" default-planner:"127.0.0.1:8090" valid:"address" help:"address of the HTTP API, HOST:PORT; port 0 picks a free one; empty is none, for worker, router and planner"`
		TLSCert        string   `key:"tls-cert" group:"network" on:"up,frontend,worker,router,planner" help:"file with the certificate of the HTTP API, its chain included (PEM): with it HTTP is HTTPS; a changed file is reloaded"`
		TLSKey         string   `key:"tls-key" group:"network" on:"up,frontend,worker,router,planner" help:"file with the key of tls-cert (PEM)"`
		APIKeyFile     string   `key:"api-key-file" group:"network" on:"up,frontend,worker,router,planner" help:"file with API keys and their limits (YAML): with it every request to the HTTP API must show one; a changed file is reloaded"`
		MetricsAccess  string   `key:"metrics-access" group:"network" on:"up,frontend,worker,router,planner" default:"admin" valid:"admin|open" help:"which keys may read /metrics when there is an api-key-file: admin (a key with admin: true) or open"`
		AccessLog      string   `key:"access-log" group:"common" default:"on" default-up:"off" valid:"on|off" help:"on or off: a line for each HTTP request that is over, at level info of component access"`
		MaxBodyBytes   int64    `key:"max-body-bytes" on:"up,frontend,router" default:"33554432" valid:"1024..1099511627776" help:"largest request body"`
		MaxInflight    int      `key:"max-inflight" on:"up,frontend,router" default:"4096" valid:"1..16777216" help:"requests a frontend or router serves at once before it refuses more (a frontend with 503)"`
		SSEKeepAlive   Duration `key:"sse-keep-alive" default:"15s" valid:"positive" help:"silence after which a stream says that it lives, with a comment that clients skip"`
		RequestTimeout Duration `key:"request-timeout" valid:"0s is no bound" help:"longest time of a whole request, its answer included; 0s is no bound"`
		HeaderTimeout  Duration `key:"header-timeout" default:"10s" valid:"positive" help:"longest time in which a client sends the headers of a request, and TLS agrees"`
		BodyTimeout    Duration `key:"body-timeout" default:"1m" valid:"positive" help:"longest time in which a client sends the body of a request"`
		WriteTimeout   Duration `key:"write-timeout" default:"1m" valid:"positive" help:"time after which a client that takes nothing of its answer is gone"`
		IdleTimeout    Duration `key:"idle-timeout" default:"2m" valid:"positive" help:"time after which a connection without a request is closed"`
		MaxConnections int      `key:"max-connections" on:"up,frontend,worker,router,planner" default:"16384" valid:"1..16777216" help:"connections of HTTP at once; one more is closed as it comes"`
		MaxHeaderBytes int      `key:"max-header-bytes" default:"65536" valid:"4096..16777216" help:"largest headers of a request"`
	} `group:"limits" on:"up,frontend"`

	// NATS are the settings of the connection to NATS and of an embedded server.
	NATS struct {
		Listen    string   `key:"nats-listen" group:"common" valid:"address" help:"embed a NATS server that others reach at HOST:PORT (up always embeds one, for itself unless this is given)"`
		URLs      string   `key:"nats" group:"common" on:"frontend,worker,router,planner" help:"URL of the fleet's NATS server, several separated by commas: nats://HOST:PORT, tls://…, with USER:PASSWORD@ if it asks"`
		Creds     string   `key:"nats-creds" on:"frontend,worker,router,planner" help:"file with NATS credentials (JWT and seed)"`
		TokenFile string   `key:"nats-token-file" on:"up,frontend,worker,router,planner" help:"file with the token that an embedded NATS server asks of others, and that is shown to --nats"`
		TLSCA     string   `key:"nats-tls-ca" on:"up,frontend,worker,router,planner" help:"file with the certificates that sign the NATS server's (PEM); empty is the system's. An embedded server with a certificate asks its clients for one that they sign"`
		TLSCert   string   `key:"nats-tls-cert" on:"up,frontend,worker,router,planner" help:"file with this process's certificate for NATS (PEM); an embedded server that has one speaks TLS only"`
		TLSKey    string   `key:"nats-tls-key" on:"up,frontend,worker,router,planner" help:"file with the key of nats-tls-cert (PEM)"`
		Wait      Duration `key:"nats-wait" on:"frontend,worker,router,planner" default:"15s" valid:"positive" help:"time that --nats has to answer at the start; later interruptions may last"`
	} `group:"network" on:"up,frontend,worker,router"`

	// Fleet are the settings by which instances find each other.
	Fleet struct {
		Discovery       string   `key:"discovery" on:"frontend,worker,router,planner" default:"nats" valid:"nats|file|static" help:"where instances find each other: nats, file (a directory that all share), or static (a list of addresses)"`
		DiscoveryDir    string   `key:"discovery-dir" on:"frontend,worker,router,planner" help:"directory of --discovery file"`
		StaticWorkers   []string `key:"static-workers" on:"frontend,worker,router" help:"address of a worker for --discovery static, such as tcp://10.0.0.7:7000; repeatable. A worker needs only the addresses of workers which it asks: encode workers, and workers of role prefill and decode one another's"`
		Namespace       string   `key:"namespace" group:"common" on:"up,frontend,worker,router,planner" default:"penstock" valid:"name" help:"fleet that instances register in and find each other by"`
		Component       string   `key:"component" group:"common" on:"up,frontend,worker,router,planner" default:"backend" valid:"name" help:"component name of the workers: a worker's own, and that of those to whom a frontend or router sends"`
		Endpoint        string   `key:"endpoint" group:"common" on:"up,worker,router" default:"generate" valid:"name" help:"endpoint name that the workers, or the router, register"`
		RouterComponent string   `key:"router-component" group:"router" on:"router" default:"router" valid:"name" help:"component name of the router itself: frontends with this --component send to it"`
		WorkerID        uint64   `key:"worker-id" on:"worker,router" help:"number of this instance in the fleet, below 2^53; 0 draws one, which --data-dir keeps"`
		WorkerName      string   `key:"worker-name" on:"worker,router" help:"name of this instance in tables, for people; empty is that of its host"`
	} `group:"network" on:"frontend,worker,router"`

	// RPC are the settings of the request plane.
	RPC struct {
		Plane     string `key:"request-plane" default:"tcp" valid:"tcp|http|nats" help:"what requests travel over to this process: tcp, http or nats; it calls others by what they advertise"`
		Addr      string `key:"rpc-addr" on:"frontend,worker,router" valid:"address" help:"address to serve requests at, HOST:PORT; port 0 picks a free one. Empty is a free port at the address of this host from which it reaches the NATS server, 127.0.0.1 if that is on this host"`
		BulkAddr  string `key:"bulk-addr" on:"worker" valid:"address" help:"address to receive bulk data at, such as decoded media, HOST:PORT; port 0 picks a free one. Empty is a free port at the address of an empty rpc-addr. Others reach it at the host of rpc-advertise. A worker listens there from the first object that it fetches; with mm-transfer=shm and an engine in its own process it does not"`
		BulkUCX   bool   `key:"bulk-ucx" on:"frontend,worker" bare:"true" help:"move bulk data over UCX where both ends have this set: by RDMA if the hosts have it. For builds with the tag ucx. UCX encrypts nothing, and every client of its ports is taken for a peer"`
		Advertise string `key:"rpc-advertise" on:"frontend,worker,router" help:"HOST or HOST:PORT at which others reach rpc-addr; empty is what it listens on, and of all interfaces the address from which it reaches the NATS server"`
		TLSCert   string `key:"rpc-tls-cert" help:"file with this process's certificate for the request plane (PEM)"`
		TLSKey    string `key:"rpc-tls-key" help:"file with the key of rpc-tls-cert (PEM)"`
		TLSCA     string `key:"rpc-tls-ca" help:"file with the certificates that sign those of the request plane (PEM): with it calls go over TLS, and a worker asks its callers for one"`
		TokenFile string `key:"rpc-token-file" help:"file with the token that callers show on the request plane"`
	} `group:"network" on:"frontend,worker,router"`

	// Events are the settings of the event plane.
	Events struct {
		Plane     string   `key:"event-plane" default:"nats" valid:"nats|zmq" help:"what cache events, load and slots travel over: nats (without a server they end at the process), or zmq (ZeroMQ from process to process, without a server: routers leave no snapshots)"`
		Addr      string   `key:"event-addr" valid:"address" help:"address to publish events at with --event-plane zmq, HOST:PORT; what was published before is asked for at the port behind it; port 0 picks two free ones. Empty is two free ones at the address of an empty rpc-addr"`
		Advertise string   `key:"event-advertise" help:"HOST at which others reach event-addr; empty is that of rpc-advertise, or, as there, what it listens on or reaches the NATS server from"`
		Peers     []string `key:"event-peers" help:"event-addr of another process, HOST:PORT, for --discovery static; repeatable, and the process itself may be among them"`
	} `group:"network" on:"frontend,worker,router"`

	// Engine are the settings of engines, of their caches, batches and models.
	Engine struct {
		Engines          Engines  `key:"engine" group:"common" on:"up,worker,planner" default:"tiny" help:"engine of the workers: tiny (computes on the CPU), sim (simulated), or one that runs already: vllm=URL, sglang=URL, trtllm=URL, llamacpp=URL or python=URL, with options behind commas (docs/engines.md); up takes several of those"`
		Wait             Duration `key:"engine-wait" default:"10m" valid:"positive" help:"time that an engine that runs already has to answer at the start, of several the first one; engines that answer later are taken in then; an engine of --exec that does not serve for as long later is started again"`
		KVEvents         string   `key:"kv-events" on:"worker" help:"ZeroMQ endpoint at which the engine publishes its cache events, such as tcp://10.0.0.5:5557, or one to listen at for an engine that dials, such as tcp://*:5557; data-parallel rank i has the port plus i"`
		KVReplay         string   `key:"kv-replay" on:"worker" help:"ZeroMQ endpoint at which the engine repeats cache events that were missed, such as tcp://10.0.0.5:5558"`
		Workers          int      `key:"workers" group:"common" on:"up" default:"2" valid:"1..1024" help:"number of workers; engines that run already have one for each data-parallel rank"`
		PrefillWorkers   int      `key:"prefill-workers" group:"common" on:"up" valid:"0..1024" help:"number of workers with role prefill, which compute long prompts for the other workers, which are decode workers then. Engines of this program only"`
		EncodeWorkers    int      `key:"encode-workers" group:"common" on:"up" valid:"0..1024" help:"number of workers with role encode, which the other workers ask to encode images, videos and sounds; engine tiny only. Each has an embedding cache of its own"`
		Role             string   `key:"role" group:"common" on:"worker" default:"aggregated" valid:"aggregated|prefill|decode|encode" help:"what the worker is for: aggregated (prefill and decode), decode (which takes whole requests too), encode (media for the others, with engine tiny or a vLLM which does that), or prefill (prompts for decode workers, with engines of this program or a vLLM which has kv-connector)"`
		Model            string   `key:"model" group:"common" on:"up,worker,planner" help:"built-in model to serve, of which each engine has one: penstock-tiny or penstock-sim; empty is the engine's. Not used with --model-path"`
		ModelPath        string   `key:"model-path" group:"common" on:"up,frontend,worker,router,planner" help:"directory of a Hugging Face checkpoint; engine sim reads all but its weights. In front of engines that run already, and for frontends and routers: where the tokenizer is, if not where the engine or the worker names it"`
		ServedModelName  []string `key:"served-model-name" group:"common" on:"up,worker,planner" help:"name that clients use, repeatable; the first is the model's own"`
		ToolCallParser   string   `key:"tool-call-parser" default:"auto" help:"form in which the model writes calls of functions: auto (what its template, vocabulary or name tell), none, or a name such as hermes, llama3_json, mistral, deepseek_v3, harmony"`
		ReasoningParser  string   `key:"reasoning-parser" default:"auto" help:"form in which the model writes reasoning: auto, none, or a name such as qwen3, deepseek_r1, gpt_oss, mistral, granite"`
		Preprocess       string   `key:"preprocess" on:"up,frontend" default:"local" valid:"local|engine" help:"what tokenizes and runs chat templates: local (the frontend), or engine (the workers' engines, for models whose tokenizer or template is refused here)"`
		ChatProcessor    string   `key:"dyn-chat-processor" on:"up,frontend" help:"Dynamo's name of preprocess: vllm is engine, dynamo is local"`
		BlockSize        int      `key:"kv-cache-block-size" on:"up,worker,planner" default:"16" valid:"2..1024" help:"tokens per KV-cache block; of an engine that runs already it is found out, and must be this or a divisor of this if it is given"`
		Blocks           int      `key:"kv-cache-blocks" on:"up,worker,planner" valid:"0..16777216" help:"KV-cache blocks per worker; 0 is the engine's own: tiny sizes the cache from the model, sim has 1048576 tokens"`
		Pool             string   `key:"pool" help:"pool of KV blocks which workers of this host share, ID=PATH:SIZE (0=/dev/shm/pool:2GiB): full blocks are copied there, and fetched from there in place of being computed. PATH is a file or a DAX device; the first worker makes the file, and all workers give its size. ID names it to routers: give each pool of the fleet, also of another host, another one. Engine tiny only; empty is none"`
		MaxNumSeqs       int      `key:"max-num-seqs" on:"up,worker,planner" default:"256" valid:"1..65536" help:"sequences that a worker runs at once"`
		MaxBatchedTokens int      `key:"max-num-batched-tokens" on:"up,worker,planner" valid:"0..1048576" help:"tokens that a worker computes in one step; longer prompts are prefilled in chunks. 0 is the engine's own: 512 of tiny, 8192 of sim"`
		MaxWaiting       int      `key:"max-waiting" default:"1024" valid:"1..1048576" help:"requests that a worker queues before it refuses more"`
		HostedExperts    string   `key:"hosted-experts" on:"worker" help:"experts of a mixture-of-experts model that the worker hosts, if not all: LAYERS:EXPERTS or LAYERS:EXPERTS@SHARE, separated by commas (0-60:0-31,0-60:64@0.5), SHARE being how much of the tokens for them it computes itself; routers prefer it for requests that expect them"`
		CanaryInterval   Duration `key:"canary-interval" default:"10s" valid:"0s turns it off" help:"silence after which a worker asks its engine for a token, to see whether it works; 0s never does"`
		StallTimeout     Duration `key:"stall-timeout" help:"time without a token after which a stream goes on at another worker although its engine works, from 10s to 5m; 0s learns it from the engine's streams"`
	} `group:"engine" on:"up,worker"`

	// Exec are the settings of an engine which worker --exec starts.
	Exec struct {
		Dialect     string   `key:"dialect" default:"auto" valid:"auto|vllm|sglang|llamacpp" help:"kind of the engine that --exec starts: vllm, sglang or llamacpp; auto is told by the command's name"`
		Log         string   `key:"exec-log" help:"file to which the output of the engine that --exec starts is appended; empty is standard error, each line with a prefix"`
		Restarts    int      `key:"exec-restarts" default:"5" valid:"0..1000" help:"times in a row that an engine which --exec started, and which served, is started again when it ends; a minute of serving begins a new row; then the worker ends with the engine's exit code"`
		StopTimeout Duration `key:"exec-stop-timeout" default:"20s" valid:"positive" help:"time that an engine which --exec started has to end after SIGTERM, which it gets when running requests are finished; then it is killed"`
		Options     string   `key:"exec-options" help:"options of the engine that --exec starts, as behind the URL of engine: mode=pass,api-key-file=FILE"`
	} `group:"engine" on:"worker"`

	// Simulation are the settings of the simulated engine.
	Simulation struct {
		Timing         string    `key:"sim-timing" default:"mocker" help:"model of the time that a simulated engine takes: mocker, mocker-0.2, llm-d-like or smg-like"`
		Prefill        []float64 `key:"sim-prefill" valid:"-1e9..1e9" help:"milliseconds in which a simulated engine computes prompts, instead of the times of sim-timing: of the pass, of each token, of the square of the tokens, of each prompt, of the square of each prompt, of each pair of a token and one before it; those left out are 0 (16.5,0.0152,4.2e-7)"`
		Decode         []float64 `key:"sim-decode" valid:"-1e9..1e9" help:"milliseconds in which it gives its sequences a token, likewise: of the pass, of the share of KV-cache blocks in use, of the square of that share, of each sequence, of each token of context (5.74,54,-25.7)"`
		Profile        string    `key:"sim-profile" help:"file of measured times (NPZ) to interpolate, instead of the times of sim-timing"`
		Encoder        string    `key:"sim-encoder" default:"1024:4.8,6144:12.3" help:"milliseconds in which an image or the like is encoded, by the tokens that it fills: TOKENS:MS, separated by commas (256:12.5,1024:40); straight lines between; nothing is no time. Kinds may have times of their own, separated by semicolons (image:256:12;video:3840:49;audio:750:3)"`
		Encoders       int       `key:"sim-encoders" default:"1" valid:"0..1024" help:"encoders beside the steps of a simulated engine, each of which encodes one image or the like at a time; 0 encodes in the steps, which take longer then"`
		MediaFaults    string    `key:"sim-media-faults" on:"up,worker" help:"failures of the encoders of a simulated engine, to see what becomes of requests: KIND or KIND:TOKENS, separated by commas (out_of_memory:256), for all media or those with so many tokens or more; kinds are corrupt, out_of_memory, deadline, encoder_lost, size_differs, encoder_failed and unreachable"`
		Speedup        float64   `key:"sim-speedup" default:"1" valid:"0.001..1e6" help:"how many times as fast a simulated engine is as its model of time says"`
		DecodeSpeedup  float64   `key:"sim-decode-speedup" default:"1" valid:"0.001..1e6" help:"how many times as fast decode is besides, as with speculative decoding"`
		LoadFactor     float64   `key:"sim-load-factor" default:"1" valid:"1..1000" help:"how many times as long everything takes with max-num-seqs sequences as with one; straight line between"`
		Jitter         float64   `key:"sim-jitter" valid:"0..0.3" help:"standard deviation of the times of steps as a share of them, at most 0.3"`
		Seed           uint64    `key:"sim-seed" on:"up,worker" help:"seed of what is drawn in a simulated engine, such as the jitter"`
		Startup        Duration  `key:"sim-startup" on:"up,worker" valid:"0s turns it off" help:"time that a simulated engine takes to start"`
		PrefixCaching  string    `key:"sim-prefix-caching" on:"up,worker" default:"on" valid:"on|off" help:"on or off: whether a simulated engine keeps the blocks of sequences that ended, to see what that is worth"`
		ChunkedPrefill string    `key:"sim-chunked-prefill" on:"up,worker" default:"on" valid:"on|off" help:"on or off: whether a simulated engine computes long prompts in several steps; without, max-num-batched-tokens must hold the longest"`
		MoE            string    `key:"sim-moe" on:"up,worker" help:"shape of a mixture of experts, LAYERS:EXPERTS or LAYERS:EXPERTS:GROUPS (61:256:8): the cache events of simulated engines then label each block with an expert"`
		CXL            string    `key:"sim-cxl" on:"up" help:"memory that the simulated engines of this process share, POOL:BLOCKS or POOL:BLOCKS:DELAY (0:65536:5ms): blocks are copied there, and fetched from there in place of being computed"`
		ContextLength  int       `key:"sim-context-length" on:"up,worker" help:"tokens of prompt and answer that a simulated model takes; 0 is what the checkpoint at model-path says, or 262144"`
		Output         int       `key:"sim-output" on:"up,worker" default:"256" valid:"0..16777216" help:"mean length in tokens of an answer to which the client set no limit; 0 has it go on to the end of the context"`
		Text           string    `key:"sim-text" on:"up,worker" default:"passage" valid:"passage|echo" help:"what a simulated model answers: passage (a text to read) or echo (the prompt)"`
	} `group:"simulation" on:"up,worker,replay,planner"`

	// Router are the settings for the choice of a worker, and for requests whose worker fails.
	Router struct {
		Mode                string    `key:"router-mode" group:"common" default:"time" valid:"time|kv|round-robin|random|power-of-two|least-loaded|direct" help:"how workers are chosen: time, kv, round-robin, random, power-of-two, least-loaded or direct; kv if a weight of it is set and no mode"`
		OverlapWeight       float64   `key:"kv-overlap-score-weight" default:"1" valid:"0..1e9" help:"in mode kv, weight of the prefill left after cache reuse against decode load; 0 routes by load alone"`
		NoKVEvents          bool      `key:"no-kv-events" bare:"true" help:"follow no cache events: what is cached is predicted from what was sent, for 2m0s, corrected by what workers report"`
		PredictedTTL        Duration  `key:"router-predicted-ttl" default:"2s" valid:"0s turns it off" help:"time for which a prompt is believed to be cached where it was sent, until events say so; 0s waits for the events"`
		Temperature         float64   `key:"router-temperature" valid:"0..1e9" help:"0 takes the cheapest worker, more spreads requests over near-equals"`
		Seed                uint64    `key:"router-seed" help:"seed of the router's tie breaks and random modes; 0 draws one at start"`
		ReplicaSync         string    `key:"router-replica-sync" default:"on" valid:"on|off" help:"on or off: routers of one component tell each other what they have sent to its workers, so that each counts the requests of all"`
		TrackOutput         string    `key:"router-track-output-blocks" default:"off" valid:"on|off" help:"on or off: blocks of answers count as load of their worker as they are generated, and fade towards the expected end of a request that gives one (nvext.agent_hints.osl)"`
		BusyThreshold       float64   `key:"busy-threshold" valid:"share" help:"share of a worker's KV-cache blocks above which it takes no new requests, 0 to 1; 0 is no bound"`
		BusyPrefillTokens   int       `key:"busy-prefill-tokens" valid:"0..1073741824" help:"prompt tokens waiting for prefill on a worker above which it takes no new requests; 0 is no bound"`
		SnapshotThreshold   int       `key:"router-snapshot-threshold" default:"10000" valid:"0..1073741824" help:"messages of cache events after which a router leaves a snapshot of what it knows, for routers that start later; 0 leaves none"`
		ResetStates         string    `key:"router-reset-states" bare:"on" default:"off" valid:"off|on|force" help:"on: throw away what earlier routers left of cache events and snapshots, unless others are using it; force: throw it away; off: use it"`
		QueueWeight         float64   `key:"router-prefill-queue-weight" default:"1" valid:"0..1e9" help:"in mode kv, what a block of prefill work that other requests have on a worker costs against one of the request's own"`
		NearCost            float64   `key:"router-near-cost" valid:"share" help:"share of the least cost by which another may exceed it and still count as equal: of two such workers drawn at random the less loaded is taken; 0 to 1"`
		FetchCosts          []float64 `key:"router-fetch-costs" default:"0.25,0.75,0.25" valid:"share" help:"what a cached block costs that is not on the worker's device, as a share of computing it: in host memory, on disk, in a pool that the worker can attach"`
		AffinityWeights     []float64 `key:"router-affinity-weights" default:"1,0.1,1,1" valid:"0..1e9" help:"what preferences are worth, in blocks: a block labelled as moe_query asks, the experts that it expects for each block of the prompt, the worker of the request's session for each block of the prompt; and, per ms of prefill, a ms of encoding that is saved because the worker holds the embeddings (1 if left out)"`
		SessionAffinity     string    `key:"router-session-affinity" default:"soft" valid:"soft|hard|off" help:"what a request's session id (x-session-id, nvext.session_control) is worth: soft prefers the worker that had its last request, hard keeps to it while it can be chosen, off takes no notice"`
		SessionTTL          Duration  `key:"router-session-ttl" default:"10m" valid:"positive" help:"silence after which a session is forgotten"`
		TTFTTarget          Duration  `key:"ttft-target" on:"up,frontend,router,planner" default-planner:"500ms" valid:"0s is no target" help:"longest time to the first token, in mode time: of the workers that are predicted to meet it the one of least cost is chosen; a request may give its own (router_config_override.ttft_target_ms)"`
		ITLTarget           Duration  `key:"itl-target" on:"up,frontend,router,planner" default-planner:"50ms" valid:"0s is no target" help:"longest mean time between two tokens of an answer, in mode time, as ttft-target"`
		TargetMiss          string    `key:"router-target-miss" default:"wait" valid:"wait|refuse" help:"what happens to a request that no worker can answer within its targets: wait (in the router, behind requests that can meet theirs) or refuse (at once, with 503 and Retry-After)"`
		QueueThreshold      string    `key:"router-queue-threshold" default:"off" help:"share of a worker's max-num-batched-tokens above which so many prompt tokens wait there that requests rather wait in the router; off never"`
		QueuePolicy         string    `key:"router-queue-policy" default:"fcfs" valid:"fcfs|wspt" help:"which waiting request the router sends first: fcfs (the oldest) or wspt (the one with least to compute)"`
		QueueDepth          int       `key:"router-queue-depth" default:"1024" valid:"1..1048576" help:"requests that may wait in the router for each model, 8/9 of them of one API key; one more is refused with 503"`
		QueuePatience       Duration  `key:"router-queue-patience" default:"30s" valid:"positive" help:"time after which a request that waits in the router goes before those of higher priority"`
		MigrationLimit      int       `key:"migration-limit" default:"3" valid:"0..100" help:"times a request may move to another worker after a failure"`
		MigrationWait       Duration  `key:"migration-wait" default:"10s" valid:"0s turns it off" help:"time that a request that lost its worker waits for another while there is none; 0s does not wait"`
		PromptWait          Duration  `key:"prompt-wait" on:"up,frontend" default:"2s" valid:"positive" help:"time that a request which an engine takes as it is waits for the tokens of its prompt and for what its media are; then its worker is chosen without them"`
		ActiveRequestExpiry Duration  `key:"active-request-expiry" default:"10m" help:"time after which a reservation that was neither freed nor renewed is dropped; running requests renew theirs"`
	} `group:"router" on:"up,frontend,router"`

	// Media are the settings for images, videos and audio in requests.
	Media struct {
		Identity         string   `key:"media-identity" on:"up,frontend,router" default:"url" valid:"url|bytes|pixels" help:"what images, videos and sounds are known by: url (as sent, data: URIs by their bytes; only the beginning of a file is fetched, for its size), bytes (of the file), or pixels (what it shows, whatever the file); models with frontend-decoding are always known by pixels"`
		URLTTL           Duration `key:"media-url-ttl" default:"1h" valid:"0s is for ever" help:"time for which a URL counts as showing the same, in frontends, routers and embedding caches; 0s is for ever"`
		AllowPrivate     bool     `key:"media-allow-private" bare:"true" help:"fetch media from addresses of private networks and of this machine too"`
		AllowHosts       []string `key:"media-allow-hosts" help:"host that media are fetched from, and no other: example.com, or .example.com for it and all below it; repeatable; none is every host"`
		MaxBytes         int64    `key:"media-max-bytes" default:"67108864" valid:"1024..4294967296" help:"largest file of an image, video or sound"`
		MaxPixels        int64    `key:"media-max-pixels" default:"33554432" valid:"1024..1073741824" help:"largest image, in pixels, and largest sum over the frames of a video that is decoded here"`
		MaxObjects       int      `key:"media-max-objects" on:"up,frontend,router" default:"32" valid:"1..256" help:"images, videos and sounds that a request may show, at most 256"`
		Timeout          Duration `key:"media-timeout" default:"10s" valid:"positive" help:"time that the media of a request have to be fetched and looked at"`
		MinRate          int64    `key:"media-min-rate" default:"16384" valid:"0..1073741824" help:"least bytes a second at which a file of media must come, over each three seconds; 0 takes any"`
		CacheBytes       int64    `key:"media-cache-bytes" default:"268435456" help:"memory of files of media that are being fetched, in use, or kept for the next request"`
		FrontendDecoding bool     `key:"frontend-decoding" on:"up,worker" bare:"true" help:"have frontends fetch and decode media for the engine: they are known by their pixels then, whatever URL they come from"`
		EmbeddingCache   float64  `key:"embedding-cache-capacity-gb" on:"up,worker" default:"0.0625" valid:"0..1048576" help:"memory in GiB for what encoders made of images, videos and sounds: with engine tiny shared by the workers of a process, except that each worker of role encode has as much for itself; with engine sim each worker counts as much for itself; 0 keeps none"`
		EmbeddingDisk    string   `key:"embedding-cache-disk" on:"up,worker" help:"directory, of this process alone, for what the embedding cache of engine tiny evicts from memory: a later look-up, also after a restart, finds it there; empty is none"`
		EmbeddingDiskGB  float64  `key:"embedding-cache-disk-capacity-gb" on:"up,worker" default:"10" valid:"0..1048576" help:"size in GiB of embedding-cache-disk; the least recently used entries go first"`
		EmbeddingObjects float64  `key:"embedding-cache-object-store-gb" on:"up,worker" help:"size in GiB of the object store in NATS, which all workers share, for what their embedding caches evict from memory, or from disk if there is one; give all the same; engine tiny only; 0 is none" valid:"0..1048576"`
		EmbeddingFetch   string   `key:"embedding-fetch" on:"worker" default:"on" valid:"on|off" help:"on or off: before it encodes, a worker of engine tiny asks workers which serve requests for embeddings that they hold, and reads the memory of those on its host; off where encoding is faster than the network. Encode workers are asked all the same, and others are given what is here"`
		EmbeddingEvents  string   `key:"embedding-events" on:"up,worker" help:"ZeroMQ endpoint at which the events of the embedding cache are published for subscribers inside engines, such as tcp://:5560, which is on this machine alone, or tcp://*:5560; the port after it repeats them. Routers need none"`
		DynamoCache      string   `key:"multimodal-embedding-cache-capacity-gb" on:"up,worker" help:"Dynamo's name of embedding-cache-capacity-gb"`
		Transfer         string   `key:"mm-transfer" on:"up,worker" default:"shm" help:"how what frontends decoded reaches the engine, if it takes media with tokens: shm (shared memory of the same host; elsewhere the engine fetches from the URL), network (the fastest way there is: shared memory, UCX (bulk-ucx), TCP, or with the request; nixl is read as network), or off (the engine fetches). Off also keeps what an engine's own processor made of media from other engines"`
		Multimodal       bool     `key:"multimodal" on:"router" bare:"true" help:"find out here, and not in frontends, what the images, videos and sounds of requests are: fetch them, count their tokens, and choose workers by them"`
	} `group:"media" on:"up,frontend,worker,router"`

	// Disagg are the settings of where prompts are computed: those of decode workers, and what frontends and routers ask
	// of them.
	Disagg Disagg `group:"engine" on:"up,frontend,worker,router,replay"`

	// Encode are the settings of the media encoders of engine tiny.
	Encode struct {
		MaxJobs       int      `key:"encode-max-jobs" default:"32" valid:"1..65536" help:"images, videos and sounds that are encoded, read or fetched at once for engine tiny"`
		Threads       int      `key:"encode-threads" default:"4" valid:"1..1024" help:"encoders of engine tiny, each on a processor of its own: no more than there are processors but one, which the model has"`
		CPUBudget     ByteSize `key:"encode-cpu-budget" default:"16GB" valid:"1..4611686018427387904" help:"memory for rows that encoders of engine tiny made and the model has not read, without the embedding cache; unless it is set, at most a quarter of the machine's"`
		StagingBudget ByteSize `key:"encode-staging-budget" default:"4GB" valid:"1..4611686018427387904" help:"memory for rows that the model reads; unless it is set, at most a sixteenth of the machine's"`
		Batch         int      `key:"encode-batch" default:"8" valid:"1..1024" help:"objects of one kind and shape that are encoded together, at most"`
		BatchWait     Duration `key:"encode-batch-wait" default:"5ms" valid:"0s does not wait" help:"time that an object waits for others of its shape while every encoder is busy; 0s does not wait"`
		Timeout       Duration `key:"encode-timeout" default:"60s" valid:"positive" help:"time that the media of a request have to be encoded; then the request fails"`
	} `group:"media" on:"up,worker"`

	// Drain are the settings of the shutdown.
	Drain struct {
		Grace   Duration `key:"drain-grace" default-frontend:"5s" valid:"0s turns it off" help:"time that a frontend goes on taking requests after Ctrl-C or SIGTERM, while /health says draining, so that load balancers find another"`
		Timeout Duration `key:"drain-timeout" on:"up,frontend,worker,router,planner" default:"30s" valid:"positive" help:"time that running requests have to finish after Ctrl-C or SIGTERM"`
	} `group:"limits" on:"up,frontend"`

	// Log are the settings of the log.
	Log struct {
		Level  string `key:"log-level" default:"info" help:"debug, info, warn or error, with exceptions per component (frontend, router, worker, engine, bus, catalog, disco, nats, rpc, routerproxy, holders, planner, access, traces): info,router=debug"`
		Format string `key:"log-format" default:"text" valid:"text|json" help:"text or json"`
	} `group:"common" on:"up,frontend,worker,router,planner"`

	// Planner are the settings of the planner.
	Planner PlannerSettings `group:"planner" on:"up,planner"`
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
	var c Config
	for _, s := range listSettings() {
		text, ok := s.tag.Lookup("default-" + string(command))
		if !ok {
			text = s.tag.Get("default")
		}
		if err := decodeDefault(s.pointer(&c), text); err != nil {
			panic("config: default of " + s.key + ": " + err.Error()) // a mistake in a field tag
		}
	}
	return c
}

// decodeDefault sets a value which has the zero of its type. It leaves no list nil.
func decodeDefault(target any, text string) error {
	switch target.(type) {
	case *string, *[]string, *[]float64, *Engines:
	default:
		if text == "" {
			return nil
		}
	}
	return decodeValue(target, text)
}

// setting is a leaf of the tree.
type setting struct {
	key, group, help string
	on               []string // commands
	index            []int    // of the field, for reflect
	tag              reflect.StructTag
}

// listSettings lists the settings in the order of the tree.
func listSettings() []setting {
	return appendSettings(nil, reflect.TypeFor[Config](), setting{})
}

// appendSettings appends the settings of the struct t, whose field is parent.
func appendSettings(list []setting, t reflect.Type, parent setting) []setting {
	for i := range t.NumField() {
		f := t.Field(i)
		s := setting{
			key: f.Tag.Get("key"), help: f.Tag.Get("help"), tag: f.Tag, index: append(slices.Clone(parent.index), i),
			group: cmp.Or(f.Tag.Get("group"), parent.group), on: parent.on,
		}
		if on := f.Tag.Get("on"); on != "" {
			s.on = strings.Split(on, ",")
		}
		if s.key == "" {
			list = appendSettings(list, f.Type, s)
			continue
		}
		list = append(list, s)
	}
	return list
}

// pointer returns a pointer to the value of the setting in c.
func (s *setting) pointer(c *Config) any {
	return reflect.ValueOf(c).Elem().FieldByIndex(s.index).Addr().Interface()
}

// appliesTo reports whether the setting belongs to the command.
func (s *setting) appliesTo(command Command) bool { return slices.Contains(s.on, string(command)) }

// ResetForce is a choice of router-reset-states; the others are On and Off.
const ResetForce = "force"

// autoParser is the name of a parser which is detected from the model.
const autoParser = "auto"

// Validate reports everything wrong with the tree at once, each problem with its key.
func (c *Config) Validate() error {
	var p problems
	for _, s := range listSettings() {
		p.checkValue(s.key, reflect.ValueOf(s.pointer(c)).Elem().Interface(), s.tag.Get("valid"))
	}
	p.checkFleet(c)
	p.requirePair("tls-cert", c.HTTP.TLSCert, "tls-key", c.HTTP.TLSKey)
	p.checkEngines(c)
	p.checkEngine(c)
	p.checkRoles(c)
	p.checkRouter(c)
	p.checkMedia(c)
	p.checkSimulation(c)
	p.checkDisagg(c)
	p.checkPool(c)
	p.checkPlanner(c)
	if _, err := c.ParseLogLevels(); err != nil {
		p.report("log-level", err.Error())
	}
	return errors.Join(p...)
}

type problems []error

func (p *problems) report(key, what string) {
	*p = append(*p, fmt.Errorf("%s: %s", key, what))
}

// checkValue checks the value of a setting by the tag "valid" of its field:
//
//	A..B          a number, or numbers, from A to B
//	share         a number, or numbers, from 0 to 1
//	positive      a duration above 0
//	0s MEANING    a duration of at least 0; MEANING says what 0s does
//	name          a name of instances
//	address       an address to listen on, or empty
//	url           a URL of HTTP, or empty, or a list of URLs; it is shown without what could be a secret
//	A|B|C         one of the texts
func (p *problems) checkValue(key string, value any, valid string) {
	lo, hi, isRange := strings.Cut(valid, "..")
	switch v := value.(type) {
	case string:
		switch {
		case valid == "name":
			p.checkName(key, v)
		case valid == "url" && v != "":
			p.requireURL(key, v)
		case valid == "address" && v != "":
			if err := CheckAddress(v); err != nil {
				p.report(key, err.Error())
			}
		case strings.Contains(valid, "|"):
			p.requireOneOf(key, v, strings.Split(valid, "|")...)
		}
	case Duration:
		switch {
		case valid == "positive" && v <= 0:
			p.report(key, fmt.Sprintf("%v must be positive, for example 30s", v))
		case strings.HasPrefix(valid, "0s ") && v < 0:
			p.report(key, fmt.Sprintf("%v must not be negative; %s", v, valid))
		}
	case []string:
		for _, one := range v {
			if valid == "url" { // none is an empty list, and no empty URL in it
				p.requireURL(key, one)
			} else {
				p.checkValue(key, one, valid)
			}
		}
	case []float64:
		for _, one := range v {
			p.checkValue(key, one, valid)
		}
	case float64:
		switch {
		case valid == "share" && !(v >= 0 && v <= 1):
			p.report(key, fmt.Sprintf("%v is not a share between 0 and 1", v))
		case isRange && !(v >= parseBound(lo) && v <= parseBound(hi)):
			p.report(key, fmt.Sprintf("%v is not between %v and %v", v, parseBound(lo), parseBound(hi)))
		}
	case int:
		p.checkValue(key, int64(v), valid)
	case ByteSize:
		if isRange && (float64(v) < parseBound(lo) || float64(v) > parseBound(hi)) {
			p.report(key, fmt.Sprintf("%v is not between %s and %s bytes", v, lo, hi))
		}
	case int64:
		if isRange && (v < int64(parseBound(lo)) || v > int64(parseBound(hi))) {
			p.report(key, fmt.Sprintf("%d is not between %s and %s", v, lo, hi))
		}
	}
}

// parseBound parses a bound in a tag "valid". Each is exact as a float64.
func parseBound(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic("config: bound " + text + ": " + err.Error()) // a mistake in a field tag
	}
	return v
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

// checkMedia checks the settings of media.
func (p *problems) checkMedia(c *Config) {
	for _, h := range c.Media.AllowHosts {
		if strings.Trim(h, ".") == "" || strings.ContainsAny(h, "/:*@ ") {
			p.report("media-allow-hosts", fmt.Sprintf("%.100q is no name of a host: write example.com, or .example.com for all below it", h))
		}
	}
	if least := c.Media.MaxBytes + (c.Media.MaxBytes+1)/2; c.Media.CacheBytes < least {
		p.report("media-cache-bytes", fmt.Sprintf("%d has no room for one file of media-max-bytes: at least %d are needed", c.Media.CacheBytes, least))
	}
	p.requireOneOf("mm-transfer", c.Media.Transfer, "shm", "network", "off")
}
