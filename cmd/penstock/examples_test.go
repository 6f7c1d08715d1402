package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"penstock/core/route"
	"penstock/internal/replay"
)

// TestCommandsInDocuments: every command in a document or a help text is valid in this version: its flags,
// workloads, policies and arrivals are known.
func TestCommandsInDocuments(t *testing.T) {
	least := map[string]int{
		"../../README.md": 1, "../../docs/tutorial.md": 13, "../../docs/choosing.md": 15, "../../docs/replay.md": 2, "../../docs/bench.md": 4, "../../docs/engines.md": 7,
		"../../examples/vllm/README.md": 4, "../../examples/sglang/README.md": 3, "../../examples/trtllm/README.md": 5, "../../examples/llamacpp/README.md": 4,
		"../../examples/multimodal/README.md": 2,
	}
	for path, n := range least {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if found := checkCommands(t, path, string(text)); found < n {
			t.Errorf("%s has %d commands, and had %d", path, found, n)
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		checkCommands(t, c.CommandPath()+" --help", c.Example)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
}

// inShell matches the parts of a shell line which do not belong to the command: redirections, a comment, an
// ampersand.
var inShell = regexp.MustCompile(`\s*(\s#.*|[|&].*|\d?>.*)$`)

// checkCommands checks the lines of text which are commands, and returns their number.
func checkCommands(t *testing.T, where, text string) (found int) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if !strings.HasPrefix(line, " ") {
			continue // a sentence
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		if !strings.HasPrefix(line, "penstock ") {
			continue
		}
		found++
		words := shellWords(inShell.ReplaceAllString(line, ""))
		cmd, rest, err := newRootCommand().Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %s: %v", where, line, err)
			continue
		}
		checkValues(t, where+": "+line, cmd)
	}
	return found
}

// checkValues checks the values of flags which have a syntax of their own.
func checkValues(t *testing.T, where string, cmd *cobra.Command) {
	t.Helper()
	given := func(name string) string {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return f.Value.String()
		}
		return ""
	}
	if spec := given("generate"); spec != "" {
		if _, err := replay.ParseGenerator(spec, 1); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	if arrival := given("arrival"); arrival != "" {
		if _, err := replay.ParseArrival(arrival); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	for policy := range strings.SplitSeq(strings.Trim(given("policy"), "[]"), ",") {
		if policy != "" && !slices.Contains(policyNames(), policy) {
			t.Errorf("%s: no policy %s", where, policy)
		}
	}
}

// shellWords splits a command as a shell does. A variable becomes 1.
func shellWords(line string) []string {
	line = regexp.MustCompile(`\$[a-z]+`).ReplaceAllString(line, "1")
	var out []string
	for _, m := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		out = append(out, strings.NewReplacer("'", "", `"`, "").Replace(m))
	}
	return out
}

// policyNames returns the policies which need nothing but a workload, the best first.
func policyNames() []string { return append(defaultPolicies(), string(route.Time)) }
