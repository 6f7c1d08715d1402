package load

import (
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
type Prompt int

const (
	// TokenPrompt sends token ids to /v1/completions.
	Tokens Prompt = iota
	// TextPrompt sends a user message to /v1/chat/completions.
	Text
)

// LengthControl says how the response gets the workload's length.
type Length int

const (
	// ExactLength sends min_tokens and ignore_eos in addition to max_tokens.
	Exactly Length = iota
	// IgnoreEOS sends ignore_eos in addition to max_tokens.
	WithoutEnd
	// MaxLength sends max_tokens only: responses may be shorter than in the workload.
	AtMost
)

// RequestForm is how requests are written for a server. A workload's conversations and whole bodies are sent
// as they are, in any form.
type Form struct {
	Prompt Prompt
	Length Length
	// NoUsage leaves stream_options out: the server may then not report token counts.
	NoUsage bool
}

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// bodyBuilder writes the bodies of requests. It has one owner.
type bodies struct {
	form   Form
	model  string
	limit  int // max_tokens of each response instead of the workload's length; 0 is none
	vocab  replay.Vocabulary
	extra  map[string]json.RawMessage // members of every body
	tokens []kv.Token
	draw   *painter // nil if the workload's media are not shown
	// body and id are the last ones built.
	text, body, id []byte
}

// appendBody appends the body of r and returns the path to which it is sent.
func (b *bodies) append(dst []byte, r *replay.Request) ([]byte, string, error) {
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
	w := members{dst: append(dst, '{'), extra: extra}
	path := completionsPath
	if w.member("model") {
		model := r.Model
		if model == "" {
			model = b.model
		}
		w.dst = strictjson.AppendString(w.dst, model)
	}
	switch {
	case len(r.Messages) > 0:
		path = chatPath
		if w.member("messages") {
			w.dst = append(w.dst, r.Messages...)
		}
		if len(r.Tools) > 0 && w.member("tools") {
			w.dst = append(w.dst, r.Tools...)
		}
	case b.form.Prompt == Tokens && r.Text == "" && (b.draw == nil || len(r.Media) == 0):
		if w.member("prompt") {
			b.tokens = replay.AppendTokens(b.tokens[:0], r, b.vocab)
			w.dst = appendTokens(w.dst, b.tokens)
		}
	default:
		path = chatPath
		if w.member("messages") {
			w.dst = b.appendMessage(w.dst, r)
		}
	}
	b.appendRest(&w, r)
	return append(w.dst, '}'), path, nil
}

// appendCommonMembers appends the members which do not depend on the prompt.
func (b *bodies) appendRest(w *members, r *replay.Request) {
	n := max(r.Output, 1)
	if b.limit > 0 {
		n = b.limit
	}
	if w.member("max_tokens") {
		w.dst = strconv.AppendInt(w.dst, int64(n), 10)
	}
	if b.form.Length == Exactly && w.member("min_tokens") {
		w.dst = strconv.AppendInt(w.dst, int64(n), 10)
	}
	if b.form.Length <= WithoutEnd && w.member("ignore_eos") {
		w.dst = append(w.dst, "true"...)
	}
	if r.Salt != "" && w.member("cache_salt") {
		w.dst = strictjson.AppendString(w.dst, r.Salt)
	}
	if r.Priority != 0 && w.member("priority") {
		w.dst = strconv.AppendInt(w.dst, int64(r.Priority), 10)
	}
	w.rest(b.form)
}

// appendMessage appends the single message of a text prompt.
func (b *bodies) appendMessage(dst []byte, r *replay.Request) []byte {
	dst = append(dst, `[{"role":"user","content":`...)
	if b.draw == nil || len(r.Media) == 0 {
		return append(b.appendWords(dst, r), "}]"...)
	}
	said := *r
	said.Media = nil // their tokens are the images'
	dst = append(dst, '[')
	for i := range r.Media {
		said.Input -= min(max(r.Media[i].Tokens, 0), said.Input-1)
		dst = append(dst, `{"type":"image_url","image_url":{"url":"`...)
		dst = append(b.draw.append(dst, &r.Media[i]), `"}},`...)
	}
	dst = append(dst, `{"type":"text","text":`...)
	return append(b.appendWords(dst, &said), "}]}]"...)
}

// appendPromptText appends the text of a prompt as JSON.
func (b *bodies) appendWords(dst []byte, r *replay.Request) []byte {
	if r.Text != "" {
		return strictjson.AppendString(dst, r.Text)
	}
	b.text = replay.AppendText(b.text[:0], r, b.vocab.Seed)
	return strictjson.AppendString(dst, b.text)
}

// appendPayload appends the workload's body, as a streaming request.
func (b *bodies) appendPayload(dst []byte, r *replay.Request, extra map[string]json.RawMessage) ([]byte, string, error) {
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
	w := members{dst: append(dst, '{'), extra: all}
	w.rest(b.form)
	return append(w.dst, '}'), path, nil
}

// memberWriter writes the members of an object. The members of extra are written last and replace others of
// the same name.
type members struct {
	dst   []byte
	extra map[string]json.RawMessage
	some  bool
}

// startMember starts a member unless extra replaces it.
func (m *members) member(name string) bool {
	if _, has := m.extra[name]; has {
		return false
	}
	m.begin(name)
	return true
}

func (m *members) begin(name string) {
	if m.some {
		m.dst = append(m.dst, ',')
	}
	m.some = true
	m.dst = strictjson.AppendString(m.dst, name)
	m.dst = append(m.dst, ':')
}

// writeStreamMembers writes the members which make the response a stream, and extra.
func (m *members) rest(form Form) {
	if m.member("stream") {
		m.dst = append(m.dst, "true"...)
	}
	if !form.NoUsage && m.member("stream_options") {
		m.dst = append(m.dst, `{"include_usage":true}`...)
	}
	for _, name := range sortedNames(m.extra) {
		m.begin(name)
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
