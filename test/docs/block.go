//go:build linux

package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// blockKind says how a block is checked.
type kind string

const (
	commands kind = "commands" // run with bash
	output   kind = "output"   // compared with the output of the commands before it
	yamlFile kind = "yaml"     // parsed as penstock.yaml, or written to the file which later commands read
	jsonFile kind = "json"     // parsed, or written in the same way
	pythonIn kind = "python"   // run with python3
	textOnly kind = "text"     // for humans only: formulas, byte layouts
)

// docBlock is one code block of a Markdown file, or a comment with hidden commands.
type block struct {
	File    string
	Line    int // first line of the block
	Kind    kind
	Prepare string // commands to run before it
	Text    string
	Options options
}

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// languages are the info strings of fences.
var languages = map[string]kind{
	"sh": commands, "bash": commands, "console": commands, "yaml": yamlFile, "json": jsonFile, "python": pythonIn, "text": textOnly,
}

// bytesOnly is the directory of documents with byte layouts: their blocks are text unless they begin with a
// program.
const bytesOnly = "docs/format/"

// parseBlocks returns the blocks of a Markdown file in order.
func parse(file, source string) ([]*block, error) {
	p := parser{file: file, lines: strings.Split(source, "\n")}
	for p.at < len(p.lines) {
		if err := p.step(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, p.at+1, err)
		}
	}
	if p.directive != nil {
		return nil, fmt.Errorf("%s:%d: no block follows this comment", file, p.directive.Line)
	}
	return p.blocks, nil
}

type parser struct {
	file      string
	lines     []string
	at        int
	directive *block // options and preparation for the next block
	blocks    []*block
}

// parseLine parses one line, or the block or comment which starts there.
func (p *parser) step() error {
	line := p.lines[p.at]
	switch trimmed := strings.TrimSpace(line); {
	case strings.HasPrefix(trimmed, "<!-- run:"), strings.HasPrefix(trimmed, "<!-- check"):
		return p.comment(trimmed)
	case strings.HasPrefix(trimmed, "```"):
		return p.fenced(strings.TrimPrefix(trimmed, "```"))
	case strings.HasPrefix(line, "    ") && trimmed != "" && (p.at == 0 || p.afterBlank()):
		return p.indented()
	case trimmed != "" && p.directive != nil:
		return fmt.Errorf("no block follows the comment of line %d", p.directive.Line)
	}
	p.at++
	return nil
}

// isAfterBlank reports whether an indented line starts a block; otherwise it continues a paragraph. A comment
// ends one.
func (p *parser) afterBlank() bool {
	before := strings.TrimSpace(p.lines[p.at-1])
	return before == "" || strings.HasSuffix(before, "-->")
}

func (p *parser) comment(first string) error {
	if p.directive != nil {
		return fmt.Errorf("two comments before one block")
	}
	start, rest := p.at, first
	var body []string
	for !strings.Contains(rest, "-->") {
		if p.at++; p.at == len(p.lines) {
			return fmt.Errorf("the comment of line %d does not end", start+1)
		}
		body, rest = append(body, p.lines[p.at]), p.lines[p.at]
	}
	if len(body) > 0 { // the last one has the end of the comment
		body[len(body)-1] = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "-->"))
	}
	p.at++
	for len(body) > 0 && strings.ContainsAny(first[len(first)-1:], ",;") { // options continue on the next line
		first, body = first+" "+strings.TrimSpace(body[0]), body[1:]
	}
	text := strings.TrimSpace(strings.Join(body, "\n"))
	if strings.HasPrefix(first, "<!-- check") {
		b := &block{File: p.file, Line: start + 1, Kind: commands, Text: text, Options: options{"continues": ""}}
		p.blocks = append(p.blocks, b)
		return nil
	}
	first, _, _ = strings.Cut(strings.TrimPrefix(first, "<!-- run:"), "-->")
	o, err := parseOptions(first)
	if err != nil {
		p.at = start
		return err
	}
	p.directive = &block{Line: start + 1, Prepare: text, Options: o}
	return nil
}

func (p *parser) fenced(language string) error {
	start := p.at + 1
	for p.at++; p.at < len(p.lines); p.at++ {
		if strings.TrimSpace(p.lines[p.at]) == "```" {
			p.at++
			return p.append(start, language, p.lines[start:p.at-1])
		}
	}
	return fmt.Errorf("the fence of line %d does not end", start)
}

func (p *parser) indented() error {
	start, end := p.at, p.at
	for ; p.at < len(p.lines); p.at++ {
		if strings.HasPrefix(p.lines[p.at], "    ") {
			end = p.at + 1
		} else if strings.TrimSpace(p.lines[p.at]) != "" {
			break
		}
	}
	lines := make([]string, 0, end-start)
	for _, l := range p.lines[start:end] {
		lines = append(lines, strings.TrimPrefix(l, "    "))
	}
	return p.append(start, "indented", lines)
}

func (p *parser) append(start int, language string, lines []string) error {
	b := &block{File: p.file, Line: start + 1, Text: strings.Join(lines, "\n"), Options: options{}}
	if p.directive != nil {
		b.Options, b.Prepare = p.directive.Options, p.directive.Prepare
		p.directive = nil
	}
	b.Kind = p.classify(b, language)
	if b.Kind == "" {
		return fmt.Errorf("a block in %q: say what it is, for example <!-- run: output --> or <!-- run: text --> before it", language)
	}
	if b.Kind == textOnly && beginsWithProgram(b.Text) {
		return fmt.Errorf("a block of commands is marked as text, so that nothing runs it")
	}
	p.blocks = append(p.blocks, b)
	return nil
}

func (p *parser) classify(b *block, language string) kind {
	for _, k := range []kind{commands, output, yamlFile, jsonFile, pythonIn, textOnly} {
		if b.Options.has(string(k)) {
			return k
		}
	}
	switch {
	case strings.HasPrefix(filepath.ToSlash(p.file), bytesOnly) && (language == "indented" || language == ""):
		if beginsWithProgram(b.Text) {
			return commands
		}
		return textOnly
	case language == "indented":
		return commands
	case language == "" && len(p.blocks) > 0:
		if beginsWithProgram(b.Text) {
			return commands
		}
		return output
	}
	return languages[language]
}

// isContinuation reports whether a block uses the files, variables and processes of the previous block.
func (b *block) continues() bool {
	return b.Options.has("continues") || b.Kind == output && b.Prepare == ""
}

// groupBlocks groups the blocks of a file which run in one place. Text is left out, and counted.
func groups(blocks []*block) (runs [][]*block, texts int, err error) {
	for _, b := range blocks {
		switch {
		case b.Kind == textOnly && !b.Options.has("file"):
			texts++
		case !b.continues():
			runs = append(runs, []*block{b})
		case len(runs) == 0:
			return nil, 0, fmt.Errorf("%s: there is no block before it to continue", b)
		default:
			runs[len(runs)-1] = append(runs[len(runs)-1], b)
		}
	}
	return runs, texts, nil
}
