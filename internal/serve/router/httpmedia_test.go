package router

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/edge/prep"
)

// TestAsked: each media object of a prompt is described as far as it is known.
func TestAsked(t *testing.T) {
	key := media.BytesKey([]byte("x"))
	for _, c := range []struct {
		prompt prep.Prompt
		want   askedMedia
	}{
		{prep.Prompt{Tokens: make([]kv.Token, 3)}, askedMedia{}},
		{prep.Prompt{TextOnlyReason: media.DimensionsUnknown}, askedMedia{TextOnly: "dims_unavailable"}},
		{
			prep.Prompt{
				Media:   []kv.Media{{Hash: key.Hash, Start: 2, End: 7}},
				Objects: []media.Object{{Kind: media.Image, Key: key, Part: "p", Source: "data:,secret", Size: media.Size{Width: 3, Height: 4}}},
			},
			askedMedia{Media: []mediaRow{{Kind: "image", Part: "p", Key: key.Hex(), Start: 2, Tokens: 5, Width: 3, Height: 4}}},
		},
		{ // made by an engine
			prep.Prompt{Media: []kv.Media{{Hash: 10, Start: 0, End: 1}}},
			askedMedia{Media: []mediaRow{{Kind: "unknown", Key: "000000000000000a", Tokens: 1}}},
		},
	} {
		if diff := cmp.Diff(c.want, newAskedMedia(&c.prompt)); diff != "" {
			t.Error(diff)
		}
	}
}
