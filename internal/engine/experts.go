package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxHosted bounds the pairs of layer and expert that one worker may name.
const maxHosted = 1 << 16

// ParseExperts parses the setting that names the experts which a worker hosts: LAYERS:EXPERTS or
// LAYERS:EXPERTS@SHARE, separated by commas, where LAYERS and EXPERTS are a number or a range
// (0-60:0-31,0-60:64@0.5). It returns nil for "".
func ParseExperts(s string) ([]HostedExperts, error) {
	if s == "" {
		return nil, nil
	}
	shares, n := map[uint32]map[uint32]float64{}, 0
	for part := range strings.SplitSeq(s, ",") {
		layers, rest, ok := strings.Cut(part, ":")
		experts, text, shared := strings.Cut(rest, "@")
		share := 1.0
		if shared {
			v, err := strconv.ParseFloat(text, 64)
			ok, share = ok && err == nil && v >= 0 && v <= 1, v
		}
		l, okLayers := parseIDRange(layers)
		e, okExperts := parseIDRange(experts)
		if !ok || !okLayers || !okExperts {
			return nil, fmt.Errorf("%.100q is not LAYERS:EXPERTS or LAYERS:EXPERTS@SHARE, such as 0-60:0-31@0.5", part)
		}
		if n += l.count() * e.count(); n > maxHosted {
			return nil, fmt.Errorf("names more than %d experts of all layers together", maxHosted)
		}
		for layer := range l.count() {
			of := shares[l.first+uint32(layer)]
			if of == nil {
				of = map[uint32]float64{}
				shares[l.first+uint32(layer)] = of
			}
			for expert := range e.count() {
				of[e.first+uint32(expert)] = share
			}
		}
	}
	var out []HostedExperts
	for _, layer := range slices.Sorted(maps.Keys(shares)) {
		h := HostedExperts{Layer: layer, Experts: slices.Sorted(maps.Keys(shares[layer]))}
		for _, expert := range h.Experts {
			h.Shares = append(h.Shares, shares[layer][expert])
		}
		if !slices.ContainsFunc(h.Shares, func(share float64) bool { return share != 1 }) {
			h.Shares = nil
		}
		out = append(out, h)
	}
	return out, nil
}

// idRange is the ids from first to last, inclusive.
type idRange struct{ first, last uint32 }

func (s idRange) count() int { return int(s.last-s.first) + 1 }

func parseIDRange(s string) (idRange, bool) {
	first, last, two := strings.Cut(s, "-")
	if !two {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	return idRange{uint32(a), uint32(b)}, errA == nil && errB == nil && a <= b
}
