package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// Engines are the values of the setting engine: the name of one built-in engine, or remote engines, each as
// KIND=URL[,KEY=VALUE…]. A file has one as a string or several as a list. A variable has several separated by
// commas, as their options are; an engine's kind starts a new one.
type Engines []string

// The kinds of remote engines.
const (
	EngineVLLM     = "vllm"
	EngineSGLang   = "sglang"
	EngineTRTLLM   = "trtllm"
	EngineLlamaCpp = "llamacpp"
	EnginePython   = "python" // serve_endpoint of sdk/python
)

// RemoteKinds lists the kinds of remote engines.
func RemoteKinds() []string {
	return []string{EngineVLLM, EngineSGLang, EngineTRTLLM, EngineLlamaCpp, EnginePython}
}

// The modes of a remote engine.
const (
	ModeAuto   = "auto"   // tokens if there is a tokenizer, else pass
	ModeTokens = "tokens" // the engine receives and returns token ids
	ModePass   = "pass"   // the engine receives the client's request unchanged
)

// The roles of a vLLM in the transfer of encoded media (--ec-transfer-config).
const (
	ECProducer = "producer"
	ECConsumer = "consumer"
)

// KVConnectorNIXL is vLLM's NixlConnector (--kv-transfer-config).
const KVConnectorNIXL = "nixl"

// RemoteEngine is an engine which another program runs, as given by a value of the setting engine. Fields are
// zero if the value does not set them.
type RemoteEngine struct {
	Kind string // one of RemoteKinds
	// URL is the base URL of its HTTP API, without a trailing slash.
	URL *url.URL
	// Events, Replay and Snapshot are the ZeroMQ endpoints of the first data-parallel rank, as in the
	// engine's own settings. The ports of the other ranks follow from them.
	Events, Replay, Snapshot zmtp.Endpoint
	// Ranks is the number of data-parallel ranks behind the URL; 0 detects it.
	Ranks int
	Mode  string // ModeAuto, ModeTokens or ModePass
	// BlockSize is in tokens; 0 takes the engine's.
	BlockSize int
	// APIKeyFile is the file with the engine's API key.
	APIKeyFile string
	// Name is the model's name for clients; "" takes the engine's.
	Name string
	// ModelPath is the directory of the model's tokenizer; "" takes the setting model-path.
	ModelPath string
	// Media are the kinds of media which the model accepts, ascending; nil detects them, empty means none.
	Media []string
	// MediaKeys says how the engine receives the identity of a request's media: "uuid" or "off"; "" is the
	// default of the engine's kind.
	MediaKeys string
	// ProcessorArgs is the value of vLLM's --mm-processor-kwargs, the arguments of its media processor; "" if
	// there are none.
	ProcessorArgs string
	// ECRole is ECProducer of a vLLM which encodes media for others and generates nothing, ECConsumer of one which takes
	// what others encoded; "" of neither.
	ECRole string
	// KVConnector is KVConnectorNIXL of a vLLM which hands prompts over to others, and takes them; "" of another.
	KVConnector string
	// Unchecked disables the comparison of the engine's media token counts with Penstock's.
	Unchecked bool
}

// String returns the engine's kind and URL, which contains no secrets.
func (e *RemoteEngine) String() string { return e.Kind + "=" + e.URL.String() }

// EngineKind returns the kind of this process's engines: EngineTiny, EngineSim, or that of the first remote
// engine.
func (c *Config) EngineKind() string {
	if len(c.Engine.Engines) == 0 {
		return EngineTiny
	}
	kind, _, _ := strings.Cut(c.Engine.Engines[0], "=")
	return kind
}

// HasRemoteEngines reports whether the engines of this process are remote.
func (c *Config) HasRemoteEngines() bool { return slices.Contains(RemoteKinds(), c.EngineKind()) }

// RemoteEngines returns the remote engines, completed from other settings. The tree must be valid.
func (l *Loaded) RemoteEngines() []RemoteEngine {
	if !l.HasRemoteEngines() {
		return nil
	}
	var all []RemoteEngine
	for _, text := range l.Engine.Engines {
		e, err := ParseRemoteEngine(text)
		if err != nil {
			continue // validated before
		}
		if l.Command == Worker {
			e.applyWorkerSettings(&l.Config)
		}
		if e.Name == "" && len(l.Engine.ServedModelName) > 0 {
			e.Name = l.Engine.ServedModelName[0]
		}
		if e.BlockSize == 0 && l.IsSet("kv-cache-block-size") {
			e.BlockSize = l.Engine.BlockSize
		}
		if l.Command == Worker && l.Engine.Role == engine.RoleEncode.String() {
			e.ECRole = ECProducer
		}
		if e.ModelPath == "" && e.Mode != ModePass {
			e.ModelPath = l.Engine.ModelPath
		}
		all = append(all, e)
	}
	return all
}

// applyWorkerSettings sets the event endpoints from a worker's settings kv-events and kv-replay, unless they
// are set already.
func (e *RemoteEngine) applyWorkerSettings(c *Config) {
	if v, err := parseEndpoint(c.Engine.KVEvents); err == nil && e.Events.IsZero() {
		e.Events = v
	}
	if v, err := parseEndpoint(c.Engine.KVReplay); err == nil && e.Replay.IsZero() {
		e.Replay = v
	}
}

// maxRanks bounds the data-parallel ranks of an engine.
const maxRanks = 1024

// exampleEngine is a complete value, for messages.
const exampleEngine = "vllm=http://10.0.0.5:8000,events=tcp://10.0.0.5:5557,replay=tcp://10.0.0.5:5558"

// ParseRemoteEngine reads KIND=URL[,KEY=VALUE…]. Its error contains no part of a value which could be a
// secret.
func ParseRemoteEngine(text string) (RemoteEngine, error) {
	head, rest, more := strings.Cut(text, ",")
	kind, address, ok := strings.Cut(head, "=")
	if !ok || !slices.Contains(RemoteKinds(), kind) {
		return RemoteEngine{}, fmt.Errorf("%.40q is not an engine: write %s, %s, or KIND=URL with one of %s, for example %s", kind, EngineTiny, EngineSim, strings.Join(RemoteKinds(), ", "), exampleEngine)
	}
	e := RemoteEngine{Kind: kind, Mode: ModeAuto}
	if kind == EnginePython {
		e.Mode = ModeTokens
	}
	var err error
	if e.URL, err = parseEngineURL(kind, address); err != nil {
		return RemoteEngine{}, err
	}
	seen := map[string]bool{}
	for more {
		var part string
		part, rest, more = cutPart(rest)
		key, value, _ := strings.Cut(part, "=")
		switch {
		case seen[key]:
			err = errors.New("it is given twice")
		case value == "" && slices.Contains(engineOptionKeys(), key):
			err = fmt.Errorf("it has no value: write %s=…", key)
		default:
			err = e.setOption(key, value)
		}
		if err != nil {
			return RemoteEngine{}, fmt.Errorf("%s: %.40s: %w", e.String(), key, err)
		}
		seen[key] = true
	}
	return e, e.validate()
}

// engineOptionKeys lists the keys which may follow the URL.
func engineOptionKeys() []string {
	return []string{"events", "replay", "snapshot", "ranks", "mode", "block-size", "api-key-file", "name", "model-path", "media", "media-keys", "mm-processor-kwargs", "media-check", "ec-role", "kv-connector"}
}

// cutPart is strings.Cut at the first comma outside a JSON object.
func cutPart(text string) (part, rest string, more bool) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case depth > 0 && quoted && c == '\\':
			i++
		case depth > 0 && c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth <= 0:
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}

// splitParts returns the comma-separated parts of a value, of one or of several engines.
func splitParts(text string) []string {
	var all []string
	for more := true; more; {
		var part string
		part, text, more = cutPart(text)
		all = append(all, part)
	}
	return all
}

// parseEngineURL parses the URL of an engine.
func parseEngineURL(kind, text string) (*url.URL, error) {
	const want = "want http://HOST:PORT or https://HOST[:PORT], with a path if the engine has one"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		// The message does not repeat the text, which may contain a password.
		return nil, fmt.Errorf("%s: its address is not a URL: %s, for example %s=http://127.0.0.1:8000", kind, want, kind)
	case u.User != nil:
		return nil, fmt.Errorf("%s: its URL has a user or a password in it: put the key of the engine into a file and name that with api-key-file=FILE", kind)
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil, fmt.Errorf("%s: its URL has more than an address and a path: %s", kind, want)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("%s: the port of its URL is not between 1 and 65535", kind)
		}
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u, nil
}

// setOption sets the field for one part of a value.
func (e *RemoteEngine) setOption(key, value string) (err error) {
	switch key {
	case "events":
		e.Events, err = parseEndpoint(value)
	case "replay":
		e.Replay, err = parseEndpoint(value)
	case "snapshot":
		e.Snapshot, err = parseEndpoint(value)
	case "ranks":
		e.Ranks, err = parseNumber(value, 1, maxRanks)
	case "block-size":
		e.BlockSize, err = parseNumber(value, 2, 65536)
	case "mode":
		if e.Mode = value; !slices.Contains([]string{ModeAuto, ModeTokens, ModePass}, value) {
			err = fmt.Errorf("%.40q is not one of auto, tokens, pass", value)
		}
	case "api-key-file":
		e.APIKeyFile = value
	case "name":
		e.Name = value
	case "model-path":
		e.ModelPath = value
	case "media":
		e.Media, err = parseMediaKinds(value)
	case "media-keys":
		if e.MediaKeys = value; value != "uuid" && value != "off" {
			err = fmt.Errorf("%.40q is not one of uuid, off", value)
		}
	case "mm-processor-kwargs":
		e.ProcessorArgs, err = parseProcessorArgs(value)
	case "ec-role":
		if e.ECRole = value; value != ECProducer && value != ECConsumer {
			err = fmt.Errorf("%.40q is not one of producer, consumer", value)
		}
	case "kv-connector":
		if e.KVConnector = value; value != KVConnectorNIXL {
			err = fmt.Errorf("%.40q is not %s", value, KVConnectorNIXL)
		}
	case "media-check":
		if e.Unchecked = value == "off"; value != "on" && value != "off" {
			err = fmt.Errorf("%.40q is not one of on, off", value)
		}
	default:
		err = fmt.Errorf("there is no such key; those are %s%s", strings.Join(engineOptionKeys(), ", "), suggestKey(key))
	}
	return err
}

// parseMediaKinds parses the kinds of media which a model accepts: some of audio, image and video, joined by
// +, or none.
func parseMediaKinds(text string) ([]string, error) {
	kinds := []string{}
	if text == "none" {
		return kinds, nil
	}
	for kind := range strings.SplitSeq(text, "+") {
		if !slices.Contains([]string{"audio", "image", "video"}, kind) || slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("%.40q is neither none nor some of audio, image and video with + between them, each once", text)
		}
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds, nil
}

// maxProcessorArgs bounds the processor arguments, in bytes. Model cards have the same bound.
const maxProcessorArgs = 4096

// parseProcessorArgs parses a JSON object and returns it in canonical form without spaces, so that the
// arguments of two engines can be compared.
func parseProcessorArgs(text string) (string, error) {
	var args map[string]any
	if err := json.Unmarshal([]byte(text), &args); err != nil || args == nil || len(text) > maxProcessorArgs {
		return "", fmt.Errorf(`%.40q is not a JSON object of at most %d bytes, such as {"max_pixels":1003520}`, text, maxProcessorArgs)
	}
	b, err := json.Marshal(args)
	return string(b), err
}

// suggestKey explains a likely mistake behind an unknown key; "" if there is none.
func suggestKey(key string) string {
	switch key {
	case "api-key", "key", "token", "password":
		return "; a key itself is not taken here, since command lines can be read by others: put it into a file for api-key-file"
	}
	if slices.Contains(RemoteKinds(), key) {
		return "; a second engine is a second --engine"
	}
	return ""
}

// parseNumber parses an integer from lo to hi.
func parseNumber(text string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("%.40q is not a number from %d to %d", text, lo, hi)
	}
	return n, nil
}

// parseEndpoint parses a ZeroMQ endpoint of an engine. This process dials it, or listens on it if the host is
// * or 0.0.0.0.
func parseEndpoint(text string) (zmtp.Endpoint, error) {
	e, err := zmtp.ParseEndpoint(text)
	switch {
	case len(text) > 300 || err != nil && !strings.HasPrefix(text, "tcp://") && !strings.HasPrefix(text, "ipc://"):
		return zmtp.Endpoint{}, fmt.Errorf("%.100q is not an endpoint: want tcp://HOST:PORT, with the host by which this machine reaches the engine, or ipc://PATH", text)
	case err != nil:
		return zmtp.Endpoint{}, err
	case e.Network() == "tcp" && strings.HasSuffix(e.String(), ":0"):
		return zmtp.Endpoint{}, fmt.Errorf("%q has no port: want one from 1 to 65535, as in tcp://10.0.0.5:5557", text)
	}
	return e, nil
}

// endpointsCollide reports whether the endpoints of two ranks would be the same.
func (e *RemoteEngine) endpointsCollide() bool {
	if e.Events.IsZero() || e.Replay.IsZero() {
		return false
	}
	for i := range e.Ranks {
		if e.Events.RankEndpoint(i) == e.Replay || e.Replay.RankEndpoint(i) == e.Events {
			return true
		}
	}
	return false
}

// validate checks that the options fit together.
func (e *RemoteEngine) validate() error {
	silent := e.Kind == EngineLlamaCpp
	switch {
	case silent && !e.Events.IsZero():
		return fmt.Errorf("%s: events: llama.cpp sends none; leave it out: what its slots hold is followed by what is sent to it", e)
	case !e.Replay.IsZero() && e.Events.IsZero() && e.Kind != EngineSGLang: // SGLang reports its event endpoint itself
		return fmt.Errorf("%s: replay: it repeats events, and there are none to follow: give events=tcp://HOST:PORT too", e)
	case !e.Snapshot.IsZero() && e.Events.IsZero():
		return fmt.Errorf("%s: snapshot: it goes together with events: give events=tcp://HOST:PORT too", e)
	case silent && e.Ranks > 1:
		return fmt.Errorf("%s: ranks: llama.cpp has one; give each server a --engine of its own", e)
	case e.endpointsCollide():
		return fmt.Errorf("%s: replay: rank i has the port of events plus i and that of replay plus i, so that some of them are the same with ranks=%d: have the engine keep the two ports at least %d apart", e, e.Ranks, e.Ranks)
	case e.ProcessorArgs != "" && e.Kind != EngineVLLM:
		return fmt.Errorf("%s: mm-processor-kwargs: it is the setting of that name of vLLM; leave it out", e)
	case e.ECRole != "" && e.Kind != EngineVLLM:
		return fmt.Errorf("%s: ec-role: only vLLM's is spoken (--ec-transfer-config), not the embedding inputs of %s; leave it out", e, e.Kind)
	case e.KVConnector != "" && e.Kind != EngineVLLM:
		return fmt.Errorf("%s: kv-connector: only vLLM's is spoken (--kv-transfer-config); leave it out", e)
	case e.KVConnector != "" && e.Mode == ModePass:
		return fmt.Errorf("%s: kv-connector: requests which are passed on as they are cannot be divided; leave it out, or mode=pass", e)
	case e.Kind == EnginePython && e.Mode != ModeTokens:
		return fmt.Errorf("%s: mode: functions in Python take tokens alone; leave it out", e)
	case e.Mode == ModePass && e.ModelPath != "":
		return fmt.Errorf("%s: model-path: with mode=pass only the engine makes tokens; leave out one of them", e)
	}
	return nil
}

// UnmarshalYAML reads one engine or a list.
func (e *Engines) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*e = Engines{n.Value}
		return nil
	}
	var list []string
	if err := n.Decode(&list); err != nil {
		return errors.New("want one engine, or a list of them")
	}
	*e = list
	return nil
}

// splitEngines splits engines which are separated by commas, as their options are.
func splitEngines(value string) Engines {
	all := Engines{}
	for _, part := range splitParts(value) {
		key, _, assigned := strings.Cut(part, "=")
		if len(all) > 0 && assigned && !slices.Contains(RemoteKinds(), key) {
			all[len(all)-1] += "," + part
			continue
		}
		all = append(all, part)
	}
	return all
}

// enginesFlag is the flag of the setting. The first value replaces the default; each further one adds an
// engine.
type enginesFlag struct {
	list  *Engines
	given bool
}

// Set implements pflag.Value.
func (f *enginesFlag) Set(value string) error {
	if !f.given {
		*f.list, f.given = nil, true
	}
	*f.list = append(*f.list, value)
	return nil
}

// String implements pflag.Value.
func (f *enginesFlag) String() string { return strings.Join(f.list.redact(), " ") }

// Type implements pflag.Value.
func (f *enginesFlag) Type() string { return "engine" }

// redact returns the list without anything which could be a secret.
func (e *Engines) redact() []string {
	var out []string
	for _, text := range *e {
		all := splitParts(text)
		for i, part := range all {
			all[i] = redactPart(part)
		}
		out = append(out, strings.Join(all, ","))
	}
	return out
}

// redactPart returns one part of a value without anything which could be a secret. It hides the values of
// unknown keys.
func redactPart(part string) string {
	key, value, assigned := strings.Cut(part, "=")
	switch {
	case !assigned:
		return part
	case slices.Contains(engineOptionKeys(), key):
		return part
	case !slices.Contains(RemoteKinds(), key):
		return key + "=xxxxx"
	}
	return key + "=" + redactURL(value)
}

// displayValue returns the redacted setting: a string if there is one engine, as in a file, else a list.
func (e *Engines) displayValue() any {
	shown := e.redact()
	if len(shown) == 1 {
		return shown[0]
	}
	return shown
}

// checkEngines checks each engine, and that they can be combined.
func (p *problems) checkEngines(c *Config) {
	if len(c.Engine.Engines) == 0 {
		p.report("engine", "there is none: write tiny, sim, or KIND=URL, for example "+exampleEngine)
		return
	}
	local, remote, feeds := 0, map[string]bool{}, map[zmtp.Endpoint]bool{}
	for _, text := range c.Engine.Engines {
		if text == EngineTiny || text == EngineSim {
			local++
			continue
		}
		e, err := ParseRemoteEngine(text)
		if err != nil {
			p.report("engine", err.Error())
			continue
		}
		at := e.URL.String()
		if remote[at] {
			p.report("engine", fmt.Sprintf("%s is given twice: an engine has one worker, or one for each data-parallel rank (ranks=N)", at))
		}
		remote[at] = true
		if !e.Events.IsZero() && feeds[e.Events] {
			p.report("engine", fmt.Sprintf("events=%s is given twice: each engine publishes at an endpoint of its own", e.Events))
		}
		feeds[e.Events] = true
		if e.ModelPath != "" {
			p.requireDirectory("engine", e.ModelPath)
		}
	}
	switch {
	case local > 0 && len(remote) > 0:
		p.report("engine", "engines of this program (tiny, sim) and of others are not mixed in one process: start two workers in a fleet, or leave one of them out")
	case local > 1:
		p.report("engine", "one engine of this program is enough: workers says how many there are of it")
	}
	if len(remote) > 0 && len(c.Engine.ServedModelName) > 1 {
		p.report("served-model-name", "an engine that runs already is told one name: name=NAME of each says which")
	}
	p.checkEventEndpoints(c)
}

// checkEventEndpoints checks a worker's settings for its engine's event endpoints.
func (p *problems) checkEventEndpoints(c *Config) {
	for _, s := range []struct{ key, value string }{{"kv-events", c.Engine.KVEvents}, {"kv-replay", c.Engine.KVReplay}} {
		if s.value == "" {
			continue
		}
		if _, err := parseEndpoint(s.value); err != nil {
			p.report(s.key, err.Error())
		}
	}
	if _, err := c.EmbeddingEndpoint(); err != nil {
		p.report("embedding-events", err.Error())
	}
	p.checkEmbeddingTiers(c)
}

// EmbeddingEndpoint returns the endpoint of embedding-events, the zero endpoint if there is none. Without a host it is on
// this machine alone.
func (c *Config) EmbeddingEndpoint() (zmtp.Endpoint, error) {
	v := c.Media.EmbeddingEvents
	if v == "" {
		return zmtp.Endpoint{}, nil
	}
	if port, ok := strings.CutPrefix(v, "tcp://:"); ok {
		v = "tcp://127.0.0.1:" + port
	}
	ep, err := zmtp.ParseEndpoint(v)
	switch {
	case err != nil:
		return ep, err
	case ep.Network() != "tcp" || ep.Port() == 65535:
		return ep, fmt.Errorf("%.100q: use tcp and a port below 65535, because the next port is needed too", v)
	}
	return ep, nil
}

// checkWorkerEngine checks a worker's engine together with the related settings.
func (p *problems) checkWorkerEngine(c *Config) {
	if len(c.Engine.Engines) > 1 {
		p.report("engine", "a worker has one engine: start a worker for each, or one process in front of all with penstock up")
		return
	}
	if !c.HasRemoteEngines() {
		if c.Engine.KVEvents+c.Engine.KVReplay != "" {
			p.report("kv-events", fmt.Sprintf("it is about engines that other programs run, and engine %s is not one", c.EngineKind()))
		}
		return
	}
	e, err := ParseRemoteEngine(c.Engine.Engines[0])
	if err != nil {
		return // already reported
	}
	switch encodes := c.Engine.Role == engine.RoleEncode.String(); {
	case encodes && e.Kind != EngineVLLM:
		p.report("role", fmt.Sprintf("encode is of no use in front of %s, whose embedding inputs are not spoken: encode workers have engine tiny, or a vLLM which was started with --ec-transfer-config", e.Kind))
	case encodes && e.ECRole == ECConsumer:
		p.report("role", "encode contradicts ec-role=consumer of the engine: a producer encodes for others")
	case !encodes && e.ECRole == ECProducer:
		p.report("role", fmt.Sprintf("%s contradicts ec-role=producer of the engine, which encodes for others and generates nothing: set it to encode", c.Engine.Role))
	}
	switch {
	case c.Engine.KVEvents != "" && !e.Events.IsZero():
		p.report("kv-events", "the value of engine says events= too; give one of them")
		return
	case c.Engine.KVReplay != "" && !e.Replay.IsZero():
		p.report("kv-replay", "the value of engine says replay= too; give one of them")
		return
	}
	e.applyWorkerSettings(c)
	if err := e.validate(); err != nil {
		p.report("kv-events", err.Error())
	}
}
