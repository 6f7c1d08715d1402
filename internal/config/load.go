package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"penstock/core/route"
)

// maxConfigFile bounds the size of a configuration file, in bytes.
const maxConfigFile = 1 << 20

// envPrefix is the prefix of the environment variables of all settings.
const envPrefix = "PENSTOCK_"

// EnvFile is the variable which names the configuration file, as --config does.
const EnvFile = envPrefix + "CONFIG"

// Setting is one line of the effective tree.
type Setting struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Origin string `json:"origin"` // "default", "file PATH:LINE", "env NAME" or "flag --NAME"
}

// Loaded is an effective tree with the origin of each value.
type Loaded struct {
	Config
	// Command is the command to which the tree belongs.
	Command Command
	// ExecCommand is the command line of the engine which the worker starts; empty if it starts none.
	ExecCommand []string
	origin      map[string]string
	file        string // the configuration file; "" if there is none

	tracesEnabled bool
	tracesProblem string // why traces are off although an endpoint is configured
	hubCacheDir   string

	notices []Notice
}

// Notice tells how settings were taken, for the log.
type Notice struct {
	Message string
	Names   []string // of what it is about
}

// Notices returns what the log says of the settings once, at the start.
func (l *Loaded) Notices() []Notice { return l.notices }

// IsSet reports whether a setting has its value from anywhere but its default.
func (l *Loaded) IsSet(key string) bool { return l.origin[key] != "default" }

// Settings lists every setting of the command in the order of the tree, without what could be a secret in URLs.
func (l *Loaded) Settings() []Setting {
	var out []Setting
	for _, s := range listSettings() {
		if !s.appliesTo(l.Command) {
			continue
		}
		v := reflect.ValueOf(s.pointer(&l.Config)).Elem().Interface()
		switch of := v.(type) {
		case Duration:
			v = of.String()
		case ByteSize:
			v = of.String()
		case Engines:
			v = of.displayValue()
		case string:
			v = s.redact(of)
		case []string:
			all := slices.Clone(of)
			for i := range all {
				all[i] = s.redact(all[i])
			}
			v = all
		}
		out = append(out, Setting{Key: s.key, Value: v, Origin: l.origin[s.key]})
	}
	return out
}

// EnvName returns the name of the environment variable of a key.
func EnvName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// redact returns a text of the setting without what could be a secret.
func (s *setting) redact(text string) string {
	switch {
	case text == "":
		return ""
	case s.tag.Get("valid") == "url":
		return redactURL(text)
	case s.key == "nats": // several, separated by commas
		all := strings.Split(text, ",")
		for i := range all {
			all[i] = redactURL(strings.TrimSpace(all[i]))
		}
		return strings.Join(all, ",")
	}
	return text
}

// redactURL returns a URL without its user, query and fragment, which could be secrets: a user without password is a token.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(unreadable)"
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
	return u.String()
}

// Flags holds the settings given on a command line.
type Flags struct {
	command     Command
	values      Config
	flagSet     *pflag.FlagSet
	execCommand []string
}

// AddFlags defines the flags of the command on fs.
func AddFlags(fs *pflag.FlagSet, command Command) *Flags {
	return addFlags(fs, command, func(s *setting) bool { return s.appliesTo(command) })
}

// AddFlagsOf defines the flags of the settings with the given keys on fs, whatever commands have them: for a command
// line which needs few of them.
func AddFlagsOf(fs *pflag.FlagSet, keys ...string) *Flags {
	return addFlags(fs, Up, func(s *setting) bool { return slices.Contains(keys, s.key) })
}

// AddAllFlags defines the flags of every command on fs, for a command line which names its command only with
// [Flags.SetCommand].
func AddAllFlags(fs *pflag.FlagSet) *Flags {
	return addFlags(fs, Up, func(*setting) bool { return true })
}

func addFlags(fs *pflag.FlagSet, command Command, has func(*setting) bool) *Flags {
	fl := &Flags{command: command, values: Defaults(command), flagSet: fs}
	for _, s := range listSettings() {
		if has(&s) {
			flag := addFlag(fs, s.pointer(&fl.values), s.key, s.help)
			flag.NoOptDefVal = s.tag.Get("bare")
			flag.Annotations = map[string][]string{groupAnnotation: {s.group}}
		}
	}
	return fl
}

// NoFlags returns the flags of a command line without settings.
func NoFlags(command Command) *Flags {
	return AddFlags(pflag.NewFlagSet(string(command), pflag.ContinueOnError), command)
}

// SetCommand sets the command to which the flags belong. It is an error if a given flag is not a setting of
// that command, or if the command has no settings.
func (fl *Flags) SetCommand(command string) error {
	if !slices.Contains(Commands(), Command(command)) {
		return fmt.Errorf("%.100q is not a command with settings; those are up, frontend, worker, router and planner", command)
	}
	fl.command = Command(command)
	var errs []error
	for _, s := range listSettings() {
		if fl.flagSet.Changed(s.key) && !s.appliesTo(fl.command) {
			errs = append(errs, fmt.Errorf("--%s is not a setting of %s, but of %s", s.key, command, strings.Join(s.on, ", ")))
		}
	}
	return errors.Join(errs...)
}

func addFlag(fs *pflag.FlagSet, target any, key, help string) *pflag.Flag {
	switch p := target.(type) {
	case *string:
		fs.StringVar(p, key, *p, help)
	case *int:
		fs.IntVar(p, key, *p, help)
	case *int64:
		fs.Int64Var(p, key, *p, help)
	case *uint64:
		fs.Uint64Var(p, key, *p, help)
	case *float64:
		fs.Float64Var(p, key, *p, help)
	case *bool:
		fs.BoolVar(p, key, *p, help)
	case *[]string:
		fs.StringArrayVar(p, key, *p, help)
	case *Engines:
		fs.Var(&enginesFlag{list: p}, key, help)
	case *[]float64:
		fs.Float64SliceVar(p, key, *p, help)
		f := fs.Lookup(key)
		f.Value, f.DefValue = numbersValue{f.Value}, formatNumbers(*p)
	case *ByteSize:
		fs.Var(p, key, help)
	case *Duration:
		fs.DurationVar((*time.Duration)(p), key, time.Duration(*p), help)
	}
	return fs.Lookup(key)
}

// numbersValue is a list of numbers which help calls "numbers".
type numbersValue struct{ pflag.Value }

func (numbersValue) Type() string { return "numbers" }

// formatNumbers formats a list as a flag accepts it.
func formatNumbers(list []float64) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strings.Join(texts, ",")
}

// Load merges the defaults of a command, the file at path (or that of EnvFile in environ; none if both are
// empty), the variables in environ with prefix PENSTOCK_, and the flags which were given, and validates the
// result for the flags' command. nil flags mean the flags of up, none given. The error reports every problem at
// once. A key or variable which names no setting of any command is a problem.
func Load(path string, environ []string, flags *Flags) (*Loaded, error) {
	l, err := Read(path, environ, flags)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Read is Load for inspection: it returns the settings even if there is an error. A value which could not be
// read keeps the value of the layer below.
func Read(path string, environ []string, flags *Flags) (*Loaded, error) {
	if flags == nil {
		flags = NoFlags(Up)
	}
	l := &Loaded{Config: Defaults(flags.command), Command: flags.command, origin: map[string]string{}}
	for _, s := range listSettings() {
		l.origin[s.key] = "default"
	}
	if path == "" {
		path = configFileFromEnv(environ)
	}
	l.file = path
	l.tracesEnabled, l.tracesProblem = detectTraces(environ)
	l.hubCacheDir = findHubCacheDir(environ)
	err := errors.Join(l.applyFile(path), l.applyEnvironment(environ))
	l.applyFlags(flags)
	err = errors.Join(err, l.applyChatProcessor(), l.applyDynamoCache(), l.applyExecCommand(flags.execCommand))
	l.deriveRouterMode()
	l.deriveDisaggPolicy()
	l.deriveTransfer()
	// A value which could not be read keeps the valid value of the layer below, so nothing is reported twice.
	return l, errors.Join(err, l.Validate(), l.validateCommand(l.Command), l.checkPlannedWorkers())
}

// deriveRouterMode sets the router mode, if it is not set, to the one for which weights are set.
func (l *Loaded) deriveRouterMode() {
	if l.IsSet("router-mode") {
		return
	}
	for _, key := range []string{"kv-overlap-score-weight", "router-prefill-queue-weight"} {
		if l.IsSet(key) {
			l.Router.Mode, l.origin["router-mode"] = string(route.WeightedMode), l.origin[key]
			return
		}
	}
}

// transferNIXL is the mm-transfer of Dynamo which moves media by RDMA.
const transferNIXL = "nixl"

// deriveTransfer takes the mm-transfer nixl as what it is for: the fastest way that there is.
func (l *Loaded) deriveTransfer() {
	if l.Media.Transfer != transferNIXL {
		return
	}
	l.Media.Transfer = "network"
	if l.Command.HasEngines() {
		l.notices = append(l.notices, Notice{"NIXL is not spoken here: decoded media take the fastest way that there is, as with mm-transfer network", []string{l.origin["mm-transfer"]}})
	}
}

// configFileFromEnv returns the value of EnvFile; "" if it is not set.
func configFileFromEnv(environ []string) string {
	return lookupEnv(environ, EnvFile)
}

func (l *Loaded) applyFile(path string) error {
	if path == "" {
		return nil
	}
	data, err := readConfigFile(path)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return syntaxError(path, err)
	}
	if len(doc.Content) == 0 {
		return nil // an empty file
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("config file %s:%d: want lines of \"key: value\"", path, root.Line)
	}
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d", path, key.Line)
		setting, ok := findSetting(key.Value)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("config file %s: unknown key %.100q%s", at, key.Value, suggestSetting(key.Value)))
		case seen[key.Value]:
			errs = append(errs, fmt.Errorf("config file %s: key %.100q given twice", at, key.Value))
		case value.Tag == "!!null":
			errs = append(errs, fmt.Errorf("config file %s: %s has no value; give it one or leave the line out", at, key.Value))
		default:
			if err := value.Decode(setting.pointer(&l.Config)); err != nil {
				errs = append(errs, fmt.Errorf("config file %s: %s: %s", at, key.Value, explainNode(newSettingFlag(setting, l.Command), value, err)))
			}
			l.origin[key.Value] = "file " + at
		}
		seen[key.Value] = true
	}
	return errors.Join(errs...)
}

func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	if len(data) > maxConfigFile {
		return nil, fmt.Errorf("config file %s: larger than %d bytes", path, maxConfigFile)
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}

// applyEnvironment applies the variables. A variable of another system with the same meaning is overridden by
// ours.
func (l *Loaded) applyEnvironment(environ []string) error {
	var errs []error
	l.applyDynamoVariables(environ)
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains([]string{EnvFile, EnvKey, EnvServer, EnvBin}, name) {
			continue
		}
		key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, envPrefix)), "_", "-")
		setting, ok := findSetting(key)
		if !ok {
			errs = append(errs, fmt.Errorf("environment: %.100s names no setting%s", name, suggestSetting(key)))
			continue
		}
		if strings.TrimSpace(value) == "" && !allowsEmpty(setting.pointer(&l.Config)) {
			errs = append(errs, fmt.Errorf("environment: %s: it is empty; give it a value or unset it", name))
			continue
		}
		if err := decodeValue(setting.pointer(&l.Config), value); err != nil {
			errs = append(errs, fmt.Errorf("environment: %s: %s", name, explainValue(newSettingFlag(setting, l.Command), value, err)))
			continue
		}
		l.origin[key] = "env " + name
	}
	return errors.Join(errs...)
}

// allowsEmpty reports whether the empty string is a valid value: strings and lists can be empty.
func allowsEmpty(target any) bool {
	switch target.(type) {
	case *string, *[]string, *[]float64:
		return true
	}
	return false
}

// decodeValue parses the value of an environment variable. List items are separated by commas.
func decodeValue(target any, value string) error {
	switch p := target.(type) {
	case *string:
		*p = value
		return nil
	case *[]string:
		*p = []string{}
		if value != "" {
			*p = strings.Split(value, ",")
		}
		return nil
	case *Engines:
		*p = splitEngines(value)
		return nil
	case *[]float64:
		value = "[" + value + "]"
	}
	return yaml.Unmarshal([]byte(value), target)
}

func (l *Loaded) applyFlags(flags *Flags) {
	for _, s := range listSettings() {
		if flags.flagSet.Changed(s.key) {
			reflect.ValueOf(s.pointer(&l.Config)).Elem().Set(reflect.ValueOf(s.pointer(&flags.values)).Elem())
			l.origin[s.key] = "flag --" + s.key
		}
	}
}

// findSetting returns the setting with the given key.
func findSetting(key string) (setting, bool) {
	all := listSettings()
	if i := slices.IndexFunc(all, func(s setting) bool { return s.key == key }); i >= 0 {
		return all[i], true
	}
	return setting{}, false
}

// suggestSetting suggests the setting with the most similar key; "" if none is similar.
func suggestSetting(key string) string {
	var keys []string
	for _, s := range listSettings() {
		keys = append(keys, s.key)
	}
	best := ClosestName(key, keys)
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %.100q?", best)
}

// ClosestName returns the name with the smallest edit distance to given, the first of several; "" if none is
// near.
func ClosestName(given string, names []string) string {
	if len(given) > 64 {
		return "" // nothing is similar, and the distance is expensive
	}
	best, least := "", len(given)/3+2
	for _, name := range names {
		if d := editDistance(given, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// editDistance returns the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, diag+1)
		}
	}
	return row[len(b)]
}
