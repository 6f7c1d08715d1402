// Package launch starts an engine as a child process: it completes the engine's command line with the flags which
// Penstock needs, and supervises the process.
package launch

import (
	"encoding/json"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"penstock/internal/zmtp"
)

// Options are what a plan of a command line depends on besides the command line.
type Options struct {
	// Kind is the kind of the engine; "" detects it from the command.
	Kind string
	// MaxRanks bounds the data-parallel ranks.
	MaxRanks int
	// BlockSize is the required number of tokens in a block, a multiple of the engine's number; 0 takes the engine's.
	BlockSize int
	// Dir is a directory of this process alone, for the sockets of KV events. Its path is short.
	Dir string
	// DrawPorts returns the first of n consecutive ports which are free on this machine.
	DrawPorts func(n int) (int, error)
}

// Plan is the command line of an engine, and how it is reached.
type Plan struct {
	Kind string
	// Args is the complete command line, and Added the flags which were added or completed.
	Args, Added []string
	// HTTP is where this machine reaches the engine, HOST:PORT, and Path the path above its API; "" is none.
	HTTP, Path string
	// Events and Replay are the ZeroMQ endpoints as this machine dials them; "" if the engine has none.
	Events, Replay string
	// Ranks is the number of data-parallel ranks.
	Ranks int
	// Hint says what to try if the engine ends before it serves; "" if there is nothing in particular.
	Hint string
	// options are further options of the engine which follow from its command line.
	options []string
}

// Setting returns the value of the setting engine for the planned engine, with further options, KEY=VALUE,….
func (p *Plan) Setting(options string) string {
	all := []string{p.Kind + "=http://" + p.HTTP + p.Path}
	if p.Events != "" {
		all = append(all, "events="+p.Events)
	}
	if p.Replay != "" {
		all = append(all, "replay="+p.Replay)
	}
	if p.Ranks > 1 {
		all = append(all, "ranks="+strconv.Itoa(p.Ranks))
	}
	all = append(all, p.options...)
	if options != "" {
		all = append(all, options)
	}
	return strings.Join(all, ",")
}

// PlanCommand completes the command line of an engine: it adds what is missing, and refuses what contradicts. It starts
// nothing. Its errors are for the user and say what to do.
func PlanCommand(argv []string, o Options) (*Plan, error) {
	d, err := findDialect(argv, o.Kind)
	if err != nil {
		return nil, err
	}
	c := &planner{dialect: d, options: o, line: commandLine{slices.Clone(argv)}}
	c.plan.Kind = d.kind
	for _, step := range []func() error{c.refuseFlags, c.planRanks, c.planAddress, c.planPath, c.planBlockSize, c.planEvents, c.planConnector} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("%s: %w", d.kind, err)
		}
	}
	for _, name := range d.switches {
		if !c.line.has(name) {
			c.addFlag(name)
		}
	}
	c.plan.Args = c.line.args
	return &c.plan, nil
}

// planner makes a plan.
type planner struct {
	dialect *commandDialect
	options Options
	line    commandLine
	plan    Plan
	// ports are drawn for this engine and not yet used, ascending.
	ports []int
}

// takePorts returns the first of n consecutive free ports. All ports of an engine are drawn at once, because separate
// draws could overlap: one for HTTP, and one of events and one of replay for each rank.
func (c *planner) takePorts(n int) (int, error) {
	if c.ports == nil {
		most := 1 + 2*c.plan.Ranks
		first, err := c.options.DrawPorts(most)
		if err != nil {
			return 0, err
		}
		for i := range most {
			c.ports = append(c.ports, first+i)
		}
	}
	first := c.ports[0]
	c.ports = c.ports[n:]
	return first, nil
}

// addFlag adds a flag, with its value if it has one.
func (c *planner) addFlag(name string, value ...string) {
	c.line.args = append(append(c.line.args, "--"+name), value...)
	c.plan.Added = append(c.plan.Added, "--"+name)
}

// refuseFlags refuses flags with which the engine cannot be supervised.
func (c *planner) refuseFlags() error {
	for _, f := range c.dialect.refused {
		if c.line.has(f.name) {
			return fmt.Errorf("--%s: %s", f.name, f.remedy)
		}
	}
	for _, name := range c.dialect.jsonFlags() {
		if slices.ContainsFunc(c.line.args[1:], func(a string) bool { return strings.HasPrefix(flagName(a), name+".") }) {
			return fmt.Errorf(`--%s.KEY is not read here: give one --%s '{"KEY": …}'`, name, name)
		}
	}
	return nil
}

// number returns the value of the flag with one of the names; none if no such flag is given.
func (c *planner) number(names ...string) (n int, given bool, err error) {
	for _, name := range names {
		text, ok := c.line.value(name)
		if !ok || name == "" {
			continue
		}
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 65535 {
			return 0, true, fmt.Errorf("--%s %.40q is not a number from 1 to 65535", name, text)
		}
		return n, true, nil
	}
	return 0, false, nil
}

// planRanks reads the number of data-parallel ranks.
func (c *planner) planRanks() error {
	n, given, err := c.number(c.dialect.ranks...)
	c.plan.Ranks = 1
	if given {
		c.plan.Ranks = n
	}
	if err == nil && n > c.options.MaxRanks {
		return fmt.Errorf("%d data-parallel ranks: a worker has at most %d", n, c.options.MaxRanks)
	}
	return err
}

// planPath reads the path above the engine's API.
func (c *planner) planPath() error {
	if c.dialect.path == "" {
		return nil
	}
	given, _ := c.line.value(c.dialect.path)
	given = strings.TrimRight(given, "/")
	if given != "" && (given[0] != '/' || strings.ContainsFunc(given, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`,?#%{}[]\"`, r) })) {
		return fmt.Errorf("--%s %.100q is not a path such as /llama: correct it, or leave it out", c.dialect.path, given)
	}
	c.plan.Path = given
	return nil
}

// planAddress finds or adds the address of the engine's HTTP API. Without one the engine listens on this machine alone.
func (c *planner) planAddress() error {
	if flag := c.dialect.address; flag != "" {
		given, ok := c.line.value(flag)
		if !ok {
			port, err := c.takePorts(1)
			if err != nil {
				return err
			}
			given = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			c.addFlag(flag, given)
		}
		host, port, err := net.SplitHostPort(given)
		if err != nil || port == "0" {
			return fmt.Errorf("--%s %.100q: want HOST:PORT with a port, or leave it out: a free port is drawn then", flag, given)
		}
		c.plan.HTTP = net.JoinHostPort(reachableHost(host), port)
		return nil
	}
	host, given := c.line.value(c.dialect.host)
	switch {
	case !given:
		host = "127.0.0.1"
		c.addFlag(c.dialect.host, host)
	case host == "":
		return fmt.Errorf("--%s has no value: give it one, or leave it out", c.dialect.host)
	}
	port, given, err := c.number(c.dialect.port)
	if err != nil {
		return fmt.Errorf("%w; leave it out: a free port is drawn then", err)
	}
	if !given {
		if port, err = c.takePorts(1); err != nil {
			return err
		}
		c.addFlag(c.dialect.port, strconv.Itoa(port))
	}
	if strings.Contains(host, "/") || strings.HasSuffix(host, ".sock") {
		return fmt.Errorf("--%s %.100q: %s", c.dialect.host, host, noUDS)
	}
	c.plan.HTTP = net.JoinHostPort(reachableHost(host), strconv.Itoa(port))
	return nil
}

// reachableHost returns the host by which this machine reaches an engine which listens on host.
func reachableHost(host string) string {
	switch host {
	case "", "0.0.0.0":
		return "127.0.0.1"
	case "::":
		return "::1"
	}
	return host
}

// planBlockSize adds the block size, or checks the given one.
func (c *planner) planBlockSize() error {
	flag, want := c.dialect.blockSize, c.options.BlockSize
	if flag == "" {
		return nil
	}
	n, given, err := c.number(flag)
	switch {
	case err != nil:
		return err
	case given && want > 0 && want%n != 0:
		return fmt.Errorf("--%s %d does not fit kv-cache-block-size %d, which must be a multiple of it: change one of them, or leave one out", flag, n, want)
	case given:
		return nil
	case want > 0:
		c.addFlag(flag, strconv.Itoa(want))
		c.plan.Hint = c.dialect.blockSizeHint
	case c.dialect.addBlockSize > 0:
		c.addFlag(flag, strconv.Itoa(c.dialect.addBlockSize))
		c.plan.Hint = c.dialect.blockSizeHint
	}
	return nil
}

// planEvents adds what makes the engine publish its KV events, or checks what is given.
func (c *planner) planEvents() error {
	switch d := c.dialect; {
	case d.eventsJSON != "":
		return c.planEventsJSON()
	case d.events != "":
		for _, e := range []struct {
			flag string
			at   *string
		}{{d.events, &c.plan.Events}, {d.replay, &c.plan.Replay}} {
			text, given := c.line.value(e.flag)
			if !given {
				var err error
				if text, err = c.newEndpoint(e.flag); err != nil {
					return err
				}
				c.addFlag(e.flag, text)
			}
			at, err := reachableEndpoint(text)
			if err != nil {
				return fmt.Errorf("--%s: %w", e.flag, err)
			}
			*e.at = at
		}
	}
	return nil
}

// planEventsJSON completes and checks the JSON object with the settings of events.
func (c *planner) planEventsJSON() error {
	flag := c.dialect.eventsJSON
	text, given := c.line.value(flag)
	settings := map[string]any{}
	if given {
		if err := json.Unmarshal([]byte(text), &settings); err != nil || settings == nil {
			return fmt.Errorf("--%s %.100q is not a JSON object; leave it out: what is needed is added", flag, text)
		}
	}
	missing := false
	for _, m := range c.dialect.eventsSettings {
		switch v, ok := settings[m.key]; {
		case !ok:
			settings[m.key], missing = m.value, true
		case v != m.value:
			return fmt.Errorf("--%s: %s must be %v, because routing by cache needs the engine's events: correct it, or leave the flag out", flag, m.key, m.value)
		}
	}
	for _, e := range []struct {
		key string
		at  *string
	}{{"endpoint", &c.plan.Events}, {"replay_endpoint", &c.plan.Replay}} {
		at, ok := settings[e.key].(string)
		if !ok && settings[e.key] != nil {
			return fmt.Errorf("--%s: %s is not a text", flag, e.key)
		}
		if !ok {
			drawn, err := c.newEndpoint(e.key)
			if err != nil {
				return err
			}
			at, settings[e.key], missing = drawn, drawn, true
		}
		reached, err := reachableEndpoint(at)
		if err != nil {
			return fmt.Errorf("--%s: %s: %w", flag, e.key, err)
		}
		if e.key == "endpoint" && !strings.HasPrefix(at, "ipc://") && !strings.Contains(at, "*") && !strings.Contains(at, "::") {
			// vLLM listens only at a path or if a * or :: is in the endpoint, and dials any other one, also 0.0.0.0.
			// Newer versions of SGLang listen there too.
			return fmt.Errorf("--%s: endpoint: the engine dials %.100s and does not listen there: write tcp://*:PORT, or leave endpoint out", flag, at)
		}
		*e.at = reached
	}
	if !missing {
		return nil
	}
	b, err := json.Marshal(settings) // with sorted keys
	if err != nil {
		return err
	}
	c.line.remove(flag)
	c.addFlag(flag, string(b))
	return nil
}

// newEndpoint returns an endpoint at which the engine can listen: a path where the engine can use one, which only this
// machine reaches, else ports, one for each rank.
func (c *planner) newEndpoint(name string) (string, error) {
	if c.dialect.pathEvents && c.plan.Ranks == 1 {
		return "ipc://" + path.Join(c.options.Dir, name), nil
	}
	port, err := c.takePorts(c.plan.Ranks)
	if err != nil {
		return "", err
	}
	return "tcp://*:" + strconv.Itoa(port), nil
}

// reachableEndpoint returns an endpoint at which the engine listens as this machine dials it.
func reachableEndpoint(text string) (string, error) {
	e, err := zmtp.ParseEndpoint(text)
	switch {
	case err != nil:
		return "", err
	case e.Network() == "tcp" && e.Port() == 0:
		return "", fmt.Errorf("%.100q has no port: give one, or leave it out", text)
	case e.IsWildcard():
		return "tcp://127.0.0.1:" + strconv.Itoa(e.Port()), nil
	}
	return text, nil
}

// The flags which tell what a vLLM is for others, each with a JSON object.
const (
	kvTransferFlag = "kv-transfer-config"
	ecTransferFlag = "ec-transfer-config"
	processorFlag  = "mm-processor-kwargs"
)

// planConnector finds what a vLLM is for others, which its adapter must know.
func (c *planner) planConnector() error {
	if !c.dialect.connector {
		return nil
	}
	if text, given := c.line.value(kvTransferFlag); given {
		var transfer struct {
			Connector string `json:"kv_connector"`
		}
		if json.Unmarshal([]byte(text), &transfer) == nil && transfer.Connector == "NixlConnector" {
			c.plan.options = append(c.plan.options, "kv-connector=nixl")
		}
	}
	if text, given := c.line.value(ecTransferFlag); given {
		var transfer struct {
			Role string `json:"ec_role"`
		}
		if json.Unmarshal([]byte(text), &transfer) == nil && strings.HasPrefix(transfer.Role, "ec_") && transfer.Role != "ec_both" {
			c.plan.options = append(c.plan.options, "ec-role="+strings.TrimPrefix(transfer.Role, "ec_"))
		}
	}
	if text, given := c.line.value(processorFlag); given {
		c.plan.options = append(c.plan.options, processorFlag+"="+text)
	}
	return nil
}

// commandLine is a command line whose flags have two dashes, or one, and a value behind an = or in the next word. Engines
// written in Python take _ for -.
type commandLine struct{ args []string }

// flagName returns the name of a flag as it is declared; "" of a word which is no flag.
func flagName(word string) string {
	if !strings.HasPrefix(word, "-") {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	return strings.ReplaceAll(name, "_", "-")
}

// find returns the place of the last flag with the name, which counts for all engines; -1 if there is none.
func (l *commandLine) find(name string) int {
	for i := len(l.args) - 1; i > 0; i-- {
		if flagName(l.args[i]) == name {
			return i
		}
	}
	return -1
}

func (l *commandLine) has(name string) bool { return l.find(name) > 0 }

// value returns the value of the last flag with the name; "" if another flag follows it.
func (l *commandLine) value(name string) (value string, given bool) {
	i := l.find(name)
	if i < 0 {
		return "", false
	}
	if _, value, assigned := strings.Cut(l.args[i], "="); assigned {
		return value, true
	}
	if i+1 < len(l.args) && !strings.HasPrefix(l.args[i+1], "--") {
		return l.args[i+1], true
	}
	return "", true
}

// remove removes all flags with the name, with their values.
func (l *commandLine) remove(name string) {
	for i := l.find(name); i > 0; i = l.find(name) {
		n := 2
		if strings.Contains(l.args[i], "=") || i+1 == len(l.args) || strings.HasPrefix(l.args[i+1], "--") {
			n = 1
		}
		l.args = slices.Delete(l.args, i, i+n)
	}
}
