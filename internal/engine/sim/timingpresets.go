package sim

import (
	"fmt"
	"slices"
	"strings"
)

// preset is a named set of formulas.
type preset struct {
	name    string
	prefill Prefill
	decode  Decode
}

// allPresets returns the presets, the default first. Their sources are in docs/sim.md.
func allPresets() []preset {
	return []preset{
		// Dynamo's current mocker: a fit to measurements of an 8B model.
		{
			"mocker",
			Prefill{Pass: 16.50142, Token: 1.518344e-2, TokenSquared: 4.209989e-7},
			Decode{Base: 5.74, Use: 54.01, UseSquared: -25.74},
		},
		// Dynamo's mocker of release 0.2, where each prompt of a batch was charged separately.
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

// PresetNames returns the names that PresetTiming accepts, the default first.
func PresetNames() []string {
	var names []string
	for _, p := range allPresets() {
		names = append(names, p.name)
	}
	return names
}

// PresetTiming returns the timing of that name, with defaults for all fields except the formulas of prefill
// and decode. "" means the default, "mocker".
func PresetTiming(name string) (Timing, error) {
	all := allPresets()
	i := slices.IndexFunc(all, func(p preset) bool { return p.name == name })
	if name == "" {
		i = 0
	}
	if i < 0 {
		return Timing{}, fmt.Errorf("sim timing %q: there is no such preset; take one of %s", name, strings.Join(PresetNames(), ", "))
	}
	t := Timing{Prefill: all[i].prefill, Decode: all[i].decode}
	t.EnsureDefaults()
	return t, nil
}
