//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// parsePenstock checks the flags of commands which are not run: of roles with "config validate", of other
// commands with "--help", which parses them first.
const parsePenstock = `penstock() {
  case "$1" in
    up | frontend | worker | router) command penstock config validate --for "$@" ;;
    *) command penstock "$@" --help ;;
  esac
}
`

// validateFlags checks the commands of a block without running them.
func (s *docSession) validateFlags(b *docBlock) (string, error) {
	all, err := splitStatements(b.Text)
	if err != nil {
		return "", err
	}
	for _, st := range all {
		word, _, _ := strings.Cut(st.withoutVariables(), " ")
		if word != "go" {
			s.recordSkip(st, b.Options["validate"])
		}
		switch {
		case word == "penstock":
			err = s.runToEnd(b, "("+parsePenstock+st.text+")")
		case word == "go" && strings.HasSuffix(st.text, " -h"):
			err = s.runToEnd(b, st.text)
		case strings.HasSuffix(word, ".py"): // which checks the values of flags before it prints its help
			err = s.runToEnd(b, st.text+" --help")
		case strings.HasSuffix(word, ".sh"):
			err = s.checkScript(word, st.text)
		default:
			err = fmt.Errorf("nothing is known of %s without running it", word)
		}
		if err != nil {
			return "", fmt.Errorf("line %d: %s: %w", b.Line+st.line, firstLine(st.text), err)
		}
	}
	return "validated", nil
}

// runToEnd runs a text to its end, even if it looks like a server.
func (s *docSession) runToEnd(b *docBlock, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), b.Options.timeLimit())
	defer cancel()
	p, err := s.startProcess(text, runScript)
	if err != nil {
		return err
	}
	if err := p.awaitExit(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, lastLines(p.readOutput()))
	}
	return nil
}

var shortFlag = regexp.MustCompile(`\s-([a-z][a-z-]*)`)

// checkScript checks that a script can be started, and that a program of its name under bench/ declares the
// flags which are passed on to it.
func (s *docSession) checkScript(name, text string) error {
	file := filepath.Join(s.Root, name)
	if info, err := os.Stat(file); err != nil || info.Mode()&0o111 == 0 {
		return fmt.Errorf("it is not a program of the repository")
	}
	if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
		return fmt.Errorf("%s", out)
	}
	program := filepath.Join(s.Root, "bench", strings.TrimSuffix(filepath.Base(name), ".sh"))
	declared, _ := filepath.Glob(filepath.Join(program, "*.go"))
	var source strings.Builder
	for _, d := range append(declared, file) {
		text, _ := os.ReadFile(d)
		source.Write(text)
	}
	command, _, _ := strings.Cut(text, "#")
	for _, flag := range shortFlag.FindAllStringSubmatch(command, -1) {
		if !strings.Contains(source.String(), `"`+flag[1]+`"`) {
			return fmt.Errorf("it has no flag -%s", flag[1])
		}
	}
	return nil
}
