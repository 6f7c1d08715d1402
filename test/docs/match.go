//go:build linux

package main

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	numberPattern = regexp.MustCompile(`-?\d[\d.,]*`)
	spacePattern  = regexp.MustCompile(`\s+`)
)

// normalizeLine removes differences in numbers and column widths.
func normalizeLine(line string) string {
	line = numberPattern.ReplaceAllString(line, "0")
	return strings.TrimSpace(spacePattern.ReplaceAllString(line, " "))
}

// matchesLine reports whether a line of a document matches a printed one: "…" matches anything.
func matchesLine(document, printed string) bool {
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
func firstColumn(line string) string {
	line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
	return normalizeLine(line)
}

// compareOutput looks for every line of a document in the output, in the same order. Numbers and column
// widths do not count, unless the options say so.
func compareOutput(document, printed string, o blockOptions) error {
	clean := normalizeLine
	switch {
	case o.hasOption("exact"):
		clean = func(s string) string { return strings.TrimRight(s, " ") }
	case o.hasOption("labels"):
		clean = firstColumn
	}
	rest := strings.Split(printed, "\n")
	for line := range strings.Lines(document) {
		want := clean(strings.TrimSuffix(line, "\n"))
		if want == "" || want == "…" {
			continue
		}
		at := 0
		for at < len(rest) && !matchesLine(want, clean(rest[at])) {
			at++
		}
		if at == len(rest) {
			return fmt.Errorf("no line is as the document has it: %s", strings.TrimSpace(line))
		}
		rest = rest[at+1:]
	}
	return nil
}
