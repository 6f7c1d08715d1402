//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// blockOutcome is the result of one block.
type blockOutcome struct {
	Index     int
	Failed    string   // why; empty on success
	Skipped   []string // commands which were not run, and why
	Elsewhere []string // commands which .ci/run runs
	How       string
	Seconds   float64
}

// sessionTask is the work of a session: the blocks of one group in one directory.
type sessionTask struct {
	Blocks []*docBlock
	Root   string // the repository
	Work   string // the working directory, with state and home next to it
	Alone  bool   // in its own namespaces
}

// docSession runs the blocks of a group, one after another.
type docSession struct {
	sessionTask
	state     string
	count     int
	current   int // index of the block
	serving   []*childProcess
	processes []*childProcess
	outcomes  []blockOutcome
	printed   []*childProcess // by the block before the expected output
}

// runTask is the child process of the runner: it reads a task and writes its outcomes.
func runTask(in io.Reader, out io.Writer) error {
	var t sessionTask
	if err := json.NewDecoder(in).Decode(&t); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	s := &docSession{sessionTask: t, state: filepath.Join(t.Work, "..", "state"), outcomes: make([]blockOutcome, len(t.Blocks))}
	if err := s.prepareDirs(); err != nil {
		return err
	}
	failed := false
	for i := range t.Blocks {
		s.current = i
		s.outcomes[i].Index = i
		if failed {
			s.outcomes[i].Failed = "not run, since a block before it failed"
			continue
		}
		failed = s.runBlock(t.Blocks[i]) != nil
	}
	s.stopProcesses(failed)
	return json.NewEncoder(out).Encode(s.outcomes)
}

// prepareDirs makes the directories, and the network and host names of the namespace.
func (s *docSession) prepareDirs() error {
	if err := os.MkdirAll(s.state, 0o700); err != nil {
		return err
	}
	_ = os.WriteFile(filepath.Join(s.state, "env"), nil, 0o600)
	_ = os.WriteFile(filepath.Join(s.state, "cwd"), []byte(s.Work), 0o600)
	if !s.Alone {
		return nil
	}
	return enterNamespace(filepath.Join(s.Work, ".."), s.Blocks)
}

// runBlock runs one block and records its outcome.
func (s *docSession) runBlock(b *docBlock) error {
	begin := time.Now()
	o := &s.outcomes[s.current]
	var err error
	if o.How, err = s.executeBlock(b); err != nil {
		o.Failed = err.Error()
	}
	o.Seconds = time.Since(begin).Seconds()
	return err
}

func (s *docSession) executeBlock(b *docBlock) (how string, err error) {
	if b.Prepare != "" {
		s.printed = nil
		if err := s.runCommands(b, b.Prepare, false); err != nil {
			return "", fmt.Errorf("preparation: %w", err)
		}
	}
	if name := b.Options["file"]; name != "" {
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.shellDirectory(), name)
		}
		if err := os.WriteFile(name, []byte(b.Text+"\n"), 0o600); err != nil {
			return "", err
		}
	}
	switch b.Kind {
	case textBlock:
		return "written", nil
	case outputBlock:
		return s.compareBlock(b)
	case yamlFile:
		return s.checkYAML(b)
	case jsonFile:
		if !json.Valid([]byte(b.Text)) {
			return "", fmt.Errorf("this is not JSON")
		}
		return "parsed", nil
	case pythonBlock:
		return s.runPython(b)
	}
	if b.Options.hasOption("validate") {
		return s.validateFlags(b)
	}
	text, err := b.Options.applyScaled(b.Text)
	if err != nil {
		return "", err
	}
	times := 1
	if n, err := strconv.Atoi(b.Options["repeat"]); err == nil {
		times = n
	}
	for range times {
		s.printed = nil
		if err := s.runCommands(b, text, true); err != nil {
			return "", err
		}
	}
	return s.describeRun(b), s.checkPrints(b)
}

// checkPrints checks that a block printed its required text.
func (s *docSession) checkPrints(b *docBlock) error {
	want := b.Options["prints"]
	for _, p := range s.printed {
		if strings.Contains(p.readOutput(), want) {
			return nil
		}
	}
	if want == "" {
		return nil
	}
	return fmt.Errorf("it does not print %s", want)
}

func (s *docSession) describeRun(b *docBlock) string {
	if b.Options.hasOption("scaled") {
		return "ran, scaled"
	}
	return "ran"
}

// shellDirectory is the working directory after the last command.
func (s *docSession) shellDirectory() string {
	at, _ := os.ReadFile(filepath.Join(s.state, "cwd"))
	return strings.TrimSpace(string(at))
}

// runCommands runs statements in order. A server keeps running until the end of the group.
func (s *docSession) runCommands(b *docBlock, text string, own bool) error {
	all, err := splitStatements(text)
	if err != nil {
		return err
	}
	for _, st := range all {
		if own && s.skipElsewhere(b, st) {
			continue
		}
		if err := s.runStatement(b, st, own); err != nil {
			return fmt.Errorf("line %d: %s: %w", b.Line+st.line, firstLine(st.text), err)
		}
	}
	return nil
}

// skipElsewhere reports whether a statement is not run here, and records why.
func (s *docSession) skipElsewhere(b *docBlock, st shellStatement) bool {
	if ci := b.Options["ci"]; ci != "" && strings.HasPrefix(st.text, ci) {
		s.outcomes[s.current].Elsewhere = append(s.outcomes[s.current].Elsewhere, firstLine(st.text))
		return true
	}
	if needs := b.Options["needs"]; needs != "" && strings.HasPrefix(st.withoutVariables(), needs+" ") {
		if _, err := exec.LookPath(needs); err != nil {
			s.recordSkip(st, "there is no "+needs)
			return true
		}
	}
	return false
}

func (s *docSession) recordSkip(st shellStatement, why string) {
	o := &s.outcomes[s.current]
	o.Skipped = append(o.Skipped, fmt.Sprintf("%s: %s", firstLine(st.text), why))
}

func (s *docSession) runStatement(b *docBlock, st shellStatement, own bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), b.Options.timeLimit())
	defer cancel()
	text, yes := st.runsUntilStopped(b.Options)
	script := runScript
	if yes {
		script = serveScript
	}
	p, err := s.startProcess(st.text, script)
	if err != nil {
		return err
	}
	s.printed = append(s.printed, p)
	if yes {
		s.serving = append(s.serving, p)
		if err = p.awaitReady(ctx, text); err == nil && b.Options.hasOption("alternatives") && own {
			s.serving = slices.Delete(s.serving, len(s.serving)-1, len(s.serving))
			err = p.interruptServer(ctx)
		}
	} else {
		err = p.awaitExit(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, lastLines(p.readOutput()))
	}
	if st.wants != "" {
		return s.awaitMatch(ctx, st.wants, b.Options, []*childProcess{p})
	}
	return nil
}

func exitCode(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return 0
}

// compareBlock compares a block with the output of the commands before it.
func (s *docSession) compareBlock(b *docBlock) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(b.Options.timeLimit(), 10*time.Second))
	defer cancel()
	text := b.Text
	if b.Options.hasOption("joined") {
		text = strings.ReplaceAll(text, "\n ", "")
	}
	return "compared", s.awaitMatch(ctx, text, b.Options, s.printed)
}

// awaitMatch compares a text with the output of processes, for as long as one of them may print more.
func (s *docSession) awaitMatch(ctx context.Context, text string, o blockOptions, by []*childProcess) error {
	var all strings.Builder
	for {
		more := slices.ContainsFunc(by, func(p *childProcess) bool { return !p.hasExited() })
		all.Reset()
		for _, p := range by {
			all.WriteString(p.readOutput() + "\n")
		}
		err := compareOutput(text, all.String(), o)
		if err == nil || !more || ctx.Err() != nil {
			if err != nil {
				return fmt.Errorf("%w\nprinted was:\n%s", err, lastLines(all.String()))
			}
			return nil
		}
		time.Sleep(20 * time.Millisecond) // a file does not notify when it grows
	}
}

func (s *docSession) checkYAML(b *docBlock) (string, error) {
	var v any
	if err := yaml.Unmarshal([]byte(b.Text), &v); err != nil {
		return "", err
	}
	role, ok := b.Options["config"]
	if !ok {
		return "parsed", nil
	}
	name := filepath.Join(s.state, "penstock.yaml")
	if err := os.WriteFile(name, []byte(b.Text+"\n"), 0o600); err != nil {
		return "", err
	}
	return "validated", s.runCommands(b, fmt.Sprintf("penstock config validate --for %s --config %q", role, name), false)
}

func (s *docSession) runPython(b *docBlock) (string, error) {
	name := filepath.Join(s.state, "block.py")
	if err := os.WriteFile(name, []byte(b.Text+"\n"), 0o600); err != nil {
		return "", err
	}
	why := b.Options["validate"]
	if module := b.Options["needs"]; module != "" && exec.Command("python3", "-c", "import "+module).Run() != nil {
		why = "there is no module " + module
	}
	if why != "" {
		s.recordSkip(shellStatement{text: "python3"}, why)
		return "compiled", s.runCommands(b, fmt.Sprintf("python3 -m py_compile %q", name), false)
	}
	s.printed = nil
	return "ran", s.runCommands(b, fmt.Sprintf("python3 %q", name), false)
}

// stopProcesses ends the processes in reverse order and checks their exit codes.
func (s *docSession) stopProcesses(failed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	for _, p := range slices.Backward(s.processes) {
		var err error
		if slices.Contains(s.serving, p) {
			err = p.interruptServer(ctx)
		} else {
			err = p.terminateGroup(ctx)
		}
		p.sendSignal(syscall.SIGKILL)
		if o := &s.outcomes[p.block]; err != nil && !failed && o.Failed == "" {
			o.Failed = fmt.Sprintf("%s: %v\n%s", firstLine(p.text), err, lastLines(p.readOutput()))
		}
	}
}

func firstLine(s string) string {
	line, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if more || len(line) > 110 {
		return line[:min(len(line), 110)] + " …"
	}
	return line
}

// lastLines is the end of a command's output.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-30):], "\n    ")
}
