package disco

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// ttl leaves refreshes, a third of it apart, room on a busy machine. The tests
// that wait for it run in parallel.
const ttl = 2 * time.Second

func startServer(t *testing.T, cfg natsd.Config) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// open returns a registry with a connection of its own, as another process has.
func open(t *testing.T, s *natsd.Server, cfg NATSRegistryConfig) *NATSRegistry {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	r, err := NewNATSRegistry(natsdtest.Connect(t, s), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// watchSets returns every set of workers as "1@a 2@b?".
func watchSets(t *testing.T, r *NATSRegistry) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, done := make(chan string, 1000), make(chan struct{})
	go func() {
		defer close(done)
		err := r.Watch(ctx, KindWorker, func(set []Instance) {
			var parts []string
			for _, in := range set {
				s := fmt.Sprintf("%d@%s", in.ID, in.Addr)
				if in.Unconfirmed {
					s += "?"
				}
				parts = append(parts, s)
			}
			out <- strings.Join(parts, " ")
		})
		if err != nil {
			t.Errorf("Watch: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return out
}

// await waits for the set want and returns those before it.
func await(t *testing.T, sets <-chan string, want string) (before []string) {
	t.Helper()
	limit := time.After(5 * time.Minute)
	for {
		select {
		case s := <-sets:
			if s == want {
				return before
			}
			before = append(before, s)
		case <-limit:
			t.Fatalf("the set [%s] did not come, but %q", want, before)
		}
	}
}

func instance(id kv.WorkerID, addr string) Instance {
	return Instance{Kind: KindWorker, ID: id, Epoch: 1, Addr: addr}
}

func register(t *testing.T, r *NATSRegistry, in Instance) Lease {
	t.Helper()
	l, err := r.Register(fixturetest.PatientContext(t), in)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rawKeys follows the bucket itself: each write of a key, with its operation.
func rawKeys(t *testing.T, r *NATSRegistry, filter string) <-chan jetstream.KeyValueEntry {
	t.Helper()
	b, err := r.openBucket(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.Watch(fixturetest.PatientContext(t), filter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Stop() })
	return w.Updates()
}

// A process that stops without a word is gone after its TTL, and the record it
// left behind after two more.
func TestNATSCrash(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	alive, crashed := open(t, s, NATSRegistryConfig{}), open(t, s, NATSRegistryConfig{})
	sets := watchSets(t, alive)
	register(t, alive, instance(1, "a"))
	await(t, sets, "1@a")
	keys, leases := rawKeys(t, alive, "instance.worker.2"), rawKeys(t, alive, "lease.worker.2")
	register(t, crashed, instance(2, "b"))
	await(t, sets, "1@a 2@b")
	for puts := 0; puts < 2; { // a refreshed key must run out too
		if e := <-leases; e != nil {
			puts++
		}
	}
	start := time.Now()
	crashed.Close()
	if before := await(t, sets, "1@a"); len(before) > 0 {
		t.Errorf("before it was gone came %q", before)
	}
	if d := time.Since(start); d < ttl/3 {
		t.Errorf("gone after %v, which is too soon for a TTL of %v", d, ttl)
	}
	for e := range keys {
		if e != nil && e.Operation() == jetstream.KeyValuePurge {
			break // the leftover was collected
		}
	}
	register(t, alive, instance(2, "again"))
	await(t, sets, "1@a 2@again")
}

// Refreshes keep an instance for longer than its TTL, and wake no sink.
func TestNATSRefreshesWakeNoSink(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	r := open(t, s, NATSRegistryConfig{})
	sets := watchSets(t, r)
	await(t, sets, "")
	start := time.Now()
	l := register(t, r, instance(1, "a"))
	await(t, sets, "1@a")
	refreshes := 0
	for e := range rawKeys(t, r, "lease.worker.1") {
		if e == nil {
			continue
		}
		if e.Operation() != jetstream.KeyValuePut {
			t.Fatalf("after %d refreshes the lease ran out", refreshes)
		}
		if refreshes++; refreshes == 9 {
			break
		}
	}
	if d := time.Since(start); d < 2*ttl {
		t.Errorf("9 refreshes took %v, which proves nothing about a TTL of %v", d, ttl)
	}
	if err := l.Release(fixturetest.PatientContext(t)); err != nil {
		t.Fatal(err)
	}
	if before := await(t, sets, ""); len(before) > 0 {
		t.Errorf("refreshes woke the sink: %q", before)
	}
}

// A store that is away, with or without its data afterwards, interrupts nothing:
// the last known set stays, and both sides find each other again.
func TestNATSOutage(t *testing.T) {
	for _, keep := range []string{"data kept", "data lost"} {
		t.Run(keep, func(t *testing.T) {
			t.Parallel()
			cfg := natsd.Config{Listen: fixturetest.ReserveAddr(t)}
			if keep == "data kept" {
				cfg.DataDir = t.TempDir()
			}
			s := startServer(t, cfg)
			registrar := open(t, s, NATSRegistryConfig{})
			sets := watchSets(t, open(t, s, NATSRegistryConfig{}))
			one := register(t, registrar, instance(1, "a"))
			two := register(t, registrar, instance(2, "b"))
			await(t, sets, "1@a 2@b")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			await(t, sets, "1@a? 2@b?")
			if err := two.Update(fixturetest.PatientContext(t), instance(2, "c")); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("update without a store: error %v, want Unavailable", err)
			}
			<-time.After(3 * ttl / 2) // every lease runs out meanwhile
			startServer(t, cfg)
			for _, set := range await(t, sets, "1@a 2@c") {
				for _, id := range []string{"1@", "2@"} {
					if !strings.Contains(set, id) {
						t.Errorf("an instance was away: [%s]", set)
					}
				}
			}
			for _, l := range []Lease{one, two} {
				if err := l.Release(fixturetest.PatientContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			await(t, sets, "")
		})
	}
}

// An update that failed is made when the store is back, even if the outage was so
// short that the liveness key has survived it.
func TestNATSUpdateDuringShortOutage(t *testing.T) {
	t.Parallel()
	cfg := natsd.Config{Listen: fixturetest.ReserveAddr(t), DataDir: t.TempDir()}
	s := startServer(t, cfg)
	long := NATSRegistryConfig{TTL: time.Minute}
	l := register(t, open(t, s, long), instance(1, "a"))
	sets := watchSets(t, open(t, s, long))
	await(t, sets, "1@a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Update(fixturetest.PatientContext(t), instance(1, "b")); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("update without a store: error %v, want Unavailable", err)
	}
	startServer(t, cfg)
	await(t, sets, "1@b")
}

// An instance which does not return after an outage is removed in the end, and no other one is.
func TestNATSDiesDuringOutage(t *testing.T) {
	t.Parallel()
	cfg := natsd.Config{Listen: fixturetest.ReserveAddr(t), DataDir: t.TempDir()}
	s := startServer(t, cfg)
	sets := watchSets(t, open(t, s, NATSRegistryConfig{}))
	survivor, victim := open(t, s, NATSRegistryConfig{}), open(t, s, NATSRegistryConfig{})
	register(t, survivor, instance(1, "a"))
	register(t, victim, instance(2, "b"))
	await(t, sets, "1@a 2@b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, sets, "1@a? 2@b?")
	victim.Close()
	startServer(t, cfg)
	for _, set := range await(t, sets, "1@a") {
		if !strings.HasPrefix(set, "1@a") {
			t.Errorf("the survivor was away: [%s]", set)
		}
	}
}

// A newer life elsewhere takes the identity; the old one notices and gives up.
func TestNATSSuperseded(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	log, lines := newLog()
	old := register(t, open(t, s, NATSRegistryConfig{Log: log}), instance(1, "old"))
	r := open(t, s, NATSRegistryConfig{})
	sets := watchSets(t, r)
	await(t, sets, "1@old")
	in := instance(1, "new")
	in.Epoch = 2
	register(t, r, in)
	await(t, sets, "1@new")
	select {
	case l := <-lines:
		if l != "registration lost to another holder" {
			t.Errorf("log says %q", l)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("the old life did not notice")
	}
	if err := old.Update(fixturetest.PatientContext(t), instance(1, "x")); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("update by the old life: error %v, want Conflict", err)
	}
	if err := old.Release(fixturetest.PatientContext(t)); err != nil {
		t.Error(err)
	}
	if _, err := r.Register(fixturetest.PatientContext(t), instance(1, "again")); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("register with the old epoch: error %v, want Conflict", err)
	}
}

// Once the newest incarnation is dead, an older one can register.
func TestNATSOlderLifeAfterDeath(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	dead, r := open(t, s, NATSRegistryConfig{}), open(t, s, NATSRegistryConfig{})
	sets := watchSets(t, r)
	in := instance(1, "dead")
	in.Epoch = 9
	register(t, dead, in)
	await(t, sets, "1@dead")
	dead.Close()
	await(t, sets, "")
	register(t, r, instance(1, "older"))
	await(t, sets, "1@older")
}

// What others write under our keys is counted, reported once, and harmless.
func TestNATSUnreadable(t *testing.T) {
	s := startServer(t, natsd.Config{})
	log, lines := newLog()
	r := open(t, s, NATSRegistryConfig{Log: log})
	sets := watchSets(t, r)
	register(t, r, instance(1, "a"))
	await(t, sets, "1@a")
	b, err := r.openBucket(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"instance.worker.2", "instance.worker.x", "lease.worker.007", "instance.worker.1"} {
		if _, err := b.PutString(fixturetest.PatientContext(t), key, "{"); err != nil {
			t.Fatal(err)
		}
	}
	register(t, r, instance(3, "c"))
	if before := await(t, sets, "1@a 3@c"); len(before) > 0 {
		t.Errorf("unreadable records changed the set: %q", before)
	}
	if n := r.Malformed(); n != 4 {
		t.Errorf("%d unreadable keys counted, want 4", n)
	}
	if l := <-lines; l != "unreadable discovery record skipped" || len(lines) > 0 {
		t.Errorf("log says %q and %d more, want one report", l, len(lines))
	}
}

func TestNATSConnectionClosed(t *testing.T) {
	r := open(t, startServer(t, natsd.Config{}), NATSRegistryConfig{})
	l := register(t, r, instance(1, "a"))
	err := r.Watch(fixturetest.PatientContext(t), KindWorker, func([]Instance) { r.nc.Close() })
	if fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Watch returned %v, want Unavailable", err)
	}
	if _, err := r.Register(fixturetest.PatientContext(t), instance(2, "b")); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Register returned %v, want Unavailable", err)
	}
	if err := l.Release(fixturetest.PatientContext(t)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Release returned %v, want Unavailable", err)
	}
}

func TestNATSClosed(t *testing.T) {
	r := open(t, startServer(t, natsd.Config{}), NATSRegistryConfig{})
	l := register(t, r, instance(1, "a"))
	r.Close()
	r.Close() // idempotent
	if err := l.Release(fixturetest.PatientContext(t)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Release returned %v, want Unavailable", err)
	}
	if _, err := r.Register(fixturetest.PatientContext(t), instance(2, "b")); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Register returned %v, want Unavailable", err)
	}
}

func TestNATSConfigReportsEverything(t *testing.T) {
	_, err := NewNATSRegistry(nil, NATSRegistryConfig{Bucket: "a.b", TTL: 1500 * time.Millisecond, Replicas: 7})
	for _, want := range []string{"a.b", "1.5s", "7"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func TestThrottle(t *testing.T) {
	var th reportThrottle
	now := time.Unix(100, 0)
	for i := range 130 {
		n, ok := th.allow(now.Add(time.Duration(i) * time.Second))
		if want := i%60 == 0; ok != want {
			t.Fatalf("second %d: reported %v", i, ok)
		}
		if want := min(uint64(i)+1, 60); ok && n != want && i > 0 {
			t.Errorf("second %d: %d since the last report, want %d", i, n, want)
		}
	}
}

// logLines passes each log record's message on.
type logLines struct {
	slog.Handler
	lines chan string
}

func (l logLines) Handle(_ context.Context, r slog.Record) error {
	l.lines <- r.Message
	return nil
}

func (l logLines) WithAttrs([]slog.Attr) slog.Handler { return l }

func newLog() (*slog.Logger, <-chan string) {
	lines := make(chan string, 1000)
	return slog.New(logLines{slog.NewTextHandler(nil, nil), lines}), lines
}
