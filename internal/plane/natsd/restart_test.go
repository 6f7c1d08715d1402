package natsd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
)

// TestMend: when a stream has failed to write, the server is restarted at the same port with the
// same data, and connections of both kinds continue. test/chaos fills a disk to check that the
// server really logs the failure like this.
func TestMend(t *testing.T) {
	for _, listen := range []string{"", "127.0.0.1:0"} {
		var replaced atomic.Int32
		log := logFunc(func(text string) {
			if strings.Contains(text, "nats cannot write") {
				replaced.Add(1)
			}
		})
		s := start(t, Config{DataDir: t.TempDir(), Listen: listen, Log: log})
		nc, js := connect(t, s)
		if _, err := js.CreateStream(fixturetest.PatientContext(t), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(fixturetest.PatientContext(t), "s", []byte("kept")); err != nil {
			t.Fatal(err)
		}
		back := make(chan struct{}, 8)
		nc.SetReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
		url, before := s.URL(), s.currentServer()
		says := func() {
			before.log.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", "S", "no space left on device")
		}
		for range 5 { // the server repeats itself
			says()
		}
		select {
		case <-back:
		case <-time.After(time.Minute):
			t.Fatal("the connection is not back")
		}
		says() // at last, after it was replaced
		if s.currentServer() == before {
			t.Error("it is the server that cannot write")
		}
		if s.URL() != url {
			t.Errorf("it listens at %q, and before at %q", s.URL(), url)
		}
		ack, err := js.Publish(fixturetest.PatientContext(t), "s", []byte("new"))
		if err != nil || ack.Sequence != 2 {
			t.Errorf("publish: %+v, %v", ack, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := replaced.Load(); n != 1 {
			t.Errorf("the server was replaced %d times, want once", n)
		}
	}
}

// logFunc returns a log whose lines f gets, with their attributes.
func logFunc(f func(text string)) *slog.Logger { return slog.New(logHandler(f)) }

type logHandler func(text string)

func (logHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h logHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h logHandler) WithGroup(string) slog.Handler          { return h }

func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	h(text)
	return nil
}

// TestStartingServerTakesNoConnection: a connection within the process that came back
// before the streams are there would find none.
func TestStartingServerTakesNoConnection(t *testing.T) {
	var replacing atomic.Pointer[Server]
	starting := 0
	s := start(t, Config{DataDir: t.TempDir(), Log: logFunc(func(text string) {
		if s := replacing.Load(); s != nil && strings.Contains(text, "Starting JetStream") {
			starting++
			conn, err := s.InProcessConn()
			if err == nil {
				conn.Close()
				t.Error("a server that starts took a connection")
			}
		}
	})})
	replacing.Store(s)
	if err := s.replaceServer(); err != nil {
		t.Fatal(err)
	}
	if starting != 1 {
		t.Errorf("seen to start %d times, want once", starting)
	}
	connect(t, s)
}

// TestOtherErrorsMendNothing: other errors of the server are no reason to end it.
func TestOtherErrorsMendNothing(t *testing.T) {
	log := newServerLogger(slog.New(slog.DiscardHandler))
	log.Errorf("consumer deadline exceeded")
	if len(log.writeFailed) != 0 {
		t.Error("it would be started anew")
	}
}

// TestMendWaitsForRoom: without room nothing is ended, and the wait ends with the
// program.
func TestMendWaitsForRoom(t *testing.T) {
	s := &Server{dir: filepath.Join(t.TempDir(), "gone"), log: slog.New(slog.DiscardHandler)}
	if probeSpace(s.dir) == nil {
		t.Error("a directory that is not there has room")
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	cancel()
	if err := s.restartWhenWritable(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
