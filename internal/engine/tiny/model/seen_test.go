package model

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
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
	Resized []byte `json:"resized"` // as the library did it; empty if nothing changed
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

// colours are those of the fixture's processor.
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

// look encodes an object: rgb is of the shape that its grid has, or of its own.
func look(t *testing.T, m *Model, o seenObject, rgb []byte, shape [4]int) []float32 {
	t.Helper()
	v := m.Config().Vision
	patches, err := patch.Cut(rgb, shape, o.Grid, patch.Shape{Size: v.Patch, Merge: v.Merge, Temporal: v.Temporal}, colours(t))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := m.Encode(t.Context(), patches, o.Grid)
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

// TestSeenReference compares with the transformers library, for the same pixels as its
// processor resized them to: logits to 1e-4, greedy tokens exactly.
func TestSeenReference(t *testing.T) {
	for _, k := range kernels() {
		t.Run(k.name(), func(t *testing.T) {
			m, _, err := load(t.Context(), seenDir, k)
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

// TestSeenEndToEnd is the same from the pictures as they are sent. Bytes differ by 1
// here and there where they are resized, and logits, which go from about -4 to 4, by up to 0.01.
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
	shown, err := m.Show(objects)
	if err != nil {
		t.Fatal(err)
	}
	total := len(c.Prompt) + len(c.Greedy)
	cache := m.NewCache((total+15)/16, 16)
	work := Work{Tokens: c.Prompt, Blocks: table(0, total, 16), Logits: make([]float32, m.Config().VocabSize), Shown: shown}
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
			got, err := patch.Cut(o.RGB, o.Shape, o.Grid, shape, same)
			if err != nil {
				t.Fatal(err)
			}
			rgb, dims := o.asResized()
			want, err := patch.Cut(rgb, dims, o.Grid, shape, same)
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
