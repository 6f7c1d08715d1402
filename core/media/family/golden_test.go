package family

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
)

// golden is what a reference processor makes of media (tools/fixtures/make_media_tokens.py).
type golden struct {
	Library string
	Files   struct {
		Config, Preprocessor, Processor json.RawMessage
		VideoPreprocessor               json.RawMessage `json:"video_preprocessor"`
	}
	Vocab   map[string]kv.Token
	Image   [][]json.RawMessage // width, height, runs
	Video   [][]json.RawMessage // width, height, frames, rate, runs
	VLLM    [][]json.RawMessage // width, height, frames, rate, sequence, runs
	Audio   [][]json.RawMessage // samples, runs
	Prompts [][]json.RawMessage // of Gemma 3: tokens before, runs after
}

// spelling is the vocabulary of the goldens: 256 bytes, each its own token, and more.
type spelling map[string]kv.Token

func (v spelling) ID(text string) (kv.Token, bool) {
	t, ok := v[text]
	return t, ok
}

func (v spelling) Tokens(text string) []kv.Token {
	ids := make([]kv.Token, len(text))
	for i := range len(text) {
		ids[i] = kv.Token(text[i])
	}
	return ids
}

func readGolden(t testing.TB, path string) *golden {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.NewDecoder(z).Decode(&g); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return &g
}

func (g *golden) files() CheckpointFiles {
	return CheckpointFiles{Config: g.Files.Config, Preprocessor: g.Files.Preprocessor, Processor: g.Files.Processor, VideoPreprocessor: g.Files.VideoPreprocessor}
}

func (g *golden) open(t testing.TB) *Family {
	t.Helper()
	f, err := Open(g.files(), spelling(g.Vocab))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func decoded[T any](t testing.TB, raw json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// sized is a case of a golden file.
type sized struct {
	kind media.Kind
	size media.Size
	runs []media.TokenRun // nil if the processor takes none
}

func (g *golden) cases(t testing.TB) []sized {
	var of []sized
	runs := func(raw json.RawMessage) []media.TokenRun {
		n := decoded[[]int](t, raw)
		var r []media.TokenRun
		for i := 0; i < len(n); i += 2 {
			r = append(r, media.TokenRun{Token: kv.Token(n[i]), Count: n[i+1]})
		}
		return r
	}
	whole := func(raw json.RawMessage) int { return decoded[int](t, raw) }
	for _, c := range g.Image {
		of = append(of, sized{media.Image, media.Size{Width: whole(c[0]), Height: whole(c[1])}, runs(c[2])})
	}
	for _, c := range g.Video {
		size := media.Size{Width: whole(c[0]), Height: whole(c[1]), Frames: whole(c[2]), Rate: decoded[float64](t, c[3])}
		of = append(of, sized{media.Video, size, runs(c[4])})
	}
	for _, c := range g.Audio {
		of = append(of, sized{media.Audio, media.Size{Samples: whole(c[0])}, runs(c[1])})
	}
	return of
}

// joined merges adjacent runs of one token, as the goldens have them.
func joined(of []media.TokenRun) []media.TokenRun {
	var out []media.TokenRun
	for _, r := range of {
		if n := len(out); n > 0 && out[n-1].Token == r.Token {
			out[n-1].Count += r.Count
			continue
		}
		out = append(out, r)
	}
	return out
}

func goldens(t testing.TB) []string {
	paths, err := filepath.Glob("testdata/*.json.gz")
	if err != nil || len(paths) < 25 {
		t.Fatalf("%d goldens: %v", len(paths), err)
	}
	return paths
}

// TestGoldens: every token in place of every object equals the reference's.
func TestGoldens(t *testing.T) {
	for _, path := range goldens(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, path)
			f := g.open(t)
			if want, _, _ := strings.Cut(name, "."); f.Name() != strings.ReplaceAll(want, "mistral3", "pixtral") {
				t.Errorf("the family is %s", f.Name())
			}
			count, bad := map[media.Kind]int{}, 0
			for _, c := range g.cases(t) {
				count[c.kind]++
				l, err := f.Layout(c.kind, c.size)
				var refused *SizeError
				if c.runs == nil && errors.As(err, &refused) && refused.Reason == media.SizeRefused && refused.Kind == c.kind {
					continue
				}
				if err == nil && c.runs != nil && slices.Equal(joined(l.Runs), c.runs) {
					holds(t, f, c.kind, &l)
					continue
				}
				if bad++; bad < 10 {
					t.Errorf("%v %+v: %v %v, want %v", c.kind, c.size, l.Runs, err, c.runs)
				}
			}
			if bad > 0 {
				t.Errorf("%d differ", bad)
			}
			for kind, n := range count {
				if n < 300 {
					t.Errorf("%d %vs", n, kind)
				}
			}
			if g.Library == "" && !strings.HasPrefix(name, "phi3") && name != "ultravox" {
				t.Error("the reference is not the library")
			}
		})
	}
}

// holds checks the invariants of every layout.
func holds(t *testing.T, f *Family, k media.Kind, l *media.Layout) {
	t.Helper()
	pad, _ := f.PadToken(k)
	pads := 0
	for _, r := range l.Runs {
		if r.Count <= 0 {
			t.Errorf("a run of %d in %v", r.Count, l.Runs)
		}
		if r.Token == pad {
			pads += r.Count
		}
	}
	if pads != l.PadCount {
		t.Errorf("%d pads in %v, not %d", pads, l.Runs, l.PadCount)
	}
}

// TestTurned: rotated images have another layout exactly where NeedsOrientation says so.
func TestTurned(t *testing.T) {
	for _, path := range goldens(t) {
		g := readGolden(t, path)
		f, differ := g.open(t), 0
		for _, c := range g.cases(t) {
			if c.kind == media.Audio {
				continue
			}
			turned := c.size
			turned.Width, turned.Height = c.size.Height, c.size.Width
			a, errA := f.Layout(c.kind, c.size)
			b, errB := f.Layout(c.kind, turned)
			if (errA == nil) != (errB == nil) || !slices.Equal(a.Runs, b.Runs) {
				if differ++; !f.NeedsOrientation() {
					t.Fatalf("%s: %v %+v: %v %v, turned %v %v", path, c.kind, c.size, a.Runs, errA, b.Runs, errB)
				}
			}
		}
		if f.NeedsOrientation() && differ == 0 {
			t.Errorf("%s: none of %d pictures differs from itself turned", path, len(g.Image))
		}
	}
}

// TestGemma3: whole prompts, in which line breaks around images merge with line breaks of the text.
func TestGemma3(t *testing.T) {
	g := readGolden(t, "testdata/gemma3.json.gz")
	f := g.open(t)
	l, err := f.Layout(media.Image, media.Size{Width: 30, Height: 20})
	if err != nil {
		t.Fatal(err)
	}
	mark, _ := f.Placeholder(media.Image)
	for _, c := range g.Prompts {
		prompt := decoded[[]kv.Token](t, c[0])
		var objects []media.PromptObject
		for _, token := range prompt {
			if token == mark {
				objects = append(objects, media.PromptObject{Placeholder: mark, Layout: l})
			}
		}
		got, places, err := media.ExpandPrompt(nil, nil, prompt, f.Placeholders(), objects, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var want []kv.Token
		for r := decoded[[]int](t, c[1]); len(r) > 0; r = r[2:] {
			want = append(want, slices.Repeat([]kv.Token{kv.Token(r[0])}, r[1])...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", prompt, got, want)
		}
		for _, p := range places {
			if got[p.Start+1] != mark || p.End-p.Start != l.CountTokens() {
				t.Errorf("%v: an object at %d to %d", prompt, p.Start, p.End)
			}
		}
	}
	if len(g.Prompts) < 40 {
		t.Errorf("%d prompts", len(g.Prompts))
	}
}

// row is a line of testdata/rows.json.gz: counts computed independently of this package and of the library.
// docs/media-tokens.md says where they differ from it.
type row struct {
	Family        string
	Config        map[string]any
	Width, Height int
	Frames        int
	Samples       int
	Tokens        *int // nil if refused
	Pads          *int
}

// TestRows checks the counts of the rows.
func TestRows(t *testing.T) {
	f, err := os.Open("testdata/rows/rows.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	if err := json.NewDecoder(z).Decode(&rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 350 {
		t.Fatalf("%d rows", len(rows))
	}
	base := map[string]*golden{}
	for _, path := range goldens(t) {
		base[strings.TrimSuffix(filepath.Base(path), ".json.gz")] = readGolden(t, path)
	}
	for _, r := range rows {
		r.check(t, base)
	}
}

// check checks one row.
func (r *row) check(t *testing.T, base map[string]*golden) {
	kind, size := media.Image, media.Size{Width: r.Width, Height: r.Height, Frames: r.Frames, Samples: r.Samples}
	name, config := r.Family, maps.Clone(r.Config)
	whole := func(key string) int { n, _ := config[key].(float64); return int(n) }
	switch {
	case r.Samples > 0:
		kind = media.Audio
	case r.Frames > 0:
		kind, name = media.Video, strings.TrimSuffix(name, "_video")
	}
	switch name {
	case "llava_1_5":
		name = "llava"
	case "kimi_k2_5":
		name = "kimi_k25"
	case "phi3_v":
		if whole("num_crops") == 4 {
			name = "phi3_v.4"
		}
	case "pixtral":
		if whole("unit") == 28 {
			name = "mistral3"
		}
	}
	g, ok := base[name]
	if !ok {
		t.Fatalf("no golden for %s", r.Family)
	}
	files := g.files()
	if strings.HasPrefix(name, "qwen") && kind != media.Audio {
		if edge, ok := config["size_shortest_edge"]; ok {
			config["min_pixels"], config["max_pixels"] = edge, config["size_longest_edge"]
		}
		raw, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		files.Preprocessor, files.VideoPreprocessor = raw, raw
	}
	f, err := Open(files, spelling(g.Vocab))
	if err != nil {
		t.Fatal(err)
	}
	if name == "qwen3_vl" && kind == media.Video {
		r.frames(t)
		return
	}
	l, err := f.Layout(kind, size)
	switch {
	case r.Tokens == nil:
		if err == nil {
			t.Errorf("%s %d by %d: %v, want none", r.Family, r.Width, r.Height, l.Runs)
		}
	case err != nil:
		t.Errorf("%s %d by %d: %v", r.Family, r.Width, r.Height, err)
	case r.Pads == nil && l.PadCount != *r.Tokens, r.Pads != nil && (l.CountTokens() != *r.Tokens || l.PadCount != *r.Pads):
		t.Errorf("%s %+v: %d tokens of which %d pads, want %d", r.Family, size, l.CountTokens(), l.PadCount, *r.Tokens)
	}
}

// frames checks a row of a video whose frames were sampled before.
func (r *row) frames(t *testing.T) {
	v := qwenVideo{qwenVision: qwenVision{patch: 16, merge: 2, temporal: 2, minPixels: 4096, maxPixels: 25165824}}
	gh, gw, refused := v.videoGrid(int64(r.Frames), int64(r.Width), int64(r.Height))
	if n := ceilDiv(int64(r.Frames), 2) * gh * gw / 4; refused != nil || int(n) != *r.Tokens {
		t.Errorf("%s %d by %d by %d: %d %v, want %d", r.Family, r.Width, r.Height, r.Frames, n, refused, *r.Tokens)
	}
}

// FuzzSizes: no size of any family panics, takes long or makes a layout of many runs, and every layout is
// consistent.
func FuzzSizes(f *testing.F) {
	f.Add(640, 480, 30, 24.0, 16000)
	f.Add(1, 65535, 1<<20, 1e-300, math.MaxInt)
	f.Add(-1, 0, 0, -1.0, 0)
	var families []*Family
	for _, path := range goldens(f) {
		families = append(families, readGolden(f, path).open(f))
	}
	f.Fuzz(func(t *testing.T, w, h, frames int, rate float64, samples int) {
		for _, family := range families {
			for _, k := range []media.Kind{0, media.Image, media.Video, media.Audio, 77} {
				l, err := family.Layout(k, media.Size{Width: w, Height: h, Frames: frames, Rate: rate, Samples: samples})
				if err != nil {
					var refused *SizeError
					if !errors.As(err, &refused) || refused.Reason == media.NoReason || refused.Detail == "" {
						t.Errorf("%v", err)
					}
					continue
				}
				holds(t, family, k, &l)
				if len(l.Runs) > 1<<17 || l.PadCount <= 0 || l.CountTokens() < l.PadCount {
					t.Errorf("%s: %d runs, %d tokens", family.Name(), len(l.Runs), l.CountTokens())
				}
			}
		}
	})
}

// FuzzOpen: no configuration panics, and a family which opens computes sizes or says why not.
func FuzzOpen(f *testing.F) {
	vocab := spelling{}
	for _, path := range goldens(f) {
		g := readGolden(f, path)
		f.Add([]byte(g.Files.Config), []byte(g.Files.Preprocessor), []byte(g.Files.Processor), []byte(g.Files.VideoPreprocessor))
		maps.Copy(vocab, g.Vocab)
	}
	f.Fuzz(func(t *testing.T, config, preprocessor, processor, video []byte) {
		family, err := Open(CheckpointFiles{config, preprocessor, processor, video}, vocab)
		if err != nil {
			var unsupported *UnsupportedError
			if family != nil || !errors.As(err, &unsupported) || unsupported.Reason == media.NoReason || unsupported.Detail == "" {
				t.Errorf("%v", err)
			}
			return
		}
		for _, s := range []media.Size{{Width: 1, Height: 1, Frames: 1, Samples: 1}, {Width: 640, Height: 480, Frames: 9, Rate: 3, Samples: 99999}, {Width: maxSide, Height: maxSide, Frames: maxFrames, Samples: maxSamples}} {
			countable(t, family, s)
		}
	})
}

// countable checks the layouts of objects of one size.
func countable(t *testing.T, f *Family, s media.Size) {
	t.Helper()
	for k := media.Image; k <= media.Audio; k++ {
		l, err := f.Layout(k, s)
		if err != nil {
			continue
		}
		holds(t, f, k, &l)
		if len(l.Runs) > 1<<18 || l.PadCount <= 0 || l.CountTokens() < l.PadCount {
			t.Errorf("%+v: %d runs, %d tokens, %d pads", s, len(l.Runs), l.CountTokens(), l.PadCount)
		}
	}
}

// FuzzValues: a checkpoint's files with one changed value. No value causes an overflow.
func FuzzValues(f *testing.F) {
	var of []*golden
	for _, path := range goldens(f) {
		of = append(of, readGolden(f, path))
	}
	for i := range of {
		for at := range 12 {
			f.Add(uint8(i), uint8(at), "1099511627776", 1<<20, 1<<20, 1<<20)
			f.Add(uint8(i), uint8(at), "1", 1, 1<<20, 4096)
			f.Add(uint8(i), uint8(at), "0", 640, 480, 9)
			f.Add(uint8(i), uint8(at), "1024", 1<<20, 5243, 1)
		}
	}
	value := regexp.MustCompile(`:(\d+(\.\d+)?|true|false|null)|[[,]\d+`)
	f.Fuzz(func(t *testing.T, family, at uint8, instead string, w, h, frames int) {
		g := of[int(family)%len(of)]
		files := g.files()
		seen := 0
		for _, b := range []*[]byte{&files.Config, &files.Preprocessor, &files.Processor, &files.VideoPreprocessor} {
			*b = value.ReplaceAllFunc(*b, func(old []byte) []byte {
				if seen++; seen-1 != int(at)%48 {
					return old
				}
				return append(old[:1:1], instead...)
			})
		}
		opened, err := Open(files, spelling(g.Vocab))
		if err == nil {
			countable(t, opened, media.Size{Width: w, Height: h, Frames: frames, Rate: 1, Samples: w})
		}
	})
}

// BenchmarkLayout measures the count of one image of 1280 by 720, a video of ten seconds, or a sound of ten
// seconds.
func BenchmarkLayout(b *testing.B) {
	for _, path := range goldens(b) {
		g := readGolden(b, path)
		f := g.open(b)
		for k := media.Image; k <= media.Audio; k++ {
			if !f.Supports(k) {
				continue
			}
			b.Run(strings.TrimSuffix(filepath.Base(path), ".json.gz")+"/"+k.String(), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := f.Layout(k, media.Size{Width: 1280, Height: 720, Frames: 240, Rate: 24, Samples: 160000}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
