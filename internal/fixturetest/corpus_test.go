package fixturetest

import (
	"reflect"
	"testing"
)

// TestReadInputs: values come back as the types that Go wrote, for the target alone.
func TestReadInputs(t *testing.T) {
	const archive = "-- FuzzA/1 --\ngo test fuzz v1\n[]byte(\"a\\x00\\n\")\nbyte('\\x06')\n-- FuzzB/1 --\ngo test fuzz v1\nstring(\"b\")\n" +
		"-- FuzzA/2 --\ngo test fuzz v1\n[]byte(\"\")\nbyte('\\u00fe')\n-- FuzzC/1 --\ngo test fuzz v1\nuint16(3)\nuint64(18446744073709551615)\nstring(\"-- x --\")\n"
	for target, want := range map[string][][]any{
		"FuzzA": {{[]byte("a\x00\n"), byte(6)}, {[]byte{}, byte(0xfe)}},
		"FuzzB": {{"b"}},
		"FuzzC": {{uint16(3), uint64(18446744073709551615), "-- x --"}},
		"FuzzD": nil,
	} {
		got, err := readInputs(archive, target)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", target, got, err, want)
		}
	}
	for _, bad := range []string{"int(", "float64(1)", "string(x)", "1"} {
		if _, err := readInputs("-- FuzzA/1 --\n"+bad+"\n", "FuzzA"); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
