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

// Prompt is what a prompt is sent as.
type Prompt int

const (
	// Tokens sends token ids to /v1/completions.
	Tokens Prompt = iota
	// Text sends a message of the user to /v1/chat/completions.
	Text
)

// Length is how the length of an answer is made that of the workload.
type Length int

const (
	// Exactly sends min_tokens and ignore_eos beside max_tokens.
	Exactly Length = iota
	// WithoutEnd sends ignore_eos beside max_tokens.
	WithoutEnd
	// AtMost sends max_tokens alone: answers may be shorter than the workload says.
	AtMost
)

// Form is how requests are written for a server. Conversations and whole bodies of a
// workload are sent as they are, in any form.
type Form struct {
	Prompt Prompt
	Length Length
	// NoUsage leaves stream_options out: the server then may not tell what it counted.
	NoUsage bool
}

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// bodies writes the bodies of requests. It has one owner.
type bodies struct {
	form   Form
	model  string
	limit  int // of the tokens of each answer, instead of the workload's; 0 is none
	vocab  replay.Vocabulary
	extra  map[string]json.RawMessage // members of every body
	tokens []kv.Token
	draw   *painter // nil if the workload's media are not shown
	// body and id are what was made last.
	text, body, id []byte
}

// append appends the body of r and returns the path that it goes to.
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

// appendRest appends what does not depend on the prompt.
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

// appendMessage appends the one message of a prompt that is text.
func (b *bodies) appendMessage(dst []byte, r *replay.Request) []byte {
	dst = append(dst, `[{"role":"user","content":`...)
	if b.draw == nil || len(r.Media) == 0 {
		return append(b.appendWords(dst, r), "}]"...)
	}
	said := *r
	said.Media = nil // their tokens are the pictures'
	dst = append(dst, '[')
	for i := range r.Media {
		said.Input -= min(max(r.Media[i].Tokens, 0), said.Input-1)
		dst = append(dst, `{"type":"image_url","image_url":{"url":"`...)
		dst = append(b.draw.append(dst, &r.Media[i]), `"}},`...)
	}
	dst = append(dst, `{"type":"text","text":`...)
	return append(b.appendWords(dst, &said), "}]}]"...)
}

// appendWords appends the text of a prompt as JSON.
func (b *bodies) appendWords(dst []byte, r *replay.Request) []byte {
	if r.Text != "" {
		return strictjson.AppendString(dst, r.Text)
	}
	b.text = replay.AppendText(b.text[:0], r, b.vocab.Seed)
	return strictjson.AppendString(dst, b.text)
}

// appendPayload appends a body that the workload has, as a stream.
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

// members writes the members of an object. Those of extra stand at its end, and
// take the place of others with their name.
type members struct {
	dst   []byte
	extra map[string]json.RawMessage
	some  bool
}

// member begins a member, if it is to be written.
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

// rest writes what makes the answer a stream, and extra.
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
