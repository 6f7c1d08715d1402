package token

import (
	"slices"
	"strings"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

var _ prep.SegmentEncoder = (*Tokenizer)(nil)

// EncodeSegments appends the ids of the segments as one text: words may cross borders, and what a normalizer
// or pre-tokenizer prepends to a text comes once, as in the reference. Special tokens are recognised in
// special segments only, whatever the others or the neighbours contain.
func (t *Tokenizer) EncodeSegments(dst []kv.Token, segments []prep.Segment, limit int) []kv.Token {
	after := limitAfter(dst, limit)
	if len(segments) == 1 {
		return t.appendChunks(growFor(dst, segments[0].Text, limit), segments[0].Text, segments[0].Special, after)
	}
	text, runs := joinSegments(segments)
	if len(runs) == 0 {
		return dst
	}
	dst = growFor(dst, text, limit)
	switch {
	case len(runs) == 1:
		return t.appendChunks(dst, text, runs[0].special, after)
	case slices.ContainsFunc(t.added.tokens, func(a addedToken) bool { return a.special }):
		// Normalizing moves borders, so special tokens which are matched after it cannot be assigned to a
		// segment: each is encoded separately.
		return t.appendEachRun(dst, text, runs, after)
	case t.raw.findsSameSpecials(text, runs):
		return t.appendChunks(dst, text, true, after)
	}
	return t.appendRuns(dst, text, runs, after)
}

// joinSegments returns the text of segments, and its runs of one kind; none is empty.
func joinSegments(segments []prep.Segment) (text string, runs []segmentRun) {
	var b strings.Builder
	size := 0
	for _, s := range segments {
		size += len(s.Text)
	}
	b.Grow(size)
	for _, s := range segments {
		b.WriteString(s.Text)
		switch last := len(runs) - 1; {
		case s.Text == "":
		case last >= 0 && runs[last].special == s.Special:
			runs[last].end = b.Len()
		default:
			runs = append(runs, segmentRun{b.Len(), s.Special})
		}
	}
	return b.String(), runs
}

func (t *Tokenizer) appendEachRun(dst []kv.Token, text string, runs []segmentRun, limit int) []kv.Token {
	start := 0
	for _, r := range runs {
		if len(dst) > limit {
			break
		}
		dst = t.appendRuns(dst, text[start:r.end], []segmentRun{{r.end - start, r.special}}, limit)
		start = r.end
	}
	return dst
}

// findsSameSpecials reports whether looking for special tokens everywhere in text finds exactly the tokens of
// its special runs: the usual case, as text rarely spells them.
func (s *addedSet) findsSameSpecials(text string, runs []segmentRun) bool {
	type place struct {
		t     *addedToken
		start int
	}
	var want []place
	s.eachMatch(text, runs, func(t *addedToken, start, end int) (int, bool) {
		if t.special {
			want = append(want, place{t, start})
		}
		return end, true
	})
	same := true
	s.eachMatch(text, []segmentRun{{len(text), true}}, func(t *addedToken, start, end int) (int, bool) {
		if t.special {
			if same = len(want) > 0 && want[0] == (place{t, start}); same {
				want = want[1:]
			}
		}
		return end, same
	})
	return same && len(want) == 0
}
