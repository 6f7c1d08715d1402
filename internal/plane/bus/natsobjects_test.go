package bus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

func newObjects(t *testing.T, nc *nats.Conn, maxBytes int64) *NATSObjects {
	t.Helper()
	o, err := NewNATSObjects(nc, ArchiveConfig{}, "things", maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// objectFollower records what a follower is told.
type objectFollower struct {
	told chan string
	stop func()
}

// follow returns a follower which has been told all objects of now.
func (o *NATSObjects) follow(t *testing.T) (f objectFollower, all []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f.told = make(chan string, 1000)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- o.FollowObjects(ctx, func(name string, size int64) { f.told <- fmt.Sprintf("%s %d", name, size) }, func() { close(ready) })
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("follow: %v", err)
		}
	})
	t.Cleanup(f.stop)
	<-ready
	for len(f.told) > 0 {
		all = append(all, <-f.told)
	}
	return f, all
}

// TestNATSObjects: what one process puts others get and are told of, in the order of its last use; it is put once, is
// gone when one deletes it, and leaves nothing.
func TestNATSObjects(t *testing.T) {
	server := startServer(t, natsd.Config{})
	one, two := newObjects(t, natsdtest.Connect(t, server), 64<<20), newObjects(t, natsdtest.Connect(t, server), 64<<20)
	ctx, large := fixturetest.PatientContext(t), bytes.Repeat([]byte("0123456789"), 100_000)
	if _, err := two.GetObject(ctx, "a", 10); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("of an empty bucket: %v", err)
	}
	follower, all := two.follow(t)
	if len(all) > 0 {
		t.Errorf("an empty bucket has %v", all)
	}
	for name, data := range map[string][]byte{"a": large, "b": []byte("b"), "c": {}} {
		if err := one.PutObject(ctx, name, data); err != nil {
			t.Fatal(err)
		}
		if got := <-follower.told; got != fmt.Sprintf("%s %d", name, len(data)) {
			t.Errorf("told %s", got)
		}
		if got, err := two.GetObject(ctx, name, int64(len(data))); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s has %d bytes, %v", name, len(got), err)
		}
		if err := two.PutObject(ctx, name, []byte("other")); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("a second %s: %v", name, err)
		}
	}
	if _, err := two.GetObject(ctx, "a", int64(len(large))-1); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("beyond the limit: %v", err)
	}
	for _, name := range []string{"c", "a", "b", "none"} {
		if err := two.TouchObject(ctx, name); err != nil {
			t.Fatal(err)
		}
		if name != "none" {
			<-follower.told
		}
	}
	late, all := one.follow(t)
	if want := []string{"c 0", "a 1000000", "b 1"}; !slices.Equal(all, want) {
		t.Errorf("by last use: %v, want %v", all, want)
	}
	for range 2 {
		if err := two.DeleteObject(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []objectFollower{follower, late} {
		if got := <-f.told; got != "a -1" {
			t.Errorf("told %s", got)
		}
	}
	if _, err := one.GetObject(ctx, "a", 1<<30); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("deleted: %v", err)
	}
	if n := one.archive.chunks(t); len(n) != 1 {
		t.Errorf("chunks of %v are left, want those of b", n)
	}
	if err := one.PutObject(ctx, "a", []byte("new")); err != nil {
		t.Errorf("put again: %v", err)
	}
	if got, err := two.GetObject(ctx, "a", 3); err != nil || string(got) != "new" {
		t.Errorf("put again it is %q, %v", got, err)
	}
	if got := <-follower.told; got != "a 3" {
		t.Errorf("told %s", got)
	}
}

// TestNATSObjectsRace: of several which put one object one does, and what the others sent is removed.
func TestNATSObjectsRace(t *testing.T) {
	server := startServer(t, natsd.Config{})
	var all []*NATSObjects
	for range 4 {
		all = append(all, newObjects(t, natsdtest.Connect(t, server), 64<<20))
	}
	data := bytes.Repeat([]byte("x"), 3*chunkSize)
	errs := make(chan error, len(all))
	for _, o := range all {
		go func() { errs <- o.PutObject(fixturetest.PatientContext(t), "a", data) }()
	}
	put := 0
	for range all {
		switch err := <-errs; {
		case err == nil:
			put++
		case fault.CodeOf(err) != fault.Conflict:
			t.Error(err)
		}
	}
	if n := all[0].archive.chunks(t); put != 1 || len(n) != 1 {
		t.Errorf("%d have put it, chunks of %v are left", put, n)
	}
	if got, err := all[3].GetObject(fixturetest.PatientContext(t), "a", 1<<30); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestNATSObjectsDamage: an object whose chunks are missing or other ones is Conflict, and can be deleted. Chunks of a
// writer which crashed are removed when another process begins to follow.
func TestNATSObjectsDamage(t *testing.T) {
	o := newObjects(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), 64<<20)
	if err := o.PutObject(fixturetest.PatientContext(t), "a", bytes.Repeat([]byte("x"), 3*chunkSize)); err != nil {
		t.Fatal(err)
	}
	for subject := range o.archive.chunks(t) {
		s, err := o.archive.js.Stream(fixturetest.PatientContext(t), o.archive.streamName())
		if err != nil {
			t.Fatal(err)
		}
		last, err := s.GetLastMsgForSubject(fixturetest.PatientContext(t), subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteMsg(fixturetest.PatientContext(t), last.Sequence); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.GetObject(fixturetest.PatientContext(t), "a", 1<<30); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("with a chunk missing: %v", err)
	}
	if err := o.DeleteObject(fixturetest.PatientContext(t), "a"); err != nil {
		t.Error(err)
	}
	leave(t, o.archive, "dead", 3)
	o.archive.abandonedAge = 0
	o.follow(t)
	if n := o.archive.chunks(t); len(n) != 0 {
		t.Errorf("chunks of %v are left", n)
	}
}

// TestNATSObjectsFull: a full bucket refuses an object, and keeps nothing of it.
func TestNATSObjectsFull(t *testing.T) {
	o := newObjects(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), 2<<20)
	if err := o.PutObject(fixturetest.PatientContext(t), "a", make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := o.PutObject(fixturetest.PatientContext(t), "b", make([]byte, 1<<20)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("beyond the size: %v", err)
	}
	if n := o.archive.chunks(t); len(n) != 1 {
		t.Errorf("chunks of %v are left", n)
	}
	if err := o.DeleteObject(fixturetest.PatientContext(t), "a"); err != nil {
		t.Error(err)
	}
	if err := o.PutObject(fixturetest.PatientContext(t), "b", make([]byte, 1<<20)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
