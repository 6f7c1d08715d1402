package jinja

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// escapeHTML escapes text for HTML and XML.
func (s *renderState) escapeHTML(t string) string {
	out := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(t)
	s.payBytes(len(out))
	return out
}

// filterXMLAttr writes a dictionary as attributes of a tag.
func filterXMLAttr(s *renderState, v any, b []any) any {
	d, ok := v.(*Dict)
	if !ok {
		requireDefined(v)
		throw("'%s' object has no attribute 'items'", typeName(v))
	}
	var out strings.Builder
	for i, key := range d.keys {
		val := d.vals[i]
		if _, none := val.(*undefinedValue); none || val == nil {
			continue
		}
		name := textArg(key)
		if strings.ContainsAny(name, " \t\n\r\f\v/>=") {
			throw("Invalid character in attribute name")
		}
		if out.Len() > 0 || isTruthy(orDefault(b[0], true)) {
			out.WriteByte(' ')
		}
		out.WriteString(s.escapeHTML(name) + `="` + s.escapeHTML(s.toString(val)) + `"`)
		s.checkRoom(out.Len())
	}
	s.payBytes(out.Len())
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
	s       *renderState
	limit   any // of the displayed text; nil if there is none
	attrs   string
	schemes []string
}

func filterUrlize(s *renderState, v any, b []any) any {
	l := &linker{s: s, limit: orDefault(b[0], nil)}
	rel := []string{"noopener"}
	if named := orDefault(b[3], nil); isTruthy(named) {
		rel = append(rel, strings.FieldsFunc(textArg(named), isSpace)...)
	}
	if isTruthy(orDefault(b[1], false)) {
		rel = append(rel, "nofollow")
	}
	slices.Sort(rel)
	l.attrs = ` rel="` + s.escapeHTML(strings.Join(slices.Compact(rel), " ")) + `"`
	if target := orDefault(b[2], nil); isTruthy(target) {
		l.attrs += ` target="` + s.escapeHTML(s.toString(target)) + `"`
	}
	if schemes := orDefault(b[4], nil); schemes != nil {
		for _, item := range s.collectItems(schemes) {
			scheme := textArg(item)
			if !schemePattern.MatchString(scheme) {
				throw("an extra scheme is not a valid URI scheme prefix")
			}
			l.schemes = append(l.schemes, scheme)
		}
	}
	return l.linkAll(s.escapeHTML(s.toString(v)))
}

// linkAll turns the addresses in t into links.
func (l *linker) linkAll(t string) string {
	var out strings.Builder
	for t != "" {
		word := len(t) - len(strings.TrimLeftFunc(t, func(r rune) bool { return !isSpace(r) }))
		l.s.payStep()
		out.WriteString(l.linkWord(t[:word]))
		t = t[word:]
		gap := len(t) - len(strings.TrimLeftFunc(t, isSpace))
		out.WriteString(t[:gap])
		t = t[gap:]
		l.s.checkRoom(out.Len())
	}
	l.s.payBytes(out.Len())
	return out.String()
}

// linkWord turns the address in a word into a link: surrounding brackets and stops are not part of it, unless
// they close what it opens.
func (l *linker) linkWord(t string) string {
	l.s.payBytes(len(t))
	l.s.payRead(slowly * len(t))
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
	return head + l.linkAddress(middle) + tail
}

func (l *linker) linkAddress(t string) string {
	if strings.ContainsAny(t, ".@[") {
		l.s.payRead(slowly * slowly * slowly * len(t)) // for the patterns
	}
	switch {
	case strings.ContainsAny(t, ".[") && linkPattern.MatchString(t):
		to := t
		if !strings.HasPrefix(t, "https://") && !strings.HasPrefix(t, "http://") {
			to = "https://" + t
		}
		return l.makeAnchor(to, l.attrs, l.shortenText(t))
	case strings.HasPrefix(t, "mailto:") && mailPattern.MatchString(t[len("mailto:"):]):
		return l.makeAnchor(t, "", t[len("mailto:"):])
	case strings.Contains(t, "@") && !strings.HasPrefix(t, "www.") && t[0] != '@' && !strings.Contains(t, ":") && mailPattern.MatchString(t):
		return l.makeAnchor("mailto:"+t, "", t)
	}
	for _, scheme := range l.schemes {
		if t != scheme && strings.HasPrefix(t, scheme) {
			t = l.makeAnchor(t, l.attrs, t)
		}
	}
	return t
}

func (l *linker) makeAnchor(to, attrs, shown string) string {
	l.s.payBytes(len(to) + len(attrs) + len(shown))
	return fmt.Sprintf(`<a href="%s"%s>%s</a>`, to, attrs, shown)
}

// shortenText is the text of a link, cut to the limit.
func (l *linker) shortenText(t string) string {
	if l.limit == nil {
		return t
	}
	limit, ok := toInteger(l.limit)
	if !ok {
		throw("'>' not supported between instances of 'int' and '%s'", typeName(l.limit))
	}
	if int64(utf8.RuneCountInString(t)) <= limit {
		return t
	}
	return l.s.substring(t, nil, limit) + "..."
}
