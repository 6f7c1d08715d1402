package media

import (
	"fmt"
	"image/color"
	"testing"

	"penstock/core/media"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/media/fetch"
)

// BenchmarkPrompt makes the prompts of conversations that show so many pictures: rendered, tokenized,
// probed, hashed, counted and expanded.
func BenchmarkPrompt(b *testing.B) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		b.Fatal(err)
	}
	fetcher, err := fetch.New(fetch.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer fetcher.Close()
	r, err := New(Config{}, NewFetcherSource(fetcher, 64<<20), nil)
	if err != nil {
		b.Fatal(err)
	}
	var uris []string
	for i := range 10 {
		uris = append(uris, data("image/jpeg", encoded(b, "jpeg", picture(1024, 768, color.RGBA{uint8(i * 20), 80, 160, 255}))))
	}
	for _, identity := range []media.Identity{media.ByURL, media.ByPixels} {
		for _, n := range []int{0, 1, 4, 10} {
			b.Run(fmt.Sprintf("identity=%s/images=%d", identity, n), func(b *testing.B) {
				c := shown(media.Image, uris[:n]...)
				c.AddGenerationPrompt = true
				parts := prep.AppendTextPart([]byte{'['}, "What is the difference between these?")
				for range n {
					parts = prep.AppendMediaPart(parts, media.Image)
				}
				c.Messages = []prep.Message{{Role: "user", Parts: append(parts, ']')}}
				local := prep.LocalEncoder{Pipeline: pipe, Media: r.ResolverFor(ModelOptions{Identity: identity})}
				b.ReportAllocs()
				for b.Loop() {
					p, err := local.EncodeChat(b.Context(), c)
					if err != nil || len(p.Media) != n {
						b.Fatal(p.TextOnlyReason, err)
					}
					p.Free()
				}
			})
		}
	}
}
