package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/disagg"
)

// replayDisagg are the flags of replay for prefill workers, beside the settings of where prompts are computed.
type replayDisagg struct {
	prefillWorkers []int
	latency        time.Duration
	bandwidth      float64 // GB/s
}

func (f *replayDisagg) addFlags(fs *pflag.FlagSet) {
	fs.IntSliceVar(&f.prefillWorkers, "prefill-workers", []int{0}, "numbers of prefill workers, such as 0,2, which compute prompts for the workers; see --disagg-policy. Without any each worker computes its own")
	fs.DurationVar(&f.latency, "kv-transfer-latency", 500*time.Microsecond, "time that the KV-cache blocks of a prompt take from a prefill worker to another worker, beside that of their bytes")
	fs.Float64Var(&f.bandwidth, "kv-transfer-bandwidth", 50, "GB a second at which they leave a prefill worker; 0 takes no time")
}

// validate reports what is wrong with the flags and with the policies.
func (f *replayDisagg) validate(splits []disagg.SplitConfig) error {
	errs := []error{requireDistinct("prefill-workers", f.prefillWorkers)}
	var names []string
	for _, s := range splits {
		names = append(names, s.Policy.String())
	}
	if len(names) > 0 { // else the settings are wrong, which is reported
		errs = append(errs, requireDistinct("disagg-policy", names))
	}
	return errors.Join(errs...)
}

// chooseSplits returns the ways to decide: threshold alone if one of its settings is given and no policy.
func (f *replayDisagg) chooseSplits(splits []disagg.SplitConfig, fs *pflag.FlagSet) []disagg.SplitConfig {
	if fs.Changed("disagg-policy") || !fs.Changed("max-local-prefill-length") && !fs.Changed("max-prefill-queue-size") {
		return splits
	}
	splits = slices.Clone(splits[:1])
	splits[0].Policy = disagg.ByThreshold
	return splits
}

// varySplit returns a run for each number of prefill workers and, if there are any, each way to decide.
func (f *replayDisagg) varySplit(s scenario, splits []disagg.SplitConfig) (all []scenario) {
	name := s.displayName()
	for _, n := range f.prefillWorkers {
		for _, split := range splits {
			s.cluster.PrefillWorkers, s.cluster.Split = n, split
			s.cluster.KVLatency, s.cluster.KVBandwidth = f.latency, f.bandwidth
			if n == 0 {
				s.cluster.Split = disagg.SplitConfig{}
			} else {
				s.name = fmt.Sprintf("%s, %d prefill workers, policy %v", name, n, split.Policy)
			}
			all = append(all, s)
			if n == 0 {
				break
			}
		}
	}
	return all
}
