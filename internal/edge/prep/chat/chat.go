// Package chat makes the pipeline between text and tokens of one model: the tokenizer of its checkpoint or
// the built-in one, and the checkpoint's own chat template or, if it has none, one which fits the vocabulary.
//
// The templates which fit a vocabulary are Go code. They pass markup and client text to the tokenizer as
// separate segments, so that the text of a message can never act as a special token. A conversation renders
// to a prefix of the same conversation with more turns, so that the turns share cached blocks. A checkpoint's
// own template promises neither: see checkpointTemplate.
package chat

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
)

// knownRoles are the roles of the templates, in the order of error messages.
var knownRoles = [...]string{"system", "developer", "user", "assistant", "tool", "function"}

// turnTemplate is a template which writes each message as an opening, the content, the tool calls and a
// closing. The generation prompt is the assistant's opening. Tools are listed at the end of the first message
// if it is the system's, otherwise in a system turn before it. The reasoning of earlier turns is left out, as
// in most models' own templates.
type turnTemplate struct {
	beginText string // before the first message
	openTurn  func(dst []prep.Segment, role string) []prep.Segment
	// mediaMarkup stands for a media object of each kind; a missing kind cannot be shown.
	mediaMarkup map[string][]prep.Segment
	turnClosing []prep.Segment
}

// Render implements prep.Template.
func (t *turnTemplate) Render(dst []prep.Segment, c *prep.Chat) ([]prep.Segment, error) {
	if err := checkChat(c); err != nil {
		return dst, err
	}
	if t.beginText != "" {
		dst = append(dst, prep.Segment{Text: t.beginText, Special: true})
	}
	tools, err := toolsText(c.Tools)
	if err != nil {
		return dst, err
	}
	if tools != "" && canonicalRole(c.Messages[0].Role) != "system" {
		dst = t.openTurn(dst, "system")
		dst = append(dst, prep.Segment{Text: tools})
		dst = append(dst, t.turnClosing...)
		tools = ""
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		dst = t.openTurn(dst, canonicalRole(m.Role))
		if dst, err = t.appendContent(dst, m); err != nil {
			return dst, fault.InvalidParam(fmt.Sprintf("messages[%d].content", i), "messages[%d].content: %v", i, err)
		}
		if tools != "" { // the first message is the system's
			dst = append(dst, prep.Segment{Text: "\n\n" + tools})
			tools = ""
		}
		if dst, err = appendCalls(dst, m); err != nil {
			return dst, fault.InvalidParam(fmt.Sprintf("messages[%d].tool_calls", i), "messages[%d].tool_calls: %v", i, err)
		}
		if !c.ContinueFinal || i+1 < len(c.Messages) {
			dst = append(dst, t.turnClosing...)
		}
	}
	if c.AddGenerationPrompt {
		dst = t.openTurn(dst, "assistant")
	}
	return dst, nil
}

// appendContent appends the texts and media of a message. Texts are on lines of their own, as in messages
// without media.
func (t *turnTemplate) appendContent(dst []prep.Segment, m *prep.Message) ([]prep.Segment, error) {
	if len(m.Parts) == 0 {
		if m.Content != "" {
			dst = append(dst, prep.Segment{Text: m.Content})
		}
		return dst, nil
	}
	parts, err := prep.ReadParts(m.Parts)
	if err != nil {
		return dst, err
	}
	for i, part := range parts {
		if part.Type == "text" {
			text := part.Text
			if i > 0 && parts[i-1].Type == "text" {
				text = "\n" + text
			}
			dst = append(dst, prep.Segment{Text: text})
			continue
		}
		shown, ok := t.mediaMarkup[part.Type]
		if !ok {
			return dst, fmt.Errorf("this model has no chat template of its own, and the one in its place cannot show what is of type %.100q", part.Type)
		}
		dst = append(dst, shown...)
	}
	return dst, nil
}

// canonicalRole maps role synonyms to one name.
func canonicalRole(role string) string {
	switch role {
	case "developer":
		return "system"
	case "function":
		return "tool"
	}
	return role
}

// checkChat refuses what the templates in Go cannot render.
func checkChat(c *prep.Chat) error {
	if err := checkFlags(c); err != nil {
		return err
	}
	for i := range c.Messages {
		field := fmt.Sprintf("messages[%d]", i)
		if m := &c.Messages[i]; !isKnownRole(m.Role) {
			field += ".role"
			return fault.InvalidParam(field, "%s must be one of %s", field, strings.Join(knownRoles[:], ", "))
		}
	}
	return nil
}

// checkFlags refuses what no template can render.
func checkFlags(c *prep.Chat) error {
	if len(c.Messages) == 0 {
		return fault.InvalidParam("messages", "messages must have at least one message")
	}
	if c.AddGenerationPrompt && c.ContinueFinal {
		return fault.InvalidParam("continue_final_message", "continue_final_message and add_generation_prompt exclude each other; set one of them to false")
	}
	return nil
}

func isKnownRole(role string) bool {
	return slices.Contains(knownRoles[:], role)
}

// builtinTemplate is the template of the built-in vocabulary: a token for each role opens a turn and <|end|>
// closes it, without other characters in between, so that an assistant's turn is exactly what the model
// generated.
func builtinTemplate() prep.Template {
	mark := func(name string) []prep.Segment { return []prep.Segment{{Text: "<|" + name + "|>", Special: true}} }
	return &turnTemplate{
		mediaMarkup: map[string][]prep.Segment{"image": mark("image"), "video": mark("video"), "audio": mark("audio")},
		beginText:   textBegin,
		openTurn: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: "<|" + role + "|>", Special: true})
		},
		turnClosing: []prep.Segment{{Text: turnEnd, Special: true}},
	}
}

// builtinTokens are the special tokens which the template needs.
func builtinTokens() []string {
	return []string{textBegin, turnEnd, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"}
}

const (
	textBegin = "<|begin|>"
	turnEnd   = "<|end|>"

	chatMLStart = "<|im_start|>"
	chatMLEnd   = "<|im_end|>"
)

// chatMLTemplate is the plain form of the template which Qwen and many others build on. Images and videos are
// shown as in Qwen's vision models.
func chatMLTemplate() prep.Template {
	vision := func(pad string) []prep.Segment {
		return []prep.Segment{{Text: "<|vision_start|>" + pad + "<|vision_end|>", Special: true}}
	}
	return &turnTemplate{
		mediaMarkup: map[string][]prep.Segment{"image": vision("<|image_pad|>"), "video": vision("<|video_pad|>")},
		openTurn: func(dst []prep.Segment, role string) []prep.Segment {
			return append(dst, prep.Segment{Text: chatMLStart, Special: true}, prep.Segment{Text: role + "\n"})
		},
		turnClosing: []prep.Segment{{Text: chatMLEnd, Special: true}, {Text: "\n"}},
	}
}
