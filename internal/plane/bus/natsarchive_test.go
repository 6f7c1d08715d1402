package bus

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

func newArchive(t *testing.T, nc *nats.Conn, cfg ArchiveConfig) *NATSArchive {
	t.Helper()
	a, err := NewNATSArchive(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The library's own object store reads what we put and lists no more and no less.
func TestNATSArchiveIsAnObjectStore(t *testing.T) {
	a := newArchive(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), ArchiveConfig{})
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	for range 2 {
		if err := a.Put(fixturetest.PatientContext(t), "a.b", data); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Put(fixturetest.PatientContext(t), "gone", data); err != nil {
		t.Fatal(err)
	}
	if err := a.Delete(fixturetest.PatientContext(t), "gone"); err != nil {
		t.Fatal(err)
	}
	store, err := a.js.ObjectStore(fixturetest.PatientContext(t), "penstock_archive")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := store.GetBytes(fixturetest.PatientContext(t), "a.b"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the library reads %d bytes, %v", len(got), err)
	}
	if list, err := store.List(fixturetest.PatientContext(t)); err != nil || len(list) != 1 {
		t.Errorf("the library lists %v, %v", list, err)
	}
	// Nothing is left of what was replaced and deleted: four chunks and a description.
	info, err := store.Status(fixturetest.PatientContext(t))
	if err != nil || info.Size() > uint64(len(data))+4<<10 {
		t.Errorf("the bucket has %d bytes, %v, the object %d", info.Size(), err, len(data))
	}
	if _, err := store.PutBytes(fixturetest.PatientContext(t), "theirs", data); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Get(fixturetest.PatientContext(t), "theirs"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("of the library's object %d bytes, %v", len(got), err)
	}
}

// slowJetStream does not answer some requests in time.
type slowJetStream struct {
	jetstream.JetStream
	late    int // requests for a consumer before one that is answered
	refused int // of those
	made    int // consumers
}

func (s *slowJetStream) CreateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if s.refused < s.late {
		s.refused++
		return nil, context.DeadlineExceeded
	}
	s.refused = 0
	s.made++
	return s.JetStream.CreateConsumer(ctx, stream, cfg)
}

// A server which does not answer in time is asked again, and at last given up.
func TestNATSArchiveSlowServer(t *testing.T) {
	a := newArchive(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), ArchiveConfig{})
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	if err := a.Put(fixturetest.PatientContext(t), "a", data); err != nil {
		t.Fatal(err)
	}
	slow := &slowJetStream{JetStream: a.js, late: maxUnanswered - 1}
	a.js = slow
	if got, err := a.Get(fixturetest.PatientContext(t), "a"); err != nil || !bytes.Equal(got, data) || slow.made != 2 {
		t.Errorf("%d bytes of %d, %v; %d consumers", len(got), len(data), err, slow.made)
	}
	if list, err := a.List(fixturetest.PatientContext(t), ""); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	slow.late = maxUnanswered
	if _, err := a.Get(fixturetest.PatientContext(t), "a"); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v, want Unavailable", err)
	}
}

// leave writes the chunks of an object whose writer dies before it is one.
func leave(t *testing.T, a *NATSArchive, id string, chunks int) {
	t.Helper()
	for range chunks {
		if _, err := a.js.Publish(fixturetest.PatientContext(t), a.chunkSubject(id), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *NATSArchive) chunks(t *testing.T) map[string]uint64 {
	t.Helper()
	s, err := a.js.Stream(fixturetest.PatientContext(t), a.streamName())
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(fixturetest.PatientContext(t), jetstream.WithSubjectFilter(a.chunkSubject("*")))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects
}

// A crashed writer leaves no object. The next writer removes its chunks once they can no longer be
// in use.
func TestNATSArchiveWriterDies(t *testing.T) {
	a := newArchive(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), ArchiveConfig{})
	if err := a.Put(fixturetest.PatientContext(t), "whole", []byte("x")); err != nil {
		t.Fatal(err)
	}
	leave(t, a, "dead", 3)
	if list, err := a.List(fixturetest.PatientContext(t), ""); err != nil || len(list) != 1 {
		t.Errorf("objects: %v, %v, want the whole one", list, err)
	}
	if err := a.Put(fixturetest.PatientContext(t), "second", []byte("y")); err != nil {
		t.Fatal(err)
	}
	if n := a.chunks(t)[a.chunkSubject("dead")]; n != 3 {
		t.Errorf("%d chunks of a writer that may be alive, want 3", n)
	}
	a.abandonedAge = 0
	if err := a.Put(fixturetest.PatientContext(t), "third", []byte("z")); err != nil {
		t.Fatal(err)
	}
	if got := a.chunks(t); len(got) != 3 || got[a.chunkSubject("dead")] != 0 {
		t.Errorf("chunks left: %v", got)
	}
	for name, want := range map[string]string{"whole": "x", "second": "y", "third": "z"} {
		if got, err := a.Get(fixturetest.PatientContext(t), name); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}

// Chunks that are missing, too many or other ones are told at once, not waited for.
func TestNATSArchiveDamaged(t *testing.T) {
	a := newArchive(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), ArchiveConfig{})
	data := bytes.Repeat([]byte("x"), 3*chunkSize)
	for what, damage := range map[string]func(jetstream.Stream, string) error{
		"no chunk": func(s jetstream.Stream, subject string) error {
			return s.Purge(fixturetest.PatientContext(t), jetstream.WithPurgeSubject(subject))
		},
		"the last chunk alone": func(s jetstream.Stream, subject string) error {
			return s.Purge(fixturetest.PatientContext(t), jetstream.WithPurgeSubject(subject), jetstream.WithPurgeKeep(1))
		},
		"a chunk more": func(_ jetstream.Stream, subject string) error {
			_, err := a.js.Publish(fixturetest.PatientContext(t), subject, []byte("y"))
			return err
		},
		"another chunk": func(s jetstream.Stream, subject string) error {
			if err := s.Purge(fixturetest.PatientContext(t), jetstream.WithPurgeSubject(subject), jetstream.WithPurgeKeep(2)); err != nil {
				return err
			}
			_, err := a.js.Publish(fixturetest.PatientContext(t), subject, bytes.Repeat([]byte("y"), chunkSize))
			return err
		},
	} {
		if err := a.Put(fixturetest.PatientContext(t), "o", data); err != nil {
			t.Fatal(err)
		}
		s, err := a.js.Stream(fixturetest.PatientContext(t), a.streamName())
		if err != nil {
			t.Fatal(err)
		}
		for subject := range a.chunks(t) {
			if err := damage(s, subject); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := a.Get(fixturetest.PatientContext(t), "o"); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %d bytes, %v, want that it is damaged", what, len(got), err)
		}
	}
}

// What an object says of its size takes no memory before there is as much.
func TestNATSArchiveClaims(t *testing.T) {
	a := newArchive(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), ArchiveConfig{})
	if err := a.Put(fixturetest.PatientContext(t), "o", []byte("x")); err != nil {
		t.Fatal(err)
	}
	all, err := a.listObjects(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	info := all["o"]
	for _, size := range []uint64{MaxObject, MaxObject + 1, math.MaxUint64} {
		info.Size = size
		if err := a.publishObject(fixturetest.PatientContext(t), info, nil); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := a.Get(fixturetest.PatientContext(t), "o")
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 || (err == nil) != (size == MaxObject) {
			t.Errorf("one byte that says it is %d: %v, %d bytes were allocated", size, err, took)
		}
	}
}

// Objects outlive the server; without it nothing hangs.
func TestNATSArchiveServerRestart(t *testing.T) {
	cfg := natsd.Config{DataDir: t.TempDir(), Listen: fixturetest.ReserveAddr(t)}
	s := startServer(t, cfg)
	nc := natsdtest.Connect(t, s)
	a := newArchive(t, nc, ArchiveConfig{})
	if err := a.Put(fixturetest.PatientContext(t), "o", []byte("x")); err != nil {
		t.Fatal(err)
	}
	back := nc.StatusChanged(nats.CONNECTED)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Put(fixturetest.PatientContext(t), "o", []byte("y")); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("put without a server: %v, want Unavailable", err)
	}
	if _, err := a.Get(fixturetest.PatientContext(t), "o"); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("get without a server: %v, want Unavailable", err)
	}
	startServer(t, cfg)
	await(t, "the connection", back)
	if got, err := a.Get(fixturetest.PatientContext(t), "o"); err != nil || string(got) != "x" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
}

// A lock whose holder dies runs out; one that is held does not, however long. A machine which cannot renew it in time
// gets a longer TTL; on the slowest ones the second is not found out.
func TestNATSLockRunsOut(t *testing.T) {
	s := startServer(t, natsd.Config{})
	for ttl := time.Second; ttl < time.Minute && !holdBeyondTTL(t, s, ttl); ttl *= 4 {
		t.Logf("a TTL of %v is too short for this machine", ttl)
	}
}

// holdBeyondTTL takes the lock of a holder that died, holds it for longer than a key lasts, and reports whether the
// machine was fast enough.
func holdBeyondTTL(t *testing.T, s *natsd.Server, ttl time.Duration) bool {
	cfg := ArchiveConfig{Prefix: fmt.Sprint("ttl-", ttl/time.Second), TTL: ttl}
	a, other := newArchive(t, natsdtest.Connect(t, s), cfg), newArchive(t, natsdtest.Connect(t, s), cfg)
	// A holder that dies: it takes the lock and never renews it.
	dead := &natsLock{archive: other, key: "l"}
	ctx := fixturetest.PatientContext(t)
	if err := dead.acquireLock(ctx); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		held, longest := false, time.Duration(0) // from before one attempt of the other to after it or the next
		err := a.Lock(ctx, "l", func(ctx context.Context, token uint64) error {
			held = true
			if token <= dead.token {
				t.Errorf("token %d after %d", token, dead.token)
			}
			last := time.Now()
			for until := last.Add(ttl * 3 / 2); last.Before(until); <-tick.C {
				err := other.Lock(ctx, "l", func(context.Context, uint64) error { return nil })
				now := time.Now()
				longest, last = max(longest, now.Sub(last)), now
				if fault.CodeOf(err) != fault.Conflict {
					return fault.New(fault.Conflict, "another process took the lock: %v", err)
				}
			}
			return ctx.Err()
		})
		switch {
		case err == nil:
			return true
		case fault.CodeOf(err) != fault.Conflict:
			t.Fatal(err)
		case held && longest >= ttl/4: // a renewal may have come too late
			return false
		case held:
			t.Fatalf("a lock that is held, on a machine which was late by at most %v: %v", longest, err)
		}
	}
}

// A lost lock ends the context of its holder.
func TestNATSLockLost(t *testing.T) {
	cfg := natsd.Config{Listen: fixturetest.ReserveAddr(t)}
	s := startServer(t, cfg)
	a := newArchive(t, natsdtest.Connect(t, s), ArchiveConfig{TTL: time.Second})
	lost := func(what string, lose func()) {
		err := a.Lock(fixturetest.PatientContext(t), "l", func(ctx context.Context, _ uint64) error {
			lose()
			await(t, what, ctx.Done())
			return ctx.Err()
		})
		if fault.CodeOf(err) != fault.Conflict || !strings.Contains(err.Error(), "lost") {
			t.Errorf("%s: %v, want that the lock was lost", what, err)
		}
	}
	lost("a removed key", func() {
		b, err := a.js.KeyValue(fixturetest.PatientContext(t), a.locks)
		if err == nil {
			err = b.Delete(fixturetest.PatientContext(t), "l")
		}
		if err != nil {
			t.Error(err)
		}
	})
	lost("a server that is away", func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Processes with different TTLs must not share a lock.
func TestNATSLockTTLsDiffer(t *testing.T) {
	s := startServer(t, natsd.Config{})
	held := func(context.Context, uint64) error { return nil }
	if err := newArchive(t, natsdtest.Connect(t, s), ArchiveConfig{TTL: time.Second}).Lock(fixturetest.PatientContext(t), "l", held); err != nil {
		t.Fatal(err)
	}
	err := newArchive(t, natsdtest.Connect(t, s), ArchiveConfig{TTL: 2 * time.Second}).Lock(fixturetest.PatientContext(t), "l", held)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "penstock_locks") {
		t.Errorf("another ttl: %v, want Invalid that names the bucket: Conflict is a lock that is held", err)
	}
}

func TestArchiveConfigReportsEverything(t *testing.T) {
	_, err := NewNATSArchive(nil, ArchiveConfig{Prefix: "a b", Replicas: 6, TTL: time.Millisecond})
	for _, want := range []string{"a b", "6", "1ms"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not have %s", err, want)
		}
	}
}

// A topic that was lost has another life.
func TestNATSLife(t *testing.T) {
	b := newBus(t, natsdtest.Connect(t, startServer(t, natsd.Config{})), NATSBusConfig{})
	lives := map[uint64]bool{}
	for range 3 {
		s, err := b.DescribeTopic(fixturetest.PatientContext(t), testTopic)
		if err != nil || lives[s.Incarnation] {
			t.Fatalf("span %+v, %v; lives before: %v", s, err, lives)
		}
		lives[s.Incarnation] = true
		if err := b.js.DeleteStream(fixturetest.PatientContext(t), "penstock_kv-events"); err != nil {
			t.Fatal(err)
		}
	}
}
