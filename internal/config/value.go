package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"penstock/internal/obs"
)

// valueKind describes the values of a setting or flag in words.
type valueKind struct {
	what    string // with its article
	example string // used if the default is empty; list items are separated by commas
	list    bool
}

// valueKinds maps the type names of flags to their kinds. A type which is not here has a Set method which
// explains its errors itself.
var valueKinds = map[string]valueKind{
	"bool":        {what: "true or false", example: "true"},
	"duration":    {what: "a duration with a unit", example: "30s"},
	"float64":     {what: "a number", example: "0.5"},
	"int":         {what: "a whole number", example: "10"},
	"int64":       {what: "a whole number", example: "10"},
	"uint64":      {what: "a whole number of at least 0", example: "10"},
	"intSlice":    {what: "a list of whole numbers", example: "8,16", list: true},
	"numbers":     {what: "a list of numbers", example: "16.5,0.0152", list: true},
	"string":      {what: "a text"},
	"stringArray": {what: "a list of texts", example: "a,b", list: true},
}

// exampleFor returns a value of the kind: the flag's default, unless that is empty or a list.
func (k valueKind) exampleFor(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
		return k.example
	}
	if k.list {
		return k.example
	}
	return f.DefValue
}

// describe returns the kind with an example.
func (k valueKind) describe(f *pflag.Flag) string {
	if e := k.exampleFor(f); e != "" && f.Value.Type() != "bool" {
		return k.what + ", for example " + e
	}
	return k.what
}

// explainValue explains why the flag's type cannot hold the given text. cause is the parser's error, which is
// shown only for types missing in valueKinds.
func explainValue(f *pflag.Flag, given string, cause error) string {
	k, known := valueKinds[f.Value.Type()]
	switch {
	case !known:
		return cause.Error()
	case f.Value.Type() == "bool":
		return fmt.Sprintf("%.100q is neither true nor false", given)
	case isOutOfRange(given) && strings.Contains(f.Value.Type(), "int"):
		return fmt.Sprintf("%.100q is out of range for %s", given, k.what)
	}
	return fmt.Sprintf("%.100q is not %s", given, k.describe(f))
}

// isOutOfRange reports whether text is an integer which does not fit in an int64.
func isOutOfRange(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return errors.Is(err, strconv.ErrRange)
}

// explainNode explains what is wrong with a value in a file.
func explainNode(f *pflag.Flag, n *yaml.Node, cause error) string {
	k, known := valueKinds[f.Value.Type()]
	if !known {
		return cause.Error()
	}
	if k.list {
		k.example = "[" + strings.ReplaceAll(k.example, ",", ", ") + "]"
	}
	is := ""
	switch n.Kind {
	case yaml.MappingNode:
		is = "a mapping"
	case yaml.SequenceNode:
		is = "a list"
		if k.list {
			is = "a list with other items"
		}
	case yaml.ScalarNode:
		if k.list {
			return fmt.Sprintf("%.100q is not %s", n.Value, k.describe(f))
		}
		return explainValue(f, n.Value, cause)
	default: // an alias
		is = "something else"
	}
	return fmt.Sprintf("want %s; it is %s", k.describe(f), is)
}

// ExplainFlagError explains an error of parsing a command line: the flag, the given value, the expected kind
// and an example. It returns other errors, such as those about unknown flags, unchanged.
func ExplainFlagError(err error) error {
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return fmt.Errorf("--%s: %s", f.Name, explainValue(f, invalid.GetValue(), invalid.Unwrap()))
	case errors.As(err, &missing):
		f := missing.GetFlag()
		if k, known := valueKinds[f.Value.Type()]; known && f.Value.Type() != "string" {
			return fmt.Errorf("--%s needs a value: %s", f.Name, k.describe(f))
		}
		return fmt.Errorf("--%s needs a value", f.Name)
	}
	return err
}

// newSettingFlag returns the flag of a setting, with its default for the command.
func newSettingFlag(s setting, command Command) *pflag.Flag {
	values := Defaults(command)
	return addFlag(pflag.NewFlagSet("", pflag.ContinueOnError), s.pointer(&values), s.key, "")
}

// syntaxError explains why a file is not YAML, without the library's prefix.
func syntaxError(path string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if line, what, ok := strings.Cut(rest, ": "); ok {
			return fmt.Errorf("config file %s:%s: this is not YAML: %s", path, line, what)
		}
	}
	return fmt.Errorf("config file %s: this is not YAML: %s", path, text)
}

// SettingError is an error caused by the user: the value of a setting, or the file which it names, is wrong.
type SettingError struct{ cause error }

// AsSettingError wraps err, which names the setting, in a SettingError; nil stays nil.
func AsSettingError(err error) error {
	if err == nil {
		return nil
	}
	return &SettingError{err}
}

// Error implements error.
func (e *SettingError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *SettingError) Unwrap() error { return e.cause }

// LogComponents lists the components which log under a name of their own.
func LogComponents() []string {
	return []string{"frontend", "router", "worker", "engine", "bus", "catalog", "disco", "nats", "rpc", "routerproxy", "holders", "planner", "access", "traces"}
}

// relayLevel matches a level of the component routerproxy by the name which it had.
var relayLevel = regexp.MustCompile(`(^|,)\s*relay\s*=`)

// ParseLogLevels parses log-level. An unknown component is an error.
func (c *Config) ParseLogLevels() (obs.Levels, error) {
	return obs.ParseLevels(relayLevel.ReplaceAllString(c.Log.Level, "${1}routerproxy="), LogComponents())
}
