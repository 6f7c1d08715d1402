package sim

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/media"
)

func TestDefaults(t *testing.T) {
	var tm Timing
	tm.EnsureDefaults()
	if err := tm.Validate(); err != nil {
		t.Fatal(err)
	}
	mocker := timing(t, "mocker")
	if diff := cmp.Diff(mocker, tm); diff != "" {
		t.Errorf("the zero Timing is not the preset mocker:\n%s", diff)
	}
	if tm.Speedup != 1 || tm.DecodeSpeedup != 1 || tm.Load != (Load{1, 256}) || tm.KV.Bandwidth != 64 {
		t.Errorf("%+v", tm)
	}
	own := Timing{Decode: Decode{Base: 3}, KV: KV{Fixed: 2}, Speedup: 8}
	own.EnsureDefaults()
	if own.Prefill != (Prefill{}) || own.Decode != (Decode{Base: 3}) || own.KV != (KV{Fixed: 2}) || own.Speedup != 8 {
		t.Errorf("what was set is not kept: %+v", own)
	}
}

func TestPresetNames(t *testing.T) {
	if got, want := PresetNames(), []string{"mocker", "mocker-0.2", "llm-d-like", "smg-like"}; !slices.Equal(got, want) {
		t.Errorf("presets %v, want %v", got, want)
	}
	_, err := PresetTiming("gpu")
	if err == nil || !strings.Contains(err.Error(), "smg-like") {
		t.Errorf("error %v does not name what there is", err)
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	nan := math.NaN()
	bad := Timing{
		Prefill: Prefill{nan, math.Inf(1), 1e10, nan, nan, nan},
		Decode:  Decode{nan, nan, nan, nan, math.Inf(-1)},
		Encoder: []EncoderPoint{{0, 1}, {10, -1}, {10, 2}},
		Load:    Load{0.5, -1},
		KV:      KV{-1, -1, 1 << 20, 17, -1, 1e-9, -1},
		Speedup: -1, DecodeSpeedup: 1e7, Jitter: 0.31, Startup: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"prefill, ms per pass is NaN", "prefill, ms per token is +Inf", "per token squared", "per prompt is", "per prompt squared", "token of context",
		"decode, ms per pass", "by use is", "by use squared", "per sequence", "decode, ms per token of context is -Inf",
		"point 1 is of 0 tokens", "ms of point 2 is -1", "point 3 is of 10 tokens: must be more than the 10",
		"load factor", "sequences of the load factor", "KV layers", "KV heads", "elements of a head", "bytes of an element",
		"bytes per token", "must be 0 or at least", "fixed ms", "speedup is -1", "decode speedup", "jitter is 0.31", "startup",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said", want)
		}
	}
	points := make([]EncoderPoint, MaxEncoder+1)
	for _, long := range []Timing{{Encoder: points}, {EncoderOf: map[media.Kind][]EncoderPoint{media.Audio: points}}} {
		long.EnsureDefaults()
		if err := long.Validate(); err == nil || !strings.Contains(err.Error(), "257 points") {
			t.Errorf("a long table: %v", err)
		}
	}
}

func TestParseEncoder(t *testing.T) {
	type tables = map[media.Kind][]EncoderPoint
	for text, want := range map[string]struct {
		all []EncoderPoint
		of  tables
	}{
		"":                                {},
		"256:12.5, 1024:40":               {[]EncoderPoint{{256, 12.5}, {1024, 40}}, nil},
		"image:256:12.5,1024:40":          {nil, tables{media.Image: {{256, 12.5}, {1024, 40}}}},
		"image:1:2;video:3:4; audio: 5:6": {nil, tables{media.Image: {{1, 2}}, media.Video: {{3, 4}}, media.Audio: {{5, 6}}}},
		"1:2;video:3:4":                   {[]EncoderPoint{{1, 2}}, tables{media.Video: {{3, 4}}}},
		"audio:;1:2":                      {[]EncoderPoint{{1, 2}}, tables{media.Audio: nil}},
	} {
		all, of, err := ParseEncoder(text)
		if diff := cmp.Diff(want.all, all) + cmp.Diff(want.of, of); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"1:1;2:2":                   "two tables are of all kinds",
		"1:1;":                      "two tables are of all kinds",
		"image:1:1;image:2:2":       "two tables are of kind image",
		"picture:1:1":               "not TOKENS:MS",
		"video:1:1,1:2":             "must be more",
		"256":                       "not TOKENS:MS",
		"a:1":                       "not TOKENS:MS",
		"1:b":                       "not TOKENS:MS",
		"1:1,":                      "not TOKENS:MS",
		"5:1,5:2":                   "must be more",
		"5:NaN":                     "must be between",
		strings.Repeat("1:1,", 300): "must be at most 256",
	} {
		if _, _, err := ParseEncoder(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseEncoder(f *testing.F) {
	f.Add("256:12.5, 1024:40")
	f.Add("1:1e9")
	f.Add("1:2;image:3:4,5:6;audio:")
	f.Fuzz(func(t *testing.T, text string) {
		points, of, err := ParseEncoder(text)
		if err != nil {
			return
		}
		tm := Timing{Encoder: points, EncoderOf: of}
		tm.EnsureDefaults()
		if err := tm.Validate(); err != nil {
			t.Fatalf("%q was accepted: %v", text, err)
		}
		for _, n := range []int{1, 100, math.MaxInt32} {
			for kind := range media.Audio + 1 {
				if ms := tm.EncodeMillis(kind, n); math.IsNaN(ms) || math.IsInf(ms, 0) || ms < 0 {
					t.Fatalf("%q: %d tokens of %v take %v ms", text, n, kind, ms)
				}
			}
		}
	})
}
