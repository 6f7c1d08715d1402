package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// typist is a process on a terminal, with its output.
type typist struct {
	t      *testing.T
	screen *os.File // the other end of the terminal
	exited chan error
	mu     sync.Mutex
	shown  []byte
	more   chan struct{} // has room for one
}

// onTerminal starts the command on a terminal of its own.
func onTerminal(t *testing.T, args ...string) *typist {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	cmd := exec.Command("penstock", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &typist{t: t, screen: screen, exited: make(chan error, 1), more: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(p.watch)
	go func() { p.exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait() // the read fails once no process has the terminal
		_ = screen.Close()
	})
	return p
}

// watch collects the output.
func (p *typist) watch() {
	b := make([]byte, 4096)
	for {
		n, err := p.screen.Read(b)
		p.mu.Lock()
		p.shown = append(p.shown, b[:n]...)
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// sees waits until text is shown, and discards the output up to its end.
func (p *typist) sees(text string) {
	p.t.Helper()
	late := time.After(time.Minute)
	for {
		p.mu.Lock()
		i := bytes.Index(p.shown, []byte(text))
		if i >= 0 {
			p.shown = p.shown[i+len(text):]
		}
		shown := string(p.shown)
		p.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-p.more:
		case <-late:
			p.t.Fatalf("%q is not shown, but %q", text, shown)
		}
	}
}

func (p *typist) types(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.screen, keys); err != nil {
		p.t.Fatal(err)
	}
}

// leaves waits for the end of the process.
func (p *typist) leaves() {
	p.t.Helper()
	select {
	case err := <-p.exited:
		if err != nil {
			p.t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		p.t.Error("it does not end")
	}
}

// TestChatOnTerminal: Ctrl-C stops the answer but not the conversation, which keeps the part already printed.
// A second Ctrl-C, or Ctrl-D, quits.
func TestChatOnTerminal(t *testing.T) {
	const interrupt, end, prompt = "\x03", "\x04", ">>> "
	url, stop := startTalker()
	t.Cleanup(stop)
	for name, leave := range map[string]func(p *typist){
		"Ctrl-D": func(p *typist) { p.types(end) },
		"/quit":  func(p *typist) { p.types("/quit\n") },
		"Ctrl-C twice": func(p *typist) {
			p.types(interrupt)
			p.sees("(Ctrl-C again or Ctrl-D leaves)")
			p.sees(prompt)
			p.types(interrupt)
		},
		"Ctrl-C of an answer, and another": func(p *typist) {
			p.types("hang\n")
			p.sees("Once upon")
			p.types(interrupt)
			p.sees("(stopped)")
			p.sees(prompt)
			p.types(interrupt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := onTerminal(t, "chat", "--server", url)
			p.sees(prompt)
			p.types("hang\n")
			p.sees("Once upon")
			p.types(interrupt)
			p.sees("(stopped)")
			p.sees(prompt)
			p.types("Hello\n")
			p.sees("3 messages, the last: Hello\r\n")
			p.sees("[worker 9 · 2 attempts")
			p.sees(prompt)
			p.types("think\n")
			p.sees("\x1b[2mLet me see.\x1b[0m")
			p.sees("Done.")
			p.sees(prompt)
			p.types("escape\n")
			p.sees(`\x1b[31mred` + "\tand blue\r\n")
			p.sees(prompt)
			leave(p)
			p.leaves()
		})
	}
}
