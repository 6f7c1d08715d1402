//go:build linux

package main

import (
	"net"
	"strings"
	"testing"
)

// freePort returns a port that nothing listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestParse(t *testing.T) {
	const document = `# Title

    penstock up

` + "```" + `
what it prints
` + "```" + `

<!-- run: continues, timeout=5s,
scaled="a, b => c"
export A=1
-->

    curl localhost

<!-- check:
true
-->

A paragraph
    that goes on, with four spaces.

<!-- run: text -->

    cost = weight × blocks
`
	blocks, err := parseBlocks("README.md", document)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		kind blockKind
		line int
		text string
	}{
		{commandBlock, 3, "penstock up"},
		{outputBlock, 6, "what it prints"},
		{commandBlock, 14, "curl localhost"},
		{commandBlock, 16, "true"},
		{textBlock, 25, "cost = weight × blocks"},
	}
	if len(blocks) != len(want) {
		t.Fatalf("%d blocks, want %d: %v", len(blocks), len(want), blocks)
	}
	for i, w := range want {
		if b := blocks[i]; b.Kind != w.kind || b.Line != w.line || b.Text != w.text {
			t.Errorf("block %d is %s %q at line %d, want %s %q at line %d", i, b.Kind, b.Text, b.Line, w.kind, w.text, w.line)
		}
	}
	if b := blocks[2]; b.Prepare != "export A=1" || b.Options["scaled"] != "a, b => c" || b.Options["timeout"] != "5s" {
		t.Errorf("the comment is read as %q, %v", b.Prepare, b.Options)
	}
	runs, texts, err := groupBlocks(blocks)
	if err != nil || len(runs) != 1 || texts != 1 {
		t.Errorf("%d groups, %d texts, %v; want 1, 1", len(runs), texts, err)
	}
}

// TestParseRefuses: a mistake in a comment is an error; the block is not skipped.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ name, document, says string }{
		{"unknown option", "<!-- run: continue -->\n\n    true\n", `no option "continue"`},
		{"no block", "<!-- run: text -->\n\nA paragraph.\n", "no block follows"},
		{"no block at the end", "<!-- run: text -->\n", "no block follows"},
		{"two comments", "<!-- run: text -->\n<!-- run: output -->\n\n    a\n", "two comments"},
		{"no end", "<!-- run:\ntrue\n", "does not end"},
		{"quote", "<!-- run: needs=\"a -->\n\n    true\n", "quote does not end"},
		{"fence", "```sh\ntrue\n", "does not end"},
		{"language", "```toml\na = 1\n```\n", "say what it is"},
		{"output of nothing", "```\na\n```\n", "say what it is"},
		{"commands as text", "<!-- run: text -->\n\n    penstock up\n", "marked as text"},
		{"timeout", "<!-- run: timeout=long -->\n\n    true\n", "timeout"},
	} {
		_, err := parseBlocks("README.md", c.document)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.says)
		}
	}
}

func TestCompare(t *testing.T) {
	const printed = "starting 3 workers\n  A   B\n  1.5 20%\nnote: kept for 2 s\nready in 2.5s\n"
	for _, c := range []struct {
		document string
		options  blockOptions
		equal    bool
	}{
		{"starting 4 workers\n", nil, true},
		{"A B\n7 1%\n", nil, true},
		{"A C\n", nil, false},
		{"7 1%\nA B\n", nil, false}, // another order
		{"note: … for 9 s\n", nil, true},
		{"note: … for 9 h\n", nil, false},
		{"ready in 117ms\n", nil, true}, // on a faster machine
		{"ready in 1m0.5s\n", nil, true},
		{"ready in 117 \n", nil, false},
		{"ready in 117ms\n", blockOptions{"exact": ""}, false},
		{"starting 4 workers\n", blockOptions{"exact": ""}, false},
		{"  A   B\n", blockOptions{"exact": ""}, true},
		{"starting 3 workers\n\n…\n  1.5  other\n", blockOptions{"labels": ""}, false},
	} {
		if err := compareOutput(c.document, printed, c.options); (err == nil) != c.equal {
			t.Errorf("%q %v: %v", c.document, c.options, err)
		}
	}
}

func TestSplit(t *testing.T) {
	all, err := splitStatements("# a comment\nA=1 penstock up \\\n  --workers 2\n\nfor a in 1 2; do\n  echo $a\ndone\nsleep 1 & # there\n")
	if err != nil || len(all) != 3 {
		t.Fatalf("%d statements, %v: %v", len(all), err, all)
	}
	if s := all[0]; s.line != 1 || !strings.HasPrefix(s.withoutVariables(), "penstock up") {
		t.Errorf("first statement: line %d, program %q", s.line, s.withoutVariables())
	}
	for i, want := range []bool{true, false, false} {
		if _, serves := all[i].runsUntilStopped(nil); serves != want {
			t.Errorf("%q serves: %v", all[i].text, serves)
		}
	}
}
