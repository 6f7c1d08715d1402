package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// openNATSQueue opens the queue ns.prefill as a process of its own does.
func openNATSQueue(t *testing.T, nc *nats.Conn, cfg QueueConfig) *NATSQueue {
	t.Helper()
	cfg.Name = "ns.prefill"
	q, err := newBus(t, nc, NATSBusConfig{}).OpenQueue(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q.(*NATSQueue)
}

func openJetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// The messages and the settings of the server are those of docs/format/queue.md.
func TestNATSQueueFormat(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	js := openJetStream(t, nc)
	q := openNATSQueue(t, nc, QueueConfig{MaxAttempts: 1})
	if err := q.Put(fixturetest.PatientContext(t), Job{ID: "r-1.0", Data: []byte(`{"handle":7}`), Lifetime: 2500*time.Millisecond - 1}); err != nil {
		t.Fatal(err)
	}
	stored := func(stream string) string {
		s, err := js.Stream(fixturetest.PatientContext(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.GetMsg(fixturetest.PatientContext(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		m.Header.Del("Nats-Expected-Stream") // a condition of the publication, not of the format
		header, err := json.Marshal(m.Header)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %s %s", m.Subject, header, m.Data)
	}
	want := `penstock.ns.prefill.jobs.r-1=2E0 {"Nats-Msg-Id":["r-1=2E0"],"Nats-TTL":["3s"],"Penstock-Lifetime-Ms":["2500"]} {"handle":7}`
	if got := stored("penstock_ns+prefill+jobs"); got != want {
		t.Errorf("the job is\n%s, want\n%s", got, want)
	}
	d := mustPull(t, q, "r-1.0", 1)
	if err := q.Release(fixturetest.PatientContext(t), d); err != nil {
		t.Fatal(err)
	}
	mustPut(t, q, "next", time.Minute)
	mustPull(t, q, "next", 1)
	want = `penstock.ns.prefill.dead.r-1=2E0 {"Penstock-Attempts":["1"]} {"handle":7}`
	if got := stored("penstock_ns+prefill+dead"); got != want {
		t.Errorf("the dead letter is\n%s, want\n%s", got, want)
	}

	jobs, err := js.Stream(fixturetest.PatientContext(t), "penstock_ns+prefill+jobs")
	if err != nil {
		t.Fatal(err)
	}
	c := jobs.CachedInfo().Config
	got := fmt.Sprint(c.Subjects, c.Storage, c.Retention, c.Discard, c.MaxMsgs, c.MaxMsgSize, c.MaxAge, c.Duplicates, c.AllowMsgTTL, c.Replicas)
	if want := "[penstock.ns.prefill.jobs.*] File WorkQueue DiscardNew 1024 6144 10m0s 10m0s true 1"; got != want {
		t.Errorf("the stream of jobs is %s, want %s", got, want)
	}
	workers, err := jobs.Consumer(fixturetest.PatientContext(t), "workers")
	if err != nil {
		t.Fatal(err)
	}
	w := workers.CachedInfo().Config
	got = fmt.Sprint(w.Durable, w.AckPolicy, w.DeliverPolicy, w.AckWait, w.MaxDeliver, w.MaxAckPending, w.MaxWaiting)
	if want := "workersAckExplicit all 2s -1 -1 8192"; got != want {
		t.Errorf("the consumer is %s, want %s", got, want)
	}
	dead, err := js.Stream(fixturetest.PatientContext(t), "penstock_ns+prefill+dead")
	if err != nil {
		t.Fatal(err)
	}
	c = dead.CachedInfo().Config
	got = fmt.Sprint(c.Subjects, c.Storage, c.Retention, c.Discard, c.MaxMsgs, c.MaxMsgsPerSubject, c.MaxMsgSize, c.MaxAge, c.Replicas)
	if want := "[penstock.ns.prefill.dead.*] File Limits DiscardOld 1024 1 6144 24h0m0s 1"; got != want {
		t.Errorf("the stream of dead letters is %s, want %s", got, want)
	}
}

// The limits of the process which came last hold.
func TestNATSQueueLimitsChange(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	js := openJetStream(t, nc)
	for _, cfg := range []QueueConfig{
		{Lease: time.Second, MaxJobs: 7, MaxLifetime: time.Minute},
		{Lease: time.Minute, MaxJobs: 9, MaxLifetime: 2 * time.Minute},
		{Lease: 2 * time.Second, MaxJobs: 8, MaxLifetime: time.Second},
	} {
		q := openNATSQueue(t, nc, cfg)
		if _, err := q.DescribeDepth(fixturetest.PatientContext(t)); err != nil {
			t.Fatal(err)
		}
		c, err := js.Consumer(fixturetest.PatientContext(t), "penstock_ns+prefill+jobs", "workers")
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.Stream(fixturetest.PatientContext(t), "penstock_ns+prefill+jobs")
		if err != nil {
			t.Fatal(err)
		}
		have := s.CachedInfo().Config
		if c.CachedInfo().Config.AckWait != cfg.Lease || have.MaxMsgs != int64(cfg.MaxJobs) || have.MaxAge != cfg.MaxLifetime || have.Duplicates != cfg.MaxLifetime {
			t.Errorf("%+v: the stream has %+v, the consumer %+v", cfg, have, c.CachedInfo().Config)
		}
	}
}

// Processes share a queue. One which stood still for longer than its lease has lost its job.
func TestNATSQueueBetweenProcesses(t *testing.T) {
	s := startServer(t, natsd.Config{Listen: "127.0.0.1:0"})
	const lease = 100 * time.Millisecond
	cfg := QueueConfig{Lease: lease, MaxAttempts: 1000}
	putter, slow, other := openNATSQueue(t, natsdtest.Connect(t, s), cfg), openNATSQueue(t, natsdtest.Connect(t, s), cfg), openNATSQueue(t, natsdtest.Connect(t, s), cfg)
	mustPut(t, putter, "a", 5*time.Minute)
	first := mustPull(t, slow, "a", 1)
	pulled := time.Now()
	second := mustPull(t, other, "a", 2)
	<-time.After(time.Until(pulled.Add(lease)))
	if err := slow.Ack(fixturetest.PatientContext(t), first); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("ack of the first attempt: %v", err)
	}
	// A machine on which an acknowledgement takes longer than the lease delivers the job once more.
	for attempt := 3; ; attempt++ {
		err := other.Ack(fixturetest.PatientContext(t), second)
		if err == nil || fault.CodeOf(err) == fault.Unavailable {
			break
		}
		if fault.CodeOf(err) != fault.Conflict {
			t.Fatalf("ack: %v", err)
		}
		second = mustPull(t, other, "a", attempt)
	}
}

// A server which restarts with its data keeps jobs, attempts and dead letters, but for attempts of the moment before.
// Without a connection every call is Unavailable, and a Pull which waits ends.
func TestNATSQueueServerRestart(t *testing.T) {
	cfg := natsd.Config{DataDir: t.TempDir(), Listen: fixturetest.ReserveAddr(t)}
	s := startServer(t, cfg)
	nc := natsdtest.Connect(t, s)
	q := openNATSQueue(t, nc, QueueConfig{Lease: time.Hour, MaxAttempts: 2, MaxLifetime: time.Hour})
	for _, id := range []string{"dead", "held", "waits"} {
		mustPut(t, q, id, time.Hour)
	}
	release := func(d Delivery) {
		if err := q.Release(fixturetest.PatientContext(t), d); err != nil {
			t.Fatal(err)
		}
	}
	release(mustPull(t, q, "dead", 1))
	release(mustPull(t, q, "dead", 2))
	held := mustPull(t, q, "held", 1) // buries the first
	idle, err := q.bus.OpenQueue(QueueConfig{Name: "ns.idle"})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		_, err := idle.Pull(fixturetest.PatientContext(t))
		waited <- err
	}()
	awaitIdleWorker(t, nc, "penstock_ns+idle+jobs")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "the end of Pull", waited); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("Pull when the connection is lost: %v", err)
	}
	_, pullErr := q.Pull(fixturetest.PatientContext(t))
	_, depthErr := q.DescribeDepth(fixturetest.PatientContext(t))
	_, listErr := q.ListDead(fixturetest.PatientContext(t))
	for name, err := range map[string]error{
		"put":  q.Put(fixturetest.PatientContext(t), Job{ID: "x", Lifetime: time.Second}),
		"pull": pullErr, "depth": depthErr, "list": listErr, "drop": q.DropDead(fixturetest.PatientContext(t), "x"),
		"extend": q.Extend(fixturetest.PatientContext(t), held), "release": q.Release(fixturetest.PatientContext(t), held), "ack": q.Ack(fixturetest.PatientContext(t), held),
	} {
		if fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%s without a server: %v", name, err)
		}
	}
	reconnected := nc.StatusChanged(nats.CONNECTED)
	startServer(t, cfg)
	await(t, "the connection", reconnected)
	mustPut(t, q, "waits", time.Hour) // it is known still
	release(held)
	held, err = q.Pull(fixturetest.PatientContext(t))
	if err != nil || held.ID != "held" || held.Attempt < 1 || held.Attempt > 2 { // 1 if the server did not store the first
		t.Fatalf("pulled attempt %d of %q, error %v, want the second of held, or the first again", held.Attempt, held.ID, err)
	}
	waits := mustPull(t, q, "waits", 1)
	awaitDepth(t, q, 0, 2)
	for _, d := range []Delivery{held, waits} {
		if err := q.Ack(fixturetest.PatientContext(t), d); err != nil {
			t.Errorf("ack of %s: %v", d.ID, err)
		}
	}
	if list, err := q.ListDead(fixturetest.PatientContext(t)); err != nil || len(list) != 1 || list[0].ID != "dead" || list[0].Attempts != 2 {
		t.Errorf("dead letters %+v, error %v", list, err)
	}
}

// awaitDepth waits until so many jobs wait and are started: the server counts what it has taken a moment later.
func awaitDepth(t *testing.T, q *NATSQueue, waiting, started int) {
	t.Helper()
	ctx := fixturetest.PatientContext(t)
	var depth QueueDepth
	if err := backoff.Poll(ctx, 10*time.Millisecond, func() bool {
		var err error
		if depth, err = q.DescribeDepth(ctx); err != nil {
			t.Fatal(err)
		}
		return depth.Waiting == waiting && depth.Started == started
	}); err != nil {
		t.Fatalf("depth %+v, want %d and %d: %v", depth, waiting, started, err)
	}
}

// awaitIdleWorker waits until a worker waits for a job.
func awaitIdleWorker(t *testing.T, nc *nats.Conn, stream string) {
	t.Helper()
	js := openJetStream(t, nc)
	ctx := fixturetest.PatientContext(t)
	for {
		c, err := js.Consumer(ctx, stream, "workers")
		if err == nil && c.CachedInfo().NumWaiting > 0 {
			return
		}
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
	}
}

// When the stream or the consumer is deleted, jobs are lost, and the queue goes on.
func TestNATSQueueDeleted(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	js := openJetStream(t, nc)
	q := openNATSQueue(t, nc, QueueConfig{Lease: time.Hour})
	const stream = "penstock_ns+prefill+jobs"
	for i, remove := range []func() error{
		func() error { return js.DeleteConsumer(fixturetest.PatientContext(t), stream, "workers") },
		func() error { return js.DeleteStream(fixturetest.PatientContext(t), stream) },
	} {
		mustPut(t, q, fmt.Sprint("before ", i), time.Minute)
		held := mustPull(t, q, fmt.Sprint("before ", i), 1)
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if err := q.Ack(fixturetest.PatientContext(t), held); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%d: ack of a job which the server does not know: %v", i, err)
		}
		if _, err := q.Pull(fixturetest.PatientContext(t)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%d: the first Pull: %v", i, err)
		}
		mustPut(t, q, fmt.Sprint("after ", i), time.Minute)
		for { // of a deleted consumer all jobs come again
			d, err := q.Pull(fixturetest.PatientContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := q.Ack(fixturetest.PatientContext(t), d); err != nil {
				t.Fatal(err)
			}
			if d.ID == fmt.Sprint("after ", i) {
				break
			}
		}
	}
}

// Messages which are no jobs are removed and counted.
func TestNATSQueueMalformed(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	js := openJetStream(t, nc)
	q := openNATSQueue(t, nc, QueueConfig{Lease: time.Hour})
	if _, err := q.DescribeDepth(fixturetest.PatientContext(t)); err != nil {
		t.Fatal(err)
	}
	bad := []*nats.Msg{
		{Subject: "penstock.ns.prefill.jobs.no-lifetime"},
		{Subject: "penstock.ns.prefill.jobs.=41", Header: nats.Header{lifetimeHeader: {"1000"}}},
		{Subject: "penstock.ns.prefill.jobs.=", Header: nats.Header{lifetimeHeader: {"1000"}}},
		{Subject: "penstock.ns.prefill.jobs.zero", Header: nats.Header{lifetimeHeader: {"0"}}},
		{Subject: "penstock.ns.prefill.jobs.long", Header: nats.Header{lifetimeHeader: {"9223372036854775807"}}},
		{Subject: "penstock.ns.prefill.jobs.large", Header: nats.Header{lifetimeHeader: {"1000"}}, Data: make([]byte, MaxJob+1)},
	}
	for _, m := range bad {
		if _, err := js.PublishMsg(fixturetest.PatientContext(t), m); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, q, "good", time.Minute)
	if err := q.Ack(fixturetest.PatientContext(t), mustPull(t, q, "good", 1)); err != nil {
		t.Fatal(err)
	}
	awaitDepth(t, q, 0, 0)
	if n := q.bus.Malformed(); n != uint64(len(bad)) {
		t.Errorf("%d malformed messages, want %d", n, len(bad))
	}
	if _, err := q.bus.openStream(fixturetest.PatientContext(t), &q.dead); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(fixturetest.PatientContext(t), "penstock.ns.prefill.dead.bad", nil); err != nil {
		t.Fatal(err)
	}
	if list, err := q.ListDead(fixturetest.PatientContext(t)); err != nil || len(list) != 0 || q.bus.Malformed() != uint64(len(bad))+1 {
		t.Errorf("dead letters %+v, error %v, %d malformed", list, err, q.bus.Malformed())
	}
}

// The server removes a job which no worker acknowledges when its time is up.
func TestNATSQueueServerRemovesExpired(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	q := openNATSQueue(t, nc, QueueConfig{Lease: time.Hour})
	if _, err := q.DescribeDepth(fixturetest.PatientContext(t)); err != nil {
		t.Fatal(err)
	}
	ended, err := nc.SubscribeSync(jetstreamTerminated)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, q, "a", time.Millisecond)
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	waited := make(chan error)
	go func() { // gets the job, or finds that it has expired, which it leaves to the server
		_, err := q.Pull(ctx)
		waited <- err
	}()
	if _, err := ended.NextMsgWithContext(fixturetest.PatientContext(t)); err != nil {
		t.Fatal(err)
	}
	awaitDepth(t, q, 0, 0)
	cancel()
	if err := <-waited; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Pull: %v", err)
	}
}

// jetstreamTerminated is the subject on which the server says that a delivered message is gone.
const jetstreamTerminated = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>"

// A message is a job, or is refused: what parseJob accepts, Put writes so.
func FuzzQueueMessages(f *testing.F) {
	f.Add("penstock.ns.q.jobs.r-1=2E0", "2500", "1", []byte("data"))
	f.Add("penstock.ns.q.jobs.=", "0", "0", []byte(nil))
	f.Add("penstock.ns.q.jobs.a", "86400001", "3", []byte(nil))
	f.Add("penstock.ns.q.dead.a", "600000", "3", []byte(nil))
	f.Add("penstock.ns.q.jobs."+strings.Repeat("=01", MaxKey), "+1", "-1", []byte(nil))
	b := &NATSBus{cfg: NATSBusConfig{Prefix: "penstock"}}
	cfg := QueueConfig{Name: "ns.q", MaxLifetime: maxMaxLifetime}
	cfg.EnsureDefaults()
	q := newNATSQueue(b, cfg)
	f.Fuzz(func(t *testing.T, subject, lifetime, attempts string, data []byte) {
		m := &nats.Msg{Subject: subject, Header: nats.Header{lifetimeHeader: {lifetime}}, Data: data}
		if j, err := q.parseJob(m); err == nil {
			if _, err := cfg.checkJob(Job{ID: j.id, Data: j.data, Lifetime: j.lifetime}); err != nil {
				t.Errorf("job %+v: %v", j, err)
			}
			again, written := string(appendKey([]byte("penstock.ns.q.jobs."), j.id)), fmt.Sprint(j.lifetime.Milliseconds())
			if again != subject || written != lifetime || !bytes.Equal(j.data, data) {
				t.Errorf("job %+v is written as %s, %s", j, again, written)
			}
		}
		if d, err := q.parseDead(natsd.Msg{Subject: subject, Header: nats.Header{attemptsHeader: {attempts}}, Data: data}); err == nil {
			again := string(appendKey([]byte("penstock.ns.q.dead."), d.ID))
			if again != subject || fmt.Sprint(d.Attempts) != attempts || len(d.Data) > MaxJob {
				t.Errorf("dead letter %+v is written as %s", d, again)
			}
		}
	})
}
