package token

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// nfcData is made and described by tools/fixtures/make_nfc.py.
//
//go:embed nfc.txt
var nfcData string

// nfc is Unicode normalization form C (Unicode Standard Annex 15) with the tables of the reference
// implementation.
type nfc struct {
	// unsettled has a bit for every code point which can change, or be changed by, its surroundings; text
	// without one is normalized already.
	unsettled [(nfcLimit + 63) / 64]uint64
	class     map[rune]uint8   // canonical combining class, where it is not 0
	parts     map[rune][2]rune // canonical decomposition; the second may be 0
	composed  map[[2]rune]rune
}

// nfcLimit is above every code point which normalization changes.
const nfcLimit = 0x30000

// The arithmetic of Hangul syllables, chapter 3.12 of the Unicode standard.
const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7

	hangulLs, hangulVs, hangulTs = 19, 21, 28
)

func newNFC() (*nfc, error) {
	n := &nfc{class: map[rune]uint8{}, parts: map[rune][2]rune{}, composed: map[[2]rune]rune{}}
	for line := range strings.Lines(nfcData) {
		if err := n.readLine(line); err != nil {
			return nil, fmt.Errorf("nfc data: %w", err)
		}
	}
	for v := range rune(hangulVs) {
		n.markUnsettled(hangulV + v)
	}
	for t := range rune(hangulTs) {
		n.markUnsettled(hangulT + t)
	}
	return n, nil
}

// readLine reads one line of the data.
func (n *nfc) readLine(line string) error {
	if strings.HasPrefix(line, "C") {
		var first, last rune
		var class uint8
		if _, err := fmt.Sscanf(line, "C %X %X %d", &first, &last, &class); err != nil {
			return err
		}
		for r := first; r <= last; r++ {
			n.class[r] = class
			n.markUnsettled(r)
		}
		return nil
	}
	kind, rest, _ := strings.Cut(line, " ")
	var point rune
	var parts [2]rune
	if count, err := fmt.Sscanf(rest, "%X %X %X", &point, &parts[0], &parts[1]); count < 2 {
		return err
	}
	n.parts[point] = parts
	if kind == "X" {
		n.markUnsettled(point)
		return nil
	}
	n.composed[parts] = point
	n.markUnsettled(parts[1])
	return nil
}

func (n *nfc) markUnsettled(r rune) {
	if r < nfcLimit {
		n.unsettled[r/64] |= 1 << (r % 64)
	}
}

// normalizeNFC returns text in normal form C. Text which already is, nearly all text, is returned as it is.
func (n *nfc) normalizeNFC(text string) string {
	if n.isNormalized(text) {
		return text
	}
	return rewriteBlocks(text, normalBlock, n.isStarter, func(runes []rune, block string) []rune {
		for _, r := range block {
			runes = n.decomposeRune(runes, r)
		}
		n.orderMarks(runes)
		return n.composeRunes(runes)
	})
}

// isStarter reports that r does not change what comes before it.
func (n *nfc) isStarter(r rune) bool { return !n.isUnsettled(r) }

// normalBlock is how many bytes of text are normalized at a time.
const normalBlock = 4 << 10

// rewriteBlocks rewrites text block by block, to bound the memory for decoded characters. A block extends
// beyond size bytes to the next starter. rewrite appends to an empty slice, which it may reuse.
func rewriteBlocks(text string, size int, starts func(rune) bool, rewrite func([]rune, string) []rune) string {
	var b strings.Builder
	b.Grow(len(text))
	var runes []rune
	for text != "" {
		n := min(size, len(text))
		for n < len(text) {
			r, width := utf8.DecodeRuneInString(text[n:])
			if starts(r) && utf8.RuneStart(text[n]) {
				break
			}
			n += width
		}
		runes = rewrite(runes[:0], text[:n])
		for _, r := range runes {
			b.WriteRune(r)
		}
		text = text[n:]
	}
	return b.String()
}

// isNormalized reports that text is in normal form and valid: broken bytes become U+FFFD in any text.
func (n *nfc) isNormalized(text string) bool {
	for _, r := range text {
		if n.isUnsettled(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}

func (n *nfc) isUnsettled(r rune) bool {
	return 0x300 <= r && r < nfcLimit && n.unsettled[r/64]&(1<<(r%64)) != 0
}

// combiningClass returns the combining class of r. Only unsettled code points have one.
func (n *nfc) combiningClass(r rune) uint8 {
	if !n.isUnsettled(r) {
		return 0
	}
	return n.class[r]
}

// decomposeRune appends the full canonical decomposition of r.
func (n *nfc) decomposeRune(dst []rune, r rune) []rune {
	if s := r - hangulS; 0 <= s && s < hangulLs*hangulVs*hangulTs {
		dst = append(dst, hangulL+s/(hangulVs*hangulTs), hangulV+s/hangulTs%hangulVs)
		if t := s % hangulTs; t > 0 {
			dst = append(dst, hangulT+t)
		}
		return dst
	}
	if r < 0xC0 {
		return append(dst, r) // nothing below decomposes
	}
	parts, ok := n.parts[r]
	if !ok {
		return append(dst, r)
	}
	dst = n.decomposeRune(dst, parts[0])
	if parts[1] != 0 {
		dst = n.decomposeRune(dst, parts[1])
	}
	return dst
}

// orderMarks sorts every run of marks by class, stably.
func (n *nfc) orderMarks(runes []rune) {
	for i := 0; i < len(runes); {
		end := i
		for end < len(runes) && n.combiningClass(runes[end]) != 0 {
			end++
		}
		n.orderMarkRun(runes[i:end])
		i = end + 1
	}
}

// orderMarkRun sorts one run of marks. Usual text has a few; a long run of a hostile text is sorted by
// counting, in linear time.
func (n *nfc) orderMarkRun(run []rune) {
	if len(run) <= 64 {
		slices.SortStableFunc(run, func(a, b rune) int { return int(n.class[a]) - int(n.class[b]) })
		return
	}
	var place [257]int // position of the next mark of each class
	for _, r := range run {
		place[int(n.class[r])+1]++
	}
	for class := 1; class < len(place); class++ {
		place[class] += place[class-1]
	}
	for _, r := range slices.Clone(run) {
		run[place[n.class[r]]] = r
		place[n.class[r]]++
	}
}

// composeRunes composes, in place, what follows a starter and is not blocked from it by a mark of the same or
// a higher class in between.
func (n *nfc) composeRunes(runes []rune) []rune {
	out := runes[:0]
	starter := -1
	last := uint8(0) // class of the previous character, 0 right after the starter
	for _, r := range runes {
		class := n.combiningClass(r)
		if starter >= 0 && (last == 0 || last < class) {
			if c, ok := n.composePair(out[starter], r); ok {
				out[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return out
}

// composePair returns the composition of a and b. Only an unsettled b composes.
func (n *nfc) composePair(a, b rune) (rune, bool) {
	if !n.isUnsettled(b) {
		return 0, false
	}
	if l, v := a-hangulL, b-hangulV; 0 <= l && l < hangulLs && 0 <= v && v < hangulVs {
		return hangulS + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulS, b-hangulT; 0 <= s && s < hangulLs*hangulVs*hangulTs && s%hangulTs == 0 && 0 < t && t < hangulTs {
		return a + t, true
	}
	c, ok := n.composed[[2]rune{a, b}]
	return c, ok
}
