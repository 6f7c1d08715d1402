package config

import (
	"fmt"
	"strings"

	"penstock/core/disagg"
)

// Disagg are the settings of where prompts are computed: those of decode workers, and what frontends and routers ask of
// them.
type Disagg struct {
	Policy                string   `key:"disagg-policy" default:"cost" help:"where a decode worker has prompts computed: cost (where it takes less time and delays fewer answers), threshold (by prefill workers if the prompt is long and their queue short), always by prefill workers while there are any, or never; threshold if one of its limits is set and no policy. What is set of a frontend or router goes before what its workers have. replay takes several, separated by commas"`
	MaxLocalPrefillLength int      `key:"max-local-prefill-length" default:"1000" valid:"0..1073741824" help:"tokens of a prompt, without the cached ones, which a decode worker computes itself at most; disagg-policy threshold only"`
	MaxPrefillQueueSize   int      `key:"max-prefill-queue-size" default:"2" valid:"0..1048576" help:"jobs waiting for a prefill worker from which on decode workers compute prompts themselves; disagg-policy threshold only"`
	PrefillWait           Duration `key:"prefill-wait" on:"up,worker" default:"10s" valid:"positive" help:"time that a prompt waits for a prefill worker; then the decode worker computes it. A prefill worker may show no progress for half of it, and all attempts may take six times as long; give all workers the same"`
}

// selectPolicy selects policy threshold if one of its limits is set and no policy is. It returns the key of that limit;
// "" is none.
func (d *Disagg) selectPolicy(isSet func(key string) bool) (by string) {
	if isSet("disagg-policy") {
		return ""
	}
	for _, key := range []string{"max-local-prefill-length", "max-prefill-queue-size"} {
		if isSet(key) {
			d.Policy = disagg.ByThreshold.String()
			return key
		}
	}
	return ""
}

// deriveDisaggPolicy selects a policy by its limits, which is set where they are then.
func (l *Loaded) deriveDisaggPolicy() {
	if by := l.Disagg.selectPolicy(l.IsSet); by != "" {
		l.origin["disagg-policy"] = l.origin[by]
	}
}

// SplitConfig returns how a decode worker decides where prompts are computed. The tree must be valid.
func (c *Config) SplitConfig() disagg.SplitConfig {
	all, _ := c.Disagg.SplitConfigs() // validated before
	return all[0]
}

// SplitSettings returns what is set, for the requests of a frontend or router. The tree must be valid.
func (l *Loaded) SplitSettings() (s disagg.SplitSettings) {
	c := l.SplitConfig()
	if l.IsSet("disagg-policy") {
		s.Policy = &c.Policy
	}
	if l.IsSet("max-local-prefill-length") {
		s.MaxLocalPrefillLength = &c.MaxLocalPrefillLength
	}
	if l.IsSet("max-prefill-queue-size") {
		s.MaxPrefillQueueSize = &c.MaxPrefillQueueSize
	}
	return s
}

// SplitConfigs returns the configuration of each policy.
func (d *Disagg) SplitConfigs() ([]disagg.SplitConfig, error) {
	var all []disagg.SplitConfig
	for name := range strings.SplitSeq(d.Policy, ",") {
		c := disagg.DefaultSplit()
		policy, err := disagg.ParsePolicy(name)
		if err != nil {
			return nil, fmt.Errorf("disagg-policy: %.40q is not one of cost, threshold, always, never", name)
		}
		c.Policy, c.MaxLocalPrefillLength, c.MaxPrefillQueueSize = policy, d.MaxLocalPrefillLength, d.MaxPrefillQueueSize
		all = append(all, c)
	}
	return all, nil
}

// checkDisagg checks the policies.
func (p *problems) checkDisagg(c *Config) {
	if _, err := c.Disagg.SplitConfigs(); err != nil {
		*p = append(*p, err)
	}
}
