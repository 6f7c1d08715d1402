package strictjson

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzReader compares the cursor with encoding/json: what it accepts means the
// same there, and what it refuses beyond that is a duplicate key, a lone
// surrogate, invalid UTF-8, depth or size.
func FuzzReader(f *testing.F) {
	for _, s := range []string{
		`null`, ` {"a":[1,-0.5e+3,"x\ud83d\ude00"],"b":{}} `, `[tru]`, `"\ud800"`, `{"a":1,"a":2}`, `-`, `1e5`, `"\u00zz"`, `[1,]`, `{"":{"":1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := NewReader(text)
		if err != nil {
			if utf8.Valid(text) {
				t.Fatal(err)
			}
			return
		}
		got, err := anyOf(r)
		if err == nil {
			err = r.End()
		}
		var want any
		wantErr := json.Unmarshal(text, &want)
		if err != nil {
			beyond := strings.Contains(err.Error(), "twice") || strings.Contains(err.Error(), "invalid escape") ||
				strings.Contains(err.Error(), "nested") || strings.Contains(err.Error(), "out of range")
			if wantErr == nil && !beyond {
				t.Fatalf("refused %q: %v", text, err)
			}
			return
		}
		if wantErr != nil {
			t.Fatalf("accepted %q: %v", text, wantErr)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: got %#v, want %#v", text, got, want)
		}
		// skip must see the same end.
		s, _ := NewReader(text)
		if err := s.Skip(); err != nil || s.End() != nil {
			t.Fatalf("skip of %q: %v", text, err)
		}
	})
}

// anyOf reads a value as encoding/json would.
func anyOf(r *Reader) (any, error) {
	switch r.Kind() {
	case NullKind:
		_, err := r.Null()
		return nil, err
	case BoolKind:
		return r.Bool()
	case NumberKind:
		return r.Float()
	case StringKind:
		return r.String()
	case ArrayKind:
		out := []any{}
		err := r.Array("an array", func(int) error {
			v, err := anyOf(r)
			out = append(out, v)
			return err
		})
		return out, err
	case ObjectKind:
		out := map[string]any{}
		err := r.Object(func(key string) error {
			v, err := anyOf(r)
			out[key] = v
			return err
		})
		return out, err
	}
	return nil, r.unexpected()
}

// FuzzString compares AppendString with encoding/json.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é😀\u2028\u2029\ufffd", "<&>", "\xff\xc3", "a\xe2\x80b", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
		got := AppendString(nil, s)
		if string(got) != strings.TrimSuffix(want.String(), "\n") {
			t.Fatalf("%q: got %s, want %s", s, got, want.String())
		}
		if b := AppendString(nil, []byte(s)); !bytes.Equal(b, got) {
			t.Fatalf("%q: bytes give %s, string %s", s, b, got)
		}
	})
}
