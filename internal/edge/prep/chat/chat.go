// Package chat makes the pipeline between text and tokens for one model: the
// tokenizer of its checkpoint, or the built-in one, and the checkpoint's own chat
// template, or one that fits the vocabulary if it has none.
//
// The templates that fit a vocabulary are Go code. They hand markup and what clients wrote to the
// tokenizer as separate segments, so that the text of a message can never act as
// a special token. A conversation renders to a prefix of what the same
// conversation with more turns renders to, so that the turns share cached blocks.
// A checkpoint's own template promises neither: see scripted.
package chat

import (
	"fmt"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
)

// roles are what the templates know, in the order that errors list them.
var roles = [...]string{"system", "developer", "user", "assistant", "tool", "function"}

// turns is a template that writes each message as an opening, the content as it
// is, what the message calls, and a closing. The generation prompt is the
// assistant's opening. What there is to call stands at the end of the first
// message if that is the system's, else in a turn of the system before it. What
// the assistant thought in earlier turns is left out, as most models' own
// templates do.
type turns struct {
	begin string // before the first message
	open  func(dst []prep.Segment, role string) []prep.Segment
	// show is what stands for an object of each kind of media; a kind that is not there cannot be shown.
	show  map[string][]prep.Segment
	close []prep.Segment
}

// Render implements prep.Template.
func (t *turns) Render(dst []prep.Segment, c *prep.Chat) ([]prep.Segment, error) {
	if err := check(c); err != nil {
		return dst, err
	}
	if t.begin != "" {
		dst = append(dst, prep.Segment{Text: t.begin, Special: true})
	}
	tools, err := toolsText(c.Tools)
	if err != nil {
		return dst, err
	}
	if tools != "" && canonical(c.Messages[0].Role) != "system" {
		dst = t.open(dst, "system")
		dst = append(dst, prep.Segment{Text: tools})
		dst = append(dst, t.close...)
		tools = ""
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		dst = t.open(dst, canonical(m.Role))
		if dst, err = t.content(dst, m); err != nil {
			return dst, fault.Param(fmt.Sprintf("messages[%d].content", i), "messages[%d].content: %v", i, err)
		}
		if tools != "" { // the first message is the system's
			dst = append(dst, prep.Segment{Text: "\n\n" + tools})
			tools = ""
		}
		if dst, err = appendCalls(dst, m); err != nil {
			return dst, fault.Param(fmt.Sprintf("messages[%d].tool_calls", i), "messages[%d].tool_calls: %v", i, err)
		}
		if !c.ContinueFinal || i+1 < len(c.Messages) {
			dst = append(dst, t.close...)
		}
	}
	if c.AddGenerationPrompt {
		dst = t.open(dst, "assistant")
	}
	return dst, nil
}

// content appends what a message says and shows. Texts stand on lines of their own, as those of
// messages that show nothing else do.
func (t *turns) content(dst []prep.Segment, m *prep.Message) ([]prep.Segment, error) {
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
		shown, ok := t.show[part.Type]
		if !ok {
			return dst, fmt.Errorf("this model has no chat template of its own, and the one in its place cannot show what is of type %.100q", part.Type)
		}
		dst = append(dst, shown...)
	}
	return dst, nil
}

// canonical maps the roles that are two names of one thing.
func canonical(role string) string {
	switch role {
	case "developer":
		return "system"
	case "function":
		return "tool"
	}
	return role
}

// check refuses what the templates that are Go code cannot render.
func check(c *prep.Chat) error {
	if err := checkFlags(c); err != nil {
		return err
	}
	for i := range c.Messages {
		field := fmt.Sprintf("messages[%d]", i)
		if m := &c.Messages[i]; !known(m.Role) {
			field += ".role"
			return fault.Param(field, "%s must be one of %s", field, strings.Join(roles[:], ", "))
		}
	}
	return nil
}

// checkFlags refuses what no template can render.
func checkFlags(c *prep.Chat) error {
	if len(c.Messages) == 0 {
		return fault.Param("messages", "messages must have at least one message")
	}
	if c.AddGenerationPrompt && c.ContinueFinal {
		return fault.Param("continue_final_message", "continue_final_message and add_generation_prompt exclude each other; set one of them to false")
	}
	return nil
}

func known(role string) bool {
	for _, r := range roles {
		if r == role {
			return true
		}
	}
	return false
}
