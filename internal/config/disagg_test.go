package config

import (
	"strings"
	"testing"

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
