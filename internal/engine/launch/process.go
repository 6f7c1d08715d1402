package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"penstock/internal/backoff"
)

const (
	// maxLine bounds a line of an engine's output, in bytes; a longer one is divided.
	maxLine = 8 << 10
	// maxShown bounds the part of a line which errors and the log repeat, in bytes.
	maxShown = 200
	// servingInterval is the interval at which a process asks whether its engine serves.
	servingInterval = time.Second
	// outputLinger is how long output is read after the end of the engine, which a process outside of its group may
	// still hold open.
	outputLinger = time.Second
)

// The pauses before restarts.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// ProcessConfig configures the process of an engine.
type ProcessConfig struct {
	// Args is the complete command line.
	Args []string
	// Dir is a directory of this process alone; it is emptied before each start.
	Dir string
	// Restarts is how many times in a row an engine which ended is started again.
	Restarts int
	// StopTimeout is the time between SIGTERM and SIGKILL.
	StopTimeout time.Duration
	// IsServing reports whether the engine serves requests.
	IsServing func() bool
	// WriteLine gets each line of the engine's output, without its end; it is valid during the call.
	WriteLine func(line []byte)
	Log       *slog.Logger
}

// ExitError is the end of an engine's process.
type ExitError struct {
	// Code is its exit code; of a process which a signal ended, 128 and the number of the signal, as shells say it.
	Code int
	// reason says more, for people.
	reason string
}

// Error implements error.
func (e *ExitError) Error() string { return e.reason }

// EngineProcess runs an engine as a child process of its own process group.
//
//	state     event                               next
//	starting  the process cannot be started       ended
//	running   Run's context ends                  stopping: SIGTERM, later SIGKILL
//	running   the process ends by itself          pausing or ended, as restartPolicy decides; ended if it never served
//	stopping  the process has ended               ended
//	pausing   the pause is over                   starting
//	pausing   Run's context ends                  ended
//
// Whatever is left of the process group when the process has ended is killed: it would hold ports and devices.
type EngineProcess struct {
	cfg ProcessConfig
	mu  struct {
		sync.Mutex
		lastLine string
		served   bool // the engine has served
		stopCode int  // exit code of the process which Run stopped
	}
}

// NewProcess returns the process of an engine, which Run starts.
func NewProcess(cfg ProcessConfig) *EngineProcess { return &EngineProcess{cfg: cfg} }

// LastLine returns the last line that the engine wrote, shortened; "" before the first one.
func (p *EngineProcess) LastLine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.lastLine
}

// MarkServed records that the engine has served: from now on it is started again if it ends.
func (p *EngineProcess) MarkServed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.served = true
}

func (p *EngineProcess) hasServed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.served
}

// StopError returns the [*ExitError] of the engine which Run stopped because its context ended; nil if its exit code is 0.
func (p *EngineProcess) StopError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.stopCode == 0 {
		return nil
	}
	return &ExitError{p.mu.stopCode, fmt.Sprintf("the engine ended with code %d when it was stopped", p.mu.stopCode)}
}

// Run runs the engine until ctx ends, and then stops it and returns nil. It returns an [*ExitError] if the engine ends by
// itself and is not started again.
func (p *EngineProcess) Run(ctx context.Context) error {
	policy := restartPolicy{limit: p.cfg.Restarts}
	pause := backoff.Backoff{Min: minPause, Max: maxPause}
	for {
		ended, err := p.runOnce(ctx)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			p.mu.Lock()
			p.mu.stopCode = ended.code
			p.mu.Unlock()
			p.cfg.Log.Info("the engine has ended", "exit_code", ended.code)
			return nil
		}
		if ended.served >= settledAfter {
			pause.Reset()
		}
		if !p.hasServed() || !policy.decideRestart(ended.served) {
			return p.explainEnd(ended, &policy)
		}
		wait := pause.Next()
		p.cfg.Log.Error("the engine ended and is started again", "exit_code", ended.code, "restart", policy.count, "limit", policy.limit,
			"wait", wait.Round(time.Millisecond).String())
		if backoff.SleepContext(ctx, wait) != nil {
			return nil
		}
	}
}

// explainEnd returns the error of an engine which is not started again.
func (p *EngineProcess) explainEnd(ended processEnd, policy *restartPolicy) error {
	code, reason := ended.code, ""
	switch {
	case !p.hasServed():
		reason = "before it served: check its command, which is what is behind -- with the flags that the log names"
	case policy.limit == 0:
		reason = "and exec-restarts is 0"
	default:
		reason = fmt.Sprintf("after %d restarts in a row (exec-restarts): its log says why", policy.count)
	}
	reason = fmt.Sprintf("the engine ended with code %d %s", code, reason)
	if line := p.LastLine(); line != "" && !p.hasServed() { // later lines may quote requests
		reason += fmt.Sprintf("; its last line: %s", line)
	}
	if code == 0 {
		code = 1 // an engine which is gone is a failure, whatever it says
	}
	return &ExitError{code, reason}
}

// processEnd is the end of a process.
type processEnd struct {
	code   int
	served time.Duration // for how long it served
}

// runOnce runs the engine once: until it ends, or until ctx ends and it has been stopped. An error means that it could not
// be started.
func (p *EngineProcess) runOnce(ctx context.Context) (processEnd, error) {
	if err := p.emptyDir(); err != nil {
		return processEnd{}, err
	}
	cmd := exec.Command(p.cfg.Args[0], p.cfg.Args[1:]...)
	isolateProcess(cmd)
	out, in, err := os.Pipe()
	if err != nil {
		return processEnd{}, fmt.Errorf("start the engine: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in

	var tasks sync.WaitGroup
	defer tasks.Wait()
	started, ended := make(chan error, 1), make(chan struct{})
	tasks.Go(func() {
		// Linux ends the child when the thread which started it ends, so this thread lives as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = in.Close()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState says how it ended
		}
		close(ended)
	})
	if err := <-started; err != nil {
		return processEnd{}, fmt.Errorf("start the engine: %w", err)
	}
	p.cfg.Log.Info("the engine is started", "pid", cmd.Process.Pid)
	tasks.Go(func() { p.readOutput(out) })
	stopForwarding := forwardSignals(cmd.Process)
	defer stopForwarding()

	served := p.awaitEnd(ctx, cmd.Process, ended)
	killGroup(cmd.Process)
	_ = out.SetReadDeadline(time.Now().Add(outputLinger)) // readOutput ends; a pipe has deadlines
	return processEnd{exitCode(cmd.ProcessState), served}, nil
}

// awaitEnd waits for the end of the process, which it stops when ctx ends, and returns for how long the engine served.
func (p *EngineProcess) awaitEnd(ctx context.Context, child *os.Process, ended <-chan struct{}) (served time.Duration) {
	tick := time.NewTicker(servingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return served
		case <-tick.C:
			if p.cfg.IsServing() {
				served += servingInterval
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	terminate(child)
	limit := time.NewTimer(p.cfg.StopTimeout)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		p.cfg.Log.Warn("the engine does not end and is killed", "after", p.cfg.StopTimeout.String())
		killGroup(child)
		<-ended
	}
	return served
}

// readOutput passes the lines of the engine's output on.
func (p *EngineProcess) readOutput(out io.Reader) {
	lines := bufio.NewReaderSize(out, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		line = []byte(strings.TrimRight(string(line), "\r\n"))
		if len(line) > 0 {
			p.mu.Lock()
			p.mu.lastLine = strings.ToValidUTF8(string(line[:min(len(line), maxShown)]), "")
			p.mu.Unlock()
			p.cfg.WriteLine(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// emptyDir removes what an earlier process left in Dir.
func (p *EngineProcess) emptyDir() error {
	old, err := filepath.Glob(filepath.Join(p.cfg.Dir, "*"))
	for _, path := range old {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}
