package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"penstock/internal/config"
)

// glossaryRow is a row of docs/glossary.md.
type glossaryRow struct{ there, here string }

// glossaryRows returns the rows of the page's tables.
func glossaryRows(text string) (rows []glossaryRow) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| there") || len(cells) != 2 {
			continue
		}
		rows = append(rows, glossaryRow{cells[0], cells[1]})
	}
	return rows
}

// glossaryTerms are the names which the page must have, one a line.
func glossaryTerms(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/glossary.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(text), " ", "_"))
}

// TestGlossary: each name of the other systems has a row, and the commands, settings, HTTP paths, fields, variables and
// packages which it names exist.
func TestGlossary(t *testing.T) {
	const page = "../../docs/glossary.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := glossaryRows(string(text))
	named := map[string]bool{}
	for _, row := range rows {
		for _, name := range strings.FieldsFunc(row.there, func(r rune) bool { return r == ',' || r == ':' }) {
			named[strings.ReplaceAll(strings.Trim(strings.TrimSpace(name), "`"), " ", "_")] = true
		}
	}
	terms := glossaryTerms(t)
	if len(terms) < 80 {
		t.Fatalf("only %d names are asked for", len(terms))
	}
	for _, term := range terms {
		if !named[term] {
			t.Errorf("%s has no row", term)
		}
	}
	known := newGlossaryCheck(t)
	for _, row := range rows {
		if row.here == "" {
			t.Errorf("%s: nothing is said", row.there)
		}
		for _, span := range codeSpans(row.here) {
			if !known.exists(span) {
				t.Errorf("%s: there is no %s", row.there, span)
			}
		}
	}
}

// TestGlossaryCheckFails: names which do not exist are seen.
func TestGlossaryCheckFails(t *testing.T) {
	known := newGlossaryCheck(t)
	for _, span := range []string{"penstock encoder", "penstock router --no-such-flag", "--embedding-cache", "core/no_such", "/v1/router/nothing", "no_such_field", "DYN_NOTHING", "penstock_no_such_total"} {
		if known.exists(span) {
			t.Errorf("%s exists", span)
		}
	}
	for _, span := range []string{"penstock router --multimodal", "--no-kv-events", "core/prefix", "/v1/router/explain", "pool_id", "DYN_LOG", "penstock_worker_kv_records_total"} {
		if !known.exists(span) {
			t.Errorf("%s does not exist", span)
		}
	}
}

// codeSpans returns the texts in backticks.
func codeSpans(text string) (spans []string) {
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			spans = append(spans, part)
		}
	}
	return spans
}

// glossaryCheck knows what exists.
type glossaryCheck struct {
	flags  map[string]bool
	pages  string // of fields, paths and variables
	metric string
}

func newGlossaryCheck(t *testing.T) *glossaryCheck {
	t.Helper()
	c := &glossaryCheck{flags: map[string]bool{}}
	for _, command := range config.Commands() {
		cfg, err := config.Load("", []string{"PENSTOCK_NATS_LISTEN=127.0.0.1:0"}, config.NoFlags(command))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range cfg.Settings() {
			c.flags[s.Key] = true
		}
	}
	read := func(names ...string) (all string) {
		for _, name := range names {
			text, err := os.ReadFile(filepath.Join("../../docs", filepath.FromSlash(name)))
			if err != nil {
				t.Fatal(err)
			}
			all += string(text)
		}
		return all
	}
	c.pages = read("router-api.md", "http.md", "fields.md", "settings.md", "commands.md", "engines.md", "format/nvext.md", "format/blocks.md")
	c.metric = read("metrics.md")
	return c
}

// exists reports whether what a code span names exists in this version.
func (c *glossaryCheck) exists(span string) bool {
	switch {
	case strings.HasPrefix(span, "penstock "):
		return isCommand(strings.Fields(span)[1:])
	case strings.HasPrefix(span, "penstock_"):
		return strings.Contains(c.metric, "`"+span+"`")
	case strings.HasPrefix(span, "--"):
		key, _, _ := strings.Cut(strings.TrimPrefix(span, "--"), " ")
		return c.flags[key]
	case strings.HasPrefix(span, "core/"), strings.HasPrefix(span, "internal/"), strings.HasPrefix(span, "examples/"):
		_, err := os.Stat(filepath.Join("../..", filepath.FromSlash(span)))
		return err == nil
	case strings.HasPrefix(span, "/v1/router/") && span != "/v1/router/":
		return strings.Contains(c.pages, "`"+path.Base(span)+"`") || strings.Contains(c.pages, "`GET "+path.Base(span))
	}
	return c.flags[span] || regexp.MustCompile(`(^|[^A-Za-z0-9_])`+regexp.QuoteMeta(span)+`($|[^A-Za-z0-9_])`).MatchString(c.pages)
}

// isCommand reports whether words are a command with flags which it has.
func isCommand(words []string) bool {
	cmd, rest, err := newRootCommand().Find(words)
	if err != nil || !slices.Contains(commandWords(cmd), words[0]) {
		return false
	}
	for _, word := range rest {
		if name, ok := strings.CutPrefix(word, "--"); ok && cmd.Flags().Lookup(name) == nil {
			return false
		}
	}
	return true
}

// commandWords returns the names on the way to a command.
func commandWords(cmd *cobra.Command) []string { return strings.Fields(cmd.CommandPath()) }
