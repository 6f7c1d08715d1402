package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// simServer is the command that serves as other engines do. It is no role of a fleet, and has
// some of the settings of one.
const simServer Command = "sim"

// simServerKeys are the settings of simServer beside those that begin with sim-.
func simServerKeys() []string {
	return []string{"model-path", "served-model-name", "kv-cache-block-size", "kv-cache-blocks", "max-num-seqs", "max-num-batched-tokens", "max-waiting", "log-level", "log-format"}
}

// SimServerFlags are the settings of a worker's simulated engine on the command line of a server that
// imitates another one.
type SimServerFlags struct{ flags *Flags }

// AddSimServerFlags defines them on fs, with the names, defaults and meanings that they have for a worker.
// "speedup" is another name of "sim-speedup".
func AddSimServerFlags(fs *pflag.FlagSet) *SimServerFlags {
	fl := addFlags(fs, simServer, func(f reflect.StructField) bool {
		key := keyOf(f)
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

// Load returns the settings of a worker with that engine, or everything that is wrong with them.
// It is for a command line that has been parsed.
func (f *SimServerFlags) Load() (*Loaded, error) {
	if err := f.flags.values.Validate(); err != nil {
		return nil, err
	}
	return &Loaded{Config: f.flags.values, Command: Worker, origin: map[string]string{}}, nil
}
