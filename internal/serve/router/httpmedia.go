package router

import (
	"penstock/core/media"
	"penstock/internal/edge/prep"
)

// asked is what a question shows besides text, beside its answer.
type asked struct {
	// TextOnly says why Media are none although the question shows some.
	TextOnly string       `json:"text_only,omitempty"`
	Media    []shownMedia `json:"media,omitempty"`
}

// shownMedia is a media object of a prompt: who it is, how large, and which tokens stand for it.
type shownMedia struct {
	Kind    string `json:"kind"`
	Part    string `json:"part,omitempty"`
	Key     string `json:"key"`
	Start   int    `json:"start"`
	Tokens  int    `json:"tokens"`
	Width   int    `json:"width,omitempty"`
	Height  int    `json:"height,omitempty"`
	Frames  int    `json:"frames,omitempty"`
	Samples int    `json:"samples,omitempty"`
}

// newAsked describes the media of a prompt. Of one that an engine made no more is known than where
// they are.
func newAsked(p *prep.Prompt) asked {
	a := asked{TextOnly: string(p.TextOnly)}
	for i, m := range p.Media {
		s := shownMedia{Kind: "unknown", Key: media.Key{Hash: m.Hash}.Hex(), Start: m.Start, Tokens: m.End - m.Start}
		if i < len(p.Objects) {
			o := &p.Objects[i]
			s.Kind, s.Part = o.Kind.String(), o.Part
			s.Width, s.Height, s.Frames, s.Samples = o.Size.Width, o.Size.Height, o.Size.Frames, o.Size.Samples
		}
		a.Media = append(a.Media, s)
	}
	return a
}
