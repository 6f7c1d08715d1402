package checkpoint

import (
	"slices"
	"strings"
	"testing"
)

func TestDecodeHeader(t *testing.T) {
	header := `{"__metadata__":{"format":"pt"},
		"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
		"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
		"none":{"data_offsets":[28,28],"shape":[0,7],"dtype":"I64"},
		"scalar":{"dtype":"U8","shape":[],"data_offsets":[28,29]}}     `
	entries, err := decodeHeader([]byte(header), 29)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.name)
	}
	if want := []string{"a", "b", "none", "scalar"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if b := entries[1]; b.dtype != "F32" || !slices.Equal(b.shape, []int{2, 3}) || b.begin != 4 || b.end != 28 {
		t.Errorf("got %+v", b)
	}
}

func TestDecodeHeaderRefuses(t *testing.T) {
	const ok = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	for _, test := range []struct {
		name   string
		header string
		size   int64
		want   string
	}{
		{"no object", `[]`, 0, "want an object"},
		{"empty", ``, 0, "the file is truncated"},
		{"cut", `{` + ok, 8, "the file is truncated"},
		{"trailing", `{` + ok + `} {}`, 8, "data after the end"},
		{"tensor twice", `{` + ok + `,` + ok + `}`, 8, `key "a" occurs twice`},
		{"key twice", `{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, `tensor "a": key "dtype" occurs twice`},
		{"missing key", `{"a":{"dtype":"F32","shape":[2]}}`, 8, "needs dtype, shape and data_offsets"},
		{"unknown key", `{"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}}`, 8, `unknown key "offsets"`},
		{"metadata", `{"__metadata__":{"a":1}}`, 0, "__metadata__: got 1, want a string"},
		{"unknown type", `{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1, `dtype "F4" is not supported; convert`},
		{"too few bytes", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4, "needs 8 bytes, data_offsets give 4"},
		{"backwards", `{"a":{"dtype":"F32","shape":[0],"data_offsets":[8,4]}}`, 8, "are not a range"},
		{"one offset", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}}`, 8, "are not a range"},
		{"three offsets", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}`, 8, "data_offsets: more than 2"},
		{"negative", `{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8, "-2 is not an integer in range"},
		{"fraction", `{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8, "2.0 is not an integer in range"},
		{"text", `{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}`, 8, "want a number"},
		{"many dimensions", `{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}`, 4, "shape: more than 8"},
		{"overflow", `{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "overflows"},
		{"overflow to little", `{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, 16, "overflows"},
		{"gap", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3, `tensor "b": 1 unused bytes before it`},
		{"gap at the front", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, "1 unused bytes"},
		{"overlap", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `tensor "b": overlaps`},
		{"same bytes", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, `tensor "b": overlaps`},
		{"truncated", `{` + ok + `}`, 7, "ends 1 bytes after the end of the file; the file is truncated"},
		{"bytes left", `{` + ok + `}`, 9, "1 bytes after the last tensor"},
		{"bytes without tensors", `{}`, 1, "1 bytes after the last tensor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := decodeHeader([]byte(test.header), test.size); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzDecodeHeader checks that every accepted header lies within the file, covers it, and takes memory in
// proportion to it.
func FuzzDecodeHeader(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}`), int64(8))
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[0,9],"data_offsets":[0,0]}}  `), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, size int64) {
		entries, err := decodeHeader(header, size)
		if err != nil {
			return
		}
		var at int64
		names := make(map[string]bool)
		for _, e := range entries {
			elements := int64(1)
			for _, n := range e.shape {
				elements *= int64(n)
			}
			switch {
			case names[e.name]:
				t.Fatalf("%q occurs twice", e.name)
			case e.begin != at || e.end < e.begin || e.end > size:
				t.Fatalf("%+v does not follow byte %d of %d", e, at, size)
			case elements*e.dtype.byteSize() != e.end-e.begin:
				t.Fatalf("%+v has %d elements", e, elements)
			}
			names[e.name] = true
			at = e.end
		}
		if at != size {
			t.Fatalf("entries cover %d of %d bytes", at, size)
		}
	})
}
