package jinja

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokNumber
	tokOp
)

type lexeme struct {
	kind tokenKind
	text string // of data, names, strings and operators
	num  any    // of numbers
	line int
}

// isOp reports whether the token is this operator.
func (t lexeme) isOp(op string) bool { return t.kind == tokOp && t.text == op }

// isName reports whether the token is this name.
func (t lexeme) isName(name string) bool { return t.kind == tokName && t.text == name }

func (t lexeme) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokBlockEnd:
		return "end of statement block"
	case tokVarEnd:
		return "end of print statement"
	case tokNumber:
		return "a number"
	case tokString:
		return "a string"
	case tokData:
		return "template data"
	}
	return "'" + t.text + "'"
}

// lexer splits a template into tokens, with trim_blocks and lstrip_blocks on: a newline after a block is
// dropped, and so is the space before one on its line.
type lexer struct {
	src      string
	pos      int
	line     int
	tokens   []lexeme
	starting bool // the text before pos ended a line
}

func tokenize(source string) []lexeme {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	x := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, starting: true}
	for x.pos < len(x.src) {
		x.lexText()
	}
	x.addToken(lexeme{kind: tokEOF})
	return x.tokens
}

func (x *lexer) failAtLine(format string, a ...any) { throwAt(x.line, format, a...) }

func (x *lexer) addToken(t lexeme) {
	t.line = x.line
	x.tokens = append(x.tokens, t)
}

// advanceTo moves to an offset and counts lines.
func (x *lexer) advanceTo(to int) {
	x.line += strings.Count(x.src[x.pos:to], "\n")
	if to > x.pos {
		x.starting = x.src[to-1] == '\n'
	}
	x.pos = to
}

// isSpace is Python's definition of white space in a str.
func isSpace(r rune) bool {
	return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r)
}

// skipSpace returns the offset of the first character from i which is not space.
func (x *lexer) skipSpace(i int) int {
	return len(x.src) - len(strings.TrimLeftFunc(x.src[i:], isSpace))
}

// matchRawBegin returns the end of "{% raw %}" at i, -1 if there is none, and its sign.
func (x *lexer) matchRawBegin(i int) (end int, sign byte) {
	if !strings.HasPrefix(x.src[i:], "{%") {
		return -1, 0
	}
	i += 2
	if i < len(x.src) && (x.src[i] == '-' || x.src[i] == '+') {
		sign = x.src[i]
		i++
	}
	i = x.skipSpace(i)
	rest, ok := strings.CutPrefix(x.src[i:], "raw")
	if !ok {
		return -1, 0
	}
	i = x.skipSpace(len(x.src) - len(rest))
	switch {
	case strings.HasPrefix(x.src[i:], "-%}"):
		return x.skipSpace(i + 3), sign
	case strings.HasPrefix(x.src[i:], "%}"):
		return i + 2, sign
	}
	return -1, 0
}

// lexText lexes text up to the next tag, and the tag.
func (x *lexer) lexText() {
	at := x.pos
	for {
		i := strings.IndexByte(x.src[at:], '{')
		if i < 0 || at+i+1 >= len(x.src) {
			x.addData(x.src[x.pos:])
			x.advanceTo(len(x.src))
			return
		}
		at += i
		if c := x.src[at+1]; c == '%' || c == '{' || c == '#' {
			break
		}
		at++
	}
	text := x.src[x.pos:at]
	end, sign := x.matchRawBegin(at)
	raw := end >= 0
	kind := x.src[at+1]
	if !raw {
		end = at + 2
		if end < len(x.src) && (x.src[end] == '-' || x.src[end] == '+') {
			sign = x.src[end]
			end++
		}
	}
	x.addData(x.stripBeforeTag(text, sign, kind == '{'))
	x.advanceTo(at)
	if raw {
		x.advanceTo(end)
		x.lexRaw()
		return
	}
	switch kind {
	case '#':
		x.advanceTo(end)
		x.lexComment()
	case '%':
		x.addToken(lexeme{kind: tokBlockBegin})
		x.advanceTo(end)
		x.lexTag(tokBlockEnd)
	default:
		x.addToken(lexeme{kind: tokVarBegin})
		x.advanceTo(end)
		x.lexTag(tokVarEnd)
	}
}

// stripBeforeTag applies "-" and lstrip_blocks to the text before a tag.
func (x *lexer) stripBeforeTag(text string, sign byte, variable bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, isSpace)
	}
	if sign == '+' || variable {
		return text
	}
	from := strings.LastIndexByte(text, '\n') + 1
	if (from > 0 || x.starting) && strings.TrimLeftFunc(text[from:], isSpace) == "" {
		return text[:from]
	}
	return text
}

func (x *lexer) addData(text string) {
	if text != "" {
		x.addToken(lexeme{kind: tokData, text: text})
	}
}

// matchBlockEnd returns the offset after the closing delimiter at i ("%}" or "#}", with its sign and the
// stripped text), -1 if there is none.
func (x *lexer) matchBlockEnd(i int, close string) int {
	rest := x.src[i:]
	switch {
	case strings.HasPrefix(rest, "+"+close):
		return i + 3
	case strings.HasPrefix(rest, "-"+close):
		return x.skipSpace(i + 3)
	case strings.HasPrefix(rest, close+"\n"):
		return i + 3
	case strings.HasPrefix(rest, close):
		return i + 2
	}
	return -1
}

func (x *lexer) lexComment() {
	if x.pos == len(x.src) { // the reference accepts a missing end at the end of the text
		return
	}
	for i := x.pos; i < len(x.src); i++ {
		if end := x.matchBlockEnd(i, "#}"); end >= 0 {
			x.advanceTo(end)
			return
		}
	}
	x.failAtLine("Missing end of comment tag")
}

func (x *lexer) lexRaw() {
	if x.pos == len(x.src) {
		return
	}
	for i := x.pos; i < len(x.src); i++ {
		if !strings.HasPrefix(x.src[i:], "{%") {
			continue
		}
		var sign byte
		j := i + 2
		if j < len(x.src) && (x.src[j] == '-' || x.src[j] == '+') {
			sign = x.src[j]
			j++
		}
		j = x.skipSpace(j)
		if !strings.HasPrefix(x.src[j:], "endraw") {
			continue
		}
		end := x.matchBlockEnd(x.skipSpace(j+len("endraw")), "%}")
		if end < 0 {
			continue
		}
		x.addData(x.stripBeforeTag(x.src[x.pos:i], sign, false))
		x.advanceTo(end)
		return
	}
	x.failAtLine("Missing end of raw directive")
}

// lexTag lexes the tokens of one tag, and its end.
func (x *lexer) lexTag(end tokenKind) {
	var open []byte
	for x.pos < len(x.src) {
		if len(open) == 0 {
			if to := x.matchTagEnd(end); to >= 0 {
				x.addToken(lexeme{kind: end})
				x.advanceTo(to)
				return
			}
		}
		if to := x.skipSpace(x.pos); to > x.pos {
			x.advanceTo(to)
			continue
		}
		c := x.src[x.pos]
		r, _ := utf8.DecodeRuneInString(x.src[x.pos:])
		switch {
		case c >= '0' && c <= '9':
			x.lexNumber()
		case isWordRune(r):
			x.lexName()
		case c == '\'' || c == '"':
			x.lexString(c)
		default:
			open = x.lexOperator(open)
		}
	}
}

func (x *lexer) matchTagEnd(end tokenKind) int {
	if end == tokBlockEnd {
		return x.matchBlockEnd(x.pos, "%}")
	}
	rest := x.src[x.pos:]
	switch {
	case strings.HasPrefix(rest, "-}}"):
		return x.skipSpace(x.pos + 3)
	case strings.HasPrefix(rest, "}}"):
		return x.pos + 2
	}
	return -1
}

func isWordRune(r rune) bool {
	return r == '_' || r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsNumber(r))
}

func (x *lexer) lexName() {
	rest := strings.TrimLeftFunc(x.src[x.pos:], isWordRune)
	end := len(x.src) - len(rest)
	x.addToken(lexeme{kind: tokName, text: x.src[x.pos:end]})
	x.advanceTo(end)
}

// scanDigits returns the offset after a run of digits of the base from i, which single underscores may
// separate; i if there is none.
func (x *lexer) scanDigits(i int, base string) int {
	end := i
	for j := i; j < len(x.src); j++ {
		c := x.src[j] | 0x20
		if x.src[j] == '_' {
			if j == end && j > i {
				continue
			}
			break
		}
		if strings.IndexByte(base, c) < 0 || j > end+1 {
			break
		}
		end = j + 1
	}
	return end
}

const decimalDigits = "0123456789"

func (x *lexer) lexNumber() {
	if end, ok := x.scanFloat(); ok && (x.pos == 0 || x.src[x.pos-1] != '.') {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(x.src[x.pos:end], "_", ""), 64)
		x.addToken(lexeme{kind: tokNumber, num: f})
		x.advanceTo(end)
		return
	}
	end := x.pos
	if x.src[x.pos] == '0' {
		if x.pos+1 < len(x.src) {
			base := map[byte]string{'b': "01", 'o': "01234567", 'x': "0123456789abcdef"}[x.src[x.pos+1]|0x20]
			from := x.pos + 2
			if from < len(x.src) && x.src[from] == '_' {
				from++
			}
			if to := x.scanDigits(from, base); base != "" && to > from {
				end = to
			}
		}
		if end == x.pos {
			end = x.scanDigits(x.pos, "0")
		}
	} else {
		end = x.scanDigits(x.pos, decimalDigits)
	}
	if end-x.pos > maxIntBits/4 {
		x.failAtLine("integer too large")
	}
	n, ok := new(big.Int).SetString(strings.ReplaceAll(x.src[x.pos:end], "_", ""), 0)
	if !ok {
		n = new(big.Int)
	}
	x.addToken(lexeme{kind: tokNumber, num: normalizeInt(n)})
	x.advanceTo(end)
}

// scanFloat returns the end of a number with a fraction or an exponent.
func (x *lexer) scanFloat() (end int, ok bool) {
	end = x.scanDigits(x.pos, decimalDigits)
	if end < len(x.src) && x.src[end] == '.' {
		if to := x.scanDigits(end+1, decimalDigits); to > end+1 {
			end, ok = to, true
		}
	}
	if end < len(x.src) && x.src[end]|0x20 == 'e' {
		from := end + 1
		if from < len(x.src) && (x.src[from] == '+' || x.src[from] == '-') {
			from++
		}
		if to := x.scanDigits(from, decimalDigits); to > from {
			end, ok = to, true
		}
	}
	return end, ok
}

func (x *lexer) lexString(quote byte) {
	for i := x.pos + 1; i < len(x.src); i++ {
		switch x.src[i] {
		case '\\':
			i++
		case quote:
			x.addToken(lexeme{kind: tokString, text: x.unescapeString(x.src[x.pos+1 : i])})
			x.advanceTo(i + 1)
			return
		}
	}
	x.failAtLine("unexpected char %s: the string does not end", strconv.QuoteRune(rune(quote)))
}

// unescapeString resolves the escapes of Python's string literals.
func (x *lexer) unescapeString(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 >= len(text) {
			b.WriteByte(text[i])
			continue
		}
		i++
		c := text[i]
		if at := strings.IndexByte("\n\\'\"abfnrtv", c); at >= 0 {
			if c != '\n' {
				b.WriteByte("\n\\'\"\a\b\f\n\r\t\v"[at])
			}
			continue
		}
		size := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case size > 0:
			if i+size >= len(text)+0 && i+1+size > len(text) {
				x.failAtLine("truncated \\%c escape", c)
			}
			n, err := strconv.ParseUint(text[i+1:i+1+size], 16, 32)
			if err != nil || n > unicode.MaxRune {
				x.failAtLine("truncated \\%c escape", c)
			}
			b.WriteRune(rune(n))
			i += size
		case c >= '0' && c <= '7':
			n := rune(0)
			j := i
			for ; j < len(text) && j < i+3 && text[j] >= '0' && text[j] <= '7'; j++ {
				n = n*8 + rune(text[j]-'0')
			}
			b.WriteRune(n)
			i = j - 1
		case c == 'N':
			x.failAtLine("characters by name (\\N) are not supported")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// operators are all operators, two-character ones first.
const operators = "// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ; "

func (x *lexer) lexOperator(open []byte) []byte {
	for rest := operators; rest != ""; {
		var op string
		op, rest, _ = strings.Cut(rest, " ")
		if !strings.HasPrefix(x.src[x.pos:], op) {
			continue
		}
		switch op {
		case "(":
			open = append(open, ')')
		case "[":
			open = append(open, ']')
		case "{":
			open = append(open, '}')
		case ")", "]", "}":
			if len(open) == 0 {
				x.failAtLine("unexpected '%s'", op)
			}
			if want := open[len(open)-1]; want != op[0] {
				x.failAtLine("unexpected '%s', expected '%c'", op, want)
			}
			open = open[:len(open)-1]
		}
		x.addToken(lexeme{kind: tokOp, text: op})
		x.advanceTo(x.pos + len(op))
		return open
	}
	r, _ := utf8.DecodeRuneInString(x.src[x.pos:])
	x.failAtLine("unexpected char %q", r)
	return nil
}
