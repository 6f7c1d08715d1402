package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"penstock/core/disagg"
)

// TestDisaggFlags: the flags of replay give a configuration for each policy, by default cost with the bounds of
// threshold.
func TestDisaggFlags(t *testing.T) {
	fs := pflag.NewFlagSet("replay", pflag.ContinueOnError)
	flags := AddSimulationFlags(fs)
	s, err := flags.Resolve()
	if err != nil || len(s.Splits) != 1 || s.Splits[0] != disagg.DefaultSplit() {
		t.Errorf("defaults: %+v, %v", s.Splits, err)
	}
	if err := fs.Parse([]string{"--max-prefill-queue-size=5"}); err != nil {
		t.Fatal(err)
	}
	if s, err = flags.Resolve(); err != nil || len(s.Splits) != 1 || s.Splits[0].Policy != disagg.ByThreshold || s.Splits[0].MaxPrefillQueueSize != 5 {
		t.Errorf("a bound of threshold: %+v, %v", s.Splits, err)
	}
	if err := fs.Parse([]string{"--disagg-policy=never,threshold", "--max-local-prefill-length=7", "--max-prefill-queue-size=9"}); err != nil {
		t.Fatal(err)
	}
	s, err = flags.Resolve()
	if err != nil || len(s.Splits) != 2 || s.Splits[0].Policy != disagg.NeverRemote || s.Splits[1].Policy != disagg.ByThreshold ||
		s.Splits[1].MaxLocalPrefillLength != 7 || s.Splits[1].MaxPrefillQueueSize != 9 {
		t.Errorf("as given: %+v, %v", s.Splits, err)
	}
	if err := fs.Parse([]string{"--disagg-policy=cost,,often", "--max-prefill-queue-size=-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err = flags.Resolve(); err == nil || !strings.Contains(err.Error(), `disagg-policy: "" is not one of cost, threshold, always, never`) ||
		!strings.Contains(err.Error(), "max-prefill-queue-size: -1 is not between 0") {
		t.Errorf("bad flags: %v", err)
	}
}

// TestDisaggPolicy: a limit of the policy threshold selects it, unless a policy is set, and what is no policy is refused.
func TestDisaggPolicy(t *testing.T) {
	for _, c := range []struct {
		command Command
		env     []string
		want    disagg.SplitConfig // of which the weight is the default's
		origin  string             // of the policy
	}{
		{Up, nil, disagg.SplitConfig{Policy: disagg.ByCost, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2}, "default"},
		{Worker, []string{"PENSTOCK_MAX_LOCAL_PREFILL_LENGTH=10"}, disagg.SplitConfig{Policy: disagg.ByThreshold, MaxLocalPrefillLength: 10, MaxPrefillQueueSize: 2}, "env PENSTOCK_MAX_LOCAL_PREFILL_LENGTH"},
		{Up, []string{"PENSTOCK_MAX_PREFILL_QUEUE_SIZE=0"}, disagg.SplitConfig{Policy: disagg.ByThreshold, MaxLocalPrefillLength: 1000}, "env PENSTOCK_MAX_PREFILL_QUEUE_SIZE"},
		{
			Up,
			[]string{"PENSTOCK_MAX_PREFILL_QUEUE_SIZE=3", "PENSTOCK_DISAGG_POLICY=always"},
			disagg.SplitConfig{Policy: disagg.AlwaysRemote, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 3},
			"env PENSTOCK_DISAGG_POLICY",
		},
	} {
		l, err := Load("", append(c.env, "PENSTOCK_DISCOVERY=static"), NoFlags(c.command))
		if err != nil {
			t.Fatal(err)
		}
		c.want.DecodeWeight = disagg.DefaultSplit().DecodeWeight
		if got := l.SplitConfig(); got != c.want || l.origin["disagg-policy"] != c.origin {
			t.Errorf("%q: %+v from %s", c.env, got, l.origin["disagg-policy"])
		}
	}
	for _, bad := range []string{"DISAGG_POLICY=kv", "DISAGG_POLICY=never,cost", "MAX_LOCAL_PREFILL_LENGTH=-1", "MAX_PREFILL_QUEUE_SIZE=x"} {
		if _, err := Load("", []string{"PENSTOCK_" + bad, "PENSTOCK_DISCOVERY=static"}, NoFlags(Up)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// TestSplitSettings: a frontend and a router have the settings as up does, and ask for those which are set alone.
func TestSplitSettings(t *testing.T) {
	for _, c := range []struct {
		command Command
		env     []string
		want    disagg.SplitSettings
	}{
		{Frontend, nil, disagg.SplitSettings{}},
		{Up, nil, disagg.SplitSettings{}},
		{Router, []string{"PENSTOCK_DISAGG_POLICY=cost"}, disagg.SplitSettings{Policy: new(disagg.ByCost)}},
		{
			Frontend,
			[]string{"PENSTOCK_MAX_LOCAL_PREFILL_LENGTH=0"},
			disagg.SplitSettings{Policy: new(disagg.ByThreshold), MaxLocalPrefillLength: new(0)},
		},
		{
			Router,
			[]string{"PENSTOCK_MAX_PREFILL_QUEUE_SIZE=1048576", "PENSTOCK_DISAGG_POLICY=never"},
			disagg.SplitSettings{Policy: new(disagg.NeverRemote), MaxPrefillQueueSize: new(disagg.MaxQueuedJobs)},
		},
	} {
		fs := pflag.NewFlagSet(string(c.command), pflag.ContinueOnError)
		flags := AddFlags(fs, c.command)
		l, err := Load("", append(c.env, "PENSTOCK_DISCOVERY=file", "PENSTOCK_DISCOVERY_DIR=/tmp"), flags)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, l.SplitSettings()); diff != "" {
			t.Errorf("%s with %q: %s", c.command, c.env, diff)
		}
		for _, key := range []string{"disagg-policy", "max-local-prefill-length", "max-prefill-queue-size"} {
			if f := fs.Lookup(key); f == nil || GroupOf(f) != "engine" {
				t.Errorf("%s has no flag %s of the group of up", c.command, key)
			}
		}
		if hasWait := fs.Lookup("prefill-wait") != nil; hasWait != c.command.HasEngines() {
			t.Errorf("%s has prefill-wait: %t", c.command, hasWait)
		}
	}
	for _, bad := range []string{"MAX_LOCAL_PREFILL_LENGTH=1073741825", "MAX_PREFILL_QUEUE_SIZE=1048577", "DISAGG_POLICY=cost,never"} {
		key, _, _ := strings.Cut(bad, "=")
		if _, err := Load("", []string{"PENSTOCK_" + bad, "PENSTOCK_DISCOVERY=file", "PENSTOCK_DISCOVERY_DIR=/tmp"}, NoFlags(Frontend)); err == nil || !strings.Contains(err.Error(), strings.ToLower(strings.ReplaceAll(key, "_", "-"))) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
