package zmtp

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// peer is a process with sockets of libzmq.
type peer struct {
	t       *testing.T
	process *os.Process
	in      io.Writer
	out     *bufio.Scanner
	sockets int
}

// args are the fields of a command.
type args map[string]any

// answer is what the process says to one.
type answer struct {
	Error    string
	Libzmq   string
	Pyzmq    string
	Endpoint string
	Event    string
	Frames   []string
	Quiet    bool
	First    uint64
	embeddings
}

// startPeer starts the Python that zmtp.sh names.
func startPeer(t *testing.T) *peer {
	t.Helper()
	python := os.Getenv("PENSTOCK_ZMQ_PYTHON")
	if python == "" {
		t.Fatal("PENSTOCK_ZMQ_PYTHON is not set: run test/interop/zmtp.sh, which installs libzmq for Python")
	}
	cmd := exec.Command(python, "-B", "peer.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, process: cmd.Process, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 64<<20)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// ask has the process do something, and fails the test if it cannot.
func (p *peer) ask(op string, a args) answer {
	p.t.Helper()
	p.tell(op, a)
	return p.answer(op)
}

// tell is ask without waiting for the answer.
func (p *peer) tell(op string, a args) {
	p.t.Helper()
	if a == nil {
		a = args{}
	}
	a["op"] = op
	line, err := json.Marshal(a)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) answer(op string) answer {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("%s: the peer ended: %v", op, p.out.Err())
	}
	var got answer
	if err := json.Unmarshal(p.out.Bytes(), &got); err != nil {
		p.t.Fatal(err)
	}
	if got.Error != "" {
		p.t.Fatalf("%s: %s", op, got.Error)
	}
	return got
}

// socket is one socket of the process.
type socket struct {
	p  *peer
	id string
}

// options has options of libzmq by their names.
type options map[string]any

func (p *peer) socket(kind string, o options) *socket {
	p.t.Helper()
	p.sockets++
	s := &socket{p, fmt.Sprint(p.sockets)}
	p.ask("socket", args{"id": s.id, "type": kind, "opts": o})
	return s
}

func (s *socket) ask(op string, a args) answer {
	s.p.t.Helper()
	if a == nil {
		a = args{}
	}
	a["id"] = s.id
	return s.p.ask(op, a)
}

func (s *socket) tell(op string, a args) {
	s.p.t.Helper()
	a["id"] = s.id
	s.p.tell(op, a)
}

func (s *socket) bind(endpoint string) string {
	s.p.t.Helper()
	return s.ask("bind", args{"endpoint": endpoint}).Endpoint
}

func (s *socket) connect(endpoint string) {
	s.p.t.Helper()
	s.ask("connect", args{"endpoint": endpoint})
}

func (s *socket) send(frames ...string) {
	s.p.t.Helper()
	hexed := make([]string, len(frames))
	for i, f := range frames {
		hexed[i] = hex.EncodeToString([]byte(f))
	}
	s.ask("send", args{"frames": hexed})
}

func (s *socket) recv() []string {
	s.p.t.Helper()
	frames := s.ask("recv", nil).Frames
	for i, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			s.p.t.Fatal(err)
		}
		frames[i] = string(b)
	}
	return frames
}

func (s *socket) expect(want ...string) {
	s.p.t.Helper()
	if got := s.recv(); strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
		s.p.t.Fatalf("libzmq got %q, want %q", got, want)
	}
}

// awaitEvent waits until the socket's connection is "connected" or "disconnected".
func (s *socket) awaitEvent(want string) {
	s.p.t.Helper()
	for {
		switch got := s.ask("event", nil).Event; got {
		case want:
			return
		case "":
			s.p.t.Fatalf("never %s", want)
		}
	}
}

// within is how long a test waits for what must come.
const within = 20 * time.Second
