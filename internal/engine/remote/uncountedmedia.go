package remote

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/internal/engine"
)

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
