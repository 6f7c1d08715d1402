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

	"penstock/core/encode"
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
	// Halvings is how often the object is halved, its frames or its resolution, before it is measured and sent: it
	// is then another object, with a key of its own.
	Halvings int
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
type UnresolvedError struct {
	Reason media.Reason
	// Kind says that the object which Err names failed, and how; NotFailed if it is not the object's fault.
	Kind encode.FailureKind
	// Err is for the client and names the part, if no engine can serve the request anyway.
	Err *fault.Error
}

// Error implements error.
func (u *UnresolvedError) Error() string { return string(u.Reason) + ": " + u.Err.Message }

// Unwrap returns the error for the client.
func (u *UnresolvedError) Unwrap() error { return u.Err }

// RefusedError refuses a conversation for the media which it has or imitates. No engine is asked.
type RefusedError struct{ Err *fault.Error }

// Error implements error.
func (r *RefusedError) Error() string { return r.Err.Message }

// Unwrap returns the error for the client.
func (r *RefusedError) Unwrap() error { return r.Err }

// NewUnresolvedError returns an error about one part of a request.
func NewUnresolvedError(reason media.Reason, param, format string, args ...any) *UnresolvedError {
	return &UnresolvedError{Reason: reason, Err: fault.InvalidParam(param, format, args...)}
}

// SetFamily sets how the model's prompts show media, whichever engine serves it. It is called before the
// pipeline is used.
func (p *Pipeline) SetFamily(f *family.Family) {
	p.openServing = nil
	p.setFamily(f)
}

func (p *Pipeline) setFamily(f *family.Family) {
	p.Family, p.mediaTokens, p.mediaTexts = f, nil, nil
	if f == nil {
		return
	}
	p.mediaTokens = slices.Clone(f.Placeholders())
	for _, k := range MediaKinds() {
		if pad, ok := f.PadToken(k); ok {
			p.mediaTokens = append(p.mediaTokens, pad)
		}
	}
	slices.Sort(p.mediaTokens)
	p.mediaTokens = slices.Compact(p.mediaTokens)
	for _, t := range p.mediaTokens {
		if text, ok := p.Tokenizer.AppendBytes(nil, t); ok && len(text) > 0 {
			p.mediaTexts = append(p.mediaTexts, string(text))
		}
	}
	if n, ok := f.NumberedText(media.Image); ok {
		p.mediaTexts = append(p.mediaTexts, n.Before)
	}
}

// OpenFamily sets the family which open returns for an engine with default settings, and keeps open for
// [Pipeline.ForServing]. It returns the error of open; the model is then served without a family. It is
// called before the pipeline is used.
func (p *Pipeline) OpenFamily(open func(family.Serving) (*family.Family, error)) error {
	p.openServing = open
	return p.openFamily(family.Serving{})
}

func (p *Pipeline) openFamily(as family.Serving) error {
	f, err := p.openServing(as)
	if err != nil {
		p.setFamily(nil)
		p.NoFamilyReason = err.Error()
		if unsupported, ok := errors.AsType[*family.UnsupportedError](err); ok {
			p.NoFamilyReason = unsupported.Detail
		}
		return err
	}
	p.setFamily(f)
	p.NoFamilyReason = ""
	return nil
}

// ForServing returns the pipeline for an engine with settings of its own: p with another media family.
func (p *Pipeline) ForServing(as family.Serving) *Pipeline {
	if p == nil || p.openServing == nil || as == (family.Serving{}) {
		return p
	}
	own := *p
	_ = own.openFamily(as) // NoFamilyReason has the error
	return &own
}

// MediaKinds returns the kinds of media, in order.
func MediaKinds() []media.Kind { return []media.Kind{media.Image, media.Video, media.Audio} }

// rejectMediaText refuses a conversation whose text spells a media placeholder: a checkpoint's own template
// would turn it into the token, and the prompt would show an object which does not exist.
func (p *Pipeline) rejectMediaText(c *Chat) error {
	if len(p.mediaTexts) == 0 {
		return nil
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		parts, calls := unescapeJSON(m.Parts), unescapeJSON(m.ToolCalls)
		for _, l := range p.mediaTexts {
			if strings.Contains(m.Content, l) || strings.Contains(m.Reasoning, l) || strings.Contains(m.Name, l) || strings.Contains(m.ToolCallID, l) ||
				bytes.Contains(parts, []byte(l)) || bytes.Contains(calls, []byte(l)) {
				return mediaTextError(fmt.Sprintf("messages[%d]", i), l)
			}
		}
	}
	tools, args := unescapeJSON(c.Tools), unescapeJSON(c.Args)
	for _, l := range p.mediaTexts {
		if bytes.Contains(tools, []byte(l)) {
			return mediaTextError("tools", l)
		}
		if bytes.Contains(args, []byte(l)) {
			return mediaTextError("chat_template_kwargs", l)
		}
	}
	return nil
}

// unescapeJSON resolves \u escapes in JSON, also in JSON inside its strings (function arguments), since
// templates see them decoded. The result is for searching only and may not be valid JSON.
func unescapeJSON(b []byte) []byte {
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

func mediaTextError(field, text string) error {
	return &RefusedError{fault.InvalidParam(field, "'%s' has the text %q, which stands for media in this model's prompts: write it another way", field, text)}
}

// IndexMediaToken returns the index of the first media placeholder token, -1 if there is none.
func (p *Pipeline) IndexMediaToken(tokens []kv.Token) int {
	if len(p.mediaTokens) == 0 {
		return -1
	}
	first, last := p.mediaTokens[0], p.mediaTokens[len(p.mediaTokens)-1]
	for i, t := range tokens {
		if t >= first && t <= last && slices.Contains(p.mediaTokens, t) {
			return i
		}
	}
	return -1
}

// CompletePrompt makes the prompt of a conversation from the tokens of its text, which it may keep: it
// resolves the media and puts their tokens in place of the template's placeholders.
func (l LocalEncoder) CompletePrompt(ctx context.Context, c *Chat, tokens []kv.Token) (Prompt, error) {
	p := l.Pipeline
	if len(c.Media) == 0 {
		if p.IndexMediaToken(tokens) >= 0 {
			return Prompt{}, &RefusedError{fault.InvalidParam("messages", "the conversation has the place of a media object and no object: send it as a part of a message")}
		}
		return Prompt{Tokens: tokens}, nil
	}
	prompt, err := l.placeMedia(ctx, c, tokens)
	var u *UnresolvedError
	var refused *fault.Error
	switch {
	case err == nil:
		return prompt, nil
	case errors.As(err, &u):
	case errors.As(err, &refused):
		return Prompt{}, &RefusedError{refused}
	default:
		return Prompt{}, err
	}
	return Prompt{Tokens: l.tokensBeforeMedia(c, tokens), TextOnlyReason: u.Reason, TextOnlyError: u.Err, FailureKind: u.Kind}, nil
}

// placeMedia returns the prompt with its media in place.
func (l LocalEncoder) placeMedia(ctx context.Context, c *Chat, tokens []kv.Token) (_ Prompt, err error) {
	p := l.Pipeline
	first := &c.Media[0]
	if p.Family == nil || l.Media == nil {
		return Prompt{}, NewUnresolvedError(media.UnsupportedModel, first.Part, "'%s' is of type %v, and how this model's prompts show media is not known here", first.Part, first.Kind)
	}
	if c.ProcessorArgs {
		return Prompt{}, NewUnresolvedError(media.ProcessorOverridden, "mm_processor_kwargs", "'mm_processor_kwargs' is not supported by this server: leave it out")
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
	placed := make([]media.PromptObject, len(objects))
	for i := range objects {
		o := &objects[i]
		placeholder, ok := p.Family.Placeholder(o.Kind)
		if !ok {
			return Prompt{}, NewUnresolvedError(media.UnsupportedModel, o.Part, "'%s' shows media of kind %v, which this model does not take", o.Part, o.Kind)
		}
		layout, err := p.Family.Layout(o.Kind, o.Size)
		if err != nil {
			return Prompt{}, layoutError(o, err)
		}
		placed[i] = media.PromptObject{Placeholder: placeholder, Key: o.Key, Layout: layout}
	}
	out, places, err := media.ExpandPrompt(nil, nil, tokens, p.Family.Placeholders(), placed, media.MaxExpanded)
	if err != nil {
		if long, ok := errors.AsType[*media.LengthError](err); ok {
			return Prompt{}, NewUnresolvedError(media.OverLimit, "messages", "with its media the prompt has more than %d tokens: send fewer, or smaller ones", long.Limit)
		}
		return Prompt{}, NewUnresolvedError(media.PlaceholderMismatch, "messages", "this model's chat template does not show the media as they were sent: %v", err)
	}
	return Prompt{Tokens: out, Media: places, Objects: objects, Release: release}, nil
}

// layoutError returns the error for an object without a known layout. An image shape which the model's
// processor refuses is the client's fault on any engine. For video and audio the engine chooses what the
// processor sees, which may have another length.
func layoutError(o *media.Object, err error) error {
	var s *family.SizeError
	if errors.As(err, &s) {
		if s.Reason == media.SizeRefused && o.Kind == media.Image {
			return fault.InvalidParam(o.Part, "'%s': %s: send one of another shape", o.Part, s.Detail)
		}
		return NewUnresolvedError(s.Reason, o.Part, "'%s': %s", o.Part, s.Detail)
	}
	return NewUnresolvedError(media.DimensionsUnknown, o.Part, "'%s': %v", o.Part, err)
}

// tokensBeforeMedia returns the tokens before the first media object of a conversation. Where the placeholder
// tokens are unknown, it returns the common prefix with the same conversation without media.
func (l LocalEncoder) tokensBeforeMedia(c *Chat, tokens []kv.Token) []kv.Token {
	p := l.Pipeline
	if i := p.IndexMediaToken(tokens); i >= 0 {
		return tokens[:i:i]
	}
	text := *c
	text.Media, text.Messages = nil, slices.Clone(c.Messages)
	for i := range text.Messages {
		text.Messages[i].Parts = withoutMedia(text.Messages[i].Parts)
	}
	segments, err := p.RenderChat(&text)
	if err != nil {
		return nil // unknown
	}
	other, _ := p.EncodeSegments(nil, segments, 0)
	n := 0
	for n < min(len(tokens), len(other)) && tokens[n] == other[n] {
		n++
	}
	return tokens[:n:n]
}

// AppendTextPart appends a text part of a message's content to dst, a JSON array which is already open ("["
// at least).
func AppendTextPart(dst []byte, text string) []byte {
	dst = append(appendComma(dst), `{"type":"text","text":`...)
	return append(strictjson.AppendString(dst, text), '}')
}

// AppendMediaPart appends a media part to dst, as AppendTextPart does. It has only the kind, which is what
// templates look for; the object itself does not pass through them.
func AppendMediaPart(dst []byte, kind media.Kind) []byte {
	dst = append(appendComma(dst), `{"type":"`...)
	dst = append(dst, kind.String()...)
	return append(dst, `"}`...)
}

// AppendURLPart appends a part with the object's URL, as clients write it.
func AppendURLPart(dst []byte, m *Media) []byte {
	field := m.Kind.String() + "_url"
	dst = append(appendComma(dst), `{"type":"`...)
	dst = append(append(dst, field...), `","`...)
	dst = append(append(dst, field...), `":{"url":`...)
	return append(strictjson.AppendString(dst, m.URL), `}}`...)
}

// appendComma appends a comma unless the array is empty.
func appendComma(dst []byte) []byte {
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
