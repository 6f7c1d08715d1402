package remote

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/internal/engine"
)

// maxWhy bounds what a warning quotes of a checkpoint, in bytes.
const maxWhy = 160

// RemedyUncounted is what to do about an engine which does not say how its prompts show media.
const RemedyUncounted = "serve the model with vLLM, whose --enable-scale-out lets frontends with --preprocess engine ask it, or a model that docs/media-tokens.md lists"

// Uncounted warns of the kinds of media that the card's model sees and which are not found in prompts made
// here, so that requests are routed by the text before them; nil if there are none.
func (o *Opening) Uncounted(card *engine.Card, remedy string) []engine.Warning {
	if o.EnginePrompts || o.MediaKeys == MediaKeysOff || o.Tokenizer.Kind == engine.TokenizerOfEngine {
		return nil
	}
	var kinds []string
	why := ""
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		reason := o.whyUncounted(kind)
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
		Code: engine.WarnUncounted, Remedy: remedy,
		Detail: fmt.Sprintf("requests with %s are routed by their text alone: %s", strings.Join(kinds, ", "), why),
	}}
}

// whyUncounted returns why media of a kind are not found in prompts made here; "" if they are.
func (o *Opening) whyUncounted(kind media.Kind) string {
	if o.Family == nil {
		return o.NoFamily
	}
	return o.Family.Uncounted(kind)
}
