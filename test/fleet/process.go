package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one command which can be started, stopped and restarted. Its methods may be called from several
// goroutines.
type Process struct {
	name string
	argv []string
	log  string // file of its output, over all runs

	mu struct {
		sync.Mutex
		life *processRun // nil before the first run
	}
}

// processRun is one run of a process.
type processRun struct {
	cmd          *exec.Cmd
	ended        chan struct{} // closed after Wait
	err          error         // set before ended is closed
	endRequested bool          // its end was requested; guarded by Process.mu
}

// NewProcess describes a process; its output is appended to the file log.
func NewProcess(name, log string, argv ...string) *Process {
	return &Process{name: name, argv: argv, log: log}
}

// Name returns the name of the process in reports.
func (p *Process) Name() string { return p.name }

// Start starts the process, which must not be running.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.mu.life; l != nil && !l.hasEnded() {
		return fmt.Errorf("start %s: it runs already", p.name)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer out.Close() // the process has its own descriptor
	l := &processRun{cmd: exec.Command(p.argv[0], p.argv[1:]...), ended: make(chan struct{})}
	l.cmd.Stdout, l.cmd.Stderr = out, out
	l.cmd.SysProcAttr = dieWithParent()
	if err := l.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.mu.life = l
	go func() { // ends with the process, which Stop kills
		l.err = l.cmd.Wait()
		close(l.ended)
	}()
	return nil
}

func (l *processRun) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// currentRun returns the current run, and records a requested end.
func (p *Process) currentRun(end endIntent) *processRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.mu.life
	if l == nil || l.hasEnded() {
		return nil
	}
	l.endRequested = l.endRequested || end == endExpected
	return l
}

// endIntent says whether a signal is meant to end a process.
type endIntent int

const (
	endUnexpected endIntent = iota
	endExpected
)

// PID returns the process id, 0 if it does not run.
func (p *Process) PID() int {
	if l := p.currentRun(endUnexpected); l != nil {
		return l.cmd.Process.Pid
	}
	return 0
}

// Kill kills the process (SIGKILL), and returns when it is gone.
func (p *Process) Kill() {
	if l := p.currentRun(endExpected); l != nil {
		_ = l.cmd.Process.Kill() // it may have ended by itself
		<-l.ended
	}
}

// Pause stops the process without ending it (SIGSTOP): its sockets stay open without an answer.
func (p *Process) Pause() error { return p.sendSignal(sigStop, endUnexpected) }

// Resume continues a paused process (SIGCONT).
func (p *Process) Resume() error { return p.sendSignal(sigCont, endUnexpected) }

// Terminate asks the process to exit (SIGTERM). Wait waits for it.
func (p *Process) Terminate() error { return p.sendSignal(syscall.SIGTERM, endExpected) }

func (p *Process) sendSignal(s os.Signal, end endIntent) error {
	l := p.currentRun(end)
	if l == nil {
		return fmt.Errorf("signal %s: it does not run", p.name)
	}
	return l.cmd.Process.Signal(s)
}

// Wait returns when the process has ended: nil if it exited with 0. It kills a process which still runs when
// ctx ends, and returns an error.
func (p *Process) Wait(ctx context.Context) error {
	p.mu.Lock()
	l := p.mu.life
	p.mu.Unlock()
	if l == nil {
		return nil
	}
	select {
	case <-l.ended:
		if l.err != nil {
			return fmt.Errorf("%s ended with %w", p.name, l.err)
		}
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s had to be killed: %w", p.name, ctx.Err())
	}
}

// Stop terminates the process and waits for its end, at most for patience.
func (p *Process) Stop(patience time.Duration) error {
	l := p.currentRun(endExpected)
	if l == nil {
		return nil
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return p.Wait(ctx)
}

// CheckDied returns why the process ended without a request, with the end of its log.
func (p *Process) CheckDied() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.mu.life
	if l == nil || !l.hasEnded() || l.endRequested {
		return nil
	}
	return fmt.Errorf("%s ended by itself (%v):\n%s", p.name, l.err, p.LogTail(2000))
}

// LogTail returns the end of the process's output, at most n bytes.
func (p *Process) LogTail(n int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// LogAlarms returns the log lines which no disturbance excuses: crashes and logged errors.
func (p *Process) LogAlarms() []string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []string{err.Error()}
	}
	var alarms []string
	for line := range strings.Lines(string(text)) {
		for _, sign := range []string{"panic:", "fatal error:", "WARNING: DATA RACE", "level=ERROR"} {
			if strings.Contains(line, sign) {
				alarms = append(alarms, p.name+": "+strings.TrimSpace(line))
				break
			}
		}
	}
	return alarms
}

// Ports reserves free ports of 127.0.0.1 below the range for outgoing connections, so that a restarted
// process finds its port free again.
type Ports struct {
	mu       sync.Mutex
	r        *rand.Rand
	reserved map[int]bool
}

// NewPorts returns an allocator; different seeds start at different ports.
func NewPorts(seed uint64) *Ports {
	return &Ports{r: rand.New(rand.NewPCG(seed, 0x706f727473)), reserved: map[int]bool{}}
}

// The range of ports.
const (
	lowestPort  = 18000
	highestPort = 32000
)

// ReserveAddr returns HOST:PORT which is free and was not returned before.
func (p *Ports) ReserveAddr(host string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1000 {
		port := lowestPort + p.r.IntN(highestPort-lowestPort)
		if p.reserved[port] {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // in use
		}
		if err := ln.Close(); err != nil {
			return "", err
		}
		p.reserved[port] = true
		return net.JoinHostPort(host, fmt.Sprint(port)), nil
	}
	return "", fmt.Errorf("no free port found between %d and %d", lowestPort, highestPort)
}
