package xfer_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/plane/xfer"
)

// childRole names the variable which makes this binary a writer or an owner in a process of its own:
// "writer shm", "owner tcp".
const childRole = "PENSTOCK_XFER_CHILD"

// patient are the limits of a plane in a process which may get no processor for long.
var patient = xfer.Config{Handshake: time.Hour, Silence: time.Hour}

// openPlane returns a new plane of a transport.
func openPlane(transport string) (interface {
	xfer.Plane
	io.Closer
}, error,
) {
	switch transport {
	case "shm":
		return xfer.NewShmPlane(patient)
	case "ucx":
		return xfer.NewUCXPlane(xfer.TCPConfig{Config: patient})
	}
	return xfer.NewTCPPlane(xfer.TCPConfig{Config: patient})
}

// runChild serves the lines of its standard input, one goroutine for each, until it is killed or the
// input ends.
//
// A writer reads "SEED DESCRIPTOR" and writes the pattern of the seed; it answers "SEED OUTCOME". An
// owner reads "SEED SIZE KILL": it answers "descriptor SEED DESCRIPTOR", kills itself when KILL
// bytes are verified, and answers "SEED OUTCOME" otherwise; OUTCOME is "corrupt" if the bytes are
// not the pattern.
func runChild(role string) error {
	kind, transport, _ := strings.Cut(role, " ")
	p, err := openPlane(transport)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- p.Run(ctx, func() { close(ready) }) }()
	<-ready
	var out sync.Mutex
	answer := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var all sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var seed uint64
		if kind == "writer" {
			var text string
			if _, err := fmt.Sscan(lines.Text(), &seed, &text); err != nil {
				return err
			}
			b, err := hex.DecodeString(text)
			if err != nil {
				return err
			}
			d, err := xfer.DecodeDescriptor(b)
			if err != nil {
				return err
			}
			all.Go(func() {
				err := xfer.Write(ctx, p, d, nil, fillPattern(make([]byte, d.Size), seed))
				answer("%d %v", seed, xfer.OutcomeOf(err))
			})
			continue
		}
		var size int
		var kill int64
		if _, err := fmt.Sscan(lines.Text(), &seed, &size, &kill); err != nil {
			return err
		}
		into := make([]byte, size)
		tr, err := p.Expect(xfer.Incoming{Into: [][]byte{into}, Lease: time.Hour, OnProgress: func(n int64) {
			if kill > 0 && n >= kill {
				self, _ := os.FindProcess(os.Getpid())
				_ = self.Kill()
			}
		}})
		if err != nil {
			return err
		}
		b, err := tr.Descriptor().AppendBinary(nil)
		if err != nil {
			return err
		}
		answer("descriptor %d %x", seed, b)
		all.Go(func() {
			_, err := tr.Wait(ctx)
			outcome := xfer.OutcomeOf(err)
			if err == nil && string(into) != string(fillPattern(make([]byte, size), seed)) {
				outcome = xfer.Corrupt
			}
			answer("%d %v", seed, outcome)
		})
	}
	all.Wait()
	cancel()
	return errors.Join(<-done, p.Close(), lines.Err())
}

// child is a process of this binary.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, role string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childRole+"="+role)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // the test has waited for it already, or failed
	})
	return c
}

// send writes a line to the child, which may be dead.
func (c *child) send(format string, args ...any) { _, _ = fmt.Fprintf(c.in, format+"\n", args...) }

// leftovers describes what transfers could leave in this process and on this host.
type leftovers struct {
	files   int    // open descriptors
	regions int    // mappings of regions
	shm     string // names in /dev/shm
	memory  string // of this process that is shared
}

func findLeftovers(t *testing.T) (l leftovers) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	l.files = len(fds)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	l.regions = strings.Count(string(maps), "memfd:penstock-xfer")
	names, err := filepath.Glob("/dev/shm/penstock-xfer*")
	if err != nil {
		t.Fatal(err)
	}
	l.shm = strings.Join(names, " ")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "RssShmem:") {
			l.memory = line
		}
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "memfd:") {
			l.regions++
		}
	}
	return l
}
