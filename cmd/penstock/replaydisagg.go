package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"penstock/internal/config"
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

// validate reports what is wrong with the flags, and policies which come twice.
func (f *replayDisagg) validate(engine *config.SimulatedEngine) error {
	errs := []error{requireDistinct("prefill-workers", f.prefillWorkers)}
	var names []string
	for _, s := range engine.Splits {
		names = append(names, s.Policy.String())
	}
	if len(names) > 0 { // else the settings are wrong, which is reported
		errs = append(errs, requireDistinct("disagg-policy", names))
	}
	return errors.Join(errs...)
}

// varySplit returns a run for each number of prefill workers and, if there are any, each way to decide.
func (f *replayDisagg) varySplit(s scenario, engine *config.SimulatedEngine) (all []scenario) {
	for _, n := range f.prefillWorkers {
		if n == 0 {
			all = append(all, s)
			continue
		}
		for _, split := range engine.Splits {
			run := s
			run.cluster.PrefillWorkers, run.cluster.Split = n, split
			run.cluster.KVLatency, run.cluster.KVBandwidth = f.latency, f.bandwidth
			run.name = fmt.Sprintf("%s, %d prefill workers, policy %v", s.displayName(), n, split.Policy)
			all = append(all, run)
		}
	}
	return all
}
