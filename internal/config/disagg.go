package config

import (
	"fmt"
	"strings"

	"penstock/core/disagg"
)

// Disagg are the settings of where the prompts of decode workers are computed.
type Disagg struct {
	Policy                string `key:"disagg-policy" default:"cost" help:"where the prompt of a decode worker is computed: cost (where that costs least), threshold (by a prefill worker if it is long and few wait), always or never (by a prefill worker); replay takes several, separated by commas"`
	MaxLocalPrefillLength int    `key:"max-local-prefill-length" default:"1000" valid:"0..16777216" help:"tokens, without cached ones, up to which policy threshold computes a prompt where it is decoded; giving it selects that policy"`
	MaxPrefillQueueSize   int    `key:"max-prefill-queue-size" default:"2" valid:"0..16777216" help:"prompts which wait for a prefill worker from which on policy threshold makes no more wait; giving it selects that policy"`
}

// selectPolicy selects policy threshold if one of its settings is given and no policy is.
func (d *Disagg) selectPolicy(isSet func(key string) bool) {
	if !isSet("disagg-policy") && (isSet("max-local-prefill-length") || isSet("max-prefill-queue-size")) {
		d.Policy = disagg.ByThreshold.String()
	}
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
