package strictjson

import "math"

// MaxCount is the maximum of integers which count things. For an integer with that upper bound, an
// error names only the lower bound.
const MaxCount = math.MaxInt32

// ReadBoolInto reads a boolean into dst.
func (r *Reader) ReadBoolInto(dst *bool) (err error) {
	*dst, err = r.ReadBool()
	return err
}

// ReadStringInto reads a string into dst.
func (r *Reader) ReadStringInto(dst *string) (err error) {
	*dst, err = r.ReadString()
	return err
}

// ReadNumberInto reads a number within [lo, hi] into a new value at dst.
func (r *Reader) ReadNumberInto(dst **float64, lo, hi float64) error {
	f, err := r.ReadFloat()
	if err != nil {
		return err
	}
	if f < lo || f > hi {
		return r.InvalidError("must be between %v and %v, not %v", lo, hi, f)
	}
	*dst = &f
	return nil
}

// ReadIntegerInto reads an integer within [lo, hi] into dst.
func (r *Reader) ReadIntegerInto(dst *int, lo, hi int64) error {
	n, err := r.ReadInt()
	switch {
	case err != nil:
		return err
	case n < lo && hi == MaxCount:
		return r.InvalidError("must be at least %d, not %d", lo, n)
	case n < lo || n > hi:
		return r.InvalidError("must be between %d and %d, not %d", lo, hi, n)
	}
	*dst = int(n)
	return nil
}
