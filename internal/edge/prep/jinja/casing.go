package jinja

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// The case rules of Python's text: mappings of one character to several, from Unicode's SpecialCasing.txt, a
// sigma at the end of a word, and characters with a case which are not letters.

// upperForms are the characters whose upper case is several characters, each followed by them.
const upperForms = "ßSS ŉʼN ǰJ\u030c ΐΙ\u0308\u0301 ΰΥ\u0308\u0301 ևԵՒ ẖH\u0331 ẗT\u0308 ẘW\u030a ẙY\u030a ẚAʾ ὐΥ\u0313 " +
	"ὒΥ\u0313\u0300 ὔΥ\u0313\u0301 ὖΥ\u0313\u0342 ᾀἈΙ ᾁἉΙ ᾂἊΙ ᾃἋΙ ᾄἌΙ ᾅἍΙ ᾆἎΙ ᾇἏΙ ᾈἈΙ ᾉἉΙ ᾊἊΙ ᾋἋΙ ᾌἌΙ ᾍἍΙ ᾎἎΙ ᾏἏΙ " +
	"ᾐἨΙ ᾑἩΙ ᾒἪΙ ᾓἫΙ ᾔἬΙ ᾕἭΙ ᾖἮΙ ᾗἯΙ ᾘἨΙ ᾙἩΙ ᾚἪΙ ᾛἫΙ ᾜἬΙ ᾝἭΙ ᾞἮΙ ᾟἯΙ ᾠὨΙ ᾡὩΙ ᾢὪΙ ᾣὫΙ ᾤὬΙ ᾥὭΙ ᾦὮΙ ᾧὯΙ ᾨὨΙ ᾩὩΙ ᾪὪΙ " +
	"ᾫὫΙ ᾬὬΙ ᾭὭΙ ᾮὮΙ ᾯὯΙ ᾲᾺΙ ᾳΑΙ ᾴΆΙ ᾶΑ\u0342 ᾷΑ\u0342Ι ᾼΑΙ ῂῊΙ ῃΗΙ ῄΉΙ ῆΗ\u0342 ῇΗ\u0342Ι ῌΗΙ ῒΙ\u0308\u0300 " +
	"ΐΙ\u0308\u0301 ῖΙ\u0342 ῗΙ\u0308\u0342 ῢΥ\u0308\u0300 ΰΥ\u0308\u0301 ῤΡ\u0313 ῦΥ\u0342 ῧΥ\u0308\u0342 ῲῺΙ ῳΩΙ " +
	"ῴΏΙ ῶΩ\u0342 ῷΩ\u0342Ι ῼΩΙ ﬀFF ﬁFI ﬂFL ﬃFFI ﬄFFL ﬅST ﬆST ﬓՄՆ ﬔՄԵ ﬕՄԻ ﬖՎՆ ﬗՄԽ"

// titleForms are the same for the title case, at the start of a word.
const titleForms = "ßSs ŉʼN ǰJ\u030c ΐΙ\u0308\u0301 ΰΥ\u0308\u0301 ևԵւ ẖH\u0331 ẗT\u0308 ẘW\u030a ẙY\u030a ẚAʾ ὐΥ\u0313 " +
	"ὒΥ\u0313\u0300 ὔΥ\u0313\u0301 ὖΥ\u0313\u0342 ᾲᾺ\u0345 ᾴΆ\u0345 ᾶΑ\u0342 ᾷΑ\u0342\u0345 ῂῊ\u0345 ῄΉ\u0345 " +
	"ῆΗ\u0342 ῇΗ\u0342\u0345 ῒΙ\u0308\u0300 ΐΙ\u0308\u0301 ῖΙ\u0342 ῗΙ\u0308\u0342 ῢΥ\u0308\u0300 ΰΥ\u0308\u0301 " +
	"ῤΡ\u0313 ῦΥ\u0342 ῧΥ\u0308\u0342 ῲῺ\u0345 ῴΏ\u0345 ῶΩ\u0342 ῷΩ\u0342\u0345 ﬀFf ﬁFi ﬂFl ﬃFfi ﬄFfl ﬅSt ﬆSt ﬓՄն " +
	"ﬔՄե ﬕՄի ﬖՎն ﬗՄխ"

// hanNumerals are letters of Han which stand for numbers.
const hanNumerals = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零參拾兩零六陸什𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭廾"

// digitSigns are digits which are not decimal digits, such as superscripts.
var digitSigns = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0xb2, 0xb3, 1},
		{0xb9, 0xb9, 1},
		{0x1369, 0x1371, 1},
		{0x19da, 0x19da, 1},
		{0x2070, 0x2070, 1},
		{0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1},
		{0x2460, 0x2468, 1},
		{0x2474, 0x247c, 1},
		{0x2488, 0x2490, 1},
		{0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1},
		{0x24ff, 0x24ff, 1},
		{0x2776, 0x277e, 1},
		{0x2780, 0x2788, 1},
		{0x278a, 0x2792, 1},
	},
	R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1},
		{0x10e60, 0x10e68, 1},
		{0x11052, 0x1105a, 1},
		{0x1f100, 0x1f10a, 1},
	},
	LatinOffset: 2,
}

var (
	upperOf = sync.OnceValue(func() map[rune]string { return parseForms(upperForms) })
	titleOf = sync.OnceValue(func() map[rune]string { return parseForms(titleForms) })
)

func parseForms(table string) map[rune]string {
	out := map[rune]string{}
	for _, entry := range strings.Fields(table) {
		r, n := utf8.DecodeRuneInString(entry)
		out[r] = entry[n:]
	}
	return out
}

// writeMapped appends one character with a case mapping.
func writeMapped(b *strings.Builder, r rune, several map[rune]string, one func(rune) rune) {
	if t, ok := several[r]; ok {
		b.WriteString(t)
		return
	}
	b.WriteRune(one(r))
}

// toUpper is str.upper.
func toUpper(t string) string {
	if isASCII(t) {
		return strings.ToUpper(t)
	}
	var b strings.Builder
	for _, r := range t {
		writeMapped(&b, r, upperOf(), unicode.ToUpper)
	}
	return b.String()
}

func isASCII(t string) bool {
	for i := range len(t) {
		if t[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// toLower is str.lower.
func toLower(t string) string {
	if isASCII(t) {
		return strings.ToLower(t)
	}
	var b strings.Builder
	for i, r := range t {
		writeLowerAt(&b, t, i, r)
	}
	return b.String()
}

// writeLowerAt appends the lower case of the character at an offset.
func writeLowerAt(b *strings.Builder, t string, at int, r rune) {
	switch {
	case r == 'İ':
		b.WriteString("i\u0307")
	case r == 'Σ' && isWordEnd(t[:at], t[at+len("Σ"):]):
		b.WriteRune('ς')
	default:
		b.WriteRune(unicode.ToLower(r))
	}
}

// isWordEnd reports whether a word ends between before and after.
func isWordEnd(before, after string) bool {
	before = strings.TrimRightFunc(before, isCaseIgnorable)
	after = strings.TrimLeftFunc(after, isCaseIgnorable)
	last, _ := utf8.DecodeLastRuneInString(before)
	next, _ := utf8.DecodeRuneInString(after)
	return hasCase(last) && !hasCase(next)
}

// isCaseIgnorable reports whether words continue across r.
func isCaseIgnorable(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || strings.ContainsRune("'.:·\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a\u2018\u2019\u2024\ufe52\uff07\uff0e", r)
}

func isUpper(r rune) bool { return unicode.In(r, unicode.Lu, unicode.Other_Uppercase) }

func isLower(r rune) bool { return unicode.In(r, unicode.Ll, unicode.Other_Lowercase) }

func hasCase(r rune) bool { return isUpper(r) || isLower(r) || unicode.IsTitle(r) }

// capitalize is str.capitalize.
func capitalize(t string) string {
	var b strings.Builder
	for i, r := range t {
		if i == 0 {
			writeMapped(&b, r, titleOf(), unicode.ToTitle)
		} else {
			writeLowerAt(&b, t, i, r)
		}
	}
	return b.String()
}

// toTitle is str.title: a capital after every character without a case.
func toTitle(t string) string {
	var b strings.Builder
	inside := false
	for i, r := range t {
		if inside {
			writeLowerAt(&b, t, i, r)
		} else {
			writeMapped(&b, r, titleOf(), unicode.ToTitle)
		}
		inside = hasCase(r)
	}
	return b.String()
}

// isTitled is str.istitle.
func isTitled(t string) bool {
	inside, found := false, false
	for _, r := range t {
		small := isLower(r)
		if !hasCase(r) {
			inside = false
			continue
		}
		if small != inside {
			return false
		}
		inside, found = true, true
	}
	return found
}

// swapCase is str.swapcase.
func swapCase(t string) string {
	var b strings.Builder
	for i, r := range t {
		switch {
		case isUpper(r):
			writeLowerAt(&b, t, i, r)
		case isLower(r):
			writeMapped(&b, r, upperOf(), unicode.ToUpper)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// caseFold is str.casefold: the lower case of the upper case, with a few exceptions.
func caseFold(t string) string {
	var b strings.Builder
	for _, r := range t {
		switch {
		case r == 'ı':
			b.WriteRune(r)
		case r == 'İ':
			b.WriteString("i\u0307")
		case r == 'ẞ':
			b.WriteString("ss")
		case unicode.Is(unicode.Cherokee, r):
			b.WriteRune(unicode.ToUpper(r))
		default:
			var one strings.Builder
			writeMapped(&one, r, upperOf(), unicode.ToUpper)
			for _, u := range one.String() {
				b.WriteRune(unicode.ToLower(u))
			}
		}
	}
	return b.String()
}
