package planner

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// workerLog is the file of a worker's log in its directory; earlierLog has what was before, when it is full.
const (
	workerLog  = "worker.log"
	earlierLog = "worker.log.1"
	// outputLinger is how long the log is read after the end of a worker, which a process of it may hold open.
	outputLinger = time.Second
	// maxLog is the size of a worker's log at which a new file begins, in bytes: two of them are kept.
	maxLog = 16 << 20
)

// boundedLog is a file which begins anew when it is full. A log which cannot be written does not stop its worker.
type boundedLog struct {
	path string
	mu   struct {
		sync.Mutex
		file *os.File
		size int
	}
}

func openBoundedLog(path string) (*boundedLog, error) {
	l := &boundedLog{path: path}
	var err error
	l.mu.file, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	return l, err
}

// Write implements io.Writer. It does not fail.
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.size+len(p) > maxLog {
		l.rotateLocked()
	}
	if l.mu.file != nil {
		_, _ = l.mu.file.Write(p) // a full disk loses lines, not the worker
		l.mu.size += len(p)
	}
	return len(p), nil
}

func (l *boundedLog) rotateLocked() {
	if l.mu.file != nil {
		_ = l.mu.file.Close()
	}
	l.mu.file, l.mu.size = nil, 0
	if err := os.Rename(l.path, filepath.Join(filepath.Dir(l.path), earlierLog)); err != nil {
		return
	}
	if f, err := os.OpenFile(l.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600); err == nil {
		l.mu.file = f
	}
}

// Close closes the file.
func (l *boundedLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		return nil
	}
	err := l.mu.file.Close()
	l.mu.file = nil
	return err
}

// launchedCommand is a LaunchedProcess of the operating system.
type launchedCommand struct {
	cmd    *exec.Cmd
	output io.ReadCloser
	log    *boundedLog
	ended  chan struct{} // closed by Wait
}

// LaunchProcess starts a program, whose log is in dir. It is a LaunchFunc. On Linux the process gets SIGTERM when this one
// is killed; on Unix signals of the terminal do not reach it. A child of it which holds only its log open does not hold its
// end back, one which holds its standard output open does.
func LaunchProcess(binary string, args []string, dir string) (LaunchedProcess, error) {
	return launchCommand(binary, args, dir, outputLinger)
}

// launchCommand is LaunchProcess with a time for which the log is read after the end of the process.
func launchCommand(binary string, args []string, dir string, linger time.Duration) (LaunchedProcess, error) {
	log, err := openBoundedLog(filepath.Join(dir, workerLog))
	if err != nil {
		return nil, err
	}
	p := &launchedCommand{cmd: exec.Command(binary, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stderr = log
	p.cmd.WaitDelay = linger
	p.cmd.SysProcAttr = endWithParent()
	if p.output, err = p.cmd.StdoutPipe(); err == nil {
		err = p.startChild()
	}
	if err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return p, nil
}

// startChild starts the process from a thread which lives until Wait returns: Linux ends a child with the thread which
// started it.
func (p *launchedCommand) startChild() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			<-p.ended
		}
	}()
	return <-started
}

// Output implements LaunchedProcess.
func (p *launchedCommand) Output() io.Reader { return p.output }

// Drain implements LaunchedProcess.
func (p *launchedCommand) Drain() error { return p.cmd.Process.Signal(syscall.SIGTERM) }

// Kill implements LaunchedProcess.
func (p *launchedCommand) Kill() error { return p.cmd.Process.Kill() }

// Wait implements LaunchedProcess.
func (p *launchedCommand) Wait() error {
	err := p.cmd.Wait()
	close(p.ended)
	_ = p.log.Close()
	return err
}
