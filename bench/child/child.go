// Package child runs the processes of a measurement: each reports on its standard output when it is ready,
// and ends with its standard input or at an interrupt.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc on every Linux.
const clockTick = time.Second / 100

// Process is a running process.
type Process struct {
	// URL is the address in its first line, FirstLine.
	URL, FirstLine string

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// StartProcess starts a process which prints its address in the first line of its standard output: as a URL,
// or as an object with a field "url". It ends with its standard input.
func StartProcess(ctx context.Context, log io.Writer, argv ...string) (*Process, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Process{cmd: cmd, in: in, out: bufio.NewReader(out)}
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.StopProcess()
		return nil, fmt.Errorf("%s ended before it was ready: %w", argv[0], err)
	}
	c.FirstLine = strings.TrimSpace(line)
	c.URL = c.FirstLine
	if strings.HasPrefix(c.URL, "{") {
		var ready struct {
			URL string `json:"url"`
		}
		if err := json.Unmarshal([]byte(line), &ready); err != nil {
			c.StopProcess()
			return nil, err
		}
		c.URL = ready.URL
	}
	return c, nil
}

// SendLine writes a line to the process's standard input and returns the line which it answers.
func (c *Process) SendLine(line string) (string, error) {
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// StopProcess stops the process and waits for it.
func (c *Process) StopProcess() {
	_ = c.in.Close()
	_ = c.cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() { defer close(done); _ = c.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-done
	}
}

// CPUTime returns the user and system time of the process.
func (c *Process) CPUTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat has another form than this program knows")
	}
	var sum time.Duration
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * clockTick
	}
	return sum, nil
}
