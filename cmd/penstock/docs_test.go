package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"penstock/internal/config"
)

// TestProductDocument: the list of what this version has is the list of what it has.
func TestProductDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/product.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := names(t, string(text), "Commands", "`up` alone")
	var have []string
	var walk func(prefix string, c *cobra.Command)
	walk = func(prefix string, c *cobra.Command) {
		for _, sub := range c.Commands() {
			name := prefix + sub.Name()
			if sub.HasSubCommands() {
				walk(name+" ", sub)
				continue
			}
			have = append(have, name)
		}
	}
	walk("", newRoot())
	same(t, "commands", commands, have)

	cfg, err := config.Load("", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range cfg.Settings() {
		keys = append(keys, s.Key)
		if up, _, err := newRoot().Find([]string{"up"}); err != nil || up.Flags().Lookup(s.Key) == nil {
			t.Errorf("up has no flag --%s", s.Key)
		}
	}
	settings := names(t, string(text), "Settings, each a flag of `up`, a key in `penstock.yaml` and a variable", "`kv-cache-block-size` sets")
	same(t, "settings", settings, keys)
}

// names returns the words in backquotes between the heading of an item of the
// list and the given text.
func names(t *testing.T, text, item, end string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n* "+item+": ")
	list, _, ends := strings.Cut(rest, end)
	if !ok || !ends {
		t.Fatalf("docs/product.md has no item %q that ends at %q", item, end)
	}
	var out []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(list, -1) {
		out = append(out, m[1])
	}
	return out
}

func same(t *testing.T, what string, documented, have []string) {
	t.Helper()
	slices.Sort(documented)
	slices.Sort(have)
	if !slices.Equal(documented, have) {
		t.Errorf("%s in docs/product.md: %v\nin this version: %v", what, documented, have)
	}
}
