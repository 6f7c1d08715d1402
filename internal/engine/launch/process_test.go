//go:build unix

package launch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startedShell is a shell script which runs as an engine.
type startedShell struct {
	*Process
	// lines and records get the lines of its output, and the messages of the log.
	lines, records chan string
	cancel         context.CancelFunc
	result         chan error
}

// startShell runs a shell script as an engine which ends with the test.
func startShell(t *testing.T, script string, cfg ProcessConfig) *startedShell {
	t.Helper()
	s := &startedShell{lines: make(chan string, 100), records: make(chan string, 100), result: make(chan error, 1)}
	cfg.Args, cfg.Dir = []string{"/bin/sh", "-c", script}, t.TempDir()
	cfg.Log = slog.New(messageHandler{slog.DiscardHandler, s.records})
	cfg.WriteLine = func(line []byte) { s.lines <- string(line) }
	if cfg.IsServing == nil {
		cfg.IsServing = func() bool { return false }
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = time.Minute
	}
	if cfg.ServeTimeout == 0 {
		cfg.ServeTimeout = time.Hour
	}
	s.Process = NewProcess(cfg)
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.result <- s.Run(ctx)
	}()
	t.Cleanup(func() { s.cancel(); <-done })
	return s
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
func (s *startedShell) awaitMessage(t *testing.T, part string) {
	t.Helper()
	for !strings.Contains(receive(t, s.records), part) {
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
			s := startShell(t, c.script, ProcessConfig{StopTimeout: c.stopTimeout})
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
	// The shell waits for a file, so that the test marks it as served before it ends.
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startShell(t, "read line <"+gate+"; exit 7", ProcessConfig{Restarts: 1})
	s.MarkServed()
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	s.awaitMessage(t, "the engine ended and is started again")
	s.cancel()
	if err := receive(t, s.result); err != nil {
		t.Error(err)
	}
	if err := s.StopError(); err != nil {
		t.Error(err)
	}
}

// TestProcessStalls: an engine which does not serve any more is stopped, which counts as an end.
func TestProcessStalls(t *testing.T) {
	s := startShell(t, "echo up; exec sleep 1000", ProcessConfig{ServeTimeout: time.Millisecond})
	s.MarkServed()
	s.awaitMessage(t, "the engine does not serve and is stopped")
	var exit *ExitError
	if err := receive(t, s.result); !errors.As(err, &exit) || exit.Code != 143 || !strings.Contains(err.Error(), "did not serve for 1ms (engine-wait) and was stopped and exec-restarts is 0") {
		t.Errorf("%v", err)
	}
}

// TestProcessExplains: an error has the last line and the hint, unless the engine has served: later lines may quote requests.
func TestProcessExplains(t *testing.T) {
	s := startShell(t, "echo no such model; exit 3", ProcessConfig{Hint: "try another"})
	if err := receive(t, s.result); err == nil || !strings.Contains(err.Error(), "; try another; its last line: no such model") {
		t.Errorf("%v", err)
	}
	if got := s.LastLine(); got != "no such model" {
		t.Errorf("the last line is %q", got)
	}
	s.MarkServed()
	if got := s.LastLine(); got != "" {
		t.Errorf("once it served, the last line is %q", got)
	}
}

// TestWithHangup: the context ends when the terminal is closed, unless that is ignored.
func TestWithHangup(t *testing.T) {
	hangUp := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP) // it is not ignored from now on, even under nohup
	signal.Stop(received)
	ctx, stop := WithHangup(t.Context())
	defer stop()
	hangUp()
	receive(t, ctx.Done())

	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop = WithHangup(t.Context())
	defer stop()
	signal.Notify(received, syscall.SIGHUP) // the signal arrives here, and did not before
	hangUp()
	receive(t, received)
	if ctx.Err() != nil {
		t.Error("the context ended though the signal is ignored")
	}
}
