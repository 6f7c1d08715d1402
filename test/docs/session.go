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
type outcome struct {
	Index     int
	Failed    string   // why; empty on success
	Skipped   []string // commands which were not run, and why
	Elsewhere []string // commands which .ci/run runs
	How       string
	Seconds   float64
}

// sessionTask is the work of a session: the blocks of one group in one directory.
type task struct {
	Blocks []*block
	Root   string // the repository
	Work   string // the working directory, with state and home next to it
	Alone  bool   // in its own namespaces
}

// docSession runs the blocks of a group, one after another.
type session struct {
	task
	state     string
	count     int
	current   int // index of the block
	serving   []*process
	processes []*process
	outcomes  []outcome
	printed   []*process // by the block before the expected output
}

// runTask is the child process of the runner: it reads a task and writes its outcomes.
func runTask(in io.Reader, out io.Writer) error {
	var t task
	if err := json.NewDecoder(in).Decode(&t); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	s := &session{task: t, state: filepath.Join(t.Work, "..", "state"), outcomes: make([]outcome, len(t.Blocks))}
	if err := s.prepare(); err != nil {
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
		failed = s.block(t.Blocks[i]) != nil
	}
	s.stop(failed)
	return json.NewEncoder(out).Encode(s.outcomes)
}

// prepareDirs makes the directories, and the network and host names of the namespace.
func (s *session) prepare() error {
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
func (s *session) block(b *block) error {
	begin := time.Now()
	o := &s.outcomes[s.current]
	var err error
	if o.How, err = s.do(b); err != nil {
		o.Failed = err.Error()
	}
	o.Seconds = time.Since(begin).Seconds()
	return err
}

func (s *session) do(b *block) (how string, err error) {
	if b.Prepare != "" {
		s.printed = nil
		if err := s.commands(b, b.Prepare, false); err != nil {
			return "", fmt.Errorf("preparation: %w", err)
		}
	}
	if name := b.Options["file"]; name != "" {
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.directory(), name)
		}
		if err := os.WriteFile(name, []byte(b.Text+"\n"), 0o600); err != nil {
			return "", err
		}
	}
	switch b.Kind {
	case textOnly:
		return "written", nil
	case output:
		return s.output(b)
	case yamlFile:
		return s.yaml(b)
	case jsonFile:
		if !json.Valid([]byte(b.Text)) {
			return "", fmt.Errorf("this is not JSON")
		}
		return "parsed", nil
	case pythonIn:
		return s.python(b)
	}
	if b.Options.has("validate") {
		return s.validate(b)
	}
	text, err := b.Options.scale(b.Text)
	if err != nil {
		return "", err
	}
	times := 1
	if n, err := strconv.Atoi(b.Options["repeat"]); err == nil {
		times = n
	}
	for range times {
		s.printed = nil
		if err := s.commands(b, text, true); err != nil {
			return "", err
		}
	}
	return s.ran(b), s.prints(b)
}

// checkPrints checks that a block printed its required text.
func (s *session) prints(b *block) error {
	want := b.Options["prints"]
	for _, p := range s.printed {
		if strings.Contains(p.printed(), want) {
			return nil
		}
	}
	if want == "" {
		return nil
	}
	return fmt.Errorf("it does not print %s", want)
}

func (s *session) ran(b *block) string {
	if b.Options.has("scaled") {
		return "ran, scaled"
	}
	return "ran"
}

// shellDirectory is the working directory after the last command.
func (s *session) directory() string {
	at, _ := os.ReadFile(filepath.Join(s.state, "cwd"))
	return strings.TrimSpace(string(at))
}

// runCommands runs statements in order. A server keeps running until the end of the group.
func (s *session) commands(b *block, text string, own bool) error {
	all, err := split(text)
	if err != nil {
		return err
	}
	for _, st := range all {
		if own && s.elsewhere(b, st) {
			continue
		}
		if err := s.statement(b, st, own); err != nil {
			return fmt.Errorf("line %d: %s: %w", b.Line+st.line, firstLine(st.text), err)
		}
	}
	return nil
}

// skipElsewhere reports whether a statement is not run here, and records why.
func (s *session) elsewhere(b *block, st statement) bool {
	if ci := b.Options["ci"]; ci != "" && strings.HasPrefix(st.text, ci) {
		s.outcomes[s.current].Elsewhere = append(s.outcomes[s.current].Elsewhere, firstLine(st.text))
		return true
	}
	if needs := b.Options["needs"]; needs != "" && strings.HasPrefix(st.program(), needs+" ") {
		if _, err := exec.LookPath(needs); err != nil {
			s.skip(st, "there is no "+needs)
			return true
		}
	}
	return false
}

func (s *session) skip(st statement, why string) {
	o := &s.outcomes[s.current]
	o.Skipped = append(o.Skipped, fmt.Sprintf("%s: %s", firstLine(st.text), why))
}

func (s *session) statement(b *block, st statement, own bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), b.Options.limit())
	defer cancel()
	text, yes := st.serves(b.Options)
	script := run
	if yes {
		script = serve
	}
	p, err := s.start(st.text, script)
	if err != nil {
		return err
	}
	s.printed = append(s.printed, p)
	if yes {
		s.serving = append(s.serving, p)
		if err = p.awaitReady(ctx, text); err == nil && b.Options.has("alternatives") && own {
			s.serving = slices.Delete(s.serving, len(s.serving)-1, len(s.serving))
			err = p.interrupt(ctx)
		}
	} else {
		err = p.wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(p.printed()))
	}
	if st.wants != "" {
		return s.matches(ctx, st.wants, b.Options, []*process{p})
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
func (s *session) output(b *block) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), min(b.Options.limit(), 10*time.Second))
	defer cancel()
	text := b.Text
	if b.Options.has("joined") {
		text = strings.ReplaceAll(text, "\n ", "")
	}
	return "compared", s.matches(ctx, text, b.Options, s.printed)
}

// awaitMatch compares a text with the output of processes, for as long as one of them may print more.
func (s *session) matches(ctx context.Context, text string, o options, by []*process) error {
	var all strings.Builder
	for {
		more := slices.ContainsFunc(by, func(p *process) bool { return !p.exited() })
		all.Reset()
		for _, p := range by {
			all.WriteString(p.printed() + "\n")
		}
		err := compare(text, all.String(), o)
		if err == nil || !more || ctx.Err() != nil {
			if err != nil {
				return fmt.Errorf("%w\nprinted was:\n%s", err, tail(all.String()))
			}
			return nil
		}
		time.Sleep(20 * time.Millisecond) // a file does not notify when it grows
	}
}

func (s *session) yaml(b *block) (string, error) {
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
	return "validated", s.commands(b, fmt.Sprintf("penstock config validate --for %s --config %q", role, name), false)
}

func (s *session) python(b *block) (string, error) {
	name := filepath.Join(s.state, "block.py")
	if err := os.WriteFile(name, []byte(b.Text+"\n"), 0o600); err != nil {
		return "", err
	}
	if module := b.Options["needs"]; module != "" && exec.Command("python3", "-c", "import "+module).Run() != nil {
		s.skip(statement{text: "python3"}, "there is no module "+module)
		return "compiled", s.commands(b, fmt.Sprintf("python3 -m py_compile %q", name), false)
	}
	s.printed = nil
	return "ran", s.commands(b, fmt.Sprintf("python3 %q", name), false)
}

// stopProcesses ends the processes in reverse order and checks their exit codes.
func (s *session) stop(failed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	for _, p := range slices.Backward(s.processes) {
		var err error
		if slices.Contains(s.serving, p) {
			err = p.interrupt(ctx)
		} else {
			err = p.terminate(ctx)
		}
		p.signal(syscall.SIGKILL)
		if o := &s.outcomes[p.block]; err != nil && !failed && o.Failed == "" {
			o.Failed = fmt.Sprintf("%s: %v\n%s", firstLine(p.text), err, tail(p.printed()))
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
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-30):], "\n    ")
}
