package natsd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestMend: when a stream has failed to write, the server is started anew at the
// same port over the same data, and connections of both kinds go on. That the
// server says so in this way is seen by filling a disk, which test/chaos does.
func TestMend(t *testing.T) {
	for _, listen := range []string{"", "127.0.0.1:0"} {
		s := start(t, Config{DataDir: t.TempDir(), Listen: listen})
		nc, js := connect(t, s)
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
			t.Fatal(err)
		}
		back := make(chan struct{}, 8)
		nc.SetReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
		url, before := s.URL(), s.current()
		log := &logger{out: slog.New(slog.DiscardHandler), hurt: s.hurt}
		for range 5 { // the server repeats itself
			log.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", "S", "no space left on device")
		}
		select {
		case <-back:
		case <-time.After(time.Minute):
			t.Fatal("the connection is not back")
		}
		if s.current() == before {
			t.Error("it is the server that cannot write")
		}
		if s.URL() != url {
			t.Errorf("it listens at %q, and before at %q", s.URL(), url)
		}
		ack, err := js.Publish(t.Context(), "s", []byte("new"))
		if err != nil || ack.Sequence != 2 {
			t.Errorf("publish: %+v, %v", ack, err)
		}
	}
}

// TestOtherErrorsMendNothing: other errors of the server are no reason to end it.
func TestOtherErrorsMendNothing(t *testing.T) {
	hurt := make(chan struct{}, 1)
	(&logger{out: slog.New(slog.DiscardHandler), hurt: hurt}).Errorf("consumer deadline exceeded")
	if len(hurt) != 0 {
		t.Error("it would be started anew")
	}
}

// TestMendWaitsForRoom: without room nothing is ended, and the wait ends with the
// program.
func TestMendWaitsForRoom(t *testing.T) {
	s := &Server{dir: filepath.Join(t.TempDir(), "gone"), log: slog.New(slog.DiscardHandler)}
	if probe(s.dir) == nil {
		t.Error("a directory that is not there has room")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.mend(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
