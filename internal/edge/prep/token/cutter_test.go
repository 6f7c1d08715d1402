package token

import (
	"strings"
	"testing"
)

// TestSplitRule: what the reference cuts at single spaces, for each behavior.
func TestSplitRule(t *testing.T) {
	for _, c := range []struct {
		behavior           splitBehavior
		invert             bool
		first, second, two string // the words of "a  b ", "a b  c" and "  "
	}{
		{removed, false, "a|b", "a|b|c", ""},
		{removed, true, " | | ", " | | ", " | "},
		{isolated, false, "a| | |b| ", "a| |b| | |c", " | "},
		{isolated, true, "a| | |b| ", "a| |b| | |c", " | "},
		{mergedWithPrevious, false, "a | |b ", "a |b | |c", " | "},
		{mergedWithPrevious, true, "a| | b| ", "a| b| | c", " | "},
		{mergedWithNext, false, "a| | b| ", "a| b| | c", " | "},
		{mergedWithNext, true, "a | |b ", "a |b | |c", " | "},
		{contiguous, false, "a|  |b| ", "a| |b|  |c", "  "},
		{contiguous, true, "a|  |b| ", "a| |b|  |c", "  "},
	} {
		rule := splitRule{find: findString(" "), behavior: c.behavior, invert: c.invert}
		for text, want := range map[string]string{"a  b ": c.first, "a b  c": c.second, "  ": c.two} {
			var words []string
			rule.cutText(text, true, func(word string, first bool) {
				if begins := len(words) == 0 && strings.HasPrefix(text, word); first && !begins {
					t.Errorf("behavior %d: %q of %q is said to be the first", c.behavior, word, text)
				}
				words = append(words, word)
			})
			if got := strings.Join(words, "|"); got != want {
				t.Errorf("behavior %d, invert %t: %q gives %q, want %q", c.behavior, c.invert, text, got, want)
			}
		}
	}
}
