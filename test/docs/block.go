//go:build linux

package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// blockKind says how a block is checked.
type blockKind string

const (
	commandBlock blockKind = "commands" // run with bash
	outputBlock  blockKind = "output"   // compared with the output of the commands before it
	yamlFile     blockKind = "yaml"     // parsed as penstock.yaml, or written to the file which later commands read
	jsonFile     blockKind = "json"     // parsed, or written in the same way
	pythonBlock  blockKind = "python"   // run with python3
	textBlock    blockKind = "text"     // for humans only: formulas, byte layouts
)

// docBlock is one code block of a Markdown file, or a comment with hidden commands.
type docBlock struct {
	File    string
	Line    int // first line of the block
	Kind    blockKind
	Prepare string // commands to run before it
	Text    string
	Options blockOptions
}

func (b *docBlock) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// languages are the info strings of fences.
var languages = map[string]blockKind{
	"sh": commandBlock, "bash": commandBlock, "console": commandBlock, "yaml": yamlFile, "json": jsonFile, "python": pythonBlock, "text": textBlock,
}

// bytesOnly is the directory of documents with byte layouts: their blocks are text unless they begin with a
// program.
const bytesOnly = "docs/format/"

// parseBlocks returns the blocks of a Markdown file in order.
func parseBlocks(file, source string) ([]*docBlock, error) {
	p := blockParser{file: file, lines: strings.Split(source, "\n")}
	for p.at < len(p.lines) {
		if err := p.parseLine(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, p.at+1, err)
		}
	}
	if p.directive != nil {
		return nil, fmt.Errorf("%s:%d: no block follows this comment", file, p.directive.Line)
	}
	return p.blocks, nil
}

type blockParser struct {
	file      string
	lines     []string
	at        int
	directive *docBlock // options and preparation for the next block
	blocks    []*docBlock
}

// parseLine parses one line, or the block or comment which starts there.
func (p *blockParser) parseLine() error {
	line := p.lines[p.at]
	switch trimmed := strings.TrimSpace(line); {
	case strings.HasPrefix(trimmed, "<!-- run:"), strings.HasPrefix(trimmed, "<!-- check"):
		return p.parseComment(trimmed)
	case strings.HasPrefix(trimmed, "```"):
		return p.parseFenced(strings.TrimPrefix(trimmed, "```"))
	case strings.HasPrefix(line, "    ") && trimmed != "" && (p.at == 0 || p.isAfterBlank()):
		return p.parseIndented()
	case trimmed != "" && p.directive != nil:
		return fmt.Errorf("no block follows the comment of line %d", p.directive.Line)
	}
	p.at++
	return nil
}

// isAfterBlank reports whether an indented line starts a block; otherwise it continues a paragraph. A comment
// ends one.
func (p *blockParser) isAfterBlank() bool {
	before := strings.TrimSpace(p.lines[p.at-1])
	return before == "" || strings.HasSuffix(before, "-->")
}

func (p *blockParser) parseComment(first string) error {
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
		b := &docBlock{File: p.file, Line: start + 1, Kind: commandBlock, Text: text, Options: blockOptions{"continues": ""}}
		p.blocks = append(p.blocks, b)
		return nil
	}
	first, _, _ = strings.Cut(strings.TrimPrefix(first, "<!-- run:"), "-->")
	o, err := parseOptions(first)
	if err != nil {
		p.at = start
		return err
	}
	p.directive = &docBlock{Line: start + 1, Prepare: text, Options: o}
	return nil
}

func (p *blockParser) parseFenced(language string) error {
	start := p.at + 1
	for p.at++; p.at < len(p.lines); p.at++ {
		if strings.TrimSpace(p.lines[p.at]) == "```" {
			p.at++
			return p.appendBlock(start, language, p.lines[start:p.at-1])
		}
	}
	return fmt.Errorf("the fence of line %d does not end", start)
}

func (p *blockParser) parseIndented() error {
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
	return p.appendBlock(start, "indented", lines)
}

func (p *blockParser) appendBlock(start int, language string, lines []string) error {
	b := &docBlock{File: p.file, Line: start + 1, Text: strings.Join(lines, "\n"), Options: blockOptions{}}
	if p.directive != nil {
		b.Options, b.Prepare = p.directive.Options, p.directive.Prepare
		p.directive = nil
	}
	b.Kind = p.classifyBlock(b, language)
	if b.Kind == "" {
		return fmt.Errorf("a block in %q: say what it is, for example <!-- run: output --> or <!-- run: text --> before it", language)
	}
	if b.Kind == textBlock && beginsWithProgram(b.Text) {
		return fmt.Errorf("a block of commands is marked as text, so that nothing runs it")
	}
	p.blocks = append(p.blocks, b)
	return nil
}

func (p *blockParser) classifyBlock(b *docBlock, language string) blockKind {
	for _, k := range []blockKind{commandBlock, outputBlock, yamlFile, jsonFile, pythonBlock, textBlock} {
		if b.Options.hasOption(string(k)) {
			return k
		}
	}
	switch {
	case strings.HasPrefix(filepath.ToSlash(p.file), bytesOnly) && (language == "indented" || language == ""):
		if beginsWithProgram(b.Text) {
			return commandBlock
		}
		return textBlock
	case language == "indented":
		return commandBlock
	case language == "" && len(p.blocks) > 0:
		if beginsWithProgram(b.Text) {
			return commandBlock
		}
		return outputBlock
	}
	return languages[language]
}

// isContinuation reports whether a block uses the files, variables and processes of the previous block.
func (b *docBlock) isContinuation() bool {
	return b.Options.hasOption("continues") || b.Kind == outputBlock && b.Prepare == ""
}

// groupBlocks groups the blocks of a file which run in one place. Text is left out, and counted.
func groupBlocks(blocks []*docBlock) (runs [][]*docBlock, texts int, err error) {
	for _, b := range blocks {
		switch {
		case b.Kind == textBlock && !b.Options.hasOption("file"):
			texts++
		case !b.isContinuation():
			runs = append(runs, []*docBlock{b})
		case len(runs) == 0:
			return nil, 0, fmt.Errorf("%s: there is no block before it to continue", b)
		default:
			runs[len(runs)-1] = append(runs[len(runs)-1], b)
		}
	}
	return runs, texts, nil
}
