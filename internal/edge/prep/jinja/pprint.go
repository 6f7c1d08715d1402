package jinja

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// pprintWidth is the line width of Python's pformat, in characters.
const pprintWidth = 80

// filterPprint is Python's pprint.pformat: repr with the keys of dictionaries sorted, over several lines
// where it is wider than one.
func filterPprint(s *renderState, v any, _ []any) any {
	p := &prettyPrinter{s: s}
	p.printValue(p.sortDicts(v, 0), 0, 0, 0)
	s.payBytes(p.b.Len())
	return p.b.String()
}

type prettyPrinter struct {
	s *renderState
	b strings.Builder
}

// sortDicts returns v with the dictionaries which pprint looks into sorted.
func (p *prettyPrinter) sortDicts(v any, depth int) any {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded while getting the repr of an object")
	}
	p.s.payStep()
	switch v := v.(type) {
	case *listValue:
		return &listValue{p.sortDictItems(v.items, depth)}
	case *tupleValue:
		return &tupleValue{p.sortDictItems(v.items, depth)}
	case *Dict:
		p.s.payBytes(64 * (1 + v.Len()))
		order := make([]int, v.Len())
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int { return p.compareKeys(v.keys[i], v.keys[j]) })
		out := NewDict()
		for _, i := range order {
			out.putKey(v.keys[i], p.sortDicts(v.vals[i], depth+1))
		}
		return out
	}
	return v
}

func (p *prettyPrinter) sortDictItems(items []any, depth int) []any {
	p.s.payBytes(16 * (1 + len(items)))
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = p.sortDicts(item, depth+1)
	}
	return out
}

// compareKeys orders keys; keys which Python does not order are ordered by the names of their types.
func (p *prettyPrinter) compareKeys(a, b any) int {
	p.s.payStep()
	_, x := toNumber(a)
	_, y := toNumber(b)
	switch {
	case x && y, typeName(a) == "str" && typeName(b) == "str", typeName(a) == "tuple" && typeName(b) == "tuple":
		return p.s.compareOrder("<", a, b)
	}
	return strings.Compare(typeName(a), typeName(b))
}

func (p *prettyPrinter) reprValue(v any) string {
	var b strings.Builder
	p.s.writeRepr(&b, v, 0)
	p.s.payRead(b.Len())
	p.s.payBytes(b.Len() / 8)
	return b.String()
}

// printValue writes v, which starts at a column and must leave some columns free on its last line; level is
// its nesting depth.
func (p *prettyPrinter) printValue(v any, column, free, level int) {
	text := p.reprValue(v)
	if utf8.RuneCountInString(text) <= pprintWidth-column-free {
		p.b.WriteString(text)
		return
	}
	switch v := v.(type) {
	case string:
		p.printText(v, column, free, level+1)
	case *listValue:
		p.printItems("[", v.items, "]", column, free, level+1)
	case *tupleValue:
		end := ")"
		if len(v.items) == 1 {
			end = ",)"
		}
		p.printItems("(", v.items, end, column, free, level+1)
	case *Dict:
		p.printDict(v, column, free, level+1)
	default:
		p.b.WriteString(text)
	}
}

func (p *prettyPrinter) breakLine(end string, column int) {
	p.s.checkRoom(p.b.Len() + column)
	p.b.WriteString(end + "\n" + strings.Repeat(" ", column))
}

func (p *prettyPrinter) printItems(open string, items []any, end string, column, free, level int) {
	p.b.WriteString(open)
	for i, item := range items {
		if i > 0 {
			p.breakLine(",", column+1)
		}
		after := 1
		if i == len(items)-1 {
			after = free + len(end)
		}
		p.printValue(item, column+1, after, level)
	}
	p.b.WriteString(end)
}

func (p *prettyPrinter) printDict(d *Dict, column, free, level int) {
	p.b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			p.breakLine(",", column+1)
		}
		key := p.reprValue(k)
		p.b.WriteString(key + ": ")
		after := 1
		if i == d.Len()-1 {
			after = free + 1
		}
		p.printValue(d.vals[i], column+1+utf8.RuneCountInString(key)+2, after, level)
	}
	p.b.WriteByte('}')
}

// printText writes a string as several consecutive ones, cut after lines and words.
func (p *prettyPrinter) printText(t string, column, free, level int) {
	if level == 1 {
		column++
		free++
	}
	var chunks []string
	lines := splitLines(t, true)
	for i, line := range lines {
		last := i == len(lines)-1
		width := pprintWidth - column
		if last {
			width -= free
		}
		if text := p.reprValue(line); utf8.RuneCountInString(text) <= width {
			chunks = append(chunks, text)
			continue
		}
		chunks = append(chunks, p.wrapWords(line, pprintWidth-column, width)...)
	}
	if len(chunks) == 1 {
		p.b.WriteString(chunks[0])
		return
	}
	if level == 1 {
		p.b.WriteByte('(')
	}
	for i, c := range chunks {
		if i > 0 {
			p.breakLine("", column)
		}
		p.b.WriteString(c)
	}
	if level == 1 {
		p.b.WriteByte(')')
	}
}

// wrapWords cuts a line after words, each with the space after it, so that their repr fits the width, or last
// for the final part.
func (p *prettyPrinter) wrapWords(line string, width, last int) []string {
	var chunks []string
	current := ""
	for line != "" {
		end := len(line) - len(strings.TrimLeftFunc(strings.TrimLeftFunc(line, func(r rune) bool { return !isSpace(r) }), isSpace))
		part := line[:end]
		if line = line[end:]; line == "" {
			width = last
		}
		p.s.payBytes(len(current) / 8)
		if utf8.RuneCountInString(p.reprValue(current+part)) > width {
			if current != "" {
				chunks = append(chunks, p.reprValue(current))
			}
			current = part
		} else {
			current += part
		}
	}
	return append(chunks, p.reprValue(current))
}
