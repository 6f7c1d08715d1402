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

// normalizeLine removes differences in numbers and column widths.
func normalize(line string) string {
	line = numbers.ReplaceAllString(line, "0")
	return strings.TrimSpace(spaces.ReplaceAllString(line, " "))
}

// matchesLine reports whether a line of a document matches a printed one: "…" matches anything.
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

// firstColumn is the first column of a line.
func label(line string) string {
	line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
	return normalize(line)
}

// compareOutput looks for every line of a document in the output, in the same order. Numbers and column
// widths do not count, unless the options say so.
func compare(document, printed string, o options) error {
	clean := normalize
	switch {
	case o.has("exact"):
		clean = func(s string) string { return strings.TrimRight(s, " ") }
	case o.has("labels"):
		clean = label
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
