package family

import (
	"errors"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
)

// words is a vocabulary.
type words map[string]kv.Token

func (w words) ID(text string) (kv.Token, bool) {
	t, ok := w[text]
	return t, ok
}

func TestQwen2(t *testing.T) {
	f, err := Open(CheckpointFiles{
		Config:       []byte(`{"model_type":"qwen2_vl","image_token_id":151655}`),
		Preprocessor: []byte(`{"min_pixels":3136,"max_pixels":12845056,"patch_size":14,"merge_size":2}`),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ w, h, tokens int }{
		{1, 1, 4}, {28, 28, 4}, {70, 98, 8}, {100, 100, 16}, {400, 300, 154}, {100, 1000, 144}, {1920, 1080, 2691}, {8000, 6000, 16170}, {10000, 60, 714},
	} {
		l, err := f.Layout(media.Image, media.Size{Width: c.w, Height: c.h})
		if err != nil || l.CountTokens() != c.tokens || l.PadCount != c.tokens || l.Runs[0].Token != 151655 {
			t.Errorf("%d x %d: %+v %v, want %d tokens", c.w, c.h, l, err, c.tokens)
		}
	}
	var refused *SizeError
	if _, err := f.Layout(media.Image, media.Size{Width: 201, Height: 1}); !errors.As(err, &refused) || refused.Reason != media.SizeRefused {
		t.Errorf("%v", err)
	}
}

func TestBuiltin(t *testing.T) {
	f, err := OpenBuiltin(words{"<|image|>": 5, "<|video|>": 6, "<|audio|>": 7})
	if err != nil {
		t.Fatal(err)
	}
	if f.Name() != "penstock-vision" || !slices.Equal(f.Placeholders(), []kv.Token{5, 6, 7}) || f.NeedsOrientation() {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		kind media.Kind
		size media.Size
		want media.Layout
	}{
		{media.Image, media.Size{Width: 56, Height: 84}, media.Layout{Runs: []media.TokenRun{{Token: 5, Count: 6}}, PadCount: 6, Grid: [3]int{1, 6, 4}}},
		{media.Video, media.Size{Width: 56, Height: 56, Frames: 3}, media.Layout{Runs: []media.TokenRun{{Token: 6, Count: 8}}, PadCount: 8, Grid: [3]int{2, 4, 4}}},
		{media.Audio, media.Size{Samples: 16000}, media.Layout{Runs: []media.TokenRun{{Token: 7, Count: 25}}, PadCount: 25}},
	} {
		got, err := f.Layout(c.kind, c.size)
		if err != nil || !slices.Equal(got.Runs, c.want.Runs) || got.PadCount != c.want.PadCount || got.Grid != c.want.Grid {
			t.Errorf("%v %+v: %+v %v, want %+v", c.kind, c.size, got, err, c.want)
		}
	}
	if l, _ := f.Layout(media.Image, media.Size{Width: 4000, Height: 3000}); l.PadCount > 256 {
		t.Errorf("%d tokens", l.PadCount)
	}
}
