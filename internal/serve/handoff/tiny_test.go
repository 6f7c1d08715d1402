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

// openTiny returns engines of the built-in model which differ in the size of their blocks.
func openTiny(t *testing.T) func(blockSize int) exchangeEngine {
	return func(blockSize int) exchangeEngine {
		e, err := tiny.New(t.Context(), tiny.Config{
			Name: "m", Layers: 1, BlockSize: blockSize, Blocks: 2048 / blockSize,
			Vocabulary: tiny.Vocabulary{Size: 200, Mask: []kv.Token{196, 197, 198}, Names: pads},
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// showPicture shows a picture of noise in a request, before the token at an index.
func showPicture(t *testing.T, req *engine.Request, at int, seed uint64) {
	t.Helper()
	f, err := family.OpenBuiltin(pads)
	if err != nil {
		t.Fatal(err)
	}
	pixels := media.Tensor{Shape: []int{2 * 28, 3 * 28, 3}}
	for i := range 2 * 28 * 3 * 28 * 3 {
		pixels.Data = append(pixels.Data, byte(mix(seed, uint64(i))))
	}
	l, err := f.Layout(media.Image, media.Size{Height: 2 * 28, Width: 3 * 28})
	if err != nil {
		t.Fatal(err)
	}
	n := l.CountTokens()
	o := media.Object{Kind: media.Image, Key: pixel.ContentKey(media.Image, &pixels), Identity: media.ByPixels, Part: "messages[0].content[0]", Tensor: pixels}
	for i := range n {
		req.Prompt[at+i] = pads["<|image|>"]
	}
	req.Media = append(req.Media, kv.Media{Hash: o.Key.Hash, Digest: o.Key.Digest, Start: at, End: at + n})
	req.Objects = append(req.Objects, o)
}

// TestTiny: the K and V of a real model, computed elsewhere, give the tokens and log-probabilities of one engine, also of
// prompts with pictures, which the decode worker neither gets nor encodes.
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

func encodedBy(e exchangeEngine) uint64 { return uint64(e.(*tiny.Engine).EncoderStats().Encoded) }
