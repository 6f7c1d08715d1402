package zmtp

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"
)

func TestMetadata(t *testing.T) {
	var h peerInfo
	meta := appendProperty(appendProperty(nil, "SOCKET-TYPE", "SUB"), "identity", "\x01me")
	if err := h.readMetadata(meta); err != nil || h.socket != "SUB" || h.identity != "\x01me" {
		t.Errorf("%+v, %v", h, err)
	}
	for n := range meta {
		if n == len(appendProperty(nil, "SOCKET-TYPE", "SUB")) || n == 0 {
			continue // whole properties
		}
		if err := new(peerInfo).readMetadata(meta[:n]); err == nil {
			t.Errorf("%d of %d bytes are read as whole", n, len(meta))
		}
	}
	if err := h.readMetadata(appendProperty(nil, "Identity", strings.Repeat("x", 256))); err == nil {
		t.Error("an identity of 256 bytes is accepted")
	}
}

// stream is a connection whose peer said all that it ever says.
type stream struct {
	net.Conn
	in *bytes.Reader
}

func (s *stream) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *stream) Write(p []byte) (int, error)      { return len(p), nil }
func (s *stream) Close() error                     { return nil }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
func (s *stream) RemoteAddr() net.Addr             { return nil }

// FuzzConnection lets a peer say anything, from its greeting on, to each type of
// socket: it must not panic, hand over what it did not say, or keep too much.
func FuzzConnection(f *testing.F) {
	greeting := appendGreeting(nil)
	pub := append(bytes.Clone(greeting), appendReady(nil, typePub, "")...)
	f.Add([]byte{}, uint8(0))
	f.Add(greeting, uint8(0))
	f.Add(append(bytes.Clone(pub), appendMessage(nil, strs("a", "b"))...), uint8(0))
	f.Add(append(bytes.Clone(pub), appendCommand(nil, "PING", "\x00\x00x")...), uint8(0))
	f.Add(append(append(bytes.Clone(greeting), appendReady(nil, typeSub, "")...), appendCommand(nil, "SUBSCRIBE", "x")...), uint8(1))
	f.Add(append(append(bytes.Clone(greeting), appendReady(nil, typeDealer, "id")...), appendMessage(nil, strs("", "x"))...), uint8(2))
	f.Fuzz(func(t *testing.T, said []byte, socket uint8) {
		o := Options{MaxMessage: 1000, MaxFrames: 4}.withDefaults()
		l, err := handshake(&stream{in: bytes.NewReader(said)}, connSide(socket>>7), []string{typeSub, typePub, typeRouter}[socket%3], &o)
		if err != nil {
			return
		}
		l.control = func(command []byte) error { return nil }
		wants := subscriptionCounts{}
		for {
			frames, c, err := l.nextMessage()
			if err != nil {
				break
			}
			total := 0
			for _, frame := range frames {
				total += len(frame)
			}
			if total > 1000 || len(frames) > 4 || !bytes.Contains(said, bytes.Join(frames[:min(1, len(frames))], nil)) {
				t.Fatalf("handed over %x", frames)
			}
			op, topic := parseSubscription(frames, c)
			if op != opNone && wants.applyOp(op, topic) == nil && wants.buildFilter().matchesTopic([]byte("topic")) != expect(wants, "topic") {
				t.Fatalf("the filter of %v is wrong", wants)
			}
		}
		if len(l.rd.buf) > fullBuffer || len(wants) > maxPrefixes {
			t.Fatalf("keeps %d bytes and %d prefixes", len(l.rd.buf), len(wants))
		}
	})
}

// expect is the naive twin of filter.matches.
func expect(w subscriptionCounts, topic string) bool {
	for p := range w {
		if strings.HasPrefix(topic, p) {
			return true
		}
	}
	return false
}

func TestPrefixesAreBounded(t *testing.T) {
	w := subscriptionCounts{}
	for i := range maxPrefixes {
		if err := w.applyOp(opSubscribe, []byte{byte(i), byte(i >> 8)}); err != nil {
			t.Fatal(i, err)
		}
	}
	if w.applyOp(opSubscribe, []byte("more")) == nil || w.applyOp(opSubscribe, []byte{0, 0}) != nil {
		t.Error("the bound is not the number of different prefixes")
	}
	if (subscriptionCounts{}).applyOp(opSubscribe, make([]byte, maxPrefix+1)) == nil {
		t.Error("a prefix over the bound is accepted")
	}
}
