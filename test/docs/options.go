//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// blockOptions are the options in the comment before a block: words, and words with a value.
type blockOptions map[string]string

// knownOptions are all options. The kinds override the kind of the block.
var knownOptions = []string{
	string(commandBlock), string(outputBlock), string(yamlFile), string(jsonFile), string(pythonBlock), string(textBlock),
	"continues",    // uses the processes, files and variables of the previous block
	"exact",        // output must be identical, including numbers
	"joined",       // output is one line, which the document has in several
	"labels",       // compares only the first column of each line of output
	"file",         // the name of the file with the contents of the block
	"config",       // the role for which a YAML block is the configuration
	"needs",        // a program or Python module; without it the commands which use it are skipped
	"ci",           // a command of the block which is a line of .ci/run, and does not run twice
	"validate",     // why the commands are not run; their flags and values are checked, and Python is compiled
	"scaled",       // "OLD => NEW; OLD => NEW": replaced in the commands, so that they finish in time
	"alternatives", // each command which serves is stopped before the next one starts
	"repeat",       // how often the commands run
	"prints",       // a text which they print, the last time
	"timeout",      // time limit of a command (60s)
	"ready",        // what a command which serves prints when it is ready; it then runs until the end of the group
}

func (o blockOptions) hasOption(name string) bool {
	_, ok := o[name]
	return ok
}

// parseOptions reads NAME, NAME=VALUE and NAME="VALUE, WITH COMMAS" (or in single quotes), separated by
// commas.
func parseOptions(s string) (blockOptions, error) {
	o := blockOptions{}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		end := strings.IndexAny(s, ",=")
		if end < 0 {
			end = len(s)
		}
		name, value := strings.TrimSpace(s[:end]), ""
		rest := s[end:]
		if after, ok := strings.CutPrefix(rest, "="); ok {
			if value, rest, ok = cutValue(after); !ok {
				return nil, fmt.Errorf("option %s: the quote does not end", name)
			}
		}
		if !slices.Contains(knownOptions, name) {
			return nil, fmt.Errorf("there is no option %q; there are %s", name, strings.Join(knownOptions, ", "))
		}
		o[name] = value
		s = strings.TrimPrefix(strings.TrimSpace(rest), ",")
	}
	if t := o["timeout"]; t != "" {
		if _, err := time.ParseDuration(t); err != nil {
			return nil, fmt.Errorf("option timeout: %w", err)
		}
	}
	return o, nil
}

func cutValue(s string) (value, rest string, ok bool) {
	for _, quote := range []string{`"`, `'`} {
		if quoted, is := strings.CutPrefix(s, quote); is {
			return strings.Cut(quoted, quote)
		}
	}
	if end := strings.IndexByte(s, ','); end >= 0 {
		return strings.TrimSpace(s[:end]), s[end:], true
	}
	return strings.TrimSpace(s), "", true
}

// timeLimit is the time limit of one command of the block.
func (o blockOptions) timeLimit() time.Duration {
	if t, err := time.ParseDuration(o["timeout"]); err == nil {
		return t
	}
	return 5 * time.Minute
}

// applyScaled does the replacements of "scaled". Each must have something to replace.
func (o blockOptions) applyScaled(text string) (string, error) {
	if o["scaled"] == "" {
		return text, nil
	}
	for _, pair := range strings.Split(o["scaled"], ";") {
		from, to, ok := strings.Cut(pair, "=>")
		from, to = strings.TrimSpace(from), strings.TrimSpace(to)
		if !ok || !strings.Contains(text, from) {
			return "", fmt.Errorf("scaled: the block has no %q", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	return text, nil
}
