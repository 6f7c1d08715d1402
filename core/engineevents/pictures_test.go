package engineevents_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
)

// shownCapture is testdata/pictures: what a real engine reported for conversations with images
// (test/interop/engines/capture.py pictures).
type shownCapture struct {
	BlockSize int `json:"block_size"`
	Asked     []struct {
		Name     string
		Prompt   []kv.Token // with one placeholder for each image
		Pictures []struct {
			Width, Height int
			UUID          string
		}
		Tokens    int // of the prompt, as counted by the engine
		Places    []struct{ Offset, Length int }
		Generated []kv.Token
		Cached    *int `json:"cached_tokens"`
	}
	Frames [][][]byte
}

// TestCapturedPictures: a real engine's prompts have the tokens which the family computes, its blocks the
// hashes which requests use, and it reuses what follows from its events.
func TestCapturedPictures(t *testing.T) {
	dirs, err := filepath.Glob("testdata/pictures/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var c shownCapture
			read := func(name string) []byte {
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				return data
			}
			if err := json.Unmarshal(read("pictures.json"), &c); err != nil || len(c.Asked) == 0 {
				t.Fatalf("%d conversations, %v", len(c.Asked), err)
			}
			f, err := family.Open(family.CheckpointFiles{Config: read("config.json"), Preprocessor: read("preprocessor_config.json")}, nil)
			if err != nil {
				t.Fatal(err)
			}
			h, err := kv.NewHasher(c.BlockSize, kv.Salt{})
			if err != nil {
				t.Fatal(err)
			}
			pad, _ := f.PadToken(media.Image)
			table, err := engineevents.NewTable(engineevents.Config{BlockSize: c.BlockSize, MediaTokens: []kv.Token{pad}})
			if err != nil {
				t.Fatal(err)
			}
			l := &listener{t: t, table: table, size: c.BlockSize, known: map[kv.SeqHash]bool{}}
			for _, frames := range c.Frames {
				l.apply(frames[len(frames)-1])
			}
			cached := map[kv.SeqHash]bool{} // what the earlier requests left
			for _, a := range c.Asked {
				var placed []media.PromptObject
				for _, p := range a.Pictures {
					layout, err := f.Layout(media.Image, media.Size{Width: p.Width, Height: p.Height})
					hash, ok := kv.MediaHash(p.UUID)
					if err != nil || !ok {
						t.Fatalf("%s: %v", a.Name, err)
					}
					placeholder, _ := f.Placeholder(media.Image)
					placed = append(placed, media.PromptObject{Placeholder: placeholder, Key: media.Key{Hash: hash}, Layout: layout})
				}
				prompt, places, err := media.ExpandPrompt(nil, nil, a.Prompt, f.Placeholders(), placed, 1<<20)
				if err != nil || len(prompt) != a.Tokens {
					t.Fatalf("%s: %d tokens are counted, the engine has %d (%v)", a.Name, len(prompt), a.Tokens, err)
				}
				for i, at := range a.Places {
					if places[i].Start != at.Offset || places[i].End != at.Offset+at.Length {
						t.Errorf("%s: picture %d is at %d to %d, the engine has it at %d, %d long", a.Name, i, places[i].Start, places[i].End, at.Offset, at.Length)
					}
				}
				predicted := 0
				for _, seq := range h.AppendSeqHashes(nil, prompt[:len(prompt)-1], places) {
					if !cached[seq] {
						break
					}
					predicted += c.BlockSize
				}
				if a.Cached == nil || *a.Cached != predicted {
					t.Errorf("%s: %d tokens are predicted, the engine reports %v", a.Name, predicted, a.Cached)
				}
				computed := append(slices.Clone(prompt), a.Generated[:len(a.Generated)-1]...)
				for i, seq := range h.AppendSeqHashes(nil, computed, places) {
					if cached[seq] = true; !l.known[seq] {
						t.Errorf("%s: block %d of %d is not known", a.Name, i, len(computed)/c.BlockSize)
					}
				}
			}
			if len(l.known) != len(cached) {
				t.Errorf("%d blocks are known, %d are cached", len(l.known), len(cached))
			}
			if s := table.Stats(); s.Faceless+s.Nameless+s.Unresolved+s.Orphans+s.SkippedEvents != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
