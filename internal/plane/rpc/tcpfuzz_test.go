package rpc

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
)

// appendFrame appends a whole frame.
func appendFrame(dst []byte, t frameType, id uint32, payload []byte) []byte {
	return append(appendFrameHeader(dst, t, id, len(payload)), payload...)
}

// session is what a client of this version may say in its time.
func session() []byte {
	b := appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1, token: "secret", frames: Credit, bytes: tcpWindow}, helloSetting{0x3a1a, []byte("grease")}))
	b = appendFrame(b, 0x9a, 7, []byte("grease"))
	b = appendFrame(b, frameCall, 1, append(appendCallHead(nil, &callHeader{size: 5, method: "echo"}), "short"...))
	b = appendFrame(b, framePing, 0, []byte("12345678"))
	b = appendFrame(b, frameCall, 2, append(appendCallHead(nil, &callHeader{size: 12, method: "echo", callMetadata: callMetadata{
		budget: time.Hour, parent: "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01", state: "vendor=a",
	}}), "in "...))
	b = appendFrame(b, frameCall, 3, appendCallHead(nil, &callHeader{method: "wait"}))
	b = appendFrame(b, frameBody, 2, []byte("two parts"))
	b = appendFrame(b, frameCredit, 3, appendCredit(nil, 1, 100))
	return appendFrame(b, frameCancel, 3, nil)
}

// serverSession is what a server may say to it.
func serverSession() []byte {
	b := appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1, maxBody: MaxBody, calls: 100}))
	b = appendFrame(b, frameData, 1, []byte("whole"))
	b = appendFrame(b, frameStart, 1, append([]byte{8, 0, 0, 0}, "in "...))
	b = appendFrame(b, framePing, 0, []byte("12345678"))
	b = appendFrame(b, frameMore, 1, []byte("parts"))
	b = appendFrame(b, frameGoaway, 0, appendGoaway(nil, 1, fault.New(fault.Unavailable, "the server is leaving")))
	return appendFrame(b, frameEnd, 1, appendFault(nil, fault.New(fault.Overloaded, "enough")))
}

// fuzzHandler echoes, or waits.
func fuzzHandler(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	if method == "wait" {
		<-ctx.Done()
		return nil
	}
	return send(body[:min(len(body), MaxFrame)])
}

// hear has a server hear said on a connection, to its end.
func hear(t *testing.T, said []byte) {
	p, err := NewTCPPlane(WithPatience(TCPConfig{ConnBodies: MaxBody, Bodies: MaxBody, Calls: 8}))
	if err != nil {
		t.Fatal(err)
	}
	s := p.newServer(fuzzHandler)
	client, server := net.Pipe()
	s.admitConn(server)
	var hearing sync.WaitGroup
	hearing.Go(func() { _, _ = io.Copy(io.Discard, client) })
	// An error is that the server has closed it.
	_, _ = client.Write(said)
	client.Close()
	hearing.Wait()
	s.conns.Wait()
	if n := s.bodies.used.Load(); n != 0 {
		t.Errorf("%d bytes of bodies are still counted", n)
	}
}

// FuzzTCPServer has a server hear anything, from the first byte on or after a
// greeting. It must not fall, hang, or keep anything.
func FuzzTCPServer(f *testing.F) {
	whole := session()
	greeted := len(appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1})))
	f.Add(false, whole)
	f.Add(true, whole[greeted:])
	f.Add(true, appendFrame(nil, frameCall, 1, appendCallHead(nil, &callHeader{size: MaxBody, method: "echo"})))
	f.Add(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(false, []byte{0x16, 3, 1, 2, 0, 1})
	f.Fuzz(func(t *testing.T, greet bool, said []byte) {
		if greet {
			said = append(appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1})), said...)
		}
		hear(t, said)
	})
}

// FuzzTCPClient has the caller of a call hear anything, from the first byte on or
// after a greeting.
func FuzzTCPClient(f *testing.F) {
	whole := serverSession()
	greeted := len(appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1, maxBody: MaxBody, calls: 100})))
	f.Add(false, whole)
	f.Add(true, whole[greeted:])
	f.Add(true, appendFrame(nil, frameStart, 1, []byte{0, 0, 0x80, 0, 1, 2, 3}))
	f.Add(false, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(false, []byte{0x15, 3, 1, 0, 2, 2, 70})
	f.Fuzz(func(t *testing.T, greet bool, said []byte) {
		if greet {
			said = append(appendFirstFrame(nil, frameHello, appendHello(nil, &hello{minVersion: 1, maxVersion: 1})), said...)
		}
		p, err := NewTCPPlane(WithPatience(TCPConfig{Answers: tcpWindow + MaxFrame}))
		if err != nil {
			t.Fatal(err)
		}
		var servers sync.WaitGroup
		p.dial = func(context.Context, string) (net.Conn, error) {
			client, server := net.Pipe()
			servers.Go(func() { _, _ = io.Copy(io.Discard, server) })
			servers.Go(func() {
				defer server.Close()
				_, _ = server.Write(said)
			})
			return client, nil
		}
		var came int
		err = p.Call(t.Context(), "tcp://fuzz:1", "m", []byte("body"), func(f []byte) error { came += len(f); return nil })
		if err == nil && came > len(said) {
			t.Errorf("%d bytes came of %d", came, len(said))
		}
		p.mu.Lock()
		peer := p.mu.peers["tcp://fuzz:1"]
		p.mu.Unlock()
		p.Close()
		servers.Wait()
		if peer != nil && peer.link != nil && peer.link.answerBudget.used.Load() != 0 {
			t.Errorf("%d bytes of answers are still counted", peer.link.answerBudget.used.Load())
		}
	})
}

// TestRecordedSession plays what a client of the first version said to a server
// of today, which must answer as one did then.
func TestRecordedSession(t *testing.T) {
	file := filepath.Join("testdata", "tcp", "v1-session.hex")
	if _, err := os.Stat(file); *update && os.IsNotExist(err) {
		if err := os.WriteFile(file, []byte(hex.EncodeToString(session())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewTCPPlane(WithPatience(TCPConfig{Token: "secret"}))
	if err != nil {
		t.Fatal(err)
	}
	s := p.newServer(fuzzHandler)
	client, server := net.Pipe()
	s.admitConn(server)
	var speaking sync.WaitGroup
	speaking.Go(func() { _, _ = client.Write(said) })
	if _, err := readGreeting(client); err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t: t, conn: client}
	got := map[uint32]string{}
	pongs := 0
	for pongs == 0 || !strings.HasSuffix(got[1], ".") || !strings.HasSuffix(got[2], ".") {
		typ, id, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch typ {
		case framePong:
			if pongs++; string(payload) != "12345678" {
				t.Errorf("the pong is %q", payload)
			}
		case frameData:
			got[id] += string(payload)
		case frameEnd:
			if len(payload) != 0 {
				t.Errorf("call %d ended with % x", id, payload)
			}
			got[id] += "."
		}
	}
	if got[1] != "short." || got[2] != "in two parts." || len(got) != 2 {
		t.Errorf("the answers are %v", got)
	}
	client.Close()
	speaking.Wait()
	s.conns.Wait()
}
