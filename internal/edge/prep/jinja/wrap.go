package jinja

import (
	"slices"
	"strings"
	"unicode"
)

// filterWordwrap is the filter wordwrap: each line is wrapped separately, as Python's textwrap does.
func filterWordwrap(s *renderState, v any, b []any) any {
	t := textArg(v)
	width, ok := toInteger(orDefault(b[0], int64(79)))
	if !ok {
		throw("the width must be a number of characters, not %s", typeName(b[0]))
	}
	with := "\n"
	if orDefault(b[2], nil) != nil {
		with = textArg(b[2])
	}
	hyphens := orDefault(b[3], true)
	w := &lineWrapper{s: s, width: int(width), long: isTruthy(orDefault(b[1], true)), hyphens: isTruthy(hyphens), compounds: hyphens == true}
	// For each character a rune and its place in a chunk are kept.
	s.payBytes(32 * len(t))
	s.payRead(2 * slowly * len(t))
	var out strings.Builder
	for i, line := range splitLines(t, false) {
		if i > 0 {
			out.WriteString(with)
		}
		for j, part := range w.wrapText([]rune(line)) {
			if j > 0 {
				out.WriteString(with)
			}
			out.WriteString(string(part))
			s.checkRoom(out.Len())
		}
		s.checkRoom(out.Len())
	}
	s.payBytes(out.Len())
	return out.String()
}

type lineWrapper struct {
	s         *renderState
	width     int
	long      bool // words longer than a line are broken
	hyphens   bool // also after a hyphen
	compounds bool // compound words may be broken after their hyphens
}

// wrapText returns the lines of text. A line may end between any two chunks, and loses the space there.
func (w *lineWrapper) wrapText(text []rune) [][]rune {
	if w.width <= 0 {
		throw("invalid width %d (must be > 0)", w.width)
	}
	chunks := w.splitChunks(text)
	var lines [][]rune
	for len(chunks) > 0 {
		w.s.payStep()
		if len(lines) > 0 && isOnlySpace(chunks[0]) {
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
				end := w.breakPoint(chunks[0], w.width-size)
				line = append(line, chunks[0][:end])
				chunks[0] = chunks[0][end:]
			} else if line == nil {
				line = append(line, chunks[0])
				chunks = chunks[1:]
			}
		}
		if n := len(line); n > 0 && isOnlySpace(line[n-1]) {
			line = line[:n-1]
		}
		if len(line) > 0 {
			lines = append(lines, slices.Concat(line...))
		}
	}
	return lines
}

// breakPoint returns how much of a long word fits on a line with some room left.
func (w *lineWrapper) breakPoint(word []rune, room int) int {
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

func isOnlySpace(text []rune) bool {
	return !slices.ContainsFunc(text, func(r rune) bool { return !isSpace(r) })
}

// isWrapSpace is textwrap's definition of white space.
func isWrapSpace(r rune) bool { return r >= '\t' && r <= '\r' || r == ' ' }

// splitChunks splits text into runs of space and words, and words after hyphens and around dashes.
func (w *lineWrapper) splitChunks(text []rune) [][]rune {
	var chunks [][]rune
	for at := 0; at < len(text); {
		n := w.chunkLength(text, at)
		chunks = append(chunks, text[at:at+n])
		at += n
	}
	return chunks
}

// chunkLength returns the length of the chunk at an offset.
func (w *lineWrapper) chunkLength(text []rune, at int) int {
	end := at + 1
	if isWrapSpace(text[at]) {
		for end < len(text) && isWrapSpace(text[end]) {
			end++
		}
		return end - at
	}
	if w.compounds && at > 0 && isBeforeDash(text[at-1]) && dashLength(text, at) > 0 {
		return dashLength(text, at)
	}
	for ; end < len(text) && !isWrapSpace(text[end]); end++ {
		if !w.compounds {
			continue
		}
		if isCompoundHyphen(text, end) {
			return end + 1 - at
		}
		if isBeforeDash(text[end-1]) && dashLength(text, end) > 0 {
			break
		}
	}
	return end - at
}

// isBeforeDash reports whether a dash may follow r.
func isBeforeDash(r rune) bool { return isWordRune(r) || strings.ContainsRune(`!"'&.,?`, r) }

// dashLength returns the length of a dash at an offset: two or more hyphens before a word; 0 if there is
// none.
func dashLength(text []rune, at int) int {
	end := at
	for end < len(text) && text[end] == '-' {
		end++
	}
	if end-at < 2 || end == len(text) || !isWordRune(text[end]) {
		return 0
	}
	return end - at
}

// isCompoundHyphen reports whether the character at an offset is a hyphen between parts of a word: two
// letters before it, or a letter on either side of another hyphen, and the same after it.
func isCompoundHyphen(text []rune, at int) bool {
	letter := func(i int) bool {
		return i >= 0 && i < len(text) && isWordRune(text[i]) && !unicode.IsDigit(text[i])
	}
	hyphen := func(i int) bool { return i >= 0 && i < len(text) && text[i] == '-' }
	return hyphen(at) && letter(at-1) && (letter(at-2) || hyphen(at-2) && letter(at-3)) &&
		letter(at+1) && (letter(at+2) || hyphen(at+2) && letter(at+3))
}
