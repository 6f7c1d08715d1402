package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"penstock/internal/zmtp"
)

// Engines are the values of the setting engine: one engine of this program by its
// name, or engines that other programs run, each as KIND=URL and what follows behind
// commas. A file has one as a text or several as a list; a variable has several
// behind each other, separated by commas like their parts, since what begins a new one
// is clear: the kind of an engine.
type Engines []string

// The kinds of engines that other programs run.
const (
	EngineVLLM     = "vllm"
	EngineSGLang   = "sglang"
	EngineTRTLLM   = "trtllm"
	EngineLlamaCpp = "llamacpp"
)

// RemoteKinds lists the kinds of engines that other programs run.
func RemoteKinds() []string {
	return []string{EngineVLLM, EngineSGLang, EngineTRTLLM, EngineLlamaCpp}
}

// The modes of a remote engine.
const (
	ModeAuto   = "auto"   // tokens where there is a tokenizer, else pass
	ModeTokens = "tokens" // the engine is given token ids and gives them back
	ModePass   = "pass"   // the engine is given what the client sent
)

// RemoteEngine is an engine that another program runs, as a value of the setting
// engine names it. Fields are zero where it does not say.
type RemoteEngine struct {
	Kind string // one of RemoteKinds
	// URL is where it serves HTTP, without a slash at the end.
	URL *url.URL
	// Events, Replay and Snapshot are ZeroMQ endpoints as the engine's own settings have
	// them, of its first data-parallel rank; those of the others follow by port.
	Events, Replay, Snapshot zmtp.Endpoint
	// Ranks is how many data-parallel ranks there are behind the URL; 0 is as many as are
	// found.
	Ranks int
	Mode  string // ModeAuto, ModeTokens or ModePass
	// BlockSize is in tokens; 0 is the engine's own.
	BlockSize int
	// APIKeyFile is the file with the key that the engine asks for.
	APIKeyFile string
	// Name is what clients call the model; "" is what the engine calls it.
	Name string
	// ModelPath is the directory of the model's tokenizer, if it is not that of the setting
	// model-path.
	ModelPath string
	// Media are the kinds of media that the model sees, ascending; nil if that is to be found out, empty if none.
	Media []string
	// MediaKeys says how the engine is told who the media of a request are: "uuid" or "off"; "" is as its kind is.
	MediaKeys string
}

// String names the engine for people: its kind and its URL, which has no secrets.
func (e *RemoteEngine) String() string { return e.Kind + "=" + e.URL.String() }

// Engine is the kind of the engines of this process: EngineTiny, EngineSim, or that of
// the first one that another program runs.
func (c *Config) Engine() string {
	if len(c.Engines) == 0 {
		return EngineTiny
	}
	kind, _, _ := strings.Cut(c.Engines[0], "=")
	return kind
}

// Remote reports whether other programs run the engines of this process.
func (c *Config) Remote() bool { return slices.Contains(RemoteKinds(), c.Engine()) }

// RemoteEngines returns the engines that other programs run, with what other settings
// say of each. It is for a tree that is valid.
func (l *Loaded) RemoteEngines() []RemoteEngine {
	if !l.Remote() {
		return nil
	}
	var all []RemoteEngine
	for _, text := range l.Engines {
		e, err := ParseRemoteEngine(text)
		if err != nil {
			continue // is valid
		}
		if l.Command == Worker {
			e.add(&l.Config)
		}
		if e.Name == "" && len(l.ServedModelName) > 0 {
			e.Name = l.ServedModelName[0]
		}
		if e.BlockSize == 0 && l.Given("kv-cache-block-size") {
			e.BlockSize = l.KVCacheBlockSize
		}
		if e.ModelPath == "" && e.Mode != ModePass {
			e.ModelPath = l.ModelPath
		}
		all = append(all, e)
	}
	return all
}

// add takes over what settings of a worker say of its engine's events.
func (e *RemoteEngine) add(c *Config) {
	if v, err := endpoint(c.KVEvents); err == nil && e.Events.IsZero() {
		e.Events = v
	}
	if v, err := endpoint(c.KVReplay); err == nil && e.Replay.IsZero() {
		e.Replay = v
	}
}

// maxRanks bounds the data-parallel ranks of an engine.
const maxRanks = 1024

// exampleEngine is what a whole value looks like, for messages.
const exampleEngine = "vllm=http://10.0.0.5:8000,events=tcp://10.0.0.5:5557,replay=tcp://10.0.0.5:5558"

// ParseRemoteEngine reads KIND=URL[,KEY=VALUE…]. Nothing of a value that could hold a
// secret is in the error.
func ParseRemoteEngine(text string) (RemoteEngine, error) {
	head, rest, more := strings.Cut(text, ",")
	kind, address, ok := strings.Cut(head, "=")
	if !ok || !slices.Contains(RemoteKinds(), kind) {
		return RemoteEngine{}, fmt.Errorf("%.40q is not an engine: write %s, %s, or KIND=URL with one of %s, for example %s", kind, EngineTiny, EngineSim, strings.Join(RemoteKinds(), ", "), exampleEngine)
	}
	e := RemoteEngine{Kind: kind, Mode: ModeAuto}
	var err error
	if e.URL, err = engineURL(kind, address); err != nil {
		return RemoteEngine{}, err
	}
	seen := map[string]bool{}
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(part, "=")
		switch {
		case seen[key]:
			err = errors.New("it is given twice")
		case value == "" && slices.Contains(engineKeys(), key):
			err = fmt.Errorf("it has no value: write %s=…", key)
		default:
			err = e.set(key, value)
		}
		if err != nil {
			return RemoteEngine{}, fmt.Errorf("%s: %.40s: %w", e.String(), key, err)
		}
		seen[key] = true
	}
	return e, e.fits()
}

// engineKeys lists what may follow the URL.
func engineKeys() []string {
	return []string{"events", "replay", "snapshot", "ranks", "mode", "block-size", "api-key-file", "name", "model-path", "media", "media-keys"}
}

// engineURL reads the URL of an engine.
func engineURL(kind, text string) (*url.URL, error) {
	const want = "want http://HOST:PORT or https://HOST[:PORT], with a path if the engine has one"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		// It is not repeated: it may hold a password.
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

// set takes over one part of a value.
func (e *RemoteEngine) set(key, value string) (err error) {
	switch key {
	case "events":
		e.Events, err = endpoint(value)
	case "replay":
		e.Replay, err = endpoint(value)
	case "snapshot":
		e.Snapshot, err = endpoint(value)
	case "ranks":
		e.Ranks, err = number(value, 1, maxRanks)
	case "block-size":
		e.BlockSize, err = number(value, 2, 65536)
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
		e.Media, err = mediaKinds(value)
	case "media-keys":
		if e.MediaKeys = value; value != "uuid" && value != "off" {
			err = fmt.Errorf("%.40q is not one of uuid, off", value)
		}
	default:
		err = fmt.Errorf("there is no such key; those are %s%s", strings.Join(engineKeys(), ", "), hintOf(key))
	}
	return err
}

// mediaKinds reads the kinds of media that a model sees: some of audio, image and video, with + between them, or none.
func mediaKinds(text string) ([]string, error) {
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

// hintOf says what was perhaps meant by a key that there is not.
func hintOf(key string) string {
	switch key {
	case "api-key", "key", "token", "password":
		return "; a key itself is not taken here, since command lines can be read by others: put it into a file for api-key-file"
	}
	if slices.Contains(RemoteKinds(), key) {
		return "; a second engine is a second --engine"
	}
	return ""
}

// number reads a whole number between two bounds.
func number(text string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("%.40q is not a number from %d to %d", text, lo, hi)
	}
	return n, nil
}

// endpoint reads the ZeroMQ endpoint of an engine, that this side dials or, with * or
// 0.0.0.0 for the host, listens at.
func endpoint(text string) (zmtp.Endpoint, error) {
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

// meet reports whether endpoints of different ranks would be the same.
func (e *RemoteEngine) meet() bool {
	if e.Events.IsZero() || e.Replay.IsZero() {
		return false
	}
	for i := range e.Ranks {
		if e.Events.Rank(i) == e.Replay || e.Replay.Rank(i) == e.Events {
			return true
		}
	}
	return false
}

// fits checks what the parts mean together.
func (e *RemoteEngine) fits() error {
	silent := e.Kind == EngineLlamaCpp
	switch {
	case silent && !e.Events.IsZero():
		return fmt.Errorf("%s: events: llama.cpp sends none; leave it out: what its slots hold is followed by what is sent to it", e)
	case !e.Replay.IsZero() && e.Events.IsZero() && e.Kind != EngineSGLang: // SGLang says itself where it publishes
		return fmt.Errorf("%s: replay: it repeats events, and there are none to follow: give events=tcp://HOST:PORT too", e)
	case !e.Snapshot.IsZero() && e.Events.IsZero():
		return fmt.Errorf("%s: snapshot: it goes together with events: give events=tcp://HOST:PORT too", e)
	case silent && e.Ranks > 1:
		return fmt.Errorf("%s: ranks: llama.cpp has one; give each server a --engine of its own", e)
	case e.meet():
		return fmt.Errorf("%s: replay: rank i has the port of events plus i and that of replay plus i, so that some of them are the same with ranks=%d: have the engine keep the two ports at least %d apart", e, e.Ranks, e.Ranks)
	case e.Mode == ModePass && e.ModelPath != "":
		return fmt.Errorf("%s: model-path: with mode=pass only the engine makes tokens; leave out one of them", e)
	}
	return nil
}

// UnmarshalYAML reads one engine, or a list.
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

// splitEngines reads engines that are separated like their parts.
func splitEngines(value string) Engines {
	all := Engines{}
	for part := range strings.SplitSeq(value, ",") {
		key, _, assigned := strings.Cut(part, "=")
		if len(all) > 0 && assigned && !slices.Contains(RemoteKinds(), key) {
			all[len(all)-1] += "," + part
			continue
		}
		all = append(all, part)
	}
	return all
}

// enginesFlag is the flag of the setting: each one given is one more engine, the first
// of them in place of the default.
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
func (f *enginesFlag) String() string { return strings.Join(f.list.shown(), " ") }

// Type implements pflag.Value.
func (f *enginesFlag) Type() string { return "engine" }

// shown is the list without anything that could be a secret.
func (e *Engines) shown() []string {
	var out []string
	for _, text := range *e {
		parts := strings.Split(text, ",")
		for i, part := range parts {
			parts[i] = shownPart(part)
		}
		out = append(out, strings.Join(parts, ","))
	}
	return out
}

// shownPart is one part of a value without anything that could be a secret: what is not
// known is not shown.
func shownPart(part string) string {
	key, value, assigned := strings.Cut(part, "=")
	switch {
	case !assigned:
		return part
	case slices.Contains(engineKeys(), key):
		return part
	case !slices.Contains(RemoteKinds(), key):
		return key + "=xxxxx"
	}
	u, err := url.Parse(value)
	if err != nil {
		return key + "=(unreadable)"
	}
	if u.User != nil {
		u.User = url.User("xxxxx")
	}
	if u.RawQuery != "" {
		u.RawQuery = "xxxxx"
	}
	if u.Fragment != "" {
		u.Fragment = "xxxxx"
	}
	return key + "=" + u.String()
}

// value is the setting as it is shown: one engine as a text, like that of a file.
func (e *Engines) value() any {
	shown := e.shown()
	if len(shown) == 1 {
		return shown[0]
	}
	return shown
}

// engines checks the engines themselves, and that they can be together.
func (p *problems) engines(c *Config) {
	if len(c.Engines) == 0 {
		p.add("engine", "there is none: write tiny, sim, or KIND=URL, for example "+exampleEngine)
		return
	}
	local, remote, feeds := 0, map[string]bool{}, map[zmtp.Endpoint]bool{}
	for _, text := range c.Engines {
		if text == EngineTiny || text == EngineSim {
			local++
			continue
		}
		e, err := ParseRemoteEngine(text)
		if err != nil {
			p.add("engine", err.Error())
			continue
		}
		at := e.URL.String()
		if remote[at] {
			p.add("engine", fmt.Sprintf("%s is given twice: an engine has one worker, or one for each data-parallel rank (ranks=N)", at))
		}
		remote[at] = true
		if !e.Events.IsZero() && feeds[e.Events] {
			p.add("engine", fmt.Sprintf("events=%s is given twice: each engine publishes at an endpoint of its own", e.Events))
		}
		feeds[e.Events] = true
		if e.ModelPath != "" {
			p.directory("engine", e.ModelPath)
		}
	}
	switch {
	case local > 0 && len(remote) > 0:
		p.add("engine", "engines of this program (tiny, sim) and of others are not mixed in one process: start two workers in a fleet, or leave one of them out")
	case local > 1:
		p.add("engine", "one engine of this program is enough: workers says how many there are of it")
	}
	if len(remote) > 0 && len(c.ServedModelName) > 1 {
		p.add("served-model-name", "an engine that runs already is told one name: name=NAME of each says which")
	}
	p.feeds(c)
}

// feeds checks the settings of a worker that say where its engine's events are.
func (p *problems) feeds(c *Config) {
	for _, s := range []struct{ key, value string }{{"kv-events", c.KVEvents}, {"kv-replay", c.KVReplay}} {
		if s.value == "" {
			continue
		}
		if _, err := endpoint(s.value); err != nil {
			p.add(s.key, err.Error())
		}
	}
}

// oneRemote checks what a worker's engine and the settings beside it say together.
func (p *problems) oneRemote(c *Config) {
	if len(c.Engines) > 1 {
		p.add("engine", "a worker has one engine: start a worker for each, or one process in front of all with penstock up")
		return
	}
	if !c.Remote() {
		if c.KVEvents+c.KVReplay != "" {
			p.add("kv-events", fmt.Sprintf("it is about engines that other programs run, and engine %s is not one", c.Engine()))
		}
		return
	}
	e, err := ParseRemoteEngine(c.Engines[0])
	if err != nil {
		return // has been said
	}
	switch {
	case c.KVEvents != "" && !e.Events.IsZero():
		p.add("kv-events", "the value of engine says events= too; give one of them")
		return
	case c.KVReplay != "" && !e.Replay.IsZero():
		p.add("kv-replay", "the value of engine says replay= too; give one of them")
		return
	}
	e.add(c)
	if err := e.fits(); err != nil {
		p.add("kv-events", err.Error())
	}
}
