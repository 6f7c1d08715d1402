package token

import (
	"slices"
	"testing"
	"unicode/utf8"
)

// fixturePatterns is described in tools/fixtures/make_splits.py.
type fixturePatterns struct {
	Texts   []string
	Words   map[string][][]int
	Classes map[string][][2]rune
}

// laterSplitters are the splitters that the fixture is about, read from files as
// a checkpoint has them.
func laterSplitters(tb testing.TB) map[string]splitter {
	tb.Helper()
	splitters := map[string]splitter{}
	for name, pattern := range map[string]string{
		"cl100k": PatternCL100K, "qwen35": PatternQwen35, "o200k": PatternO200K, "tekken": PatternTekken,
		"numbers3": patternNumbers3, "han": patternHan, "deepseek": patternDeepSeek,
	} {
		s := componentConfig{Type: "Split", Behavior: "Isolated"}
		s.Pattern.Regex = pattern
		made, err := splitStage(&s)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		splitters[name] = made.next
	}
	for name, behavior := range map[string]string{"punctuation": "Isolated", "punctuations": "Contiguous"} {
		made, err := punctuationStage(&componentConfig{Behavior: behavior})
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		splitters[name] = made.next
	}
	return splitters
}

func TestReferencePatterns(t *testing.T) {
	var want fixturePatterns
	unmarshalFixture(t, "patterns", &want)
	splitters := laterSplitters(t)
	if len(want.Texts) < 4000 || len(want.Words) != len(splitters) {
		t.Fatalf("%d texts, %d splitters", len(want.Texts), len(want.Words))
	}
	for name, next := range splitters {
		for i, text := range want.Texts {
			var got []int
			for rest := text; rest != ""; {
				n := next(rest)
				got = append(got, utf8.RuneCountInString(rest[:n]))
				rest = rest[n:]
			}
			if !slices.Equal(got, want.Words[name][i]) {
				t.Errorf("%s: text %d %q: words of %v, want %v", name, i, text, got, want.Words[name][i])
			}
		}
	}
}

func TestReferencePatternClasses(t *testing.T) {
	var want fixturePatterns
	unmarshalFixture(t, "patterns", &want)
	c := newClasses()
	for name, bit := range map[string]charClass{"upper": upper, "lower": lower, "mark": mark, "sign": sign} {
		compareClass(t, want.Classes[name], func(s string) bool { k, _ := c.classAt(s); return k&bit != 0 })
	}
	p := newPunctuation()
	compareClass(t, want.Classes["punctuation"], func(s string) bool { k, _ := p.classAt(s); return k&sign != 0 })
}

// TestParseRemovedInverted: removing what a pattern does not match is accepted
// where that is nothing, and refused where it would be something.
func TestParseRemovedInverted(t *testing.T) {
	s := componentConfig{Type: "Split", Behavior: "Removed", Invert: true}
	s.Pattern.Regex = PatternO200K
	if _, err := splitStage(&s); err != nil {
		t.Error(err)
	}
	s.Pattern.Regex = patternDeepSeek
	if _, err := splitStage(&s); err == nil {
		t.Error("a pattern with gaps was accepted")
	}
}
