package parse

import (
	"slices"
	"strings"
)

// IsMarkup reports whether text, the text of a special token, is a marker or part of one, which the parser
// must receive. Other special tokens are not part of an answer.
func (g *Grammar) IsMarkup(text string) bool {
	for _, m := range g.markup {
		if strings.Contains(m, text) {
			return true
		}
	}
	return false
}

// TokenMarkers returns the markers which count in some states only if PushToken reads them.
func (g *Grammar) TokenMarkers() []string {
	var markers []string
	for _, l := range slices.Concat(g.think.literals, g.mid.literals) {
		if (l.act == actUnclosed || l.act == actStray) && g.tokens[l.text] {
			markers = append(markers, l.text)
		}
	}
	return markers
}

// collectMarkup collects the markers for IsMarkup. It leaves out the brackets and commas of bare calls, which
// are text.
func (g *Grammar) collectMarkup(f *toolFormat, s *reasoningStyle) {
	var sets []*markerSet
	if g.harmony {
		sets = []*markerSet{&harmonyBetween, &harmonyInHeader, &harmonyInBody}
	} else if g.machine != nil {
		sets = g.machine().markerSets()
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
