package media

import (
	"context"
	"image/color"
	"testing"

	"penstock/core/media"
	"penstock/core/media/family"
)

// glances is a shelf that can be glanced at.
type glances struct {
	shelf
	n int
}

func (g *glances) FetchUnorientedSize(ctx context.Context, url string) (FileInfo, error) {
	g.n++
	b, err := g.find(ctx, url)
	if err != nil {
		return FileInfo{}, err
	}
	f, err := g.ReadHeader(b)
	f.Oriented = false
	return f, err
}

// TestGlance: which way up a picture is, is asked only for models to which that matters.
func TestGlance(t *testing.T) {
	pixtral, err := family.Open(family.CheckpointFiles{
		Config:       []byte(`{"model_type":"llava","image_token_index":1,"vision_config":{"model_type":"pixtral","patch_size":16,"image_size":1540},"spatial_merge_size":2}`),
		Preprocessor: []byte(`{"image_processor_type":"PixtralImageProcessor","patch_size":{"height":16,"width":16},"size":{"longest_edge":1540}}`),
		Processor:    []byte(`{"patch_size":16,"spatial_merge_size":2,"image_token":"[IMG]","image_break_token":"[IMG_BREAK]","image_end_token":"[IMG_END]"}`),
	}, all{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*family.Family{builtin(t), pixtral} {
		src := &glances{shelf: shelf{files: map[string][]byte{"http://a/1": encoded(t, "png", picture(56, 84, color.RGBA{1, 2, 3, 255}))}}}
		r, err := New(Config{}, src, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects, release, err := r.ResolverFor(ModelOptions{}).Resolve(t.Context(), shown(media.Image, "http://a/1"), f)
		if err != nil {
			t.Fatal(err)
		}
		release()
		want := map[bool][2]int{true: {0, 1}, false: {1, 0}}[f.NeedsOrientation()]
		if got := [2]int{src.n, src.mu.sizes}; got != want || objects[0].Size.Height != 84 {
			t.Errorf("%s: glanced at %d times, asked %d times; want %v", f.Name(), src.n, src.mu.sizes, want)
		}
	}
}
