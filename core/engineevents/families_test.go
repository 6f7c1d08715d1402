package engineevents

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
)

// spelling is the vocabulary of the families' goldens: 256 bytes, each its own token, and more.
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

// openGolden opens the family of a golden file of package family.
func openGolden(t *testing.T, path string) *family.Family {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Files struct {
			Config, Preprocessor, Processor json.RawMessage
			VideoPreprocessor               json.RawMessage `json:"video_preprocessor"`
		}
		Vocab spelling
	}
	if err := json.NewDecoder(z).Decode(&g); err != nil {
		t.Fatal(err)
	}
	f, err := family.Open(family.CheckpointFiles{Config: g.Files.Config, Preprocessor: g.Files.Preprocessor, Processor: g.Files.Processor, VideoPreprocessor: g.Files.VideoPreprocessor}, g.Vocab)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// adaptFamily adapts a family to the tests of blocks: objects have random sizes which the family takes.
func adaptFamily(t *testing.T, f *family.Family) (s mediaFamily, ok bool) {
	var kinds []media.Kind
	for _, k := range []media.Kind{media.Image, media.Video, media.Audio} {
		if place, marked := f.Placeholder(k); marked {
			pad, _ := f.PadToken(k)
			kinds, s.placeholders, s.pads = append(kinds, k), append(s.placeholders, place), append(s.pads, pad)
		}
	}
	s.name = f.Name()
	s.layout = func(r *rand.Rand, kind int) media.Layout {
		for range 1000 {
			size := media.Size{Samples: 1 + r.IntN(200_000)}
			if kinds[kind] != media.Audio {
				size = media.Size{Width: 1 + r.IntN(500), Height: 1 + r.IntN(500)}
			}
			if kinds[kind] == media.Video {
				size.Frames, size.Rate = 1+r.IntN(8), float64(1+r.IntN(30))
			}
			if l, err := f.Layout(kinds[kind], size); err == nil {
				return l
			}
		}
		t.Fatalf("%s takes no %v", s.name, kinds[kind])
		return media.Layout{}
	}
	return s, len(kinds) > 0
}

// TestFamiliesAlike: with the tokens of every family, blocks get the hashes which requests use, whichever
// engine reports them.
func TestFamiliesAlike(t *testing.T) {
	paths, err := filepath.Glob("../media/family/testdata/*.json.gz")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%d goldens: %v", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json.gz")
		s, ok := adaptFamily(t, openGolden(t, path))
		if !ok {
			t.Logf("%s: what its templates write is no token, so that its prompts are not expanded", name)
			continue
		}
		for _, p := range publishers() {
			t.Run(fmt.Sprintf("%s/%s", name, p.name), func(t *testing.T) {
				r := rand.New(rand.NewPCG(11, uint64(len(name)+100*len(p.name))))
				for range 3 {
					cfg := p.cfg
					cfg.BlockSize, cfg.MediaTokens = 16<<r.IntN(2), s.pads
					alike(t, r, &s, &p, cfg)
				}
			})
		}
	}
}
