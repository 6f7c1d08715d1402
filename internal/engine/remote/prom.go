package remote

import (
	"bytes"

	"penstock/internal/strictjson"
)

// MetricSample is one line of Prometheus' text format. Its slices point into the text.
type MetricSample struct {
	Name   []byte
	Labels []byte // unparsed, without the braces
	Value  float64
}

// EachSample calls yield with the samples of text whose names start with prefix. It allocates nothing for
// numbers of an ordinary form, and skips lines that it cannot parse.
func EachSample(text []byte, prefix string, yield func(MetricSample)) {
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(line) < len(prefix) || string(line[:len(prefix)]) != prefix || len(line) == 0 || line[0] == '#' {
			continue
		}
		if s, ok := parseSample(line); ok {
			yield(s)
		}
	}
}

// parseSample parses a line: name{labels} value timestamp.
func parseSample(line []byte) (s MetricSample, ok bool) {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return s, false
	}
	s.Name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		close := labelsEnd(rest)
		if close < 0 {
			return s, false
		}
		s.Labels, rest = rest[1:close], rest[close+1:]
	}
	rest = bytes.TrimLeft(rest, " \t")
	if i := bytes.IndexAny(rest, " \t\r"); i >= 0 {
		rest = rest[:i]
	}
	v, err := strictjson.ParseFloat(rest)
	s.Value = v
	return s, err == nil && len(rest) > 0
}

// labelsEnd returns the index of the brace that closes the labels at the start of b, -1 if there is none.
func labelsEnd(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == '}' && !quoted:
			return i
		}
	}
	return -1
}

// LabelValue returns the value of a label with its escapes unresolved; nil if there is none of that name.
func (s *MetricSample) LabelValue(name string) []byte {
	for b := s.Labels; len(b) > 0; {
		eq := bytes.IndexByte(b, '=')
		if eq < 0 || eq+1 >= len(b) || b[eq+1] != '"' {
			return nil
		}
		key := bytes.Trim(b[:eq], " ,\t")
		b = b[eq+2:]
		end := 0
		for end < len(b) && b[end] != '"' {
			if b[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(b) {
			return nil
		}
		if string(key) == name {
			return b[:end]
		}
		b = b[end+1:]
	}
	return nil
}
