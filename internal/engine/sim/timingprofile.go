package sim

import (
	"fmt"
	"slices"
)

// Profile holds measurements of an engine: the time of a prefill by its tokens, and the time of a decode step
// by the tokens in the cache and their mean per sequence. It is linear between and beyond the points. It is
// immutable.
type Profile struct {
	isl, ttft []float64   // tokens, ms
	kv, ctx   []float64   // tokens
	itl       [][]float64 // ms, by kv and ctx
}

// The bounds of a profile's numbers. Axes are in tokens and times in milliseconds.
const (
	maxAxis = 1e12
	minStep = 1e-3 // between two points of an axis
)

// NewProfile returns a profile: ttft[i] is the time in milliseconds of a prefill of isl[i] tokens; itl[i][j]
// is the time of a decode step over kv[i] tokens in the cache, with sequences of ctx[j] tokens. It keeps the
// slices. It returns an error unless every axis ascends, has at least one point, and a time for each point.
func NewProfile(isl, ttft, kv, ctx []float64, itl [][]float64) (*Profile, error) {
	for _, axis := range []struct {
		name   string
		points []float64
	}{{arrayISL, isl}, {arrayKV, kv}, {arrayContext, ctx}} {
		if err := checkAxis(axis.points); err != nil {
			return nil, fmt.Errorf("%s: %w", axis.name, err)
		}
	}
	if len(ttft) != len(isl) {
		return nil, fmt.Errorf("%s: %d times for the %d points of %s", arrayTTFT, len(ttft), len(isl), arrayISL)
	}
	if err := checkTimes(ttft); err != nil {
		return nil, fmt.Errorf("%s: %w", arrayTTFT, err)
	}
	if len(itl) != len(kv) {
		return nil, fmt.Errorf("%s: %d rows for the %d points of %s", arrayITL, len(itl), len(kv), arrayKV)
	}
	for i, row := range itl {
		if len(row) != len(ctx) {
			return nil, fmt.Errorf("%s: row %d has %d times for the %d points of %s", arrayITL, i, len(row), len(ctx), arrayContext)
		}
		if err := checkTimes(row); err != nil {
			return nil, fmt.Errorf("%s: row %d: %w", arrayITL, i, err)
		}
	}
	return &Profile{isl: isl, ttft: ttft, kv: kv, ctx: ctx, itl: itl}, nil
}

func checkAxis(points []float64) error {
	if len(points) == 0 {
		return fmt.Errorf("no points")
	}
	for i, x := range points {
		if !(x >= 0 && x <= maxAxis) {
			return fmt.Errorf("point %d is %v: must be between 0 and %v tokens", i, x, float64(maxAxis))
		}
		if i > 0 && x-points[i-1] < minStep {
			return fmt.Errorf("point %d is %v after %v: must ascend by at least %v", i, x, points[i-1], minStep)
		}
	}
	return nil
}

func checkTimes(times []float64) error {
	for i, ms := range times {
		if !(ms >= 0 && ms <= maxMillis) {
			return fmt.Errorf("time %d is %v: must be between 0 and %v ms", i, ms, float64(maxMillis))
		}
	}
	return nil
}

func (p *Profile) prefillMillis(tokens float64) float64 {
	i, j := bracketIndexes(p.isl, tokens)
	return max(0, interpolate(p.isl, i, j, p.ttft[i], p.ttft[j], tokens))
}

// decodeMillis interpolates along the context in the two rows around kv, then between the rows.
func (p *Profile) decodeMillis(kv, ctx float64) float64 {
	i, j := bracketIndexes(p.kv, kv)
	k, l := bracketIndexes(p.ctx, ctx)
	low := interpolate(p.ctx, k, l, p.itl[i][k], p.itl[i][l], ctx)
	high := interpolate(p.ctx, k, l, p.itl[j][k], p.itl[j][l], ctx)
	return interpolate(p.kv, i, j, low, high, kv)
}

// bracketIndexes returns the points of axis whose line applies to x: the points around it, or the two at the
// nearer end. They are equal if the axis has one point.
func bracketIndexes(axis []float64, x float64) (i, j int) {
	if len(axis) == 1 {
		return 0, 0
	}
	at, _ := slices.BinarySearch(axis, x)
	at = max(1, min(at, len(axis)-1))
	return at - 1, at
}

func interpolate(axis []float64, i, j int, y0, y1, x float64) float64 {
	if i == j {
		return y0
	}
	return lineAt(axis[i], y0, axis[j], y1, x)
}
