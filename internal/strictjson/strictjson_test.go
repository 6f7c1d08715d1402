package strictjson

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/internal/fixturetest"
)

// FuzzReader compares the cursor with encoding/json: what it accepts means the
// same there, and what it refuses beyond that is a duplicate key, a lone
// surrogate, invalid UTF-8, depth or size.
func FuzzReader(f *testing.F) {
	fixturetest.AddCorpus(f)
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
			err = r.CheckEnd()
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
		if err := s.SkipValue(); err != nil || s.CheckEnd() != nil {
			t.Fatalf("skip of %q: %v", text, err)
		}
	})
}

// anyOf reads a value as encoding/json would.
func anyOf(r *Reader) (any, error) {
	switch r.Kind() {
	case NullKind:
		_, err := r.ReadNull()
		return nil, err
	case BoolKind:
		return r.ReadBool()
	case NumberKind:
		return r.ReadFloat()
	case StringKind:
		return r.ReadString()
	case ArrayKind:
		out := []any{}
		err := r.ReadArray("an array", func(int) error {
			v, err := anyOf(r)
			out = append(out, v)
			return err
		})
		return out, err
	case ObjectKind:
		out := map[string]any{}
		err := r.ReadObject(func(key string) error {
			v, err := anyOf(r)
			out[key] = v
			return err
		})
		return out, err
	}
	return nil, r.unexpectedError()
}

// FuzzString compares AppendString with encoding/json.
func FuzzString(f *testing.F) {
	fixturetest.AddCorpus(f)
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

// TestKeysGivenTwice compares the stacks of keys with a map, in objects inside one
// another, with keys in both forms, few and many.
func TestKeysGivenTwice(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		var b strings.Builder
		twice := false
		var object func(depth int)
		object = func(depth int) {
			seen := map[string]bool{}
			b.WriteByte('{')
			for i := range rnd.IntN(200) {
				if i > 0 {
					b.WriteByte(',')
				}
				key := strconv.Itoa(rnd.IntN(1 << 15))
				twice = twice || seen[key]
				seen[key] = true
				if rnd.IntN(4) == 0 {
					key = `\u00` + hex.EncodeToString([]byte(key[:1])) + key[1:]
				}
				b.WriteString(`"` + key + `":`)
				if depth < 3 && rnd.IntN(40) == 0 {
					object(depth + 1)
				} else {
					b.WriteByte('1')
				}
			}
			b.WriteByte('}')
		}
		object(0)
		for name, read := range map[string]func(*Reader) error{
			"Skip": (*Reader).SkipValue,
			"Object": func(r *Reader) error {
				_, err := anyOf(r)
				return err
			},
		} {
			r, err := NewReader([]byte(b.String()))
			if err != nil {
				t.Fatal(err)
			}
			err = read(r)
			if (err != nil) != twice || err != nil && !strings.Contains(err.Error(), "given twice") {
				t.Fatalf("seed %d, %s: twice is %v, error %v", seed, name, twice, err)
			}
			if err == nil && (len(r.seen.all) > 0 || len(r.seen.table) > 0 || len(r.path) > 0) {
				t.Fatalf("seed %d, %s: %d keys, %d slots, %d steps are left", seed, name, len(r.seen.all), len(r.seen.table), len(r.path))
			}
		}
	}
}

// TestSkipRefusesWhatReadingWould: with the path of what is wrong.
func TestSkipRefusesWhatReadingWould(t *testing.T) {
	digits := strings.Repeat("1", 2000)
	for text, words := range map[string]string{
		`{"a":[0,{"b":1,"\u0062":2}]}`: "'a[1].b' is given twice",
		`[1,[2,-1e999999]]`:            "'[1][1]' is a number out of range",
		`{"a":0.` + digits + `}`:       "'a' is a number out of range: it has 2002 characters, the limit is 1024",
		`{"a":"\ud800"}`:               "invalid escape in a string at byte 6",
		"[\"\x1f\"]":                   "control character in a string at byte 2",
		strings.Repeat("[", 65) + strings.Repeat("]", 65): "nested deeper than 64",
		strings.Repeat(`{"":`, 65):                        "nested deeper than 64",
		`{"a":1,}`:                                        "unexpected character at byte 7",
		`[1,]`:                                            "unexpected character at byte 3",
		`[1 2]`:                                           "unexpected character at byte 3",
		`nulL`:                                            "unexpected character at byte 0",
		``:                                                "unexpected end at byte 0",
	} {
		r, err := NewReader([]byte(text))
		if err == nil {
			err = r.SkipValue()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.60s: %v, want %s", text, err, words)
		}
		r, err = NewReader([]byte(text))
		if err == nil {
			_, err = anyOf(r)
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("read, %.60s: %v, want %s", text, err, words)
		}
	}
	for _, text := range []string{`1e308`, `-0.1e-99`, strings.Repeat("1", 300), `1e-999999`} {
		r, err := NewReader([]byte(text))
		if err == nil {
			err = r.SkipValue()
		}
		if err != nil {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// TestSkipAllocates nothing for a body of the usual kind but its own stacks.
func TestSkipAllocates(t *testing.T) {
	text := []byte(`{"a":[` + strings.Repeat(`{"type":"text","text":"a\n\u00e9","n":[1.5,true,null]},`, 1000) + `{}]}`)
	n := testing.AllocsPerRun(5, func() {
		r, err := NewReader(text)
		if err == nil {
			err = r.SkipValue()
		}
		if err != nil {
			t.Error(err)
		}
	})
	if n > 20 {
		t.Errorf("%v allocations", n)
	}
}

// TestCapture: the text is the value's, without the space around it.
func TestCapture(t *testing.T) {
	r, err := NewReader([]byte(` { "a" : [ 1 , "\u0041" ] , "b" : 2 } `))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	whole, err := r.CaptureRaw(func() error {
		return r.ReadObject(func(string) error {
			raw, err := r.ReadRaw()
			got = append(got, string(raw))
			return err
		})
	})
	got = append(got, string(whole))
	if want := []string{`[ 1 , "\u0041" ]`, `2`, `{ "a" : [ 1 , "\u0041" ] , "b" : 2 }`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// BenchmarkSkip reads the shapes of 32 MiB that cost most for their size.
func BenchmarkSkip(b *testing.B) {
	const size = 32 << 20
	fill := func(open, piece, end string) []byte {
		return []byte(open + strings.Repeat(piece, (size-len(open)-len(end))/len(piece)) + end)
	}
	var keys strings.Builder
	for i := range 16000 {
		keys.WriteString(`"` + strconv.FormatInt(int64(i), 36) + `":0,`)
	}
	for name, text := range map[string][]byte{
		"text":      fill(`["`, `plain words, `, `"]`),
		"han":       fill(`["`, `水は流れる`, `"]`),
		"escapes":   fill(`["`, `\n`, `"]`),
		"hex":       fill(`["`, `\u00e9`, `"]`),
		"arrays":    fill(`[`, `[],`, `0]`),
		"objects":   fill(`[`, `{"":0},`, `0]`),
		"deep":      fill(`[`, strings.Repeat("[", 62)+strings.Repeat("]", 62)+",", `0]`),
		"numbers":   fill(`[`, `1,`, `0]`),
		"exponents": fill(`[`, `1e100,`, `0]`),
		"many keys": fill(`[`, `{`+keys.String()+`"":0},`, `0]`),
		"more keys": fill(`[`, `{"0":0,"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0,"9":0,"a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0},`, `0]`),
		"odd keys":  fill(`[`, `{"\u0061":0},`, `0]`),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := NewReader(text)
				if err == nil {
					err = r.SkipValue()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAllKeys: the keys of all objects together are bounded too.
func TestAllKeys(t *testing.T) {
	text := "[" + strings.Repeat(`{"a":0,"b":0,"c":0,"d":0},`, maxAll/4) + "0]"
	r, err := NewReader([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SkipValue(); err != nil {
		t.Errorf("%d keys: %v", maxAll, err)
	}
	more, err := NewReader([]byte(text[:len(text)-2] + `{"a":0}]`))
	if err != nil {
		t.Fatal(err)
	}
	if err := more.SkipValue(); err == nil || !strings.Contains(err.Error(), "more than 1048576 keys") {
		t.Errorf("one more: %v", err)
	}
}
