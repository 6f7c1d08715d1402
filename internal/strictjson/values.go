package strictjson

import "math"

// MaxCount is the maximum of integers which count things. For an integer with that upper bound, an
// error names only the lower bound.
const MaxCount = math.MaxInt32

// ReadBoolInto reads a boolean into dst.
func (r *Reader) Flag(dst *bool) (err error) {
	*dst, err = r.Bool()
	return err
}

// ReadStringInto reads a string into dst.
func (r *Reader) Text(dst *string) (err error) {
	*dst, err = r.String()
	return err
}

// ReadNumberInto reads a number within [lo, hi] into a new value at dst.
func (r *Reader) Number(dst **float64, lo, hi float64) error {
	f, err := r.Float()
	if err != nil {
		return err
	}
	if f < lo || f > hi {
		return r.Refuse("must be between %v and %v, not %v", lo, hi, f)
	}
	*dst = &f
	return nil
}

// ReadIntegerInto reads an integer within [lo, hi] into dst.
func (r *Reader) Integer(dst *int, lo, hi int64) error {
	n, err := r.Int()
	switch {
	case err != nil:
		return err
	case n < lo && hi == MaxCount:
		return r.Refuse("must be at least %d, not %d", lo, n)
	case n < lo || n > hi:
		return r.Refuse("must be between %d and %d, not %d", lo, hi, n)
	}
	*dst = int(n)
	return nil
}
