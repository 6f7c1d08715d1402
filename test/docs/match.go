//go:build linux

package main

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	numbers = regexp.MustCompile(`-?\d[\d.,]*`)
	spaces  = regexp.MustCompile(`\s+`)
)

// normalize makes lines equal that differ in numbers and in the width of columns.
func normalize(line string) string {
	line = numbers.ReplaceAllString(line, "0")
	return strings.TrimSpace(spaces.ReplaceAllString(line, " "))
}

// matches reports whether a line of a document stands for one that was printed: "…"
// stands for anything.
func matches(document, printed string) bool {
	parts := strings.Split(document, "…")
	if len(parts) == 1 {
		return document == printed
	}
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(printed)
}

// compare looks for every line of a document in what was printed, in the same
// order. Unless exact is set, numbers and the width of columns do not count.
func compare(document, printed string, exact bool) error {
	clean := normalize
	if exact {
		clean = func(s string) string { return strings.TrimRight(s, " ") }
	}
	rest := strings.Split(printed, "\n")
	for line := range strings.Lines(document) {
		want := clean(strings.TrimSuffix(line, "\n"))
		if want == "" || want == "…" {
			continue
		}
		at := 0
		for at < len(rest) && !matches(want, clean(rest[at])) {
			at++
		}
		if at == len(rest) {
			return fmt.Errorf("no line is as the document has it: %s", strings.TrimSpace(line))
		}
		rest = rest[at+1:]
	}
	return nil
}
