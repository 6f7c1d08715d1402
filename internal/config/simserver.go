package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// simServerCommand is the command which simulates another engine's server. It is not a role of a fleet, and
// has some of a worker's settings.
const simServerCommand Command = "sim"

// simServerKeys are the settings of simServerCommand except the ones with prefix sim-.
func simServerKeys() []string {
	return []string{"model-path", "served-model-name", "kv-cache-block-size", "kv-cache-blocks", "max-num-seqs", "max-num-batched-tokens", "max-waiting", "log-level", "log-format"}
}

// SimServerFlags are the settings of a worker's simulated engine on the command line of a simulated server.
type SimServerFlags struct{ flags *Flags }

// AddSimServerFlags defines the flags on fs, with the names, defaults and meanings of a worker's. "speedup"
// is an alias of "sim-speedup".
func AddSimServerFlags(fs *pflag.FlagSet) *SimServerFlags {
	fl := addFlags(fs, simServerCommand, func(f reflect.StructField) bool {
		key := settingKey(f)
		return strings.HasPrefix(key, "sim-") && key != "sim-cxl" && key != "sim-moe" || slices.Contains(simServerKeys(), key)
	})
	fl.values.Engines = Engines{EngineSim}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "speedup" {
			name = "sim-speedup"
		}
		return pflag.NormalizedName(name)
	})
	return &SimServerFlags{fl}
}

// Load returns the settings of a worker with a simulated engine. Its error reports everything wrong with
// them. The command line must have been parsed.
func (f *SimServerFlags) Load() (*Loaded, error) {
	if err := f.flags.values.Validate(); err != nil {
		return nil, err
	}
	return &Loaded{Config: f.flags.values, Command: Worker, origin: map[string]string{}}, nil
}
