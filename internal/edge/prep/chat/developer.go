package chat

import (
	"strings"

	"penstock/internal/edge/prep/jinja"
)

const (
	systemRole    = "system"
	developerRole = "developer"
)

// namesDeveloper reports whether a template knows the role developer: whether its source has the name as a
// constant. vLLM decides by the same test.
func namesDeveloper(source string) bool {
	return strings.Contains(source, `"`+developerRole+`"`) || strings.Contains(source, `'`+developerRole+`'`)
}

// developersAsSystem returns the messages for a template which does not know the role developer: it would
// drop such a message silently, refuse it, or write a role which the model never saw. As in vLLM a developer
// message becomes a system message. If one would then stand elsewhere than first, which many templates
// refuse, all of them are merged there. Conversations without a developer message are returned as they are.
// The dictionaries of messages are changed.
func developersAsSystem(messages []*jinja.Dict) []*jinja.Dict {
	if !renameDevelopers(messages) {
		return messages
	}
	var texts []string
	rest := make([]*jinja.Dict, 1, len(messages)+1) // the first is the system's
	late := false
	for i, m := range messages {
		if messageRole(m) != systemRole {
			rest = append(rest, m)
			continue
		}
		late = late || i > 0
		if text := messageText(m); text != "" {
			texts = append(texts, text)
		}
	}
	if !late {
		return messages
	}
	rest[0] = jinja.NewDict()
	rest[0].Set("role", systemRole)
	rest[0].Set("content", strings.Join(texts, "\n\n"))
	return rest
}

// renameDevelopers gives developer messages the role system, and reports whether there were any.
func renameDevelopers(messages []*jinja.Dict) (renamed bool) {
	for _, m := range messages {
		if messageRole(m) == developerRole {
			m.Set("role", systemRole)
			renamed = true
		}
	}
	return renamed
}

func messageRole(m *jinja.Dict) string {
	v, _ := m.Get("role")
	role, _ := v.(string)
	return role
}

// messageText returns the text of a message; the texts of its parts are joined by newlines.
func messageText(m *jinja.Dict) string {
	content, _ := m.Get("content")
	if text, ok := content.(string); ok {
		return text
	}
	var texts []string
	for _, item := range jinja.Items(content) {
		part, ok := item.(*jinja.Dict)
		if !ok {
			continue
		}
		v, _ := part.Get("text")
		if text, ok := v.(string); ok {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n")
}
