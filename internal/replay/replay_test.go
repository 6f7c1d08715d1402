package replay

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// filled returns a request in which every field has a value.
func filled(t *testing.T, n int64) *Request {
	t.Helper()
	r := &Request{}
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(n)
		case reflect.String:
			f.SetString(string(rune('a' + n)))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), int(n), int(n)))
		}
		if f.IsZero() {
			t.Fatalf("the test does not know how to fill %s", v.Type().Field(i).Name)
		}
	}
	return r
}

// TestSetSharesNothing: whatever happens to the original, slice by slice, the copy
// stays.
func TestSetSharesNothing(t *testing.T) {
	for _, before := range []*Request{{}, filled(t, 1), filled(t, 9)} {
		o := filled(t, 4)
		before.CopyFrom(o)
		if diff := cmp.Diff(filled(t, 4), before); diff != "" {
			t.Fatal(diff)
		}
		v := reflect.ValueOf(o).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice {
				other := reflect.ValueOf(before).Elem().Field(i)
				if f.Pointer() == other.Pointer() {
					t.Errorf("%s is shared", v.Type().Field(i).Name)
				}
			}
		}
	}
	r := &Request{Tokens: make([]kv.Token, 0, 100), Blocks: make([]int64, 0, 100)}
	o := &Request{Tokens: make([]kv.Token, 50), Blocks: make([]int64, 50)}
	if n := testing.AllocsPerRun(10, func() { r.CopyFrom(o) }); n != 0 {
		t.Errorf("%v allocations where there is room", n)
	}
}
