package jinja

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// escapeHTML escapes text for HTML and XML.
func (s *state) escape(t string) string {
	out := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(t)
	s.spend(len(out))
	return out
}

// filterXMLAttr writes a dictionary as attributes of a tag.
func xmlattr(s *state, v any, a *args) any {
	b := a.bind("autospace")
	d, ok := v.(*Dict)
	if !ok {
		undefined(v)
		throw("'%s' object has no attribute 'items'", typeName(v))
	}
	var out strings.Builder
	for i, key := range d.keys {
		val := d.vals[i]
		if _, none := val.(*undef); none || val == nil {
			continue
		}
		name := text(key)
		if strings.ContainsAny(name, " \t\n\r\f\v/>=") {
			throw("Invalid character in attribute name")
		}
		if out.Len() > 0 || truth(or(b[0], true)) {
			out.WriteByte(' ')
		}
		out.WriteString(s.escape(name) + `="` + s.escape(s.str(val)) + `"`)
		s.room(out.Len())
	}
	s.spend(out.Len())
	return out.String()
}

// The patterns of a link, and of what may surround one. The character classes are Python's, which include
// letters and digits of every script.
var (
	linkPattern = regexp.MustCompile(`(?i)^(?:(?:https?://|www\.)(?:(?:[\p{L}\p{N}_%-]+\.)+)?(?:[a-z]{2,63}|xn--[\p{L}\p{N}_%]{2,59})` +
		`|(?:[\p{L}\p{N}_%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil)` +
		`|https?://(?:\p{Nd}{1,3}(?:\.\p{Nd}{1,3}){3}|\[(?:[\p{Nd}a-f]{0,4}:){2}(?:[\p{Nd}a-f]{0,4}:?){1,6}\]))` +
		`(?::\p{Nd}{1,5})?(?:[/?#].*)?$`)
	mailPattern   = regexp.MustCompile(`^.+@[\p{L}\p{N}_][\p{L}\p{N}_.-]*\.[\p{L}\p{N}_]+$`)
	schemePattern = regexp.MustCompile(`^[\p{L}\p{N}_.+-]{2,}:/{0,2}$`)
	linkHead      = regexp.MustCompile(`^(?:[(<]|&lt;)+`)
	linkTail      = regexp.MustCompile(`(?:[)>.,\n]|&gt;)+$`)
)

// linker is the filter urlize.
type linker struct {
	s       *state
	limit   any // of the displayed text; nil if there is none
	attrs   string
	schemes []string
}

func urlize(s *state, v any, a *args) any {
	b := a.bind("trim_url_limit", "nofollow", "target", "rel", "extra_schemes")
	l := &linker{s: s, limit: or(b[0], nil)}
	rel := []string{"noopener"}
	if named := or(b[3], nil); truth(named) {
		rel = append(rel, strings.FieldsFunc(text(named), space)...)
	}
	if truth(or(b[1], false)) {
		rel = append(rel, "nofollow")
	}
	slices.Sort(rel)
	l.attrs = ` rel="` + s.escape(strings.Join(slices.Compact(rel), " ")) + `"`
	if target := or(b[2], nil); truth(target) {
		l.attrs += ` target="` + s.escape(s.str(target)) + `"`
	}
	if schemes := or(b[4], nil); schemes != nil {
		for _, item := range s.collect(schemes) {
			scheme := text(item)
			if !schemePattern.MatchString(scheme) {
				throw("an extra scheme is not a valid URI scheme prefix")
			}
			l.schemes = append(l.schemes, scheme)
		}
	}
	return l.all(s.escape(s.str(v)))
}

// linkAll turns the addresses in t into links.
func (l *linker) all(t string) string {
	var out strings.Builder
	for t != "" {
		word := len(t) - len(strings.TrimLeftFunc(t, func(r rune) bool { return !space(r) }))
		l.s.step()
		out.WriteString(l.word(t[:word]))
		t = t[word:]
		gap := len(t) - len(strings.TrimLeftFunc(t, space))
		out.WriteString(t[:gap])
		t = t[gap:]
		l.s.room(out.Len())
	}
	l.s.spend(out.Len())
	return out.String()
}

// linkWord turns the address in a word into a link: surrounding brackets and stops are not part of it, unless
// they close what it opens.
func (l *linker) word(t string) string {
	l.s.spend(len(t))
	l.s.read(slowly * len(t))
	head := linkHead.FindString(t)
	middle := t[len(head):]
	tail := linkTail.FindString(middle)
	middle = middle[:len(middle)-len(tail)]
	for _, pair := range [...][2]string{{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}} {
		open := strings.Count(middle, pair[0])
		if open <= strings.Count(middle, pair[1]) {
			continue
		}
		end := 0
		for range min(open, strings.Count(tail, pair[1])) {
			end += strings.Index(tail[end:], pair[1]) + len(pair[1])
		}
		middle += tail[:end]
		tail = tail[end:]
	}
	return head + l.link(middle) + tail
}

func (l *linker) link(t string) string {
	if strings.ContainsAny(t, ".@[") {
		l.s.read(slowly * slowly * slowly * len(t)) // for the patterns
	}
	switch {
	case strings.ContainsAny(t, ".[") && linkPattern.MatchString(t):
		to := t
		if !strings.HasPrefix(t, "https://") && !strings.HasPrefix(t, "http://") {
			to = "https://" + t
		}
		return l.anchor(to, l.attrs, l.shown(t))
	case strings.HasPrefix(t, "mailto:") && mailPattern.MatchString(t[len("mailto:"):]):
		return l.anchor(t, "", t[len("mailto:"):])
	case strings.Contains(t, "@") && !strings.HasPrefix(t, "www.") && t[0] != '@' && !strings.Contains(t, ":") && mailPattern.MatchString(t):
		return l.anchor("mailto:"+t, "", t)
	}
	for _, scheme := range l.schemes {
		if t != scheme && strings.HasPrefix(t, scheme) {
			t = l.anchor(t, l.attrs, t)
		}
	}
	return t
}

func (l *linker) anchor(to, attrs, shown string) string {
	l.s.spend(len(to) + len(attrs) + len(shown))
	return fmt.Sprintf(`<a href="%s"%s>%s</a>`, to, attrs, shown)
}

// shortenText is the text of a link, cut to the limit.
func (l *linker) shown(t string) string {
	if l.limit == nil {
		return t
	}
	limit, ok := integer(l.limit)
	if !ok {
		throw("'>' not supported between instances of 'int' and '%s'", typeName(l.limit))
	}
	if int64(utf8.RuneCountInString(t)) <= limit {
		return t
	}
	return l.s.part(t, nil, limit) + "..."
}
