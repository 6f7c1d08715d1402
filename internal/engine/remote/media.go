package remote

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/engineevents"
	"penstock/core/media"
	"penstock/internal/engine"
)

// MediaKinds lists the names of the kinds of media as cards have them: ascending.
func MediaKinds() []string {
	return []string{media.Audio.String(), media.Image.String(), media.Video.String()}
}

// sampleSide is the width and height of the picture of a sample, in pixels: enough for a patch of any model.
const sampleSide = 64

// SamplePart returns the part of a message that shows a small object of a kind, to test whether an engine's
// model takes such objects.
func SamplePart(kind string) []byte {
	switch kind {
	case media.Audio.String():
		return appendPart(nil, media.Audio, dataURI("audio/wav", silentWAV(16_000, 1_600)), "")
	case media.Video.String():
		return appendPart(nil, media.Video, sequenceURI(2, sampleSide, sampleSide), "")
	}
	return appendPart(nil, media.Image, pictureURI(sampleSide, sampleSide), "")
}

// appendPart appends the part of a message that shows the object of a data: URI, with name as its uuid unless
// it is "".
func appendPart(b []byte, kind media.Kind, uri, name string) []byte {
	if kind == media.Audio {
		_, data, _ := strings.Cut(uri, ",")
		b = append(append(b, `{"type":"input_audio","input_audio":{"format":"wav","data":"`...), data...)
	} else {
		b = append(append(append(b, `{"type":"`...), kind.String()...), `_url","`...)
		b = append(append(append(b, kind.String()...), `_url":{"url":"`...), uri...)
	}
	b = append(b, `"}`...)
	if name != "" {
		b = append(append(append(b, `,"uuid":"`...), name...), '"')
	}
	return append(b, '}')
}

// SetMediaFields sets in a card which media its engine takes in passthrough conversations, and how it is sent
// their keys: the settings take precedence over found and keys.
func (o *OpenConfig) SetMediaFields(card *engine.Card, found []string, keys string) {
	if o.Media != nil {
		found = o.Media
	}
	card.Media, card.ProcessorArgs = slices.Clone(found), o.ProcessorArgs
	slices.Sort(card.Media)
	switch {
	case len(card.Media) == 0 || o.MediaKeys == MediaKeysOff:
		card.MediaKeys = ""
	case o.MediaKeys != "":
		card.MediaKeys = o.MediaKeys
	default:
		card.MediaKeys = keys
	}
}

// TakesMedia reports whether the model's family takes media of a kind; false if unknown.
func (o *OpenConfig) TakesMedia(kind string) bool {
	for _, k := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if k.String() == kind {
			return o.Family != nil && o.Family.Supports(k)
		}
	}
	return false
}

// SetMediaTokens sets in the configuration of an event table which tokens the engine's events have in place
// of media, and which tokens requests have there.
func (o *OpenConfig) SetMediaTokens(table *engineevents.Config, pads engineevents.PadStyle) {
	table.Pads = pads
	if o.VocabSize > 0 && o.VocabSize < UnknownVocabulary {
		table.Vocabulary = o.VocabSize
	}
	if o.Family == nil {
		return
	}
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if pad, ok := o.Family.PadToken(kind); ok && !slices.Contains(table.MediaTokens, pad) {
			table.MediaTokens = append(table.MediaTokens, pad)
		}
	}
}

// unknownMedia tracks media in an engine's events which are unknown here.
type unknownMedia struct {
	seen uint64 // blocks with unknown media so far
	last incidents
}

// unknownMediaWarnings warns if the engine has recently cached media that are unknown here.
func (s *unknownMedia) unknownMediaWarnings(of engineevents.Stats) []engine.Warning {
	if now := of.Unresolved + of.Faceless; now > s.seen {
		s.seen = now
		s.last.record()
	}
	if !s.last.isRecent() {
		return nil
	}
	w := engine.Warning{
		Code:   engine.WarnMediaUnknown,
		Detail: "the engine caches pictures of requests that did not come by here, or that it was not told the keys of: those are not found again",
		Remedy: "send all requests that show media by here, and see that the engine takes keys (media-keys)",
	}
	if of.Faceless > 0 {
		w.Detail = "the engine's cache events do not say which pictures blocks show: what follows a picture is not routed by prefix"
		w.Remedy = "take a version whose events have extra_keys (vLLM 0.17 or later)"
	}
	return []engine.Warning{w}
}

// MediaKeysOff is the MediaKeys of an OpenConfig whose engine is not sent the keys of media.
const MediaKeysOff = "off"

// maxWhy bounds a warning's quote from a checkpoint, in bytes.
const maxWhy = 160

// UncountedRemedy is the remedy for an engine which does not say how its prompts show media.
const UncountedRemedy = "serve the model with vLLM, whose --enable-scale-out lets frontends with --preprocess engine ask it, or a model that docs/media-tokens.md lists"

// UncountedMedia warns of the kinds of media which the card's model takes but which prompts made here do not
// show, so that requests are routed by the text before them; nil if there are none.
func (o *OpenConfig) UncountedMedia(card *engine.Card, remedy string) []engine.Warning {
	if o.EnginePrompts || o.MediaKeys == MediaKeysOff || o.Tokenizer.Kind == engine.TokenizerOfEngine {
		return nil
	}
	var kinds []string
	why := ""
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		reason := o.uncountedReason(kind)
		if reason == "" || !slices.Contains(card.Media, kind.String()) {
			continue
		}
		if kinds = append(kinds, kind.String()); why == "" {
			why = strings.ToValidUTF8(reason[:min(len(reason), maxWhy)], "")
		}
	}
	if kinds == nil {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnMediaUncounted, Remedy: remedy,
		Detail: fmt.Sprintf("requests with %s are routed by their text alone: %s", strings.Join(kinds, ", "), why),
	}}
}

// uncountedReason returns why prompts made here do not show media of a kind; "" if they do.
func (o *OpenConfig) uncountedReason(kind media.Kind) string {
	if o.Family == nil {
		return o.NoFamilyReason
	}
	return o.Family.WhyUncounted(kind)
}
