//go:build linux

package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// shellStatement is one command as a reader would paste it into a terminal, on one or more lines.
type shellStatement struct {
	line  int    // of the block, from 0
	text  string // the input of bash
	wants string // expected output in the document, after "$ "
}

// splitStatements splits the text of a block into statements: a statement ends where bash would run it. In a
// block with prompts ("$ "), the text between two of them is the output of the first.
func splitStatements(text string) ([]shellStatement, error) {
	if strings.HasPrefix(text, "$ ") {
		return splitPrompts(text), nil
	}
	var all []shellStatement
	var open []string
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		blank := strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "#")
		if blank && len(open) == 0 {
			continue
		}
		open = append(open, line)
		joined := strings.Join(open, "\n")
		if strings.HasSuffix(line, `\`) || exec.Command("bash", "-n", "-c", joined).Run() != nil {
			continue
		}
		all = append(all, shellStatement{line: i + 1 - len(open), text: joined})
		open = nil
	}
	if len(open) > 0 {
		problem, _ := exec.Command("bash", "-n", "-c", strings.Join(open, "\n")).CombinedOutput()
		return nil, fmt.Errorf("bash cannot read %q: %s", open[0], strings.TrimSpace(string(problem)))
	}
	return all, nil
}

func splitPrompts(text string) []shellStatement {
	var all []shellStatement
	for i, line := range strings.Split(text, "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, shellStatement{line: i, text: command})
			continue
		}
		all[len(all)-1].wants += line + "\n"
	}
	return all
}

// programPattern matches the beginning of a documented command.
var programPattern = regexp.MustCompile(`^(\$ )?([A-Z_]+=\S* )*(penstock|curl|go|python3?|vllm|llama-server|trtllm-serve|openssl|(tools|examples|test|bench)/\S+\.sh) `)

func beginsWithProgram(text string) bool {
	for line := range strings.Lines(text) {
		if programPattern.MatchString(line) {
			return true
		}
	}
	return false
}

var assignmentPattern = regexp.MustCompile(`^\s*([A-Z_]+=("[^"]*"|\S*)\s+)*`)

// withoutVariables returns a statement without the variables before its command.
func (s shellStatement) withoutVariables() string {
	return s.text[len(assignmentPattern.FindString(s.text)):]
}

// readyTexts are the texts which processes print once they serve. Other commands end by themselves.
var readyTexts = []struct{ command, text string }{
	{"penstock up", "(ready in "},
	{"penstock frontend", "(ready in "},
	{"penstock worker ", "(ready in "},
	{"penstock router", "(ready in "},
	{"penstock sim", "(ready in "},
	{"penstock events", "events are shown"},
	{"go run ./cmd/penstock up", "(ready in "},
	{"tools/fleet.sh", "Ctrl-C"},
	{"examples/multimodal/launch.sh", "(ready in "},
	{"vllm serve", "(ready in "},
	{"llama-server", "(ready in "},
	{"trtllm-serve", "(ready in "},
	{"python -m sglang.launch_server", "(ready in "},
}

var inBackground = regexp.MustCompile(`&\s*(#.*)?$`)

// runsUntilStopped reports whether a statement runs until it is stopped, and the text which it prints when it
// is ready.
func (s shellStatement) runsUntilStopped(o blockOptions) (text string, yes bool) {
	if o.hasOption("ready") {
		return o["ready"], true
	}
	p := strings.TrimPrefix(s.withoutVariables(), "./") + " "
	if inBackground.MatchString(s.text) {
		return "", false
	}
	for _, r := range readyTexts {
		switch {
		case !strings.HasPrefix(p, r.command):
		case r.text != "" && strings.Contains(p, "--log-format json"): // a JSON log has no banner
			return `"msg":"serving"`, true
		default:
			return r.text, true
		}
	}
	return "", false
}
