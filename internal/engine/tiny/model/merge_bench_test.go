package model

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/media"
)

// BenchmarkMerge makes the input of the model from a prompt of 5,000 tokens with three objects, on one core.
//
// positions expands the placeholders and places the objects: which token is at which position, which row of which
// object in its place, and its rotary position. Rows stay where they are: no byte of them is copied.
//
// entry/media is what a pass then does with all rows before its first layer, and entry/text the same for as many tokens of
// text: a row of an object is copied instead of the embedding of a token.
func BenchmarkMerge(b *testing.B) {
	const tokens = 5000
	cfg := benchConfig
	cfg.Layers = 1
	m := randomModel(b, cfg, kernels()[0])
	c := newTestCache(m, (tokens+15)/16, 16, tokens, 1)
	rng := rand.New(rand.NewPCG(5, 6))

	const pad = 2000
	prompt := randomTokens(rng, 1032-3, 1999) // with the rows below 5,000 tokens
	var objects []media.PromptObject
	var rows [][]float32
	for i, n := range []int{64, 64, 3840 + 3} {
		at := (i + 1) * 200
		prompt = append(prompt[:at:at], append([]kv.Token{pad}, prompt[at:]...)...)
		objects = append(objects, media.PromptObject{Placeholder: pad, Layout: media.Layout{Runs: []media.TokenRun{{Token: pad, Count: n}}, PadCount: n}})
		all := make([]float32, n*cfg.HiddenSize)
		for j := range all {
			all[j] = rng.Float32()
		}
		rows = append(rows, all)
	}
	marks := []kv.Token{pad}
	blocks := table(0, tokens, 16)
	var expanded []kv.Token
	var places []kv.Media
	place := func() *PlacedMedia {
		var err error
		if expanded, places, err = media.ExpandPrompt(expanded[:0], places[:0], prompt, marks, objects, tokens); err != nil || len(expanded) != tokens {
			b.Fatal(len(expanded), err)
		}
		var placed [3]Object
		for i := range placed {
			placed[i] = Object{Start: places[i].Start, Rows: rows[i]}
		}
		s, err := m.PlaceMedia(placed[:])
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	take := func(s *PlacedMedia) {
		c.arena.resetRows()
		if n := c.arena.takeTokens(&Work{Tokens: expanded, Blocks: blocks, Media: s}, 0); n != tokens {
			b.Fatalf("%d rows", n)
		}
	}
	b.Run("positions", func(b *testing.B) {
		b.ReportAllocs()
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			take(place())
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2]), "median-ns")
	})
	for _, kind := range []string{"media", "text"} {
		b.Run("entry/"+kind, func(b *testing.B) {
			s := place()
			if kind == "text" {
				s = nil
			}
			take(s)
			for b.Loop() {
				for task := range (tokens + grain - 1) / grain {
					c.arena.embedRows(task, 0)
				}
			}
		})
	}
}
