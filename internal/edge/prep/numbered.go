package prep

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"penstock/core/kv"
	"penstock/core/media"
)

// Some families write a numbered text for an image, such as <|image_1|>, which is no token (Phi-3-vision). Their
// templates know nothing of images: engines write the texts before the other text of a message. The engine then
// splits the prompt at these texts, and encodes what is between as prompts of their own.

// numberImages returns the conversation with the numbered text of each image before the other parts of its message;
// c itself if the family has no such text.
func (p *Pipeline) numberImages(c *Chat) *Chat {
	if p.Family == nil {
		return c
	}
	text, ok := p.Family.NumberedText(media.Image)
	if !ok {
		return c
	}
	own := *c
	own.Messages = slices.Clone(c.Messages)
	count := 0
	for i := range own.Messages {
		var parts []json.RawMessage
		if m := &own.Messages[i]; len(m.Parts) == 0 || json.Unmarshal(m.Parts, &parts) != nil {
			continue
		}
		images, rest := []byte("["), []json.RawMessage(nil)
		for _, part := range parts {
			var is struct {
				Type string `json:"type"`
			}
			if json.Unmarshal(part, &is) != nil || is.Type != media.Image.String() {
				rest = append(rest, part)
				continue
			}
			count++
			images = AppendTextPart(images, text.Before+strconv.Itoa(count)+text.After)
		}
		for _, part := range rest {
			images = append(appendComma(images), part...)
		}
		own.Messages[i].Parts = append(images, ']')
	}
	return &own
}

// splitAtImages splits a prompt at the numbered texts of its images, which must be in order; nil if the family has
// none.
func (p *Pipeline) splitAtImages(segments []Segment) (chunks [][]Segment) {
	if p.Family == nil {
		return nil
	}
	text, ok := p.Family.NumberedText(media.Image)
	if !ok {
		return nil
	}
	chunks = [][]Segment{nil}
	for _, s := range segments {
		for {
			before, after, found := strings.Cut(s.Text, text.Before+strconv.Itoa(len(chunks))+text.After)
			last := &chunks[len(chunks)-1]
			*last = append(*last, Segment{Text: before, Special: s.Special})
			if !found {
				break
			}
			chunks = append(chunks, nil)
			s.Text = after
		}
	}
	return chunks
}

// encodeChunks appends the tokens of texts with an image between each two: each text with what the model expects
// around a prompt, and the image's placeholder.
func (p *Pipeline) encodeChunks(dst []kv.Token, chunks [][]Segment) []kv.Token {
	placeholder, _ := p.Family.Placeholder(media.Image) // families with a numbered text have one
	begin := p.Tokenizer.Encode(nil, "", RawPrompt())
	for i, chunk := range chunks {
		if i > 0 {
			dst = append(dst, placeholder)
		}
		dst = append(dst, begin...)
		dst = p.encodeSegments(dst, chunk, 0)
	}
	return dst
}
