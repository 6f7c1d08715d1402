package sglang

import (
	"context"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// enableObjects sets in a card whether the engine takes media with a request's tokens: /generate does, and
// only there SGLang takes their keys. Prompts have an object's tokens in its place, but the engine expects
// the one placeholder that it replaces by them itself. So the family must be known and have a placeholder.
func (d *generateDialect) enableObjects(o *remote.OpenConfig, card *engine.Card) {
	if o.Family == nil || o.MediaKeys == remote.MediaKeysOff {
		return
	}
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if place, ok := o.Family.Placeholder(kind); ok && slices.Contains(card.Media, kind.String()) {
			d.placeholders[kind] = place
		}
	}
	sees := func(kind string) bool {
		return slices.ContainsFunc([]media.Kind{media.Image, media.Video, media.Audio}, func(k media.Kind) bool { return k.String() == kind && d.placeholders[k] != 0 })
	}
	for _, kind := range card.Media {
		if !sees(kind) {
			return // such media can still be passed through
		}
	}
	card.AcceptsObjects = len(card.Media) > 0
}

// appendPrompt appends the tokens of a SubRequest, with a placeholder for each media object.
func (d *generateDialect) appendPrompt(b []byte, p *remote.SubRequest) []byte {
	r := p.Request
	if len(r.Media) == 0 {
		return strictjson.AppendTokens(b, r.Prompt, p.Generated)
	}
	var lists [][]kv.Token
	at := 0
	for i, m := range r.Media {
		lists = append(lists, r.Prompt[at:m.Start], []kv.Token{d.placeholders[r.Objects[i].Kind]})
		at = m.End
	}
	return strictjson.AppendTokens(b, append(lists, r.Prompt[at:], p.Generated)...)
}

// appendMedia appends the media of a request, kind by kind, and their keys.
func (d *generateDialect) appendMedia(b []byte, r *engine.Request) []byte {
	for _, of := range [...]struct {
		kind media.Kind
		name string
	}{{media.Image, "image_data"}, {media.Video, "video_data"}, {media.Audio, "audio_data"}} {
		first := true
		for i := range r.Objects {
			if r.Objects[i].Kind != of.kind {
				continue
			}
			if first {
				b = append(append(append(b, `,"`...), of.name...), `":[`...)
			} else {
				b = append(b, ',')
			}
			first = false
			b = strictjson.AppendString(b, r.Objects[i].Source)
		}
		if !first {
			b = append(b, ']')
		}
	}
	if !canSendKeys(r.Objects) {
		return b
	}
	b = append(b, `,"mm_hashes":[`...)
	for i := range r.Objects {
		if i > 0 {
			b = append(b, ',')
		}
		b = strictjson.AppendString(b, r.Objects[i].Key.Hex())
	}
	return append(b, ']')
}

// mediaCounting returns how the engine's media token counts are compared. If it takes media with tokens the
// comparison uses them: only then the engine gets the keys of the samples, and its events have known names.
func (p *serverProbe) mediaCounting(card *engine.Card, d *generateDialect) *remote.MediaCounting {
	c := p.Config.MediaCounting(card, nil)
	if c != nil && d != nil && card.AcceptsObjects {
		c.EngineTokens = func(ctx context.Context, prompt *remote.MediaPrompt) (int, error) {
			return d.countPromptTokens(ctx, p.Client, prompt)
		}
	}
	return c
}

// countPromptTokens returns how many tokens the engine makes of a prompt; it generates one token.
func (d *generateDialect) countPromptTokens(ctx context.Context, client *remote.Client, prompt *remote.MediaPrompt) (int, error) {
	req := &engine.Request{Prompt: prompt.Tokens, Media: prompt.Media, Objects: prompt.Objects}
	if err := d.checkMedia(req); err != nil {
		return 0, err
	}
	body := d.appendPrompt([]byte(`{"input_ids":`), &remote.SubRequest{Request: req})
	body = append(d.appendMedia(body, req), `,"stream":false,"sampling_params":{"max_new_tokens":1,"temperature":0,"ignore_eos":true}}`...)
	var answer struct {
		Meta struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"meta_info"`
	}
	if err := client.DoJSON(ctx, &remote.Call{Path: "/generate", ID: "penstock-check", Body: body, Wait: time.Minute}, &answer); err != nil {
		return 0, err
	}
	if answer.Meta.PromptTokens <= 0 {
		return 0, fault.New(fault.Unimplemented, "the engine does not report how many tokens a prompt has")
	}
	return answer.Meta.PromptTokens, nil
}

// canSendKeys reports whether the engine is sent the keys of objects: it takes one list of them and does not
// define their order for several kinds. A key of the wrong object would show one object in place of another.
func canSendKeys(objects []media.Object) bool {
	for i := range objects {
		if objects[i].Kind != objects[0].Kind || objects[i].Key.IsZero() {
			return false
		}
	}
	return len(objects) > 0
}

// checkMedia returns an error for media that cannot be sent to the engine.
func (d *generateDialect) checkMedia(r *engine.Request) error {
	if len(r.Objects) != len(r.Media) {
		return fault.InvalidParam("messages", "the engine is given %d media objects for the %d places that the prompt has for them", len(r.Objects), len(r.Media))
	}
	for i := range r.Objects {
		switch o := &r.Objects[i]; {
		case int(o.Kind) >= len(d.placeholders) || d.placeholders[o.Kind] == 0:
			return fault.InvalidParam(o.Part, "'%s' is of a kind that the engine is not given: %v", o.Part, o.Kind)
		case o.Source == "":
			return fault.New(fault.Unimplemented, "the engine takes media by their URLs and has none of '%s': start the worker with --mm-transfer off", o.Part)
		}
	}
	return nil
}
