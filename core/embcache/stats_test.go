package embcache

import (
	"reflect"
	"testing"
)

// TestStatsAdd: every figure is a sum, except for the largest free piece.
func TestStatsAdd(t *testing.T) {
	fill := func(n int64) (s Stats) {
		v := reflect.ValueOf(&s).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.CanInt() {
				f.SetInt(n + int64(i))
			} else {
				f.SetUint(uint64(n) + uint64(i))
			}
		}
		return s
	}
	a, b := fill(100), fill(1000)
	a.Add(b)
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		name, want := v.Type().Field(i).Name, int64(1100+2*i)
		if name == "LargestFree" {
			want = int64(1000 + i)
		}
		got := int64(0)
		if f := v.Field(i); f.CanInt() {
			got = f.Int()
		} else {
			got = int64(f.Uint())
		}
		if got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}
