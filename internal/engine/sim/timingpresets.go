package sim

import (
	"fmt"
	"slices"
	"strings"
)

// preset is a named choice of formulas.
type preset struct {
	name    string
	prefill Prefill
	decode  Decode
}

// presets returns those that there are, the default first. Where they come from is in
// docs/sim.md.
func presets() []preset {
	return []preset{
		// Dynamo's mocker as it is now: a fit to measurements of an 8B model.
		{
			"mocker",
			Prefill{Pass: 16.50142, Token: 1.518344e-2, TokenSquared: 4.209989e-7},
			Decode{Base: 5.74, Use: 54.01, UseSquared: -25.74},
		},
		// The same of release 0.2, where each prompt of a batch was charged alone.
		{
			"mocker-0.2",
			Prefill{Prompt: 26.2, Token: 7.41e-2, PromptSquared: 1.25e-6},
			Decode{Base: 19.44, Use: 43.88, UseSquared: -5.47},
		},
		// The middle of what llm-d-inference-sim recommends for an 8B model on an H100:
		// 25-40 ms and 0.15-0.30 ms/token, 10-15 ms between tokens.
		{
			"llm-d-like",
			Prefill{Pass: 32.5, Token: 0.225},
			Decode{Base: 12.5},
		},
		// SMG's mock worker: 8000 tokens/s, 6 ms and 0.35 ms for each sequence.
		{
			"smg-like",
			Prefill{Token: 0.125},
			Decode{Base: 6, Sequence: 0.35},
		},
	}
}

// Presets returns the names that Preset knows, the default first.
func Presets() []string {
	var names []string
	for _, p := range presets() {
		names = append(names, p.name)
	}
	return names
}

// Preset returns the timing of that name, with defaults for all but the formulas of
// prefill and decode. "" is the default, "mocker".
func Preset(name string) (Timing, error) {
	all := presets()
	i := slices.IndexFunc(all, func(p preset) bool { return p.name == name })
	if name == "" {
		i = 0
	}
	if i < 0 {
		return Timing{}, fmt.Errorf("sim timing %q: there is no such preset; take one of %s", name, strings.Join(Presets(), ", "))
	}
	t := Timing{Prefill: all[i].prefill, Decode: all[i].decode}
	t.EnsureDefaults()
	return t, nil
}
