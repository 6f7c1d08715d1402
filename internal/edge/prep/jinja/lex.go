package jinja

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type kind uint8

const (
	tokEOF kind = iota
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
	kind kind
	text string // of data, names, strings and operators
	num  any    // of numbers
	line int
}

// isOp reports whether the token is this operator.
func (t lexeme) is(op string) bool { return t.kind == tokOp && t.text == op }

// isName reports whether the token is this name.
func (t lexeme) name(name string) bool { return t.kind == tokName && t.text == name }

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

func lex(source string) []lexeme {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.ReplaceAll(source, "\r", "\n")
	x := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, starting: true}
	for x.pos < len(x.src) {
		x.root()
	}
	x.add(lexeme{kind: tokEOF})
	return x.tokens
}

func (x *lexer) fail(format string, a ...any) { throwAt(x.line, format, a...) }

func (x *lexer) add(t lexeme) {
	t.line = x.line
	x.tokens = append(x.tokens, t)
}

// advanceTo moves to an offset and counts lines.
func (x *lexer) advance(to int) {
	x.line += strings.Count(x.src[x.pos:to], "\n")
	if to > x.pos {
		x.starting = x.src[to-1] == '\n'
	}
	x.pos = to
}

// isSpace is Python's definition of white space in a str.
func space(r rune) bool {
	return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r)
}

// skipSpace returns the offset of the first character from i which is not space.
func (x *lexer) skipSpace(i int) int {
	return len(x.src) - len(strings.TrimLeftFunc(x.src[i:], space))
}

// matchRawBegin returns the end of "{% raw %}" at i, -1 if there is none, and its sign.
func (x *lexer) rawBegin(i int) (end int, sign byte) {
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
func (x *lexer) root() {
	at := x.pos
	for {
		i := strings.IndexByte(x.src[at:], '{')
		if i < 0 || at+i+1 >= len(x.src) {
			x.data(x.src[x.pos:])
			x.advance(len(x.src))
			return
		}
		at += i
		if c := x.src[at+1]; c == '%' || c == '{' || c == '#' {
			break
		}
		at++
	}
	text := x.src[x.pos:at]
	end, sign := x.rawBegin(at)
	raw := end >= 0
	kind := x.src[at+1]
	if !raw {
		end = at + 2
		if end < len(x.src) && (x.src[end] == '-' || x.src[end] == '+') {
			sign = x.src[end]
			end++
		}
	}
	x.data(x.strip(text, sign, kind == '{'))
	x.advance(at)
	if raw {
		x.advance(end)
		x.raw()
		return
	}
	switch kind {
	case '#':
		x.advance(end)
		x.comment()
	case '%':
		x.add(lexeme{kind: tokBlockBegin})
		x.advance(end)
		x.inside(tokBlockEnd)
	default:
		x.add(lexeme{kind: tokVarBegin})
		x.advance(end)
		x.inside(tokVarEnd)
	}
}

// stripBeforeTag applies "-" and lstrip_blocks to the text before a tag.
func (x *lexer) strip(text string, sign byte, variable bool) string {
	if sign == '-' {
		return strings.TrimRightFunc(text, space)
	}
	if sign == '+' || variable {
		return text
	}
	from := strings.LastIndexByte(text, '\n') + 1
	if (from > 0 || x.starting) && strings.TrimLeftFunc(text[from:], space) == "" {
		return text[:from]
	}
	return text
}

func (x *lexer) data(text string) {
	if text != "" {
		x.add(lexeme{kind: tokData, text: text})
	}
}

// matchBlockEnd returns the offset after the closing delimiter at i ("%}" or "#}", with its sign and the
// stripped text), -1 if there is none.
func (x *lexer) blockEnd(i int, close string) int {
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

func (x *lexer) comment() {
	if x.pos == len(x.src) { // the reference accepts a missing end at the end of the text
		return
	}
	for i := x.pos; i < len(x.src); i++ {
		if end := x.blockEnd(i, "#}"); end >= 0 {
			x.advance(end)
			return
		}
	}
	x.fail("Missing end of comment tag")
}

func (x *lexer) raw() {
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
		end := x.blockEnd(x.skipSpace(j+len("endraw")), "%}")
		if end < 0 {
			continue
		}
		x.data(x.strip(x.src[x.pos:i], sign, false))
		x.advance(end)
		return
	}
	x.fail("Missing end of raw directive")
}

// lexTag lexes the tokens of one tag, and its end.
func (x *lexer) inside(end kind) {
	var open []byte
	for x.pos < len(x.src) {
		if len(open) == 0 {
			if to := x.tagEnd(end); to >= 0 {
				x.add(lexeme{kind: end})
				x.advance(to)
				return
			}
		}
		if to := x.skipSpace(x.pos); to > x.pos {
			x.advance(to)
			continue
		}
		c := x.src[x.pos]
		r, _ := utf8.DecodeRuneInString(x.src[x.pos:])
		switch {
		case c >= '0' && c <= '9':
			x.number()
		case wordRune(r):
			x.word()
		case c == '\'' || c == '"':
			x.string(c)
		default:
			open = x.operator(open)
		}
	}
}

func (x *lexer) tagEnd(end kind) int {
	if end == tokBlockEnd {
		return x.blockEnd(x.pos, "%}")
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

func wordRune(r rune) bool {
	return r == '_' || r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsNumber(r))
}

func (x *lexer) word() {
	rest := strings.TrimLeftFunc(x.src[x.pos:], wordRune)
	end := len(x.src) - len(rest)
	x.add(lexeme{kind: tokName, text: x.src[x.pos:end]})
	x.advance(end)
}

// scanDigits returns the offset after a run of digits of the base from i, which single underscores may
// separate; i if there is none.
func (x *lexer) digits(i int, base string) int {
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

const decimal = "0123456789"

func (x *lexer) number() {
	if end, ok := x.float(); ok && (x.pos == 0 || x.src[x.pos-1] != '.') {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(x.src[x.pos:end], "_", ""), 64)
		x.add(lexeme{kind: tokNumber, num: f})
		x.advance(end)
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
			if to := x.digits(from, base); base != "" && to > from {
				end = to
			}
		}
		if end == x.pos {
			end = x.digits(x.pos, "0")
		}
	} else {
		end = x.digits(x.pos, decimal)
	}
	if end-x.pos > maxIntBits/4 {
		x.fail("integer too large")
	}
	n, ok := new(big.Int).SetString(strings.ReplaceAll(x.src[x.pos:end], "_", ""), 0)
	if !ok {
		n = new(big.Int)
	}
	x.add(lexeme{kind: tokNumber, num: small(n)})
	x.advance(end)
}

// scanFloat returns the end of a number with a fraction or an exponent.
func (x *lexer) float() (end int, ok bool) {
	end = x.digits(x.pos, decimal)
	if end < len(x.src) && x.src[end] == '.' {
		if to := x.digits(end+1, decimal); to > end+1 {
			end, ok = to, true
		}
	}
	if end < len(x.src) && x.src[end]|0x20 == 'e' {
		from := end + 1
		if from < len(x.src) && (x.src[from] == '+' || x.src[from] == '-') {
			from++
		}
		if to := x.digits(from, decimal); to > from {
			end, ok = to, true
		}
	}
	return end, ok
}

func (x *lexer) string(quote byte) {
	for i := x.pos + 1; i < len(x.src); i++ {
		switch x.src[i] {
		case '\\':
			i++
		case quote:
			x.add(lexeme{kind: tokString, text: x.unescape(x.src[x.pos+1 : i])})
			x.advance(i + 1)
			return
		}
	}
	x.fail("unexpected char %s: the string does not end", quoteChar(quote))
}

func quoteChar(c byte) string { return strconv.QuoteRune(rune(c)) }

// unescapeString resolves the escapes of Python's string literals.
func (x *lexer) unescape(text string) string {
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
				x.fail("truncated \\%c escape", c)
			}
			n, err := strconv.ParseUint(text[i+1:i+1+size], 16, 32)
			if err != nil || n > unicode.MaxRune {
				x.fail("truncated \\%c escape", c)
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
			x.fail("characters by name (\\N) are not supported")
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// operators are all operators, two-character ones first.
const operators = "// ** == != >= <= + - / * % ~ [ ] ( ) { } > < = . : | , ; "

func (x *lexer) operator(open []byte) []byte {
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
				x.fail("unexpected '%s'", op)
			}
			if want := open[len(open)-1]; want != op[0] {
				x.fail("unexpected '%s', expected '%c'", op, want)
			}
			open = open[:len(open)-1]
		}
		x.add(lexeme{kind: tokOp, text: op})
		x.advance(x.pos + len(op))
		return open
	}
	r, _ := utf8.DecodeRuneInString(x.src[x.pos:])
	x.fail("unexpected char %q", r)
	return nil
}
