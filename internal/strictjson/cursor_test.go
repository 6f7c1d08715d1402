package strictjson

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"penstock/core/kv"
)

func TestCursor(t *testing.T) {
	c := NewCursor([]byte(` {"a": [1, -2,3 ], "b\"c":{"x":[{}, "]}\\", [ ] ]}, "f":-1.25e-3,"n":null, "id":17,"s":"a\u00e9\n\/","t":[7,8], "\u006by":0.5}`))
	var ints []int64
	var floats []float64
	var tokens []kv.Token
	var text, raw, key string
	null := false
	for c.Open('{'); c.More('}'); {
		if c.NextIs('"') && len(tokens) == 3 {
			key = c.ReadKey()
			floats = append(floats, c.ReadFloat())
			continue
		}
		switch string(c.Key()) {
		case "a":
			for c.Open('['); c.More(']'); {
				ints = append(ints, c.ReadInt())
			}
		case "f":
			floats = append(floats, c.ReadFloat())
		case "n":
			null = c.SkipNull()
		case "id":
			tokens = append(tokens, c.ReadToken())
		case "s":
			text = c.ReadString()
		case "t":
			tokens = c.ReadTokens(tokens)
		default:
			raw = string(c.Raw())
		}
	}
	if err := c.End(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ints, []int64{1, -2, 3}) || !slices.Equal(floats, []float64{-1.25e-3, 0.5}) || !null ||
		!slices.Equal(tokens, []kv.Token{17, 7, 8}) || text != "aé\n/" || key != "ky" || raw != `{"x":[{}, "]}\\", [ ] ]}` {
		t.Errorf("ints %v, floats %v, null %v, tokens %v, text %q, key %q, raw %s", ints, floats, null, tokens, text, key, raw)
	}
}

func TestCursorFails(t *testing.T) {
	for _, text := range []string{``, `{`, `[1`, `[1 2]`, `{"a"}`, `{"a":1,}`, `[1,]`, `[-]`, `[1.5]`, `[99999999999999999999]`, `{"a":1}}`, `nul`} {
		c := NewCursor([]byte(text))
		if c.NextIs('{') {
			for c.Open('{'); c.More('}'); {
				c.Key()
				c.Skip()
			}
		} else {
			for c.Open('['); c.More(']'); {
				c.ReadInt()
			}
		}
		if c.End() == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// FuzzCursor checks that the values of valid JSON are equal to encoding/json's, and that invalid input does
// no harm.
func FuzzCursor(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"text":" a\"","token_ids":[1,2]}],"usage":null}`))
	f.Add([]byte(`[1.5,-2e9,"\ud83d\ude00",{},[]]`))
	f.Add([]byte(`{"a":{"b":[[[]]]},"c":"}"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := NewCursor(data)
		raw := c.Raw()
		if !json.Valid(data) || depth(data) > maxRaw {
			return
		}
		if c.End() != nil || !json.Valid(raw) {
			t.Fatalf("%q: %q, %v", data, raw, c.Err())
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil || want == nil {
			return
		}
		c = NewCursor(data)
		for c.Open('{'); c.More('}'); {
			var key string
			if json.Unmarshal(append(append([]byte{'"'}, c.Key()...), '"'), &key) != nil {
				t.Fatalf("%q: no key", data)
			}
			if got := c.Raw(); !json.Valid(got) {
				t.Fatalf("%q: member %q is %q", data, key, got)
			}
			delete(want, key)
		}
		if c.End() != nil || len(want) != 0 {
			t.Fatalf("%q: %v, left %v", data, c.Err(), want)
		}
	})
}

func depth(data []byte) (most int) {
	d := 0
	for _, b := range data {
		switch b {
		case '{', '[':
			d++
			most = max(most, d)
		case '}', ']':
			d--
		}
	}
	return most
}

// FuzzFloat checks that numbers are equal to strconv's.
func FuzzFloat(f *testing.F) {
	for _, s := range []string{"0", "-1", "1.5", "0.1", "-0.000123", "123456789012345", "1234567890.12345", "1e5", "9007199254740993", "-Infinity"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := shortFloat([]byte(s))
		if !ok {
			return
		}
		want, err := strconv.ParseFloat(s, 64)
		if err != nil || math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%q: %v, want %v (%v)", s, got, want, err)
		}
	})
}

func TestAppendTokensDoesNotAllocate(t *testing.T) {
	prompt, more := make([]kv.Token, 60_000), make([]kv.Token, 100)
	for i := range prompt {
		prompt[i] = kv.Token(i * 7 % 150_000)
	}
	body := AppendTokens(nil, prompt, more)
	var back []kv.Token
	if json.Unmarshal(body, &back) != nil || !slices.Equal(back, slices.Concat(prompt, more)) {
		t.Fatal("the tokens do not come back")
	}
	if n := testing.AllocsPerRun(10, func() { body = AppendTokens(body[:0], prompt, more) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAppendTokens compares with strconv.
func TestAppendTokens(t *testing.T) {
	edges := []kv.Token{0, 9, 10, 11, 99, 100, 101, 999, 1000, 9999, 10000, 99999, 100000, 128255, 999999, 1000000, 9999999, 10000000, 99999999, 100000000, 999999999, 1000000000, math.MaxUint32}
	for i := range kv.Token(3000) {
		edges = append(edges, i*43)
	}
	for _, lists := range [][][]kv.Token{nil, {nil, nil}, {{7}}, {nil, {7}}, {{7}, nil, {8}}, {edges[:5], edges}} {
		want := []byte("x[")
		for _, list := range lists {
			for _, id := range list {
				want = append(strconv.AppendUint(want, uint64(id), 10), ',')
			}
		}
		want = append(bytes.TrimSuffix(want, []byte(",")), ']')
		if got := AppendTokens([]byte("x"), lists...); !bytes.Equal(got, want) {
			t.Errorf("%.80s, want %.80s", got, want)
		}
	}
}

func BenchmarkAppendTokens(b *testing.B) {
	// Enough tokens, in random order, to defeat branch prediction.
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]kv.Token, 1<<20)
	for i := range all {
		all[i] = kv.Token(random.Uint32N(128_000) >> random.Uint32N(6))
	}
	var buf []byte
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		at := n * 512 % len(all)
		buf = AppendTokens(buf[:0], all[at:at+512])
	}
	b.SetBytes(int64(len(buf)))
}

// TestStrings checks the ends of strings of many lengths with many escapes.
func TestStrings(t *testing.T) {
	draw := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		text := []byte{'"'}
		for range draw.IntN(100) {
			text = append(text, []string{"a", "b", `\"`, `\\`, `\n`}[draw.IntN(5)]...)
		}
		text = append(text, '"')
		c := NewCursor(append(slices.Clone(text), `,"next"`...))
		if got := c.Raw(); string(got) != string(text) || c.Err() != nil {
			t.Fatalf("%s was read as %s, %v", text, got, c.Err())
		}
		c = NewCursor(text[:len(text)-1])
		if c.Raw(); c.Err() == nil {
			t.Fatalf("%s has no end", text[:len(text)-1])
		}
	}
}
