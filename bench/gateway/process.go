package main

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

// ticks is the unit of the times in /proc on every Linux that there is.
const ticks = time.Second / 100

// child is a process of this measurement.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	url string
}

// start starts a process that says where it is in the first line of its standard output:
// as a URL, or as an object with a field "url". It ends with its standard input.
func start(ctx context.Context, log io.Writer, argv ...string) (*child, error) {
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
	c := &child{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("%s ended before it was ready: %w", argv[0], err)
	}
	c.url = strings.TrimSpace(line)
	if strings.HasPrefix(c.url, "{") {
		var ready struct {
			URL string `json:"url"`
		}
		if err := json.Unmarshal([]byte(line), &ready); err != nil {
			c.stop()
			return nil, err
		}
		c.url = ready.URL
	}
	return c, nil
}

// stop ends the process and waits for it.
func (c *child) stop() {
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

// cpu returns the time that the process has computed for, in and for it.
func (c *child) cpu() (time.Duration, error) {
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
		sum += time.Duration(n) * ticks
	}
	return sum, nil
}
