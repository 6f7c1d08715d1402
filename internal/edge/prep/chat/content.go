package chat

import (
	"strings"
	"time"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/jinja"
)

// contentRule implements a rule of package prep: how the content of messages is shaped for a template.
type contentRule struct {
	// wantsLists reports whether a template gets lists of parts.
	wantsLists func(t *jinja.Template, source string) bool
	// wrapsText turns a text into a list too, for a template which gets lists; noContentIsList turns missing
	// content into an empty list there, and not a text.
	wrapsText, noContentIsList bool
	// toolTexts keeps the content of tool messages a text even there.
	toolTexts bool
	// joinTexts joins the texts of several parts.
	joinTexts func(texts []string) string
}

// contentRules are the rules by their number. Sources: vLLM's vllm/renderers/hf.py and chat_utils (0.32,
// 0.33), SGLang's srt/parser/jinja_template_utils.py and serving_chat.py (0.5.17, 0.5.23), TensorRT-LLM's
// serve/chat_utils.py, llama.cpp's common/chat.cpp and its tests of template requirements.
var contentRules = [...]contentRule{
	prep.ContentVLLM: {
		wantsLists: func(t *jinja.Template, _ string) bool { return t.LoopsOverContent() },
		wrapsText:  true, noContentIsList: true, toolTexts: true, joinTexts: joinNonEmpty("\n"),
	},
	prep.ContentSGLang:   {wantsLists: sglangWantsLists, toolTexts: true, joinTexts: joinAll(" ")},
	prep.ContentTRTLLM:   {wantsLists: func(*jinja.Template, string) bool { return false }, joinTexts: joinNonEmpty("\n")},
	prep.ContentLlamaCpp: {wantsLists: llamaCppWantsLists, wrapsText: true, joinTexts: joinFromFirstNonEmpty("\n")},
}

// joinAll joins all texts, joinNonEmpty the non-empty ones, and joinFromFirstNonEmpty those from the first
// non-empty one on.
func joinAll(separator string) func([]string) string {
	return func(texts []string) string { return strings.Join(texts, separator) }
}

func joinNonEmpty(separator string) func([]string) string {
	return func(texts []string) string {
		var said []string
		for _, text := range texts {
			if text != "" {
				said = append(said, text)
			}
		}
		return strings.Join(said, separator)
	}
}

func joinFromFirstNonEmpty(separator string) func([]string) string {
	return func(texts []string) string {
		for len(texts) > 0 && texts[0] == "" {
			texts = texts[1:]
		}
		return strings.Join(texts, separator)
	}
}

// sglangWantsLists is SGLang's test: a template gets lists if it contains a media word, or loops over the
// content of a variable named message, msg or m.
func sglangWantsLists(t *jinja.Template, source string) bool {
	for _, word := range [...]string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return true
		}
	}
	for _, name := range [...]string{"message", "msg", "m"} {
		if t.LoopsOver(name, "content") {
			return true
		}
	}
	return false
}

// llamaCppWantsLists is llama.cpp's test: a template which shows a user message that is a list but not the
// same as a text.
func llamaCppWantsLists(t *jinja.Template, _ string) bool {
	const needle = "<User Needle>"
	shows := func(content any) bool {
		m := jinja.NewDict()
		m.Set("role", "user")
		m.Set("content", content)
		vars := jinja.NewDict()
		vars.Set("messages", jinja.List(m))
		for _, name := range [...]string{"tools", "documents"} {
			vars.Set(name, nil)
		}
		vars.Set("add_generation_prompt", false)
		vars.Set("bos_token", "")
		vars.Set("eos_token", "")
		text, err := t.Render(vars, time.Unix(0, 0).UTC())
		return err == nil && strings.Contains(text, needle)
	}
	return !shows(needle) && shows(jinja.List(newTextPart(needle)))
}

func newTextPart(text string) *jinja.Dict {
	part := jinja.NewDict()
	part.Set("type", "text")
	part.Set("text", text)
	return part
}

// shapeContent returns the content of a message of a role in the rule's form; lists tells whether the
// template gets lists, and content is nil if there is none. Parts with media stay as they are: only lists
// have a place for them.
func (r *contentRule) shapeContent(role string, content any, lists bool) any {
	if content == nil {
		if lists && r.noContentIsList {
			return jinja.List()
		}
		content = ""
	}
	lists = lists && !(r.toolTexts && role == "tool")
	if text, ok := content.(string); ok {
		if lists && r.wrapsText {
			return newTextParts([]string{text})
		}
		return text
	}
	texts, ok := partTexts(content)
	if !ok || lists {
		return content
	}
	return r.joinTexts(texts)
}

// partTexts returns the texts of parts; ok is false if one of them is not a text.
func partTexts(parts any) (texts []string, ok bool) {
	for _, item := range jinja.Items(parts) {
		part, ok := item.(*jinja.Dict)
		if !ok {
			return nil, false
		}
		kind, _ := part.Get("type")
		v, _ := part.Get("text")
		text, isText := v.(string)
		if kind != "text" || !isText {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

func newTextParts(texts []string) any {
	parts := make([]any, len(texts))
	for i, text := range texts {
		parts[i] = newTextPart(text)
	}
	return jinja.List(parts...)
}
