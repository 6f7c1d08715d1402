package load

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"penstock/core/kv"
	"penstock/internal/replay"
	"penstock/internal/strictjson"
)

// PromptForm is the form in which a prompt is sent.
type PromptForm int

const (
	// TokenPrompt sends token ids to /v1/completions.
	TokenPrompt PromptForm = iota
	// TextPrompt sends a user message to /v1/chat/completions.
	TextPrompt
)

// LengthControl says how the response gets the workload's length.
type LengthControl int

const (
	// ExactLength sends min_tokens and ignore_eos in addition to max_tokens.
	ExactLength LengthControl = iota
	// IgnoreEOS sends ignore_eos in addition to max_tokens.
	IgnoreEOS
	// MaxLength sends max_tokens only: responses may be shorter than in the workload.
	MaxLength
)

// RequestForm is how requests are written for a server. A workload's conversations and whole bodies are sent
// as they are, in any form.
type RequestForm struct {
	Prompt PromptForm
	Length LengthControl
	// NoUsage leaves stream_options out: the server may then not report token counts.
	NoUsage bool
}

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// bodyBuilder writes the bodies of requests. It has one owner.
type bodyBuilder struct {
	form      RequestForm
	model     string
	maxTokens int // max_tokens of each response instead of the workload's length; 0 is none
	vocab     replay.Vocabulary
	extra     map[string]json.RawMessage // members of every body
	tokens    []kv.Token
	images    *imageGenerator // nil if the workload's media are not shown
	// body and id are the last ones built.
	text, body, id []byte
}

// appendBody appends the body of r and returns the path to which it is sent.
func (b *bodyBuilder) appendBody(dst []byte, r *replay.Request) ([]byte, string, error) {
	extra := b.extra
	if len(r.Extra) > 0 {
		extra = maps.Clone(extra)
		if err := json.Unmarshal(r.Extra, &extra); err != nil {
			return dst, "", fmt.Errorf("extra fields of request %d: %w", r.Index, err)
		}
	}
	if len(r.Payload) > 0 {
		return b.appendPayload(dst, r, extra)
	}
	w := memberWriter{dst: append(dst, '{'), extra: extra}
	path := completionsPath
	if w.startMember("model") {
		model := r.Model
		model = cmp.Or(model, b.model)
		w.dst = strictjson.AppendString(w.dst, model)
	}
	switch {
	case len(r.Messages) > 0:
		path = chatPath
		if w.startMember("messages") {
			w.dst = append(w.dst, r.Messages...)
		}
		if len(r.Tools) > 0 && w.startMember("tools") {
			w.dst = append(w.dst, r.Tools...)
		}
	case b.form.Prompt == TokenPrompt && r.Text == "" && (b.images == nil || len(r.Media) == 0):
		if w.startMember("prompt") {
			b.tokens = replay.AppendTokens(b.tokens[:0], r, b.vocab)
			w.dst = appendTokens(w.dst, b.tokens)
		}
	default:
		path = chatPath
		if w.startMember("messages") {
			w.dst = b.appendMessage(w.dst, r)
		}
	}
	b.appendCommonMembers(&w, r)
	return append(w.dst, '}'), path, nil
}

// appendCommonMembers appends the members which do not depend on the prompt.
func (b *bodyBuilder) appendCommonMembers(w *memberWriter, r *replay.Request) {
	n := max(r.Output, 1)
	if b.maxTokens > 0 {
		n = b.maxTokens
	}
	if w.startMember("max_tokens") {
		w.dst = strconv.AppendInt(w.dst, int64(n), 10)
	}
	if b.form.Length == ExactLength && w.startMember("min_tokens") {
		w.dst = strconv.AppendInt(w.dst, int64(n), 10)
	}
	if b.form.Length <= IgnoreEOS && w.startMember("ignore_eos") {
		w.dst = append(w.dst, "true"...)
	}
	if r.Salt != "" && w.startMember("cache_salt") {
		w.dst = strictjson.AppendString(w.dst, r.Salt)
	}
	if r.Priority != 0 && w.startMember("priority") {
		w.dst = strconv.AppendInt(w.dst, int64(r.Priority), 10)
	}
	w.writeStreamMembers(b.form)
}

// appendMessage appends the single message of a text prompt.
func (b *bodyBuilder) appendMessage(dst []byte, r *replay.Request) []byte {
	dst = append(dst, `[{"role":"user","content":`...)
	if b.images == nil || len(r.Media) == 0 {
		return append(b.appendPromptText(dst, r), "}]"...)
	}
	said := *r
	said.Media = nil // their tokens are the images'
	dst = append(dst, '[')
	for i := range r.Media {
		said.Input -= min(max(r.Media[i].Tokens, 0), said.Input-1)
		dst = append(dst, `{"type":"image_url","image_url":{"url":"`...)
		dst = append(b.images.appendDataURI(dst, &r.Media[i]), `"}},`...)
	}
	dst = append(dst, `{"type":"text","text":`...)
	return append(b.appendPromptText(dst, &said), "}]}]"...)
}

// appendPromptText appends the text of a prompt as JSON.
func (b *bodyBuilder) appendPromptText(dst []byte, r *replay.Request) []byte {
	if r.Text != "" {
		return strictjson.AppendString(dst, r.Text)
	}
	b.text = replay.AppendText(b.text[:0], r, b.vocab.Seed)
	return strictjson.AppendString(dst, b.text)
}

// appendPayload appends the workload's body, as a streaming request.
func (b *bodyBuilder) appendPayload(dst []byte, r *replay.Request, extra map[string]json.RawMessage) ([]byte, string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(r.Payload, &all); err != nil {
		return dst, "", fmt.Errorf("payload of request %d: %w", r.Index, err)
	}
	path := completionsPath
	if _, chat := all["messages"]; chat {
		path = chatPath
	}
	delete(all, "stream")
	delete(all, "stream_options")
	if _, has := all["model"]; !has {
		all["model"] = strictjson.AppendString(nil, b.model)
	}
	for name, value := range extra {
		all[name] = value
	}
	w := memberWriter{dst: append(dst, '{'), extra: all}
	w.writeStreamMembers(b.form)
	return append(w.dst, '}'), path, nil
}

// memberWriter writes the members of an object. The members of extra are written last and replace others of
// the same name.
type memberWriter struct {
	dst        []byte
	extra      map[string]json.RawMessage
	hasMembers bool
}

// startMember starts a member unless extra replaces it.
func (m *memberWriter) startMember(name string) bool {
	if _, has := m.extra[name]; has {
		return false
	}
	m.writeName(name)
	return true
}

func (m *memberWriter) writeName(name string) {
	if m.hasMembers {
		m.dst = append(m.dst, ',')
	}
	m.hasMembers = true
	m.dst = strictjson.AppendString(m.dst, name)
	m.dst = append(m.dst, ':')
}

// writeStreamMembers writes the members which make the response a stream, and extra.
func (m *memberWriter) writeStreamMembers(form RequestForm) {
	if m.startMember("stream") {
		m.dst = append(m.dst, "true"...)
	}
	if !form.NoUsage && m.startMember("stream_options") {
		m.dst = append(m.dst, `{"include_usage":true}`...)
	}
	for _, name := range sortedNames(m.extra) {
		m.writeName(name)
		m.dst = append(m.dst, m.extra[name]...)
	}
}

func appendTokens(dst []byte, tokens []kv.Token) []byte {
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}

func sortedNames(m map[string]json.RawMessage) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}
