package prep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/strictjson"
)

// Media is a media object of a conversation, as the client sent it.
type Media struct {
	Kind media.Kind
	// URL is http, https or a data: URI; Name is the client's own name of the object, "" if none.
	URL, Name string
	// Part names the part of the request with the object, and Param the field of its URL, for errors.
	Part, Param string
}

// Resolver identifies and measures media. Implementations are safe for concurrent use.
type Resolver interface {
	// Resolve returns an object for each media part of a conversation, in order, with what family needs to
	// count its tokens. release frees what the objects hold (leases of shared memory); it is never nil and is
	// called once the objects are no longer used.
	//
	// An [*UnresolvedError] means that the engine, which fetches by itself, may still succeed; a *fault.Error
	// refuses the request; other errors come from ctx.
	Resolve(ctx context.Context, c *Chat, f *family.Family) (objects []media.Object, release func(), err error)
}

// UnresolvedError says why the media of a request do not take part in the choice of a worker.
type Unresolved struct {
	Reason media.Reason
	// Err is for the client and names the part, if no engine can serve the request anyway.
	Err *fault.Error
}

// Error implements error.
func (u *Unresolved) Error() string { return string(u.Reason) + ": " + u.Err.Message }

// Unwrap returns the error for the client.
func (u *Unresolved) Unwrap() error { return u.Err }

// RefusedError refuses a conversation for the media which it has or imitates. No engine is asked.
type Refused struct{ Err *fault.Error }

// Error implements error.
func (r *Refused) Error() string { return r.Err.Message }

// Unwrap returns the error for the client.
func (r *Refused) Unwrap() error { return r.Err }

// NewUnresolvedError returns an error about one part of a request.
func Undecided(reason media.Reason, param, format string, args ...any) *Unresolved {
	return &Unresolved{Reason: reason, Err: fault.Param(param, format, args...)}
}

// SetFamily sets how the model's prompts show media, whichever engine serves it. It is called before the
// pipeline is used.
func (p *Pipeline) SetFamily(f *family.Family) {
	p.families = nil
	p.setFamily(f)
}

func (p *Pipeline) setFamily(f *family.Family) {
	p.Family, p.marks, p.literals = f, nil, nil
	if f == nil {
		return
	}
	p.marks = slices.Clone(f.Marks())
	for _, k := range Kinds() {
		if pad, ok := f.Pad(k); ok {
			p.marks = append(p.marks, pad)
		}
	}
	slices.Sort(p.marks)
	p.marks = slices.Compact(p.marks)
	for _, t := range p.marks {
		if text, ok := p.Tokenizer.AppendBytes(nil, t); ok && len(text) > 0 {
			p.literals = append(p.literals, string(text))
		}
	}
}

// OpenFamily sets the family which open returns for an engine with default settings, and keeps open for
// [Pipeline.ForServing]. It returns the error of open; the model is then served without a family. It is
// called before the pipeline is used.
func (p *Pipeline) OpenFamily(open func(family.Serving) (*family.Family, error)) error {
	p.families = open
	return p.openFamily(family.Serving{})
}

func (p *Pipeline) openFamily(as family.Serving) error {
	f, err := p.families(as)
	if err != nil {
		p.setFamily(nil)
		p.NoFamily = err.Error()
		var unsupported *family.UnsupportedError
		if errors.As(err, &unsupported) {
			p.NoFamily = unsupported.Detail
		}
		return err
	}
	p.setFamily(f)
	p.NoFamily = ""
	return nil
}

// ForServing returns the pipeline for an engine with settings of its own: p with another media family.
func (p *Pipeline) For(as family.Serving) *Pipeline {
	if p == nil || p.families == nil || as == (family.Serving{}) {
		return p
	}
	own := *p
	_ = own.openFamily(as) // NoFamilyReason has the error
	return &own
}

// MediaKinds returns the kinds of media, in order.
func Kinds() []media.Kind { return []media.Kind{media.Image, media.Video, media.Audio} }

// rejectMediaText refuses a conversation whose text spells a media placeholder: a checkpoint's own template
// would turn it into the token, and the prompt would show an object which does not exist.
func (p *Pipeline) literal(c *Chat) error {
	if len(p.literals) == 0 {
		return nil
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		parts, calls := plainJSON(m.Parts), plainJSON(m.ToolCalls)
		for _, l := range p.literals {
			if strings.Contains(m.Content, l) || strings.Contains(m.Reasoning, l) || strings.Contains(m.Name, l) || strings.Contains(m.ToolCallID, l) ||
				bytes.Contains(parts, []byte(l)) || bytes.Contains(calls, []byte(l)) {
				return spelled(fmt.Sprintf("messages[%d]", i), l)
			}
		}
	}
	tools, args := plainJSON(c.Tools), plainJSON(c.Args)
	for _, l := range p.literals {
		if bytes.Contains(tools, []byte(l)) {
			return spelled("tools", l)
		}
		if bytes.Contains(args, []byte(l)) {
			return spelled("chat_template_kwargs", l)
		}
	}
	return nil
}

// unescapeJSON resolves \u escapes in JSON, also in JSON inside its strings (function arguments), since
// templates see them decoded. The result is for searching only and may not be valid JSON.
func plainJSON(b []byte) []byte {
	escape := []byte(`\u`)
	if !bytes.Contains(b, escape) {
		return b
	}
	out := make([]byte, 0, len(b))
	for {
		before, after, found := bytes.Cut(b, escape)
		out = append(out, before...)
		if !found {
			return out
		}
		b = after
		if n, err := strconv.ParseUint(string(b[:min(4, len(b))]), 16, 16); err == nil && len(b) >= 4 {
			out, b = utf8.AppendRune(bytes.TrimRight(out, `\`), rune(n)), b[4:]
		}
	}
}

func spelled(field, text string) error {
	return &Refused{fault.Param(field, "'%s' has the text %q, which stands for media in this model's prompts: write it another way", field, text)}
}

// IndexMediaToken returns the index of the first media placeholder token, -1 if there is none.
func (p *Pipeline) Shows(tokens []kv.Token) int {
	if len(p.marks) == 0 {
		return -1
	}
	first, last := p.marks[0], p.marks[len(p.marks)-1]
	for i, t := range tokens {
		if t >= first && t <= last && slices.Contains(p.marks, t) {
			return i
		}
	}
	return -1
}

// CompletePrompt makes the prompt of a conversation from the tokens of its text, which it may keep: it
// resolves the media and puts their tokens in place of the template's placeholders.
func (l Local) Complete(ctx context.Context, c *Chat, tokens []kv.Token) (Prompt, error) {
	p := l.Pipeline
	if len(c.Media) == 0 {
		if p.Shows(tokens) >= 0 {
			return Prompt{}, &Refused{fault.Param("messages", "the conversation has the place of a media object and no object: send it as a part of a message")}
		}
		return Prompt{Tokens: tokens}, nil
	}
	prompt, err := l.show(ctx, c, tokens)
	var u *Unresolved
	var refused *fault.Error
	switch {
	case err == nil:
		return prompt, nil
	case errors.As(err, &u):
	case errors.As(err, &refused):
		return Prompt{}, &Refused{refused}
	default:
		return Prompt{}, err
	}
	return Prompt{Tokens: l.before(c, tokens), TextOnly: u.Reason, Why: u.Err}, nil
}

// placeMedia returns the prompt with its media in place.
func (l Local) show(ctx context.Context, c *Chat, tokens []kv.Token) (_ Prompt, err error) {
	p := l.Pipeline
	first := &c.Media[0]
	if p.Family == nil || l.Media == nil {
		return Prompt{}, Undecided(media.UnsupportedModel, first.Part, "'%s' is of type %v, and how this model's prompts show media is not known here", first.Part, first.Kind)
	}
	if c.ProcessorArgs {
		return Prompt{}, Undecided(media.ProcessorOverridden, "mm_processor_kwargs", "'mm_processor_kwargs' is not supported by this server: leave it out")
	}
	objects, release, err := l.Media.Resolve(ctx, c, p.Family)
	if err != nil {
		return Prompt{}, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	placed := make([]media.Placed, len(objects))
	for i := range objects {
		o := &objects[i]
		placeholder, ok := p.Family.Placeholder(o.Kind)
		if !ok {
			return Prompt{}, Undecided(media.UnsupportedModel, o.Part, "'%s' shows media of kind %v, which this model does not take", o.Part, o.Kind)
		}
		layout, err := p.Family.Layout(o.Kind, o.Size)
		if err != nil {
			return Prompt{}, unsized(o, err)
		}
		placed[i] = media.Placed{Placeholder: placeholder, Key: o.Key, Layout: layout}
	}
	out, places, err := media.Expand(nil, nil, tokens, p.Family.Marks(), placed, media.MaxExpanded)
	if err != nil {
		var long *media.LengthError
		if errors.As(err, &long) {
			return Prompt{}, Undecided(media.OverLimit, "messages", "with its media the prompt has more than %d tokens: send fewer, or smaller ones", long.Limit)
		}
		return Prompt{}, Undecided(media.PlaceholderMismatch, "messages", "this model's chat template does not show the media as they were sent: %v", err)
	}
	return Prompt{Tokens: out, Media: places, Objects: objects, Release: release}, nil
}

// layoutError returns the error for an object without a known layout. An image shape which the model's
// processor refuses is the client's fault on any engine. For video and audio the engine chooses what the
// processor sees, which may have another length.
func unsized(o *media.Object, err error) error {
	var s *family.SizeError
	if errors.As(err, &s) {
		if s.Reason == media.SizeRefused && o.Kind == media.Image {
			return fault.Param(o.Part, "'%s': %s: send one of another shape", o.Part, s.Detail)
		}
		return Undecided(s.Reason, o.Part, "'%s': %s", o.Part, s.Detail)
	}
	return Undecided(media.DimensionsUnknown, o.Part, "'%s': %v", o.Part, err)
}

// tokensBeforeMedia returns the tokens before the first media object of a conversation. Where the placeholder
// tokens are unknown, it returns the common prefix with the same conversation without media.
func (l Local) before(c *Chat, tokens []kv.Token) []kv.Token {
	p := l.Pipeline
	if i := p.Shows(tokens); i >= 0 {
		return tokens[:i:i]
	}
	text := *c
	text.Media, text.Messages = nil, slices.Clone(c.Messages)
	for i := range text.Messages {
		text.Messages[i].Parts = withoutMedia(text.Messages[i].Parts)
	}
	segments, err := p.Render(&text)
	if err != nil {
		return nil // unknown
	}
	other := p.EncodeSegments(nil, segments)
	n := 0
	for n < min(len(tokens), len(other)) && tokens[n] == other[n] {
		n++
	}
	return tokens[:n:n]
}

// AppendTextPart appends a text part of a message's content to dst, a JSON array which is already open ("["
// at least).
func AppendTextPart(dst []byte, text string) []byte {
	dst = append(comma(dst), `{"type":"text","text":`...)
	return append(strictjson.AppendString(dst, text), '}')
}

// AppendMediaPart appends a media part to dst, as AppendTextPart does. It has only the kind, which is what
// templates look for; the object itself does not pass through them.
func AppendMediaPart(dst []byte, kind media.Kind) []byte {
	dst = append(comma(dst), `{"type":"`...)
	dst = append(dst, kind.String()...)
	return append(dst, `"}`...)
}

// AppendURLPart appends a part with the object's URL, as clients write it.
func AppendURLPart(dst []byte, m *Media) []byte {
	field := m.Kind.String() + "_url"
	dst = append(comma(dst), `{"type":"`...)
	dst = append(append(dst, field...), `","`...)
	dst = append(append(dst, field...), `":{"url":`...)
	return append(strictjson.AppendString(dst, m.URL), `}}`...)
}

// appendComma appends a comma unless the array is empty.
func comma(dst []byte) []byte {
	if n := len(dst); n > 0 && dst[n-1] != '[' {
		dst = append(dst, ',')
	}
	return dst
}

// ContentPart is a part of a message's content as the templates in Go read it.
type ContentPart struct {
	Type string
	Text string
}

// ReadParts reads the parts of a message.
func ReadParts(parts []byte) ([]ContentPart, error) {
	var all []ContentPart
	err := json.Unmarshal(parts, &all)
	return all, err
}

// withoutMedia returns the text parts.
func withoutMedia(parts []byte) []byte {
	if len(parts) == 0 {
		return nil
	}
	all, err := ReadParts(parts)
	if err != nil {
		return nil
	}
	out := []byte{'['}
	for _, part := range all {
		if part.Type == "text" {
			out = AppendTextPart(out, part.Text)
		}
	}
	return append(out, ']')
}
