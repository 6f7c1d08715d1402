package launch

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// ProcessConfig configures the process of an engine.
type ProcessConfig struct {
	// Args is the complete command line.
	Args []string
	// Dir is a directory of this process alone; it is emptied before each start.
	Dir string
	// Restarts is how many times in a row an engine which ended is started again.
	Restarts int
	// ServeTimeout is the time within which an engine which has served must serve again, after a restart or while its
	// process lives: then it is stopped, which counts as an end.
	ServeTimeout time.Duration
	// StopTimeout is the time between SIGTERM and SIGKILL.
	StopTimeout time.Duration
	// Hint says what to try if the engine ends before it serves; "" is nothing.
	Hint string
	// IsServing reports whether the engine serves requests.
	IsServing func() bool
	// WriteLine gets each line of the engine's output, without its end; it is valid during the call.
	WriteLine func(line []byte)
	Log       *slog.Logger

	// restartPause, servingInterval and outputLinger are in place of the constants minPause, servingInterval and outputLinger,
	// unless they are 0.
	restartPause, servingInterval, outputLinger time.Duration
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

// EngineProcess runs an engine as a child process of its own process group, as lifecycle decides. Whatever is left of the
// process group when the process has ended is killed: it would hold ports and devices.
type EngineProcess struct {
	cfg ProcessConfig
	mu  struct {
		sync.Mutex
		life     lifecycle
		lastLine string
	}
}

// NewProcess returns the process of an engine, which Run starts.
func NewProcess(cfg ProcessConfig) *EngineProcess {
	cfg.servingInterval, cfg.outputLinger = cmp.Or(cfg.servingInterval, servingInterval), cmp.Or(cfg.outputLinger, outputLinger)
	p := &EngineProcess{cfg: cfg}
	p.mu.life = newLifecycle(&p.cfg)
	return p
}

// LastLine returns the last line that the engine wrote, shortened; "" before the first one, and once the engine has served,
// because later lines may quote requests.
func (p *EngineProcess) LastLine() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.life.hasServed {
		return ""
	}
	return p.mu.lastLine
}

// MarkServed records that the engine has served: from now on it is started again if it ends.
func (p *EngineProcess) MarkServed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.life.hasServed = true
	p.mu.life.servedAt = time.Now()
}

// StopError returns the [*ExitError] of the engine which Run stopped because its context ended; nil if its exit code is 0,
// or if SIGTERM ended it, which it got.
func (p *EngineProcess) StopError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	code := p.mu.life.stopCode
	if code == 0 {
		return nil
	}
	return &ExitError{code, fmt.Sprintf("the engine ended with code %d when it was stopped", code)}
}

// advance applies an event to the lifecycle, and returns a copy of its new state.
func (p *EngineProcess) advance(event func(*lifecycle)) lifecycle {
	p.mu.Lock()
	defer p.mu.Unlock()
	event(&p.mu.life)
	return p.mu.life
}

// Run runs the engine until ctx ends, and then stops it and returns nil. It returns an [*ExitError] if the engine ends by
// itself and is not started again. It is called once.
func (p *EngineProcess) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		code, err := p.runOnce(ctx)
		life := p.advance(func(l *lifecycle) {
			if ctx.Err() != nil {
				l.requestStop(time.Now()) // the process may have ended first
			}
			if err != nil {
				l.recordStartFailure()
			} else {
				l.recordEnd(code)
			}
		})
		switch {
		case err != nil && life.state == stateEnded:
			return err
		case err != nil:
			p.cfg.Log.Error("the engine cannot be started again yet", "error", err, "restart", life.restarts.count, "limit", life.restarts.limit,
				"wait", life.pause.Round(time.Millisecond).String())
		case life.stopRequested:
			p.cfg.Log.Info("the engine has ended", "exit_code", code)
			return nil
		case life.state == stateEnded:
			return p.explainEnd(code, &life)
		default:
			p.cfg.Log.Error("the engine ended and is started again", "exit_code", code, "restart", life.restarts.count, "limit", life.restarts.limit,
				"wait", life.pause.Round(time.Millisecond).String())
		}
		if backoff.SleepContext(ctx, life.pause) == nil {
			p.advance((*lifecycle).recordPauseEnd)
		}
	}
	p.advance(func(l *lifecycle) { l.requestStop(time.Now()) })
	return nil
}

// explainEnd returns the error of an engine which is not started again.
func (p *EngineProcess) explainEnd(code int, life *lifecycle) error {
	reason := fmt.Sprintf("the engine ended with code %d ", code)
	if life.isStalled {
		reason = fmt.Sprintf("the engine did not serve for %v (engine-wait) and was stopped ", life.serveTimeout)
	}
	switch {
	case !life.hasServed:
		reason += "before it served: check its command, which is what is behind -- with the flags that the log names"
		if p.cfg.Hint != "" {
			reason += "; " + p.cfg.Hint
		}
	case life.restarts.limit == 0:
		reason += "and exec-restarts is 0"
	default:
		reason += fmt.Sprintf("after %d restarts in a row (exec-restarts): its log says why", life.restarts.count)
	}
	if line := p.LastLine(); line != "" {
		reason += fmt.Sprintf("; its last line: %s", line)
	}
	if code == 0 {
		code = 1 // an engine which is gone is a failure, whatever it says
	}
	return &ExitError{code, reason}
}

// runOnce runs the engine once: until it ends, or until ctx ends and it has been stopped. It returns the exit code. An error
// means that the engine could not be started.
func (p *EngineProcess) runOnce(ctx context.Context) (code int, err error) {
	if err := p.emptyDir(); err != nil {
		return 0, err
	}
	cmd := exec.Command(p.cfg.Args[0], p.cfg.Args[1:]...)
	isolateProcess(cmd)
	out, in, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("start the engine: %w", err)
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
		return 0, fmt.Errorf("start the engine: %w", err)
	}
	p.advance(func(l *lifecycle) { l.recordStart(time.Now()) })
	p.cfg.Log.Info("the engine is started", "pid", cmd.Process.Pid)
	tasks.Go(func() { p.readOutput(out) })
	stopForwarding := forwardSignals(cmd.Process)
	defer stopForwarding()

	p.awaitEnd(ctx, cmd.Process, ended)
	killGroup(cmd.Process)
	reapGroup(cmd.Process)
	_ = out.SetReadDeadline(time.Now().Add(p.cfg.outputLinger)) // readOutput ends; a pipe has deadlines
	return exitCode(cmd.ProcessState), nil
}

// awaitEnd waits for the end of the process, which it stops when ctx ends or when the engine does not serve.
func (p *EngineProcess) awaitEnd(ctx context.Context, child *os.Process, ended <-chan struct{}) {
	tick := time.NewTicker(p.cfg.servingInterval)
	defer tick.Stop()
	stopTime := time.NewTimer(0)
	<-stopTime.C
	defer stopTime.Stop()
	stop := ctx.Done()
	for {
		var action processAction
		var life lifecycle
		select {
		case <-ended:
			return
		case <-tick.C:
			isServing := p.cfg.IsServing()
			life = p.advance(func(l *lifecycle) { action = l.check(time.Now(), isServing) })
		case <-stopTime.C:
			life = p.advance(func(l *lifecycle) { action = l.check(time.Now(), false) })
		case <-stop:
			stop = nil
			life = p.advance(func(l *lifecycle) { action = l.requestStop(time.Now()) })
		}
		switch action {
		case actionTerminate:
			if life.isStalled {
				p.cfg.Log.Error("the engine does not serve and is stopped", "after", p.cfg.ServeTimeout.String())
			}
			terminate(child)
			stopTime.Reset(p.cfg.StopTimeout)
		case actionKill:
			p.cfg.Log.Warn("the engine does not end and is killed", "after", p.cfg.StopTimeout.String())
			killGroup(child)
		}
	}
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
	old, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.cfg.Dir, entry.Name())))
	}
	return err
}
