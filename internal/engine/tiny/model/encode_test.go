package model

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine/tiny/checkpoint"
	"penstock/internal/engine/tiny/patch"
)

// seen is one case of tools/fixtures/make_vision.py.
type seen struct {
	reference
	Objects []seenObject `json:"objects"`
}

type seenObject struct {
	Start   int    `json:"start"`
	Grid    [3]int `json:"grid"`
	Shape   [4]int `json:"shape"`
	RGB     []byte `json:"rgb"`
	Resized []byte `json:"resized"` // by the library; empty if nothing changed
}

const seenDir = "testdata/qwen2-vl-bf16"

func seenCases(t *testing.T) []seen {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(seenDir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []seen
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 5 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	return cases
}

// colours are the colours of the fixture's processor.
func colours(t *testing.T) patch.Colours {
	t.Helper()
	p, err := checkpoint.ReadProcessors(seenDir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Colours()
	if err != nil {
		t.Fatal(err)
	}
	return patch.Colours(c)
}

// look encodes an object: rgb has the shape of its grid, or its own.
func look(t *testing.T, m *Model, o seenObject, rgb []byte, shape [4]int) []float32 {
	t.Helper()
	v := m.Config().Vision
	patches, err := patch.CutPatches(rgb, shape, o.Grid, patch.Shape{Size: v.Patch, Merge: v.Merge, Temporal: v.Temporal}, colours(t))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := m.EncodeImage(t.Context(), patches, o.Grid)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// asResized returns the picture as the library resized it.
func (o *seenObject) asResized() ([]byte, [4]int) {
	if len(o.Resized) == 0 {
		return o.RGB, o.Shape
	}
	return o.Resized, [4]int{o.Shape[0], 14 * o.Grid[1], 14 * o.Grid[2], 3}
}

// TestSeenReference compares with the transformers library, for the same pixels as its processor resized them
// to: logits to 1e-4, greedy tokens exactly.
func TestSeenReference(t *testing.T) {
	for _, k := range kernels() {
		t.Run(k.kernelName(), func(t *testing.T) {
			m, _, err := loadWithKernel(t.Context(), seenDir, k)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range seenCases(t) {
				checkSeen(t, m, c, func(o seenObject) []float32 {
					rgb, shape := o.asResized()
					return look(t, m, o, rgb, shape)
				}, 1e-4)
			}
		})
	}
}

// TestSeenEndToEnd is the same from the original pictures. Resized bytes differ by 1 in places, and logits,
// which range from about -4 to 4, by up to 0.01.
func TestSeenEndToEnd(t *testing.T) {
	m, _, err := Load(t.Context(), seenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range seenCases(t) {
		checkSeen(t, m, c, func(o seenObject) []float32 { return look(t, m, o, o.RGB, o.Shape) }, 1e-2)
	}
}

func checkSeen(t *testing.T, m *Model, c seen, look func(seenObject) []float32, tolerance float64) {
	t.Helper()
	var objects []Object
	for _, o := range c.Objects {
		objects = append(objects, Object{Start: o.Start, Rows: look(o), Grid: o.Grid})
	}
	shown, err := m.PlaceMedia(objects)
	if err != nil {
		t.Fatal(err)
	}
	total := len(c.Prompt) + len(c.Greedy)
	cache := m.NewCache((total+15)/16, 16)
	work := Work{Tokens: c.Prompt, Blocks: table(0, total, 16), Logits: make([]float32, m.Config().VocabSize), Media: shown}
	for i, want := range c.Greedy {
		if err := m.Forward(cache, []Work{work}); err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			within(t, "first", work.Logits, c.First, tolerance)
		case len(c.Greedy) - 1:
			within(t, "last", work.Logits, c.Last, tolerance)
		}
		if got := highest(work.Logits); got != want {
			t.Fatalf("%d objects: token %d is %d, want %d", len(c.Objects), i, got, want)
		}
		work.Start += len(work.Tokens)
		work.Tokens = []kv.Token{want}
	}
	for _, r := range cache.arena.rows[:cap(cache.arena.rows)] {
		if r.mediaRow != nil {
			t.Fatal("the cache holds what a sequence showed")
		}
	}
}

func TestErf(t *testing.T) {
	for x := -6.0; x <= 6; x += 1. / 64 {
		if d := math.Abs(erf(x) - math.Erf(x)); !(d <= 1.5e-7) {
			t.Errorf("erf(%v) is off by %v", x, d)
		}
	}
}

func within(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	worst := 0.0
	for i := range got {
		worst = max(worst, math.Abs(float64(got[i])-float64(want[i])))
	}
	t.Logf("%s: logits differ by %.2g at most", what, worst)
	if !(worst <= tolerance) {
		t.Fatalf("%s: logits differ by %v, more than %v", what, worst, tolerance)
	}
}

// TestResized compares the bytes with the library's.
func TestResized(t *testing.T) {
	same := patch.Colours{Deviation: [3]float64{1. / 255, 1. / 255, 1. / 255}} // leaves bytes as they are
	off, all, resized := 0, 0, 0
	for _, c := range seenCases(t) {
		for _, o := range c.Objects {
			shape := patch.Shape{Size: 14, Merge: 2, Temporal: 2}
			got, err := patch.CutPatches(o.RGB, o.Shape, o.Grid, shape, same)
			if err != nil {
				t.Fatal(err)
			}
			rgb, dims := o.asResized()
			want, err := patch.CutPatches(rgb, dims, o.Grid, shape, same)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				switch d := math.Abs(math.Round(float64(got[i])) - math.Round(float64(want[i]))); {
				case d > 1:
					t.Fatalf("grid %v, element %d: %v, want %v", o.Grid, i, got[i], want[i])
				case d == 1:
					off++
				}
			}
			all += len(want)
			if len(o.Resized) > 0 {
				resized++
			}
		}
	}
	t.Logf("%d of %d bytes differ by 1", off, all)
	if resized < 3 || off > all/100 {
		t.Errorf("%d of %d bytes differ by 1, %d pictures were resized", off, all, resized)
	}
}

// TestEncodeIdentity: rows are the same bits however many workers compute them, and for a video's frames
// whatever the other frames are.
func TestEncodeIdentity(t *testing.T) {
	cfg := shapes["grouped"]
	cfg.Vision = Vision{Depth: 2, Dim: 24, Heads: 3, Intermediate: 40, Patch: 2, Merge: 2, Temporal: 2}
	cfg.Audio = Audio{Frame: 10, Dim: 12}
	for _, k := range kernels() {
		m := randomModel(t, cfg, k)
		frame := 6 * 10
		size := frame * cfg.Vision.PatchElements()
		rng := rand.New(rand.NewPCG(1, 2))
		patches := make([]float32, 3*size)
		for i := range patches {
			patches[i] = float32(rng.NormFloat64())
		}
		encode := func(patches []float32, grid [3]int, workers int) []float32 {
			c := newWorkerPool(workers)
			c.worth = 1
			rows, err := m.encodeImage(t.Context(), patches, grid, c)
			if err != nil {
				t.Fatal(err)
			}
			return rows
		}
		want := encode(patches, [3]int{3, 6, 10}, 1)
		for _, workers := range []int{2, 3, 7} {
			if err := sameBits(encode(patches, [3]int{3, 6, 10}, workers), want); err != nil {
				t.Fatalf("%s, %d workers: %v", k.kernelName(), workers, err)
			}
		}
		for f := range 3 {
			n := len(want) / 3
			if err := sameBits(encode(patches[f*size:][:size], [3]int{1, 6, 10}, 2), want[f*n:][:n]); err != nil {
				t.Fatalf("%s, frame %d: %v", k.kernelName(), f, err)
			}
		}
	}
}

// TestEncodeRefuses: unfit input is an error and no panic, and encoding ends with its context.
func TestEncodeRefuses(t *testing.T) {
	cfg := shapes["grouped"]
	blind := randomModel(t, cfg, portableKernel{})
	cfg.Vision = Vision{Depth: 1, Dim: 8, Heads: 2, Intermediate: 8, Patch: 2, Merge: 2, Temporal: 1}
	m := randomModel(t, cfg, portableKernel{})
	ended, end := context.WithCancel(t.Context())
	end()
	good := make([]float32, 4*cfg.Vision.PatchElements())
	for name, c := range map[string]struct {
		m       *Model
		ctx     context.Context
		patches []float32
		grid    [3]int
	}{
		"no encoder": {blind, t.Context(), good, [3]int{1, 2, 2}},
		"odd grid":   {m, t.Context(), good, [3]int{4, 1, 1}},
		"no grid":    {m, t.Context(), good, [3]int{1, 0, 2}},
		"huge grid":  {m, t.Context(), good, [3]int{1 << 21, 1 << 21, 1 << 21}},
		"too few":    {m, t.Context(), good[1:], [3]int{1, 2, 2}},
		"ended":      {m, ended, good, [3]int{1, 2, 2}},
	} {
		if rows, err := c.m.EncodeImage(c.ctx, c.patches, c.grid); err == nil {
			t.Errorf("%s: %d elements", name, len(rows))
		}
	}
	if _, err := m.EncodeAudio(t.Context(), []float32{1}); err == nil {
		t.Error("a model without an encoder of sounds hears")
	}
	for name, objects := range map[string][]Object{
		"no rows":     {{Start: 1}},
		"broken rows": {{Start: 1, Rows: make([]float32, cfg.HiddenSize+1)}},
		"overlap":     {{Start: 1, Rows: make([]float32, 2*cfg.HiddenSize)}, {Start: 2, Rows: make([]float32, cfg.HiddenSize)}},
		"other grid":  {{Start: 1, Rows: make([]float32, 2*cfg.HiddenSize), Grid: [3]int{1, 2, 2}}},
		"too far":     {{Start: cfg.MaxPositions, Rows: make([]float32, cfg.HiddenSize)}},
	} {
		if _, err := m.PlaceMedia(objects); err == nil {
			t.Errorf("%s is shown", name)
		}
	}
}

// TestTurns: the rotary positions of text, of the rows of a video and of what follows.
func TestTurns(t *testing.T) {
	cfg := shapes["grouped"]
	cfg.MRope = [3]int{cfg.HeadDim/2 - 2, 1, 1}
	cfg.Vision = Vision{Depth: 1, Dim: 8, Heads: 2, Intermediate: 8, Patch: 2, Merge: 2, Temporal: 1}
	m := randomModel(t, cfg, portableKernel{})
	s, err := m.PlaceMedia([]Object{
		{Start: 2, Rows: make([]float32, 12*cfg.HiddenSize), Grid: [3]int{2, 4, 6}},
		{Start: 14, Rows: make([]float32, 2*cfg.HiddenSize)},
		{Start: 17, Rows: make([]float32, 3*cfg.HiddenSize), Grid: [3]int{3, 2, 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := [][3]int32{
		{0, 0, 0},
		{1, 1, 1},
		{2, 2, 2},
		{2, 2, 3},
		{2, 2, 4},
		{2, 3, 2},
		{2, 3, 3},
		{2, 3, 4},
		{3, 2, 2},
		{3, 2, 3},
		{3, 2, 4},
		{3, 3, 2},
		{3, 3, 3},
		{3, 3, 4},
		{5, 5, 5},
		{6, 6, 6}, // a sound is like text
		{7, 7, 7},
		{8, 8, 8},
		{9, 8, 8},
		{10, 8, 8}, // time counts like the sides
		{11, 11, 11},
		{12, 12, 12},
	}
	for from := range want {
		begun := s.countStarted(from)
		for p := from; p < len(want); p++ {
			r := tokenRow{position: p}
			begun = s.fillRow(&r, begun, cfg.HiddenSize)
			if r.rotary != want[p] || (r.mediaRow != nil) != (p >= 2 && p < 16 || p >= 17 && p < 20) {
				t.Errorf("from %d: position %d turns by %v, shown %t; want %v", from, p, r.rotary, r.mediaRow != nil, want[p])
			}
		}
	}
}

// TestLoadSeeingRefuses changes one field of a good configuration at a time.
func TestLoadSeeingRefuses(t *testing.T) {
	vision := func(key string, value any) map[string]any {
		v := map[string]any{"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
		v[key] = value
		return v
	}
	for _, test := range []struct {
		name, key string
		value     any
		want      string
	}{
		{"defaults", "vision_config", vision("patch_size", 14), ""},
		{"no encoder", "vision_config", nil, "vision_config is missing"},
		{"another architecture", "architectures", []string{"Qwen2ForCausalLM"}, "not supported for this architecture"},
		{"no places", "image_token_id", nil, "image_token_id and video_token_id"},
		{"activation", "vision_config", vision("hidden_act", "gelu"), `hidden_act "gelu"`},
		{"channels", "vision_config", vision("in_chans", 1), "1 channels"},
		{"width", "vision_config", vision("hidden_size", 64), "hidden_size is 64"},
		{"base", "vision_config", vision("rope_parameters", map[string]any{"rope_theta": 5}), "with base 5"},
		{"heads", "vision_config", vision("num_heads", 3), "3 heads"},
		{"no blocks", "vision_config", vision("depth", 0), "between 1 and"},
		{"blocks", "vision_config", vision("depth", 3), "visual.blocks.2"},
		{"ratio", "vision_config", vision("mlp_ratio", 3), "has shape"},
		{"patch", "vision_config", vision("patch_size", 1000), "at most 256"},
		{"sections", "text_config", map[string]any{"rope_parameters": map[string]any{"mrope_section": []int{1, 1, 1}}}, "do not make the"},
	} {
		t.Run(test.name, func(t *testing.T) {
			value := test.value
			if test.key == "text_config" { // the rest stays
				var cfg struct {
					Text map[string]any `json:"text_config"`
				}
				data, err := os.ReadFile(filepath.Join(seenDir, "config.json"))
				if err == nil {
					err = json.Unmarshal(data, &cfg)
				}
				if err != nil {
					t.Fatal(err)
				}
				text := cfg.Text
				for k, v := range value.(map[string]any) {
					text[k] = v
				}
				value = text
			}
			_, _, err := Load(t.Context(), changed(t, seenDir, test.key, value))
			switch {
			case test.want == "" && err != nil:
				t.Fatalf("got %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestNewNames: a file that puts decoder and encoder under a common prefix has the same model.
func TestNewNames(t *testing.T) {
	cfg := shapes["grouped"]
	cfg.Vision = Vision{Depth: 1, Dim: 8, Heads: 2, Intermediate: 8, Patch: 2, Merge: 2, Temporal: 1}
	old := randomWeights(cfg, 3)
	renamed := Map{}
	for name, w := range old {
		if rest, ok := strings.CutPrefix(name, "visual."); ok {
			name = "model.visual." + rest
		} else if rest, ok := strings.CutPrefix(name, "model."); ok {
			name = "model.language_model." + rest
		}
		renamed[name] = w
	}
	a, err := newModel(t.Context(), cfg, renamedTensors{old}, portableKernel{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := newModel(t.Context(), cfg, renamedTensors{renamed}, portableKernel{})
	if err != nil || a.Numerics() != b.Numerics() {
		t.Errorf("%v, or another model", err)
	}
	renamed["model.visual.more"] = Tensor{Shape: []int{1}, Data: []float32{1}}
	if _, err := newModel(t.Context(), cfg, renamedTensors{renamed}, portableKernel{}); err == nil || !strings.Contains(err.Error(), "visual.more") {
		t.Errorf("an unused weight: %v", err)
	}
}
