package jinja

import (
	"slices"
	"strings"
	"unicode"
)

// filterWordwrap is the filter wordwrap: each line is wrapped separately, as Python's textwrap does.
func wordwrap(s *state, v any, a *args) any {
	b := a.bind("width", "break_long_words", "wrapstring", "break_on_hyphens")
	t := text(v)
	width, ok := integer(or(b[0], int64(79)))
	if !ok {
		throw("the width must be a number of characters, not %s", typeName(b[0]))
	}
	with := "\n"
	if or(b[2], nil) != nil {
		with = text(b[2])
	}
	hyphens := or(b[3], true)
	w := &wrapper{s: s, width: int(width), long: truth(or(b[1], true)), hyphens: truth(hyphens), compounds: hyphens == true}
	// For each character a rune and its place in a chunk are kept.
	s.spend(32 * len(t))
	s.read(2 * slowly * len(t))
	var out strings.Builder
	for i, line := range splitLines(t, false) {
		if i > 0 {
			out.WriteString(with)
		}
		for j, part := range w.wrap([]rune(line)) {
			if j > 0 {
				out.WriteString(with)
			}
			out.WriteString(string(part))
			s.room(out.Len())
		}
		s.room(out.Len())
	}
	s.spend(out.Len())
	return out.String()
}

type wrapper struct {
	s         *state
	width     int
	long      bool // words longer than a line are broken
	hyphens   bool // also after a hyphen
	compounds bool // compound words may be broken after their hyphens
}

// wrapText returns the lines of text. A line may end between any two chunks, and loses the space there.
func (w *wrapper) wrap(text []rune) [][]rune {
	if w.width <= 0 {
		throw("invalid width %d (must be > 0)", w.width)
	}
	chunks := w.chunks(text)
	var lines [][]rune
	for len(chunks) > 0 {
		w.s.step()
		if len(lines) > 0 && onlySpace(chunks[0]) {
			chunks = chunks[1:]
		}
		var line [][]rune
		size := 0
		for len(chunks) > 0 && size+len(chunks[0]) <= w.width {
			line = append(line, chunks[0])
			size += len(chunks[0])
			chunks = chunks[1:]
		}
		if len(chunks) > 0 && len(chunks[0]) > w.width {
			if w.long {
				end := w.breakAt(chunks[0], w.width-size)
				line = append(line, chunks[0][:end])
				chunks[0] = chunks[0][end:]
			} else if line == nil {
				line = append(line, chunks[0])
				chunks = chunks[1:]
			}
		}
		if n := len(line); n > 0 && onlySpace(line[n-1]) {
			line = line[:n-1]
		}
		if len(line) > 0 {
			lines = append(lines, slices.Concat(line...))
		}
	}
	return lines
}

// breakPoint returns how much of a long word fits on a line with some room left.
func (w *wrapper) breakAt(word []rune, room int) int {
	if !w.hyphens {
		return room
	}
	for i := min(room, len(word)) - 1; i > 0; i-- {
		if word[i] == '-' && slices.ContainsFunc(word[:i], func(r rune) bool { return r != '-' }) {
			return i + 1
		} else if word[i] == '-' {
			break
		}
	}
	return room
}

func onlySpace(text []rune) bool {
	return !slices.ContainsFunc(text, func(r rune) bool { return !space(r) })
}

// isWrapSpace is textwrap's definition of white space.
func wrapSpace(r rune) bool { return r >= '\t' && r <= '\r' || r == ' ' }

// splitChunks splits text into runs of space and words, and words after hyphens and around dashes.
func (w *wrapper) chunks(text []rune) [][]rune {
	var chunks [][]rune
	for at := 0; at < len(text); {
		n := w.chunk(text, at)
		chunks = append(chunks, text[at:at+n])
		at += n
	}
	return chunks
}

// chunkLength returns the length of the chunk at an offset.
func (w *wrapper) chunk(text []rune, at int) int {
	end := at + 1
	if wrapSpace(text[at]) {
		for end < len(text) && wrapSpace(text[end]) {
			end++
		}
		return end - at
	}
	if w.compounds && at > 0 && beforeDash(text[at-1]) && dash(text, at) > 0 {
		return dash(text, at)
	}
	for ; end < len(text) && !wrapSpace(text[end]); end++ {
		if !w.compounds {
			continue
		}
		if compound(text, end) {
			return end + 1 - at
		}
		if beforeDash(text[end-1]) && dash(text, end) > 0 {
			break
		}
	}
	return end - at
}

// isBeforeDash reports whether a dash may follow r.
func beforeDash(r rune) bool { return wordRune(r) || strings.ContainsRune(`!"'&.,?`, r) }

// dashLength returns the length of a dash at an offset: two or more hyphens before a word; 0 if there is
// none.
func dash(text []rune, at int) int {
	end := at
	for end < len(text) && text[end] == '-' {
		end++
	}
	if end-at < 2 || end == len(text) || !wordRune(text[end]) {
		return 0
	}
	return end - at
}

// isCompoundHyphen reports whether the character at an offset is a hyphen between parts of a word: two
// letters before it, or a letter on either side of another hyphen, and the same after it.
func compound(text []rune, at int) bool {
	letter := func(i int) bool {
		return i >= 0 && i < len(text) && wordRune(text[i]) && !unicode.IsDigit(text[i])
	}
	hyphen := func(i int) bool { return i >= 0 && i < len(text) && text[i] == '-' }
	return hyphen(at) && letter(at-1) && (letter(at-2) || hyphen(at-2) && letter(at-3)) &&
		letter(at+1) && (letter(at+2) || hyphen(at+2) && letter(at+3))
}
