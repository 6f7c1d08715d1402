package handoff

import (
	"fmt"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/media/pixel"
)

// placeholders are those of media in the vocabulary of the built-in model.
type placeholders map[string]kv.Token

func (p placeholders) ID(text string) (kv.Token, bool) { t, ok := p[text]; return t, ok }

var pads = placeholders{"<|image|>": 196, "<|video|>": 197, "<|audio|>": 198}

// newTiny returns an engine of the built-in model, whose configuration change changes unless it is nil.
func newTiny(t *testing.T, blockSize, tokens int, change func(*tiny.Config)) *tiny.Engine {
	t.Helper()
	cfg := tiny.Config{
		Name: "m", Layers: 1, BlockSize: blockSize, Blocks: tokens / blockSize,
		Vocabulary: tiny.Vocabulary{Size: 200, Mask: []kv.Token{196, 197, 198}, Names: pads},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := tiny.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// openTiny returns engines of the built-in model which differ in the size of their blocks.
func openTiny(t *testing.T) func(blockSize int) exchangeEngine {
	return func(blockSize int) exchangeEngine { return newTiny(t, blockSize, 2048, nil) }
}

// pictureSize is that of the pictures which requests show.
var pictureSize = media.Size{Height: 2 * 28, Width: 3 * 28}

// noise returns the bytes of a picture of noise.
func noise(seed uint64) (pixels []byte) {
	for i := range 3 * pictureSize.Height * pictureSize.Width {
		pixels = append(pixels, byte(mix(seed, uint64(i))))
	}
	return pixels
}

// showPicture shows a picture of noise in a request, before the token at an index.
func showPicture(t *testing.T, req *engine.Request, at int, seed uint64) {
	t.Helper()
	pixels := media.Tensor{Shape: []int{pictureSize.Height, pictureSize.Width, 3}, Data: noise(seed)}
	showObject(t, req, at, media.Object{Key: pixel.ContentKey(media.Image, &pixels), Identity: media.ByPixels, Tensor: pixels})
}

// showObject shows a picture in a request, before the token at an index. It returns the index after its tokens.
func showObject(t *testing.T, req *engine.Request, at int, o media.Object) (end int) {
	t.Helper()
	f, err := family.OpenBuiltin(pads)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Layout(media.Image, pictureSize)
	if err != nil {
		t.Fatal(err)
	}
	end = at + l.CountTokens()
	for i := at; i < end; i++ {
		req.Prompt[i] = pads["<|image|>"]
	}
	o.Kind, o.Part = media.Image, "messages[0].content[0]"
	req.Media = append(req.Media, kv.Media{Hash: o.Key.Hash, Digest: o.Key.Digest, Start: at, End: end})
	req.Objects = append(req.Objects, o)
	return end
}

// TestTiny: the K and V of a real model, computed elsewhere, give the tokens and log-probabilities of one engine,
// also of prompts with pictures, which the decode worker neither gets nor encodes.
func TestTiny(t *testing.T) {
	for _, sizes := range [][2]int{{16, 64}, {128, 16}} {
		t.Run(fmt.Sprintf("%d from %d", sizes[0], sizes[1]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, rigConfig{blocks: sizes[:], open: openTiny(t), queue: newQueue(t)})
				for i, n := range []int{129, 256, 300} {
					req := newRequest(i, n, 4)
					req.Logprobs = 2
					if i > 0 {
						req.Sampling = engine.Sampling{Temperature: 1, TopK: 50, Seed: uint64(i)}
					}
					if i == 2 {
						showPicture(t, req, 20, 1)
					}
					encoded := encodedBy(r.eng)
					if o := r.expect(req, r.start(r.ctx, req)); !isRemote(o) || o.Jobs != 1 || o.End-o.Start != (n-1)/sizes[0]*sizes[0] {
						t.Errorf("%+v", o)
					}
					if got := encodedBy(r.eng); got != encoded {
						t.Errorf("the decode worker has encoded %d pictures", got-encoded)
					}
				}
				if encodedBy(r.prefills[0].eng) == 0 {
					t.Error("the test tested nothing: no picture was encoded")
				}
				r.expectIdle()
			})
		})
	}
}

func encodedBy(e exchangeEngine) uint64 {
	return e.(interface{ EncoderStats() engine.EncoderStats }).EncoderStats().Encoded
}
