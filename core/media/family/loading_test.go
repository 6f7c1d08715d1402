package family

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
)

// loadings returns the videos with vLLM's recorded results, from the file to the tokens
// (tools/fixtures/make_media_loading.py), with the family of each golden.
func loadings(t *testing.T, as Serving) map[string]loading {
	t.Helper()
	paths, err := filepath.Glob("testdata/loading/*.json.gz")
	if err != nil || len(paths) != 5 {
		t.Fatalf("%d goldens: %v", len(paths), err)
	}
	all := map[string]loading{}
	for _, path := range paths {
		g := readGolden(t, path)
		f, err := OpenFor(g.files(), as, spelling(g.Vocab))
		if err != nil {
			t.Fatal(err)
		}
		l := loading{family: f}
		for _, c := range g.VLLM {
			size := media.Size{
				Width: decoded[int](t, c[0]), Height: decoded[int](t, c[1]), Frames: decoded[int](t, c[2]), Rate: decoded[float64](t, c[3]), Sequence: decoded[bool](t, c[4]),
			}
			var runs []media.TokenRun
			n := decoded[[]int](t, c[5])
			for i := 0; i < len(n); i += 2 {
				runs = append(runs, media.TokenRun{Token: kv.Token(n[i]), Count: n[i+1]})
			}
			l.cases = append(l.cases, sized{media.Video, size, runs})
		}
		all[filepath.Base(path)] = l
	}
	return all
}

// loading is a family with vLLM's results for its videos.
type loading struct {
	family *Family
	cases  []sized
}

// TestVLLMLoads: JPEG sequences and files of any length and rate have the tokens which vLLM gives them.
func TestVLLMLoads(t *testing.T) {
	for name, l := range loadings(t, Serving{Loader: VLLM}) {
		if len(l.cases) < 150 {
			t.Errorf("%s: %d cases", name, len(l.cases))
		}
		for _, c := range l.cases {
			got, err := l.family.Layout(media.Video, c.size)
			switch {
			case (err != nil) != (c.runs == nil):
				t.Errorf("%s: %+v: %v, want %d runs", name, c.size, err, len(c.runs))
			case err == nil && !slices.Equal(joined(got.Runs), c.runs):
				t.Errorf("%s: %+v: %d tokens, want %d", name, c.size, got.CountTokens(), (&media.Layout{Runs: c.runs}).CountTokens())
			}
		}
	}
}

// TestLoadersDiffer: without a loader a family counts every frame, unlike vLLM. A video whose loading is
// unknown is not counted.
func TestLoadersDiffer(t *testing.T) {
	differ := 0
	for _, l := range loadings(t, Serving{}) {
		for _, c := range l.cases {
			if got, err := l.family.Layout(media.Video, c.size); err == nil && !slices.Equal(joined(got.Runs), c.runs) {
				differ++
			}
		}
	}
	if differ < 300 {
		t.Errorf("%d videos differ", differ)
	}
	for _, c := range []struct {
		loader Loader
		size   media.Size
		reason media.Reason
	}{
		{UnknownLoader, media.Size{Width: 64, Height: 48, Frames: 40, Rate: 10}, media.UnsupportedModel},
		{SGLang, media.Size{Width: 64, Height: 48, Frames: 40, Sequence: true}, media.UnsupportedModel},
		{SGLang, media.Size{Width: 64, Height: 48, Frames: 40}, media.DimensionsUnknown},
		{SGLang, media.Size{Width: 64, Height: 48, Frames: 4000, Rate: 10}, media.OverLimit},
		{VLLM, media.Size{Width: 64, Height: 48, Frames: 40}, media.DimensionsUnknown},
		{VLLM, media.Size{Width: 64, Height: 48, Frames: 1, Rate: 10}, media.SizeRefused},
	} {
		for name, l := range loadings(t, Serving{Loader: c.loader}) {
			if c.reason == media.SizeRefused && !slices.Contains([]string{"qwen2_vl.json.gz", "qwen2_5_vl.json.gz"}, name) {
				continue
			}
			_, err := l.family.Layout(media.Video, c.size)
			var refused *SizeError
			if !errors.As(err, &refused) || refused.Reason != c.reason {
				t.Errorf("%s: loader %d, %+v: %v, want %s", name, c.loader, c.size, err, c.reason)
			}
		}
	}
}

// TestSGLangLoads: SGLang samples as vLLM does, and resizes each frame before the processor does. The
// counts are computed by hand from its code.
func TestSGLangLoads(t *testing.T) {
	l := loadings(t, Serving{Loader: SGLang})["qwen2_vl.json.gz"]
	for _, c := range []struct {
		size media.Size
		want int
	}{
		// 45 frames in 4.5 s: 8 of them. 64 by 48 pixels become 392 by 280: 14 by 10 tokens a pair.
		{media.Size{Width: 64, Height: 48, Frames: 45, Rate: 10}, 4 * 14 * 10},
		// 20 frames in 2 s: 4. 640 by 480 pixels become 644 by 476.
		{media.Size{Width: 640, Height: 480, Frames: 20, Rate: 10}, 2 * 23 * 17},
		// 1920 by 1080 pixels become 1008 by 560, below 602,112.
		{media.Size{Width: 1920, Height: 1080, Frames: 20, Rate: 10}, 2 * 36 * 20},
	} {
		if got, err := l.family.Layout(media.Video, c.size); err != nil || got.CountTokens() != c.want {
			t.Errorf("%+v: %d tokens, want %d: %v", c.size, got.CountTokens(), c.want, err)
		}
	}
}

// TestLoaderOf: each engine has a loader, by its name in the model card.
func TestLoaderOf(t *testing.T) {
	for engine, want := range map[string]Loader{"": AllFrames, "tiny": AllFrames, "sim": AllFrames, "vllm": VLLM, "sglang": SGLang, "trtllm": UnknownLoader, "llamacpp": UnknownLoader} {
		if got := LoaderForEngine(engine); got != want {
			t.Errorf("%s: %d, want %d", engine, got, want)
		}
	}
}
