package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
)

// toolFormat is the form of tool calls in the templates in Go, as package parse names it: most models without
// a form of their own were trained on it.
const toolFormat = "hermes"

// toolsText lists the tools and the call format for the model; "" without tools.
func toolsText(tools []byte) (string, error) {
	if len(tools) == 0 {
		return "", nil
	}
	var list []json.RawMessage
	if json.Unmarshal(tools, &list) != nil {
		return "", fault.InvalidParam("tools", "tools: must be a JSON array of functions")
	}
	if len(list) == 0 {
		return "", nil
	}
	var b strings.Builder
	b.WriteString("You may call these functions, one JSON object on each line:\n<tools>\n")
	for _, tool := range list {
		var line bytes.Buffer
		if err := json.Compact(&line, tool); err != nil {
			return "", fault.InvalidParam("tools", "tools: %v", err)
		}
		b.Write(line.Bytes())
		b.WriteByte('\n')
	}
	b.WriteString("</tools>\nFor each call write its name and its arguments:\n<tool_call>\n" +
		`{"name": NAME, "arguments": {…}}` + "\n</tool_call>")
	return b.String(), nil
}

// appendCalls appends the tool calls of an assistant message in the form which toolsText asks for. Arguments
// which are not JSON stay as the model wrote them.
func appendCalls(dst []prep.Segment, m *prep.Message) ([]prep.Segment, error) {
	if len(m.ToolCalls) == 0 {
		return dst, nil
	}
	var calls []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	if json.Unmarshal(m.ToolCalls, &calls) != nil {
		return dst, errors.New("must be a JSON array of calls of functions")
	}
	var b strings.Builder
	for i, call := range calls {
		if i > 0 || hasContent(m) {
			b.WriteByte('\n')
		}
		name, err := json.Marshal(call.Function.Name)
		if err != nil {
			return dst, err
		}
		b.WriteString("<tool_call>\n{\"name\": " + string(name) + ", \"arguments\": " + call.Function.Arguments + "}\n</tool_call>")
	}
	return append(dst, prep.Segment{Text: b.String()}), nil
}

// hasContent reports whether a message has a text or media.
func hasContent(m *prep.Message) bool {
	if len(m.Parts) == 0 {
		return m.Content != ""
	}
	parts, err := prep.ReadParts(m.Parts)
	return err == nil && slices.ContainsFunc(parts, func(p prep.ContentPart) bool { return p.Type != "text" || p.Text != "" })
}
