package router

import (
	"penstock/core/media"
	"penstock/internal/edge/prep"
)

// askedMedia describes the media of the prompt that a question is about; it is part of the answer.
type askedMedia struct {
	// TextOnly says why Media is empty although the question has media.
	TextOnly string     `json:"text_only,omitempty"`
	Media    []mediaRow `json:"media,omitempty"`
}

// mediaRow is the JSON of a media object in a prompt: its identity, its size, and the tokens that stand
// for it.
type mediaRow struct {
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

// newAskedMedia describes the media of a prompt. Of an object which an engine preprocessed only the
// position is known.
func newAskedMedia(p *prep.Prompt) askedMedia {
	a := askedMedia{TextOnly: string(p.TextOnlyReason)}
	for i, m := range p.Media {
		s := mediaRow{Kind: "unknown", Key: media.Key{Hash: m.Hash}.Hex(), Start: m.Start, Tokens: m.End - m.Start}
		if i < len(p.Objects) {
			o := &p.Objects[i]
			s.Kind, s.Part = o.Kind.String(), o.Part
			s.Width, s.Height, s.Frames, s.Samples = o.Size.Width, o.Size.Height, o.Size.Frames, o.Size.Samples
		}
		a.Media = append(a.Media, s)
	}
	return a
}
