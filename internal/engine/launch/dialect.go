package launch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// commandDialect describes the command line of one kind of engine. A flag of it stands without its dashes.
type commandDialect struct {
	// kind is the kind of the engine, as in the setting engine.
	kind string
	// programs are base names of programs, and modules prefixes of the modules of python -m.
	programs, modules []string
	// host and port are the flags of the HTTP address, and address the one flag for both, HOST:PORT.
	host, port, address string
	ranks               []string // names of the flag with the number of data-parallel ranks
	path                string   // the flag with the path above the HTTP API
	// blockSize is the flag for the tokens of a block, and addBlockSize its value where the engine's default does
	// not suit; 0 leaves the engine's. blockSizeHint says what to try if the engine does not start with an added one.
	blockSize     string
	addBlockSize  int
	blockSizeHint string
	// eventsJSON is the flag with the settings of KV events, a JSON object, and eventsSettings what it must contain.
	eventsJSON     string
	eventsSettings []jsonMember
	// events and replay are the flags with the endpoints, for engines which have no eventsJSON.
	events, replay string
	// pathEvents says that the engine can publish at a path, which other machines do not reach.
	pathEvents bool
	// switches are added if they are absent.
	switches []string
	// refused are flags with which the engine cannot be supervised, or not be routed to.
	refused []refusedFlag
	// connector has the flags which tell what the engine is for others.
	connector bool
}

// jsonMember is a member of a JSON object with its only accepted value.
type jsonMember struct {
	key   string
	value any
}

// refusedFlag is a flag which is refused, with the reason and what to do.
type refusedFlag struct{ name, remedy string }

const (
	noTLS = "the engine serves this worker alone, on this machine, and needs no TLS: leave it out"
	noUDS = "the worker reaches the engine at a host and a port: leave it out"
	// oneRank refuses parts of an engine: the rest is elsewhere, and the ports of the part count from another rank.
	oneRank = "the worker starts all data-parallel ranks behind one address: leave it out, or start the engine yourself and name it with --engine"
	noKey   = "command lines can be read by others: "
	// ownKey is what the worker needs besides.
	ownKey = ", and give the worker a file with it: --exec-options api-key-file=FILE"
)

// The flags are of vLLM 0.16 to 0.32 (vllm serve --help), SGLang 0.5.3 to 0.5.23 (sglang.launch_server --help), llama.cpp's
// server of build 11434 (llama-server --help) and of penstock sim.
var dialects = []commandDialect{
	{
		kind: "vllm", programs: []string{"vllm"}, modules: []string{"vllm.entrypoints."},
		host: "host", port: "port", ranks: []string{"data-parallel-size", "dp"}, blockSize: "block-size",
		eventsJSON: "kv-events-config", eventsSettings: []jsonMember{{"enable_kv_cache_events", true}, {"publisher", "zmq"}}, pathEvents: true,
		switches: []string{"enable-prompt-tokens-details"},
		refused: []refusedFlag{
			{"no-enable-prefix-caching", noCacheRemedy},
			{"uds", noUDS},
			{"ssl-keyfile", noTLS},
			{"ssl-certfile", noTLS},
			{"headless", "it has no HTTP API: start the part of the engine which has one"},
			{"data-parallel-rank", oneRank},
			{"dpn", oneRank},
			{"data-parallel-start-rank", oneRank},
			{"dpr", oneRank},
			{"data-parallel-external-lb", oneRank},
			{"dpe", oneRank},
			{"data-parallel-hybrid-lb", oneRank},
			{"dph", oneRank},
			{"api-key", noKey + "put the key into the environment as VLLM_API_KEY" + ownKey},
		},
		connector: true,
	},
	{
		kind: "sglang", programs: []string{"sglang"}, modules: []string{"sglang.launch_server"},
		host: "host", port: "port", ranks: []string{"dp-size", "data-parallel-size", "dp"}, blockSize: "page-size", addBlockSize: 16,
		blockSizeHint: "older versions of SGLang run models with Mamba layers only with --page-size 1: add it if its output says so",
		eventsJSON:    "kv-events-config", eventsSettings: []jsonMember{{"publisher", "zmq"}},
		switches: []string{"enable-metrics", "enable-cache-report"},
		refused: []refusedFlag{
			{"disable-radix-cache", noCacheRemedy},
			{"ssl-keyfile", noTLS},
			{"ssl-certfile", noTLS},
			{"api-key", noKey + "put the key into a file for the engine's --config" + ownKey},
			{"admin-api-key", noKey + "put the key into a file for the engine's --config"},
		},
	},
	{
		kind: "llamacpp", programs: []string{"llama-server"},
		host: "host", port: "port", path: "api-prefix", switches: []string{"metrics"},
		refused: []refusedFlag{
			{"no-cache-prompt", noCacheRemedy},
			{"ssl-key-file", noTLS},
			{"ssl-cert-file", noTLS},
			{"api-key", noKey + "put the key into a file for the engine's --api-key-file" + ownKey},
		},
	},
}

const noCacheRemedy = "routing by cache needs the engine's prefix cache: leave it out, or start the engine yourself and name it with --engine"

// simDialect is the command line of penstock sim as an engine of a kind.
func simDialect(kind string) *commandDialect {
	d := &commandDialect{
		kind: kind, address: "http-addr", ranks: []string{"data-parallel-size"}, blockSize: "kv-cache-block-size",
		refused: []refusedFlag{{"kv-dial", "the worker dials the engine's events: leave it out"}},
	}
	if kind != "llamacpp" {
		d.events, d.replay, d.pathEvents = "kv-events", "kv-replay", true
	}
	return d
}

// Kinds lists the kinds of engines which can be started.
func Kinds() []string {
	var kinds []string
	for _, d := range dialects {
		kinds = append(kinds, d.kind)
	}
	return kinds
}

// DetectKind returns the kind of the engine which a command starts: kind, unless that is "". The error says what to do.
func DetectKind(argv []string, kind string) (string, error) {
	d, err := findDialect(argv, kind)
	if err != nil {
		return "", err
	}
	return d.kind, nil
}

// findDialect returns the dialect of a command line.
func findDialect(argv []string, kind string) (*commandDialect, error) {
	if len(argv) == 0 {
		return nil, fmt.Errorf("the engine's command is missing: write it behind two dashes, as in --exec -- vllm serve MODEL")
	}
	if kind != "" && !slices.Contains(Kinds(), kind) {
		return nil, fmt.Errorf("dialect %.40q is not one of %s", kind, strings.Join(Kinds(), ", "))
	}
	if slices.Contains([]string{"sh", "bash", "dash", "zsh"}, path.Base(argv[0])) && slices.Contains(argv, "-c") {
		return nil, fmt.Errorf("flags cannot be added to a text for %s -c: give the engine's command itself, without a shell", argv[0])
	}
	if sim, err := findSim(argv, kind); sim != nil || err != nil {
		return sim, err
	}
	if kind == "" {
		if kind = kindOfCommand(argv); kind == "" {
			return nil, fmt.Errorf("%.100q is no known engine: name its kind with --dialect %s", argv[0], strings.Join(Kinds(), "|"))
		}
	}
	i := slices.IndexFunc(dialects, func(d commandDialect) bool { return d.kind == kind })
	return &dialects[i], nil
}

// jsonFlags lists the flags which are read and have a JSON object as their value.
func (d *commandDialect) jsonFlags() []string {
	var all []string
	if d.eventsJSON != "" {
		all = append(all, d.eventsJSON)
	}
	if d.connector {
		all = append(all, kvTransferFlag, ecTransferFlag, processorFlag)
	}
	return all
}

// kindOfCommand returns the kind of the first module of an engine, else of the first word which is the program of one; ""
// if there is none.
func kindOfCommand(argv []string) string {
	for _, isEngine := range []func(d *commandDialect, i int) bool{
		func(d *commandDialect, i int) bool {
			return i > 0 && argv[i-1] == "-m" && slices.ContainsFunc(d.modules, func(m string) bool { return strings.HasPrefix(argv[i], m) })
		},
		func(d *commandDialect, i int) bool {
			return slices.Contains(d.programs, path.Base(argv[i])) && !isPartOfFlag(argv, i)
		},
	} {
		for i := range argv {
			for d := range dialects {
				if isEngine(&dialects[d], i) {
					return dialects[d].kind
				}
			}
		}
	}
	return ""
}

// isPartOfFlag reports whether a word is a flag, or may be the value of the flag before it, as in uv run --project
// /opt/vllm. A program behind a flag without a value is known by its subcommand serve.
func isPartOfFlag(argv []string, i int) bool {
	if strings.HasPrefix(argv[i], "-") {
		return true
	}
	if i == 0 || argv[i-1] == "--" || !strings.HasPrefix(argv[i-1], "-") || strings.Contains(argv[i-1], "=") {
		return false
	}
	return i+1 == len(argv) || argv[i+1] != "serve"
}

// findSim returns the dialect of penstock sim; nil if the command is another one.
func findSim(argv []string, kind string) (*commandDialect, error) {
	if path.Base(argv[0]) != "penstock" || len(argv) < 2 || argv[1] != "sim" {
		return nil, nil
	}
	line := commandLine{argv}
	speaks, given := line.value("dialect")
	if !given {
		speaks = "vllm"
	}
	speaks = strings.TrimSuffix(speaks, "-legacy")
	if !slices.Contains(Kinds(), speaks) {
		return nil, fmt.Errorf("penstock sim --dialect %.40s cannot be started here; those are %s", speaks, strings.Join(Kinds(), ", "))
	}
	if kind != "" && kind != speaks {
		return nil, fmt.Errorf("--dialect %s contradicts penstock sim --dialect %s: leave out one of them", kind, speaks)
	}
	return simDialect(speaks), nil
}
