//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runScript executes a file of commands in the directory and with the variables which the previous commands
// left, and saves its own.
const runScript = `
trap 'code=$?; trap - EXIT; { export -p; declare -f; } >"$DOCS_STATE/env"; pwd >"$DOCS_STATE/cwd"; exit $code' EXIT
` + serveScript

// serveScript is runScript without saving: a process in another terminal.
const serveScript = `
. "$DOCS_STATE/env"
cd "$(cat "$DOCS_STATE/cwd")"
set -a -e -o pipefail
. "$1"
`

// childProcess is a started command, in its own process group.
type childProcess struct {
	text           string
	block          int // index of the block which started it
	cmd            *exec.Cmd
	stdout, stderr string // names of files
	done           chan struct{}
	err            error // once done is closed
}

// terminalPatience is how long what a process wrote to its terminal may take, after its end, to be copied.
const terminalPatience = time.Minute

// startProcess runs the text of a statement with bash. Output goes to files; a process which serves gets a
// terminal, as for a reader.
func (s *docSession) startProcess(text, script string) (*childProcess, error) {
	s.count++
	name := filepath.Join(s.state, fmt.Sprint(s.count))
	if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
		return nil, err
	}
	p := &childProcess{text: text, block: s.current, stdout: name + ".out", stderr: name + ".err", done: make(chan struct{})}
	p.cmd = exec.Command("bash", "--norc", "--noprofile", "-c", script, "bash", name)
	p.cmd.Env = append(os.Environ(), "DOCS_STATE="+s.state)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // and so its own process group
	out, err := os.Create(p.stdout)
	if err != nil {
		return nil, err
	}
	errs, err := os.Create(p.stderr)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	finish := func() { _ = errors.Join(out.Close(), errs.Close()) }
	if script == serveScript {
		terminal, copied, err := openTerminal(errs)
		if err != nil {
			return nil, errors.Join(err, out.Close(), errs.Close())
		}
		p.cmd.Stdout, p.cmd.Stderr = terminal, terminal
		finish = func() {
			_ = terminal.Close()
			select {
			case <-copied:
			case <-time.After(terminalPatience): // a child of the process still has the terminal
			}
			_ = errors.Join(out.Close(), errs.Close())
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	s.processes = append(s.processes, p)
	go func() {
		p.err = p.cmd.Wait()
		finish()
		close(p.done)
	}()
	return p, nil
}

// openTerminal returns a terminal whose output is copied to w until all processes have closed it.
func openTerminal(w io.Writer) (terminal *os.File, copied <-chan struct{}, err error) {
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, control.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer control.Close()
		_, _ = io.Copy(w, control) // ends with an error when the last process has closed it
	}()
	return terminal, done, nil
}

// awaitExit returns how the process ended, or kills it when ctx ends.
func (p *childProcess) awaitExit(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.sendSignal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("did not end in time")
	}
}

func (p *childProcess) sendSignal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

func (p *childProcess) hasExited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *childProcess) readOutput() string {
	out, _ := os.ReadFile(p.stdout)
	errs, _ := os.ReadFile(p.stderr)
	return string(out) + "\n" + strings.ReplaceAll(string(errs), "\r", "")
}

// awaitReady returns once the process has printed a text, or an error when it ends before.
func (p *childProcess) awaitReady(ctx context.Context, text string) error {
	return pollUntil(ctx, func() (bool, error) {
		if strings.Contains(p.readOutput(), text) {
			return true, nil
		}
		if p.hasExited() {
			return false, fmt.Errorf("ended before it served: %v", p.err)
		}
		return false, nil
	}, fmt.Errorf("did not print %q in time", text))
}

// pollUntil polls until ask returns true or an error, or ctx ends. Files and process groups do not notify of
// changes.
func pollUntil(ctx context.Context, ask func() (bool, error), late error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return late
		}
	}
}

// interruptServer sends Ctrl-C to a process which serves, which must then exit with 0.
func (p *childProcess) interruptServer(ctx context.Context) error {
	if p.hasExited() {
		return fmt.Errorf("ended by itself: %v", p.err)
	}
	p.sendSignal(syscall.SIGINT)
	err := p.awaitExit(ctx)
	if strings.HasPrefix(p.text, "go run ") && exitCode(err) == 1 {
		return nil // go itself exits with 1 after an interrupt, whatever its program does
	}
	if err != nil {
		return fmt.Errorf("after Ctrl-C: %w", err)
	}
	return nil
}

// terminateGroup ends what a statement left in the background with "&". The session is the parent of orphaned
// processes, and so collects their exit codes.
func (p *childProcess) terminateGroup(ctx context.Context) error {
	p.sendSignal(syscall.SIGTERM)
	var failed error
	return errors.Join(pollUntil(ctx, func() (bool, error) {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-p.cmd.Process.Pid, &status, syscall.WNOHANG, nil)
		if err != nil { // no process of the group is left
			return true, nil
		}
		if pid > 0 && status.Exited() && status.ExitStatus() != 0 {
			failed = fmt.Errorf("a process in the background ended with exit code %d", status.ExitStatus())
		}
		return false, nil
	}, fmt.Errorf("processes in the background do not end")), failed)
}

var (
	// The unit of a duration depends on the speed of the machine.
	durationPattern = regexp.MustCompile(`\d[\d.]*(m\d[\d.]*s|ms|µs|ns|s)\b`)
	numberPattern   = regexp.MustCompile(`-?\d[\d.,]*`)
	spacePattern    = regexp.MustCompile(`\s+`)
)

// normalizeLine removes differences in numbers and column widths.
func normalizeLine(line string) string {
	line = durationPattern.ReplaceAllString(line, "0s")
	line = numberPattern.ReplaceAllString(line, "0")
	return strings.TrimSpace(spacePattern.ReplaceAllString(line, " "))
}

// matchesLine reports whether a line of a document matches a printed one: "…" matches anything.
func matchesLine(document, printed string) bool {
	parts := strings.Split(document, "…")
	if len(parts) == 1 {
		return document == printed
	}
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(printed)
}

// firstColumn is the first column of a line.
func firstColumn(line string) string {
	line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
	return normalizeLine(line)
}

// compareOutput looks for every line of a document in the output, in the same order. Numbers and column
// widths do not count, unless the options say so.
func compareOutput(document, printed string, o blockOptions) error {
	clean := normalizeLine
	switch {
	case o.hasOption("exact"):
		clean = func(s string) string { return strings.TrimRight(s, " ") }
	case o.hasOption("labels"):
		clean = firstColumn
	}
	rest := strings.Split(printed, "\n")
	for line := range strings.Lines(document) {
		want := clean(strings.TrimSuffix(line, "\n"))
		if want == "" || want == "…" {
			continue
		}
		at := 0
		for at < len(rest) && !matchesLine(want, clean(rest[at])) {
			at++
		}
		if at == len(rest) {
			return fmt.Errorf("no line is as the document has it: %s", strings.TrimSpace(line))
		}
		rest = rest[at+1:]
	}
	return nil
}
