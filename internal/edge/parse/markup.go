package parse

import (
	"slices"
	"strings"
)

// Markup reports whether text, that of a special token, is a marker or a part of
// one: parsers must see it. Other special tokens are no part of an answer.
func (g *Grammar) Markup(text string) bool {
	for _, m := range g.markup {
		if strings.Contains(m, text) {
			return true
		}
	}
	return false
}

// TokenMarkers returns the markers that count in some states only where PushToken reads
// them.
func (g *Grammar) TokenMarkers() []string {
	var markers []string
	for _, l := range slices.Concat(g.think.literals, g.mid.literals) {
		if (l.act == actUnclosed || l.act == actStray) && g.tokens[l.text] {
			markers = append(markers, l.text)
		}
	}
	return markers
}

// collect notes the markers that Markup knows. The brackets and commas of bare
// calls are none of them: those are text.
func (g *Grammar) collect(f *format, s *style) {
	var sets []*set
	if g.harmony {
		sets = []*set{&harmonyBetween, &harmonyInHeader, &harmonyInBody}
	} else if g.machine != nil {
		sets = g.machine().sets()
	}
	for _, of := range [][]string{f.open, f.drop, s.open, s.end} {
		g.markup = append(g.markup, of...)
	}
	for _, s := range sets {
		for _, l := range s.literals {
			g.markup = append(g.markup, l.text)
		}
	}
}
