package remote

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/jpeg"
	"image/png"
	"slices"

	"penstock/core/enginefeed"
	"penstock/core/media"
	"penstock/internal/engine"
)

// Kinds lists the kinds of media by their names, as cards have them: ascending.
func Kinds() []string {
	return []string{media.Audio.String(), media.Image.String(), media.Video.String()}
}

// sampleSide is the width and height of the picture of a sample, in pixels: enough for a patch of any model.
const sampleSide = 64

// SamplePart returns the part of a message that shows a small object of a kind, by which an engine can be asked
// whether its model sees such objects.
func SamplePart(kind string) []byte {
	picture := image.NewRGBA(image.Rect(0, 0, sampleSide, sampleSide))
	for i := range picture.Pix {
		picture.Pix[i] = 0x7f
	}
	var b bytes.Buffer
	text := func(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
	switch kind {
	case media.Audio.String():
		return []byte(`{"type":"input_audio","input_audio":{"format":"wav","data":"` + text(silentWAV()) + `"}}`)
	case media.Video.String():
		_ = jpeg.Encode(&b, picture, nil) // a buffer takes everything
		frame := text(b.Bytes())
		return []byte(`{"type":"video_url","video_url":{"url":"data:video/jpeg;base64,` + frame + "," + frame + `"}}`)
	}
	_ = png.Encode(&b, picture) // likewise
	return []byte(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + text(b.Bytes()) + `"}}`)
}

// silentWAV is a tenth of a second of it as a WAV file: 16 bits, one channel.
func silentWAV() []byte {
	const rate, samples = 16_000, 1_600
	b := append([]byte("RIFF"), 0, 0, 0, 0)
	b = append(b, "WAVEfmt "...)
	for _, v := range []uint32{16, 1 | 1<<16, rate, 2 * rate, 2 | 16<<16} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = binary.LittleEndian.AppendUint32(append(b, "data"...), 2*samples)
	b = append(b, make([]byte, 2*samples)...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

// See enters into a card what media its engine takes in conversations that are passed on, and how it is told their
// keys: what the settings say, else what was found out.
func (o *Opening) See(card *engine.Card, found []string, keys string) {
	if o.Media != nil {
		found = o.Media
	}
	card.Media = slices.Clone(found)
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

// Takes reports whether the model's family takes media of a kind; false if it is not known.
func (o *Opening) Takes(kind string) bool {
	for _, k := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if k.String() == kind {
			return o.Family != nil && o.Family.Takes(k)
		}
	}
	return false
}

// Events enters into the settings of a table which tokens the engine's events have where prompts show media, and which
// ones requests have there.
func (o *Opening) Events(table *enginefeed.Config, pads enginefeed.Pads) {
	table.Pads = pads
	if o.VocabSize > 0 && o.VocabSize < UnknownVocabulary {
		table.Vocabulary = o.VocabSize
	}
	if o.Family == nil {
		return
	}
	for _, kind := range [...]media.Kind{media.Image, media.Video, media.Audio} {
		if pad, ok := o.Family.Pad(kind); ok && !slices.Contains(table.MediaTokens, pad) {
			table.MediaTokens = append(table.MediaTokens, pad)
		}
	}
}

// sight is what was noticed of an engine's media.
type sight struct {
	seen uint64 // blocks that nobody here has a name of
	last mishap
}

// warnings says whether the engine has lately cached media that are not known here.
func (s *sight) warnings(of enginefeed.Stats) []engine.Warning {
	if now := of.Unresolved + of.Faceless; now > s.seen {
		s.seen = now
		s.last.happened()
	}
	if !s.last.lately() {
		return nil
	}
	w := engine.Warning{
		Code:   engine.WarnMedia,
		Detail: "the engine caches pictures of requests that did not come by here, or that it was not told the keys of: those are not found again",
		Remedy: "send all requests that show media by here, and see that the engine takes keys (media-keys)",
	}
	if of.Faceless > 0 {
		w.Detail = "the engine's cache events do not say which pictures blocks show: what follows a picture is not routed by prefix"
		w.Remedy = "take a version whose events have extra_keys (vLLM 0.17 or later)"
	}
	return []engine.Warning{w}
}

// MediaKeysOff is the MediaKeys of an Opening whose engine is not to be told the keys of media.
const MediaKeysOff = "off"
