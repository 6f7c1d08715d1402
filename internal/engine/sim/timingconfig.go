package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock/core/media"
)

// MaxEncoder bounds the points of an encoder's table.
const MaxEncoder = 256

// The limits of a Timing. They are far beyond real engines, and keep every sum finite.
const (
	maxMillis    = 1e9     // of a coefficient: eleven days
	minSpeedup   = 1e-3    // also of DecodeSpeedup
	maxSpeedup   = 1e6     // also of DecodeSpeedup
	maxLoad      = 1e3     // of the load factor
	maxShape     = 1 << 16 // of each number of KV's shape
	maxBandwidth = 1e9     // GB/s
)

// EnsureDefaults sets defaults: the formulas of the preset "mocker" if there are neither formulas nor a
// profile, and, if all of KV is zero, an 8B model of 32 layers with 8 KV heads of 128 elements of 2 bytes
// (128 KiB per token) at 64 GB/s.
func (t *Timing) EnsureDefaults() {
	if t.Prefill == (Prefill{}) && t.Decode == (Decode{}) && t.Profile == nil {
		mocker := allPresets()[0]
		t.Prefill, t.Decode = mocker.prefill, mocker.decode
	}
	if t.KV == (KV{}) {
		t.KV = KV{Layers: 32, Heads: 8, HeadDim: 128, ElementBytes: 2, Bandwidth: 64}
	}
	t.Speedup = cmp.Or(t.Speedup, 1)
	t.DecodeSpeedup = cmp.Or(t.DecodeSpeedup, 1)
	t.Load.Factor = cmp.Or(t.Load.Factor, 1)
	t.Load.Seqs = cmp.Or(t.Load.Seqs, 256)
}

// Validate reports every problem of t at once, nil if there is none.
func (t *Timing) Validate() error {
	c := problemList{}
	c.checkRange("prefill, ms per pass", t.Prefill.Pass, -maxMillis, maxMillis)
	c.checkRange("prefill, ms per token", t.Prefill.Token, -maxMillis, maxMillis)
	c.checkRange("prefill, ms per token squared", t.Prefill.TokenSquared, -maxMillis, maxMillis)
	c.checkRange("prefill, ms per prompt", t.Prefill.Prompt, -maxMillis, maxMillis)
	c.checkRange("prefill, ms per prompt squared", t.Prefill.PromptSquared, -maxMillis, maxMillis)
	c.checkRange("prefill, ms per token and token of context", t.Prefill.Context, -maxMillis, maxMillis)
	c.checkRange("decode, ms per pass", t.Decode.Base, -maxMillis, maxMillis)
	c.checkRange("decode, ms by use", t.Decode.Use, -maxMillis, maxMillis)
	c.checkRange("decode, ms by use squared", t.Decode.UseSquared, -maxMillis, maxMillis)
	c.checkRange("decode, ms per sequence", t.Decode.Sequence, -maxMillis, maxMillis)
	c.checkRange("decode, ms per token of context", t.Decode.Context, -maxMillis, maxMillis)
	c.checkRange("load factor", t.Load.Factor, 1, maxLoad)
	c.checkRange("sequences of the load factor", float64(t.Load.Seqs), 1, math.MaxInt32)
	c.checkRange("KV layers", float64(t.KV.Layers), 0, maxShape)
	c.checkRange("KV heads", float64(t.KV.Heads), 0, maxShape)
	c.checkRange("KV elements of a head", float64(t.KV.HeadDim), 0, maxShape)
	c.checkRange("KV bytes of an element", float64(t.KV.ElementBytes), 0, 16)
	c.checkRange("KV bytes per token", float64(t.KV.Bytes), 0, math.MaxInt32)
	c.checkRange("KV bandwidth in GB/s", t.KV.Bandwidth, 0, maxBandwidth)
	if t.KV.Bandwidth > 0 && t.KV.Bandwidth < 1e-6 {
		c.addProblem("KV bandwidth in GB/s is %v: must be 0 or at least 1e-06", t.KV.Bandwidth)
	}
	c.checkRange("KV transfer, fixed ms", t.KV.Fixed, 0, maxMillis)
	c.checkRange("speedup", t.Speedup, minSpeedup, maxSpeedup)
	c.checkRange("decode speedup", t.DecodeSpeedup, minSpeedup, maxSpeedup)
	c.checkRange("jitter", t.Jitter, 0, MaxJitter)
	if t.Startup < 0 {
		c.addProblem("startup is %v: must not be negative", t.Startup)
	}
	c.checkEncoder("encoder table", t.Encoder)
	for _, kind := range mediaKinds() {
		c.checkEncoder("encoder table of kind "+kind.String(), t.EncoderOf[kind])
	}
	return errors.Join(c.all...)
}

// problemList collects problems.
type problemList struct{ all []error }

func (c *problemList) addProblem(format string, args ...any) {
	c.all = append(c.all, fmt.Errorf("sim timing: "+format, args...))
}

// checkRange reports v if it is not a number from low to high.
func (c *problemList) checkRange(name string, v, low, high float64) {
	if !(v >= low && v <= high) {
		c.addProblem("%s is %v: must be between %v and %v", name, v, low, high)
	}
}

func (c *problemList) checkEncoder(name string, points []EncoderPoint) {
	if len(points) > MaxEncoder {
		c.addProblem("%s has %d points: must be at most %d", name, len(points), MaxEncoder)
		return
	}
	for i, p := range points {
		c.checkRange(fmt.Sprintf("%s, ms of point %d", name, i+1), p.Millis, 0, maxMillis)
		switch {
		case p.Tokens < 1:
			c.addProblem("%s, point %d is of %d tokens: must be at least 1", name, i+1, p.Tokens)
		case i > 0 && p.Tokens <= points[i-1].Tokens:
			c.addProblem("%s, point %d is of %d tokens: must be more than the %d before it", name, i+1, p.Tokens, points[i-1].Tokens)
		}
	}
}

// mediaKinds returns the kinds which can have an encoder table of their own.
func mediaKinds() []media.Kind { return []media.Kind{media.Image, media.Video, media.Audio} }

// ParseEncoder parses encoder tables: points as TOKENS:MS, separated by commas, in ascending order. Tables are
// separated by semicolons; one which begins with a kind of media, as in "image:256:12", is of that kind alone, and one
// which does not is of all kinds without a table of their own. A table without points takes no time. The results are
// the fields of a Timing.
func ParseEncoder(text string) (all []EncoderPoint, of map[media.Kind][]EncoderPoint, err error) {
	kinds, hasAll := mediaKinds(), false
	for table := range strings.SplitSeq(text, ";") {
		name, rest, _ := strings.Cut(strings.TrimSpace(table), ":")
		i := slices.IndexFunc(kinds, func(k media.Kind) bool { return k.String() == name })
		if i < 0 {
			if hasAll {
				return nil, nil, fmt.Errorf("sim encoder table: two tables are of all kinds; begin one with the name of a kind, as in image:1024:4.8")
			}
			hasAll = true
			if all, err = parseEncoderTable(table); err != nil {
				return nil, nil, err
			}
			continue
		}
		if _, twice := of[kinds[i]]; twice {
			return nil, nil, fmt.Errorf("sim encoder table: two tables are of kind %s", name)
		}
		points, err := parseEncoderTable(rest)
		if err != nil {
			return nil, nil, err
		}
		if of == nil {
			of = map[media.Kind][]EncoderPoint{}
		}
		of[kinds[i]] = points
	}
	return all, of, nil
}

// parseEncoderTable parses the points of a table. It returns nil for "".
func parseEncoderTable(text string) ([]EncoderPoint, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if n := strings.Count(text, ",") + 1; n > MaxEncoder {
		return nil, fmt.Errorf("sim encoder table: %d points: must be at most %d", n, MaxEncoder)
	}
	var points []EncoderPoint
	for part := range strings.SplitSeq(text, ",") {
		tokens, millis, ok := strings.Cut(strings.TrimSpace(part), ":")
		n, err := strconv.Atoi(tokens)
		ms, err2 := strconv.ParseFloat(millis, 64)
		if !ok || err != nil || err2 != nil {
			return nil, fmt.Errorf("sim encoder table: %q is not TOKENS:MS, such as 256:12.5", part)
		}
		points = append(points, EncoderPoint{n, ms})
	}
	c := problemList{}
	c.checkEncoder("encoder table", points)
	return points, errors.Join(c.all...)
}

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
