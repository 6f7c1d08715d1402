package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/fixturetest"
)

func TestDecodeEmbeddings(t *testing.T) {
	for body, want := range map[string]EmbeddingsRequest{
		`{"model":"m","input":"hi"}`:                                {Inputs: []api.Prompt{{Text: "hi"}}},
		`{"model":"m","input":["a","b"],"encoding_format":"float"}`: {Inputs: []api.Prompt{{Text: "a"}, {Text: "b"}}},
		`{"model":"m","input":[1,2],"encoding_format":"base64"}`:    {Inputs: []api.Prompt{{Tokens: []kv.Token{1, 2}}}, Format: Base64},
		`{"model":"m","input":[[1],[2,3]],"user":"u","dimensions":null,"priority":1,"add_special_tokens":true}`: {
			Inputs: []api.Prompt{{Tokens: []kv.Token{1}}, {Tokens: []kv.Token{2, 3}}},
		},
	} {
		want.Model = "m"
		got, err := DecodeEmbeddings([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
		} else if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", body, diff)
		}
	}
}

func TestDecodeEmbeddingsRefuses(t *testing.T) {
	many := strings.Repeat(`"a",`, maxInputs) + `"a"`
	for body, param := range map[string]string{
		`{"input":"hi"}`:                                       "model",
		`{"model":" ","input":"hi"}`:                           "model",
		`{"model":"m"}`:                                        "input",
		`{"model":"m","input":null}`:                           "input",
		`{"model":"m","input":[]}`:                             "input",
		`{"model":"m","input":7}`:                              "input",
		`{"model":"m","input":[1,"a"]}`:                        "input[1]",
		`{"model":"m","input":[-1]}`:                           "input[0]",
		`{"model":"m","input":[[1],["a"]]}`:                    "input[1][0]",
		`{"model":"m","input":[` + many + `]}`:                 "input",
		`{"model":"m","input":"a","dimensions":256}`:           "dimensions",
		`{"model":"m","input":"a","encoding_format":"int8"}`:   "encoding_format",
		`{"model":"m","input":"a","user":1}`:                   "user",
		`{"model":"m","input":"a","messages":[],"x":1}`:        "messages",
		`{"model":"m","input":"a","add_special_tokens":false}`: "add_special_tokens",
		`{"model":"m","input":"a","input":"b"}`:                "input",
		`{"model":"m","input":"a"} x`:                          "",
		`[]`:                                                   "",
		`{`:                                                    "",
	} {
		_, err := DecodeEmbeddings([]byte(body))
		if err == nil || fault.CodeOf(err) != fault.Invalid || api.AsFault(err).Param != param {
			t.Errorf("%.80s: %v of param %q, want %q", body, err, api.AsFault(err).Param, param)
		}
	}
}

// TestAppendEmbeddings decodes the answer with encoding/json, in both formats.
func TestAppendEmbeddings(t *testing.T) {
	vectors := [][]float32{
		{1, -0.5, 0, float32(math.Copysign(0, -1))},
		{math.SmallestNonzeroFloat32, -math.MaxFloat32, 1e-7, 0.1},
	}
	for _, format := range []VectorFormat{Floats, Base64} {
		b := AppendEmbeddings(nil, &EmbeddingsAnswer{Model: `m"`, Vectors: vectors, Format: format, Tokens: 9})
		var got struct {
			Object, Model string
			Data          []struct {
				Object    string
				Index     int
				Embedding json.RawMessage
			}
			Usage map[string]int
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if got.Object != "list" || got.Model != `m"` || len(got.Data) != 2 || fmt.Sprint(got.Usage) != "map[prompt_tokens:9 total_tokens:9]" {
			t.Errorf("answer %s", b)
		}
		for i, e := range got.Data {
			if v := readVector(t, format, e.Embedding); e.Object != "embedding" || e.Index != i || !slices.EqualFunc(v, vectors[i], sameFloat) {
				t.Errorf("format %d, embedding %d is %s", format, i, e.Embedding)
			}
		}
	}
}

func sameFloat(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

func readVector(t *testing.T, format VectorFormat, b []byte) (v []float32) {
	t.Helper()
	if format == Floats {
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	for ; len(raw) > 0; raw = raw[4:] {
		v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	}
	return v
}

func FuzzDecodeEmbeddings(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add([]byte(`{"model":"m","input":["a","b"],"encoding_format":"base64"}`))
	f.Add([]byte(`{"model":"m","input":[[1],[2,3]],"dimensions":3}`))
	d := described(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := DecodeEmbeddings(body)
		if err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("%v is not the client's affair", err)
			}
			return
		}
		if !json.Valid(body) || q.Model == "" || len(q.Inputs) == 0 || len(q.Inputs) > maxInputs {
			t.Fatalf("decoded to %+v", q)
		}
		if err := d.matches(d.request("/v1/embeddings"), body); err != nil {
			t.Fatalf("%q is taken: %v", body, err)
		}
	})
}
