//go:build unix

package launch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// engineShell is a shell script in an engine's place.
type engineShell struct {
	*EngineProcess
	// lines and records get the lines of its output, and the messages of the log.
	lines, records chan string
	cancel         context.CancelFunc
	result         chan error
}

// newShell makes the process of a shell script.
func newShell(t *testing.T, script string, cfg ProcessConfig) *engineShell {
	t.Helper()
	s := &engineShell{lines: make(chan string, 100), records: make(chan string, 100), result: make(chan error, 1)}
	cfg.Args, cfg.Dir = []string{"/bin/sh", "-c", script}, t.TempDir()
	cfg.Log = slog.New(messageHandler{slog.DiscardHandler, s.records})
	cfg.IsServing = func() bool { return false }
	cfg.WriteLine = func(line []byte) { s.lines <- string(line) }
	cfg.StopTimeout, cfg.ServeTimeout = cmp.Or(cfg.StopTimeout, time.Minute), cmp.Or(cfg.ServeTimeout, time.Hour)
	cfg.restartPause, cfg.servingInterval = cmp.Or(cfg.restartPause, 10*time.Millisecond), 10*time.Millisecond
	cfg.outputLinger = time.Minute // the output ends before, but a busy machine reads it late
	s.EngineProcess = NewProcess(cfg)
	return s
}

// start runs the script until it ends, or until the test does.
func (s *engineShell) start(t *testing.T) *engineShell {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.result <- s.Run(ctx) })
	t.Cleanup(func() { s.cancel(); running.Wait() })
	return s
}

// startServed runs a script as an engine which has served.
func (s *engineShell) startServed(t *testing.T) *engineShell {
	s.MarkServed()
	return s.start(t)
}

// messageHandler passes the messages of a log on.
type messageHandler struct {
	slog.Handler
	messages chan<- string
}

func (h messageHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h messageHandler) Handle(_ context.Context, r slog.Record) error {
	h.messages <- r.Message
	return nil
}

// receive returns the next value, which must come within two minutes.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// awaitMessage waits for a message of the log.
func (s *engineShell) awaitMessage(t *testing.T, part string) {
	t.Helper()
	for !strings.Contains(receive(t, s.records), part) {
	}
}

// TestProcessRestarts: an engine which ends is started again, within the limit, and all of its output is read. A long line
// is divided.
func TestProcessRestarts(t *testing.T) {
	long := strings.Repeat("x", maxLine+1)
	s := newShell(t, "printf 'one\r\n'; echo "+long+" >&2; printf last; exit 3", ProcessConfig{Restarts: 1}).startServed(t)
	var ended *ExitError
	if err := receive(t, s.result); !errors.As(err, &ended) || ended.Code != 3 {
		t.Errorf("%v", err)
	}
	close(s.lines) // the end of Run comes after the last line
	var lines []string
	for line := range s.lines {
		lines = append(lines, line)
	}
	once := []string{"one", long[:maxLine], "x", "last"}
	if want := slices.Concat(once, once); !slices.Equal(lines, want) {
		t.Errorf("%d lines: %.200q", len(lines), lines)
	}
}

// TestProcessCannotStart: an engine which has served, and which cannot be started again, is tried again within the limit; one
// which has never served is not.
func TestProcessCannotStart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "engine")
	write := func(text string) {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := newShell(t, "", ProcessConfig{Restarts: 1000})
	s.cfg.Args = []string{program}
	write("rm $0; echo one")
	s.startServed(t)
	s.awaitMessage(t, "the engine cannot be started again yet")
	write("echo two; exec sleep 1000")
	for _, want := range []string{"one", "two"} {
		if line := receive(t, s.lines); line != want {
			t.Errorf("it says %q, want %q", line, want)
		}
	}
	s.cancel()
	if err := receive(t, s.result); err != nil {
		t.Error(err)
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	fresh := newShell(t, "", ProcessConfig{Restarts: 3})
	fresh.cfg.Args = []string{program}
	if err := receive(t, fresh.start(t).result); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// TestDirIsEmptied: what an earlier process left is removed, whatever the name of the directory.
func TestDirIsEmptied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a]*?")
	if err := os.MkdirAll(filepath.Join(dir, ".left", "over"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := NewProcess(ProcessConfig{Dir: dir})
	if err := p.emptyDir(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	p.cfg.Dir = filepath.Join(dir, "none")
	if err := p.emptyDir(); err != nil {
		t.Error(err)
	}
}

// TestProcessStops: an engine which ends by the SIGTERM which it got, or with 0, has ended well.
func TestProcessStops(t *testing.T) {
	for _, c := range []struct {
		name, script string
		stopTimeout  time.Duration
		want         string
	}{
		{"by the signal", "echo up; exec sleep 1000", 0, ""},
		{"with the code of the signal", "trap 'exit 143' TERM; echo up; sleep 1000 & while :; do wait; done", 0, ""},
		{"with 0", "trap 'exit 0' TERM; echo up; sleep 1000 & while :; do wait; done", 0, ""},
		{"with a code", "trap 'exit 9' TERM; echo up; sleep 1000 & while :; do wait; done", 0, "code 9"},
		{"killed", "trap '' TERM; echo up; sleep 1000 & while :; do wait; done", time.Millisecond, "code 137"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShell(t, c.script, ProcessConfig{StopTimeout: c.stopTimeout}).start(t)
			receive(t, s.lines)
			s.cancel()
			if err := receive(t, s.result); err != nil {
				t.Error(err)
			}
			if err := s.StopError(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestProcessStopsWhilePausing: a stop between two starts is no failure, whatever the last process ended with.
func TestProcessStopsWhilePausing(t *testing.T) {
	s := newShell(t, "exit 7", ProcessConfig{Restarts: 1, restartPause: maxPause}).startServed(t)
	s.awaitMessage(t, "the engine ended and is started again")
	s.cancel()
	if err := receive(t, s.result); err != nil {
		t.Error(err)
	}
	if err := s.StopError(); err != nil {
		t.Error(err)
	}
	if life := s.advance(func(*lifecycle) {}); life.state != stateEnded {
		t.Errorf("its state is %s", life.state)
	}
}

// TestProcessStalls: an engine which does not serve any more is stopped, which counts as an end.
func TestProcessStalls(t *testing.T) {
	s := newShell(t, "echo up; exec sleep 1000", ProcessConfig{ServeTimeout: time.Millisecond}).startServed(t)
	s.awaitMessage(t, "the engine does not serve and is stopped")
	var exit *ExitError
	if err := receive(t, s.result); !errors.As(err, &exit) || exit.Code != 143 || !strings.Contains(err.Error(), "did not serve for 1ms (engine-wait) and was stopped and exec-restarts is 0") {
		t.Errorf("%v", err)
	}
}

// TestProcessExplains: an error has the last line and the hint, unless the engine has served: later lines may quote requests.
func TestProcessExplains(t *testing.T) {
	s := newShell(t, "echo no such model; exit 3", ProcessConfig{Hint: "try another"}).start(t)
	if err := receive(t, s.result); err == nil || !strings.Contains(err.Error(), "; try another; its last line: no such model") {
		t.Errorf("%v", err)
	}
	var ended *ExitError
	if err := receive(t, newShell(t, "exit 0", ProcessConfig{}).start(t).result); !errors.As(err, &ended) || ended.Code != 1 {
		t.Errorf("an engine which ends with 0 by itself: %v", err)
	}
	if got := s.LastLine(); got != "no such model" {
		t.Errorf("the last line is %q", got)
	}
	s.MarkServed()
	if got := s.LastLine(); got != "" {
		t.Errorf("once it served, the last line is %q", got)
	}
}

// TestWithHangup: the context ends when the terminal is closed, unless this process ignores that.
func TestWithHangup(t *testing.T) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP) // it is not ignored from now on, even under nohup
	signal.Stop(received)
	ctx, stop := WithHangup(t.Context())
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	receive(t, ctx.Done())
	stop()

	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	_, stop = WithHangup(t.Context())
	defer stop()
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("the signal is not ignored any more")
	}
}
