package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTranscripts plays conversations, byte for byte. A file of testdata is lines of
//
//	socket TYPE [argument]   the socket under test, its prefixes or its identity
//	peer HEX                 what its peer sends
//	us HEX                   what the socket sends, no more and no less
//	got FRAME…               a message that the socket hands over, quoted frames in hex
//	send FRAME…              has the socket send a message
//	leave                    the peer says no more
//	refused TEXT             the socket closes the connection, for a reason with TEXT in it
//
// in the order of time. GREETING stands for the greeting of ZMTP 3.1 with NULL, "…"
// for bytes of text; # begins a comment.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			play(t, string(script))
		})
	}
}

// stage is a socket under test and the peer that a transcript plays.
type stage struct {
	conn   net.Conn // the peer's end
	got    chan [][]byte
	send   func(frames [][]byte) error
	states states
}

func play(t *testing.T, script string) {
	var s *stage
	lines := bufio.NewScanner(strings.NewReader(script))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		at := fmt.Sprintf("line %d: %s", n, strings.TrimSpace(lines.Text()))
		switch verb {
		case "":
		case "socket":
			s = setStage(t, strings.Fields(rest))
		case "peer":
			if _, err := s.conn.Write(unhex(t, rest)); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		case "us":
			want := unhex(t, rest)
			got := make([]byte, len(want))
			if k, err := io.ReadFull(s.conn, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: got %x, %v", at, got[:k], err)
			}
		case "got":
			got := <-s.got
			var want [][]byte
			for f := range strings.FieldsSeq(rest) {
				want = append(want, unhex(t, f))
			}
			if fmt.Sprintf("%x", got) != fmt.Sprintf("%x", want) {
				t.Fatalf("%s: got %x", at, got)
			}
		case "send":
			var frames [][]byte
			for f := range strings.FieldsSeq(rest) {
				frames = append(frames, unhex(t, f))
			}
			if err := s.send(frames); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		case "leave":
			if err := s.conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		case "refused":
			if b, err := io.ReadAll(s.conn); len(b) > 0 || err != nil {
				t.Fatalf("%s: got %x, %v", at, b, err)
			}
			var st ConnState
			for st = range s.states {
				if st.Kind != Connected {
					break
				}
			}
			if st.Err == nil || !strings.Contains(st.Err.Error(), rest) {
				t.Fatalf("%s: %v", at, st.Err)
			}
		default:
			t.Fatalf("%s: unknown verb", at)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	s = strings.ReplaceAll(s, "GREETING", "ff0000000000000000 7f 03 01"+hex.EncodeToString([]byte("NULL"))+strings.Repeat("00", 16+1+31))
	var b []byte
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			b = append(b, part...)
			continue
		}
		p, err := hex.DecodeString(strings.Join(strings.Fields(part), ""))
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		b = append(b, p...)
	}
	return b
}

// setStage makes a socket that listens, and connects to it as a peer.
func setStage(t *testing.T, args []string) *stage {
	ln, err := Listen(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{got: make(chan [][]byte, 16), states: newStates()}
	o := Options{OnState: s.states.tell, Linger: -1, MaxMessage: 10_000, MaxFrames: 8, HandshakeTimeout: patience}
	ctx, cancel := context.WithCancel(context.Background())
	var wait func()
	switch args[0] {
	case "SUB":
		done := make(chan error, 1)
		go func() {
			done <- SubscribeListen(ctx, ln, args[1:], o, func(frames [][]byte) error {
				s.got <- cloneMessage(frames)
				return nil
			})
		}()
		wait = func() {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	case "PUB":
		p := servePub(ln, o)
		s.send = func(frames [][]byte) error {
			if err := p.AwaitSubscribers(ctx, 1); err != nil {
				return err
			}
			p.Send(frames...)
			return nil
		}
		wait = func() { _ = p.Close() }
	case "ROUTER":
		r := serveRouter(ln, o)
		received := make(chan struct{})
		go func() {
			defer close(received)
			for {
				id, frames, err := r.Recv(ctx)
				if err != nil {
					return
				}
				s.got <- append([][]byte{id}, frames...)
			}
		}()
		s.send = func(frames [][]byte) error { return r.Send(frames[0], frames[1:]...) }
		wait = func() { _ = r.Close(); <-received }
	case "DEALER": // the one that dials
		o.Identity = strings.Join(args[1:], " ")
		made := make(chan *Dealer, 1)
		go func() {
			d, err := DialDealer(ctx, EndpointOf(ln.Addr()), o)
			if err != nil {
				s.states <- ConnState{Kind: Refused, Err: err}
			}
			made <- d
		}()
		s.conn, err = ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		var d *Dealer
		s.send = func(frames [][]byte) error {
			if d = <-made; d == nil {
				return errors.New("no connection")
			}
			made <- d
			return d.Send(ctx, frames...)
		}
		wait = func() {
			if d := <-made; d != nil {
				_ = d.Close()
			}
			_ = ln.Close()
		}
	}
	if s.conn == nil {
		if s.conn, err = net.Dial("tcp", ln.Addr().String()); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() {
		_ = s.conn.Close()
		cancel()
		wait()
	})
	return s
}
