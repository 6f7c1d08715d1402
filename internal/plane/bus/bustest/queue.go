package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

// RunQueue tests the queues of the bus that open returns. Each part gets its own bus without queues; open
// registers its cleanup with t.Cleanup.
func RunQueue(t *testing.T, open func(t *testing.T) bus.Queues) {
	parts := []struct {
		name string
		test func(*testing.T, bus.Queues)
	}{
		{"order", testQueueOrder},
		{"pull waits", testPullWaits},
		{"contexts", testQueueContexts},
		{"pull ends as a job comes", testPullEndsAsJobComes},
		{"put twice", testPutTwice},
		{"sizes and ids", testJobSizes},
		{"data is copied", testJobCopied},
		{"refuses", testQueueRefuses},
		{"full", testQueueFull},
		{"depth", testQueueDepth},
		{"state", testQueueState},
		{"list of queues", testListQueues},
		{"release", testRelease},
		{"ended deliveries", testEndedDeliveries},
		{"missed heartbeat", testMissedHeartbeat},
		{"heartbeats", testHeartbeats},
		{"attempt limit", testAttemptLimit},
		{"dead letters", testDeadLetters},
		{"deadline of a waiting job", testWaitingDeadline},
		{"deadline of a held job", testHeldDeadline},
		{"many workers", testManyWorkers},
		{"queues apart", testQueuesApart},
		{"faults", testQueueFaults},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

// longLease is the lease of parts in which none may pass.
const longLease = time.Hour

// clockStep is how far the clocks of a process may be apart: timers do not follow the time of day.
const clockStep = 10 * time.Millisecond

func openQueue(t *testing.T, qs bus.Queues, cfg bus.QueueConfig) bus.Queue {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "ns.queue"
	}
	q, err := qs.OpenQueue(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func putJob(t *testing.T, q bus.Queue, id, data string) {
	t.Helper()
	if err := q.Put(fixturetest.PatientContext(t), bus.Job{ID: id, Data: []byte(data), Lifetime: 5 * time.Minute}); err != nil {
		t.Fatalf("put %q: %v", id, err)
	}
}

// pullJob pulls a job, which must be that of an id, at an attempt.
func pullJob(t *testing.T, q bus.Queue, id string, attempt int) bus.Delivery {
	t.Helper()
	d := pullAny(t, q)
	if d.ID != id || d.Attempt != attempt {
		t.Fatalf("pulled attempt %d of %q, want attempt %d of %q", d.Attempt, d.ID, attempt, id)
	}
	return d
}

func pullAny(t *testing.T, q bus.Queue) bus.Delivery {
	t.Helper()
	d, err := q.Pull(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatalf("pull: %v", err)
	}
	return d
}

func ackJob(t *testing.T, q bus.Queue, d bus.Delivery) {
	t.Helper()
	if err := q.Ack(fixturetest.PatientContext(t), d); err != nil {
		t.Fatalf("acknowledge %q: %v", d.ID, err)
	}
}

func releaseJob(t *testing.T, q bus.Queue, d bus.Delivery) {
	t.Helper()
	if err := q.Release(fixturetest.PatientContext(t), d); err != nil {
		t.Fatalf("release %q: %v", d.ID, err)
	}
}

func checkDepth(t *testing.T, q bus.Queue, waiting, started int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(fixturetest.PatientContext(t), 30*time.Second)
	defer cancel()
	for ; ; time.Sleep(clockStep) { // a NATS server counts what it has taken a moment later
		d, err := q.DescribeDepth(ctx)
		if err == nil && d.Waiting == waiting && d.Started == started {
			return
		}
		if err != nil || ctx.Err() != nil {
			t.Errorf("%d jobs wait and %d are started, error %v; want %d and %d", d.Waiting, d.Started, err, waiting, started)
			return
		}
	}
}

// checkDead checks the dead letters: "id:data:attempts", in order.
func checkDead(t *testing.T, q bus.Queue, want ...string) {
	t.Helper()
	list, err := q.ListDead(fixturetest.PatientContext(t))
	var got []string
	for _, d := range list {
		got = append(got, fmt.Sprintf("%s:%s:%d", d.ID, d.Data, d.Attempts))
		if d.At.IsZero() {
			t.Errorf("dead letter %s has no time", d.ID)
		}
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("dead letters %q, error %v, want %q", got, err, want)
	}
}

func checkCode(t *testing.T, what string, err error, want fault.Code) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != want {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func testQueueOrder(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	before := time.Now()
	for i := range 20 {
		putJob(t, q, fmt.Sprint(i), fmt.Sprintf("data %d", i))
	}
	for i := range 20 {
		d := pullJob(t, q, fmt.Sprint(i), 1)
		if string(d.Data) != fmt.Sprintf("data %d", i) || d.Deadline.Before(before) || d.Receipt == "" {
			t.Errorf("job %d is %+v", i, d)
		}
		ackJob(t, q, d)
	}
}

func testPullWaits(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	const workers = 3
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	defer cancel()
	got := make(chan string, workers)
	for range workers {
		go func() {
			d, err := q.Pull(ctx)
			if err == nil {
				err = q.Ack(ctx, d)
			}
			got <- fmt.Sprint(d.ID, err)
		}()
	}
	checkDepth(t, q, 0, 0) // some of the workers wait by now
	want := map[string]bool{}
	for i := range workers {
		want[fmt.Sprint(i)+"<nil>"] = true
		putJob(t, q, fmt.Sprint(i), "")
	}
	for range workers {
		if s := <-got; !want[s] {
			t.Errorf("a worker got %s", s)
		} else {
			delete(want, s)
		}
	}
}

func testQueueContexts(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	putJob(t, q, "first", "")
	held := pullJob(t, q, "first", 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, pullErr := q.Pull(ended)
	_, depthErr := q.DescribeDepth(ended)
	_, listErr := q.ListDead(ended)
	for name, err := range map[string]error{
		"put":  q.Put(ended, bus.Job{ID: "j", Lifetime: time.Second}),
		"pull": pullErr, "depth": depthErr, "list": listErr, "drop": q.DropDead(ended, "j"),
		"ack": q.Ack(ended, held), "extend": q.Extend(ended, held), "release": q.Release(ended, held),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: %v", name, err)
		}
	}
	ackJob(t, q, held)

	// A Pull which waits ends with its context, and takes no job which comes later.
	for i := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := q.Pull(ctx)
			done <- err
		}()
		if i%2 == 0 {
			checkDepth(t, q, 0, 0)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Pull after its context ended: %v", err)
		}
	}
	putJob(t, q, "later", "")
	ackJob(t, q, pullJob(t, q, "later", 1))
	checkDepth(t, q, 0, 0)
}

// testPullEndsAsJobComes: a job which comes at the moment at which a Pull ends is not lost until its lease
// passes.
func testPullEndsAsJobComes(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			d, err := q.Pull(ctx)
			if err == nil {
				err = q.Ack(fixturetest.PatientContext(t), d)
			} else if errors.Is(err, context.Canceled) {
				done <- false
				return
			}
			if err != nil {
				t.Error(err)
			}
			done <- true
		}()
		checkDepth(t, q, 0, 0)
		go cancel()
		putJob(t, q, fmt.Sprint(i), "")
		if got := <-done; !got {
			ackJob(t, q, pullAny(t, q))
		}
		cancel()
	}
	checkDepth(t, q, 0, 0)
}

func testPutTwice(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxJobs: 2})
	putJob(t, q, "a", "1")
	putJob(t, q, "b", "2")
	putJob(t, q, "a", "another") // also if the queue is full
	checkDepth(t, q, 2, 0)
	a := pullJob(t, q, "a", 1)
	if string(a.Data) != "1" {
		t.Errorf("data %q", a.Data)
	}
	putJob(t, q, "a", "while it is held")
	checkDepth(t, q, 1, 1)
	ackJob(t, q, a)
	putJob(t, q, "a", "when it is done")
	checkDepth(t, q, 1, 0)
	ackJob(t, q, pullJob(t, q, "b", 1))
	checkDepth(t, q, 0, 0)
}

func testJobSizes(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Name: strings.Repeat("n", bus.MaxName-len(".jobs")), Lease: longLease})
	for i, id := range []string{"x", "a.b", " ", "*", ">", "\x00\xff\r\n", "=41", "ü", strings.Repeat("\x01", bus.MaxKey)} {
		for j, size := range []int{0, 1, bus.MaxJob} {
			id := id
			if j > 0 {
				id = id[:len(id)-1] + string(rune('A'+3*i+j)) // an id is used once
			}
			data := strings.Repeat("\xfe", size)
			putJob(t, q, id, data)
			d := pullJob(t, q, id, 1)
			if string(d.Data) != data {
				t.Errorf("id %d: data of %d bytes came back with %d", i, size, len(d.Data))
			}
			ackJob(t, q, d)
		}
	}
}

func testJobCopied(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxAttempts: 2})
	data := []byte("data")
	if err := q.Put(fixturetest.PatientContext(t), bus.Job{ID: "a", Data: data, Lifetime: time.Minute}); err != nil {
		t.Fatal(err)
	}
	clear(data)
	for attempt := range 2 {
		d := pullJob(t, q, "a", attempt+1)
		if string(d.Data) != "data" {
			t.Errorf("attempt %d: data %q", d.Attempt, d.Data)
		}
		clear(d.Data)
		releaseJob(t, q, d)
	}
	putJob(t, q, "b", "")
	pullJob(t, q, "b", 1)
	for range 2 {
		list, err := q.ListDead(fixturetest.PatientContext(t))
		if err != nil || len(list) != 1 || string(list[0].Data) != "data" {
			t.Fatalf("dead letters %+v, error %v", list, err)
		}
		clear(list[0].Data)
	}
}

func testQueueRefuses(t *testing.T, qs bus.Queues) {
	for _, cfg := range []bus.QueueConfig{
		{Name: ""},
		{Name: "a..b"},
		{Name: "a b"},
		{Name: strings.Repeat("n", bus.MaxName)},
		{Name: "a", MaxJobs: -1},
		{Name: "a", MaxAttempts: -1},
		{Name: "a", Lease: -1},
		{Name: "a", MaxLifetime: time.Millisecond},
		{Name: "a", MaxLifetime: 25 * time.Hour},
	} {
		if _, err := qs.OpenQueue(cfg); err == nil {
			t.Errorf("queue %+v was opened", cfg)
		}
	}
	q := openQueue(t, qs, bus.QueueConfig{MaxLifetime: time.Minute})
	_, err := qs.OpenQueue(bus.QueueConfig{Name: "ns.queue", MaxLifetime: time.Hour})
	checkCode(t, "a second queue of the name", err, fault.Conflict)
	for _, tt := range []struct {
		what string
		job  bus.Job
		code fault.Code
	}{
		{"no id", bus.Job{Lifetime: time.Second}, fault.Invalid},
		{"a long id", bus.Job{ID: strings.Repeat("i", bus.MaxKey+1), Lifetime: time.Second}, fault.Invalid},
		{"no lifetime", bus.Job{ID: "a"}, fault.Invalid},
		{"a negative lifetime", bus.Job{ID: "a", Lifetime: -1}, fault.Invalid},
		{"a long life", bus.Job{ID: "a", Lifetime: time.Minute + 1}, fault.Invalid},
		{"much data", bus.Job{ID: "a", Data: make([]byte, bus.MaxJob+1), Lifetime: time.Second}, fault.TooLarge},
	} {
		checkCode(t, tt.what, q.Put(fixturetest.PatientContext(t), tt.job), tt.code)
	}
	checkCode(t, "drop no id", q.DropDead(fixturetest.PatientContext(t), ""), fault.Invalid)
	checkCode(t, "an unknown delivery", q.Ack(fixturetest.PatientContext(t), bus.Delivery{ID: "a", Deadline: time.Now().Add(time.Hour), Receipt: "1"}), fault.Conflict)
	checkDepth(t, q, 0, 0)
}

func testQueueFull(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxJobs: 3})
	put := func(id string) error {
		return q.Put(fixturetest.PatientContext(t), bus.Job{ID: id, Data: make([]byte, bus.MaxJob), Lifetime: time.Minute})
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := put(id); err != nil {
			t.Fatal(err)
		}
	}
	checkCode(t, "a full queue", put("d"), fault.Overloaded)
	a := pullJob(t, q, "a", 1)
	checkCode(t, "a full queue with a held job", put("d"), fault.Overloaded)
	ackJob(t, q, a)
	if err := put("d"); err != nil { // it was not put before
		t.Errorf("put when there is room: %v", err)
	}
	for _, id := range []string{"b", "c", "d"} {
		ackJob(t, q, pullJob(t, q, id, 1))
	}
}

func testQueueDepth(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	before := time.Now()
	d, err := q.DescribeDepth(fixturetest.PatientContext(t))
	if err != nil || d.At.Before(before) || d.At.After(time.Now()) {
		t.Errorf("depth %+v, error %v", d, err)
	}
	for i := range 5 {
		putJob(t, q, fmt.Sprint(i), "")
	}
	checkDepth(t, q, 5, 0)
	one, two := pullAny(t, q), pullAny(t, q)
	checkDepth(t, q, 3, 2)
	releaseJob(t, q, one)
	checkDepth(t, q, 3, 2)
	ackJob(t, q, two)
	checkDepth(t, q, 3, 1)
	ackJob(t, q, pullJob(t, q, one.ID, 2))
	checkDepth(t, q, 3, 0)
}

// testRelease: a released job goes first, and counts its attempts.
func testRelease(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxAttempts: 5})
	for _, id := range []string{"a", "b", "c"} {
		putJob(t, q, id, id)
	}
	a, b := pullJob(t, q, "a", 1), pullJob(t, q, "b", 1)
	releaseJob(t, q, b)
	b = pullJob(t, q, "b", 2)
	if string(b.Data) != "b" {
		t.Errorf("data %q", b.Data)
	}
	releaseJob(t, q, b)
	releaseJob(t, q, a)
	b = pullJob(t, q, "b", 3)
	a = pullJob(t, q, "a", 2)
	c := pullJob(t, q, "c", 1)
	for _, d := range []bus.Delivery{a, b, c} {
		ackJob(t, q, d)
	}
	checkDepth(t, q, 0, 0)
}

// testEndedDeliveries: what was acknowledged or released is no longer the worker's.
func testEndedDeliveries(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	ctx := fixturetest.PatientContext(t)
	putJob(t, q, "a", "")
	first := pullJob(t, q, "a", 1)
	releaseJob(t, q, first)
	checkEnded := func(d bus.Delivery) {
		t.Helper()
		checkCode(t, "ack", q.Ack(ctx, d), fault.Conflict)
		checkCode(t, "extend", q.Extend(ctx, d), fault.Conflict)
		checkCode(t, "release", q.Release(ctx, d), fault.Conflict)
	}
	checkEnded(first)
	second := pullJob(t, q, "a", 2)
	checkEnded(first)
	if err := q.Extend(ctx, second); err != nil {
		t.Errorf("extend the second attempt: %v", err)
	}
	ackJob(t, q, second)
	checkEnded(first)
	checkEnded(second)
	checkDepth(t, q, 0, 0)
}

// testMissedHeartbeat: a job whose worker is silent is delivered again. A machine on which an acknowledgement
// takes longer than the lease gets a longer one.
func testMissedHeartbeat(t *testing.T, qs bus.Queues) {
	for lease := 50 * time.Millisecond; !missHeartbeat(t, qs, lease); lease *= 4 {
		t.Logf("a lease of %v is too short for this machine", lease)
	}
}

func missHeartbeat(t *testing.T, qs bus.Queues, lease time.Duration) bool {
	q := openQueue(t, qs, bus.QueueConfig{Name: fmt.Sprint("ns.lease-", int64(lease)), Lease: lease})
	putJob(t, q, "a", "data")
	silent := pullJob(t, q, "a", 1)
	pulled := time.Now()
	second := pullJob(t, q, "a", 2)
	if string(second.Data) != "data" || !second.Deadline.Equal(silent.Deadline) {
		t.Errorf("the second attempt is %+v, the first was %+v", second, silent)
	}
	if err := q.Ack(fixturetest.PatientContext(t), second); err != nil {
		if code := fault.CodeOf(err); code != fault.Conflict && code != fault.Unavailable {
			t.Errorf("ack: %v", err)
		}
		return false
	}
	checkDepth(t, q, 0, 0)
	<-time.After(time.Until(pulled.Add(lease)))
	checkCode(t, "extend a lease which has passed", q.Extend(fixturetest.PatientContext(t), silent), fault.Conflict)
	checkCode(t, "ack after the lease", q.Ack(fixturetest.PatientContext(t), silent), fault.Conflict)
	checkCode(t, "release after the lease", q.Release(fixturetest.PatientContext(t), silent), fault.Conflict)
	return true
}

// testHeartbeats: a worker which extends its lease in time keeps its job for many leases. A machine which
// cannot do that in time gets a longer lease; on the slowest ones nothing is found out.
func testHeartbeats(t *testing.T, qs bus.Queues) {
	for lease := 200 * time.Millisecond; lease < 10*time.Second && !keepLease(t, qs, lease); lease *= 4 {
		t.Logf("a lease of %v is too short for this machine", lease)
	}
}

// keepLease reports whether the heartbeats came in time.
func keepLease(t *testing.T, qs bus.Queues, lease time.Duration) bool {
	q := openQueue(t, qs, bus.QueueConfig{Name: fmt.Sprint("ns.lease-", int64(lease)), Lease: lease, MaxAttempts: 1000})
	putJob(t, q, "a", "")
	asked := time.Now()
	d := pullJob(t, q, "a", 1)
	ctx, cancel := context.WithCancel(t.Context())
	other := make(chan bus.Delivery, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if d, err := q.Pull(ctx); err == nil {
			other <- d
		}
	})
	defer waiting.Wait()
	defer cancel()
	tick := time.NewTicker(lease / 20)
	defer tick.Stop()
	var longest time.Duration // from before one heartbeat to after the next
	for began := time.Now(); time.Since(began) < 5*lease; <-tick.C {
		now := time.Now()
		err := q.Extend(fixturetest.PatientContext(t), d)
		if longest = max(longest, time.Since(asked)); longest >= lease {
			return false
		}
		asked = now
		if err != nil {
			t.Errorf("a heartbeat in time: %v", err)
		}
	}
	select {
	case d := <-other:
		if longest = max(longest, time.Since(asked)); longest < lease {
			t.Errorf("attempt %d came while heartbeats were at most %v apart", d.Attempt, longest)
		}
	default:
	}
	return longest < lease
}

func testAttemptLimit(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxAttempts: 2})
	checkDead(t, q)
	for _, id := range []string{"a", "b"} {
		putJob(t, q, id, "data of "+id)
	}
	for attempt := range 2 {
		a, b := pullJob(t, q, "a", attempt+1), pullJob(t, q, "b", attempt+1)
		releaseJob(t, q, a)
		releaseJob(t, q, b)
	}
	putJob(t, q, "c", "")
	c := pullJob(t, q, "c", 1)
	checkDead(t, q, "a:data of a:2", "b:data of b:2")
	checkDepth(t, q, 0, 1)
	putJob(t, q, "a", "again") // the id was used
	checkDepth(t, q, 0, 1)
	ackJob(t, q, c)
}

func testDeadLetters(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxAttempts: 1})
	drop := func(id string) {
		t.Helper()
		if err := q.DropDead(fixturetest.PatientContext(t), id); err != nil {
			t.Errorf("drop %q: %v", id, err)
		}
	}
	drop("none")
	ids := []string{"a", "a.b", "*", "\x00", "b"}
	for _, id := range ids {
		putJob(t, q, id, "")
		releaseJob(t, q, pullJob(t, q, id, 1))
	}
	putJob(t, q, "end", "")
	pullJob(t, q, "end", 1)
	checkDead(t, q, "a::1", "a.b::1", "*::1", "\x00::1", "b::1")
	drop("*")
	drop("a")
	drop("a")
	checkDead(t, q, "a.b::1", "\x00::1", "b::1")
	drop("\x00")
	drop("b")
	drop("a.b")
	checkDead(t, q)
}

// testQueueState: the state has the depth, the dead letters and the age of the oldest job.
func testQueueState(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease, MaxAttempts: 1})
	// check wants an oldest job which was put between two times; zero times are no job.
	check := func(what string, waiting, started, dead int, from, to time.Time) {
		t.Helper()
		if !from.IsZero() {
			from, to = from.Add(-clockStep), to.Add(clockStep)
		}
		ctx := fixturetest.PatientContext(t)
		for ; ; time.Sleep(clockStep) { // a NATS server counts and removes what it has taken a moment later
			s, err := q.DescribeState(ctx)
			if err == nil && s.Waiting == waiting && s.Started == started && s.Dead == dead && !s.At.IsZero() && !s.Oldest.Before(from) && !s.Oldest.After(to) {
				return
			}
			if err != nil {
				t.Fatalf("%s: %+v, error %v; want %d, %d and %d dead, and a job of %v to %v", what, s, err, waiting, started, dead, from, to)
			}
		}
	}
	none := time.Time{}
	check("nothing", 0, 0, 0, none, none)
	before := time.Now()
	putJob(t, q, "a", "")
	between := time.Now()
	<-time.After(4 * clockStep) // the second job is put later by any clock
	putJob(t, q, "b", "")
	check("two wait", 2, 0, 0, before, between)
	releaseJob(t, q, pullJob(t, q, "a", 1))
	b := pullJob(t, q, "b", 1) // it offers a again first, which had its attempts
	check("one is dead", 0, 1, 1, between.Add(2*clockStep), time.Now())
	ackJob(t, q, b)
	check("one is done", 0, 0, 1, none, none)
}

// testListQueues: queues which were used are listed by the beginning of their names, in order.
func testListQueues(t *testing.T, qs bus.Queues) {
	check := func(prefix string, want ...string) {
		t.Helper()
		got, err := qs.ListQueues(fixturetest.PatientContext(t), prefix)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("queues of %q: %q, error %v, want %q", prefix, got, err, want)
		}
	}
	check("")
	for _, name := range []string{"ns.b-1", "ns.a", "ns.b", "n_s.b.jobs.c", "other.b"} {
		putJob(t, openQueue(t, qs, bus.QueueConfig{Name: name, Lease: longLease}), "x", "")
	}
	check("", "n_s.b.jobs.c", "ns.a", "ns.b", "ns.b-1", "other.b")
	check("ns.", "ns.a", "ns.b", "ns.b-1")
	check("ns.b", "ns.b", "ns.b-1")
	check("none.")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := qs.ListQueues(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("list with a context which has ended: %v", err)
	}
}

func testWaitingDeadline(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	for _, id := range []string{"short", "shorter"} {
		if err := q.Put(fixturetest.PatientContext(t), bus.Job{ID: id, Lifetime: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	put := time.Now() // the deadlines are at most 1 ms later
	putJob(t, q, "long", "")
	<-time.After(time.Until(put.Add(time.Millisecond + clockStep)))
	ackJob(t, q, pullJob(t, q, "long", 1))
	checkDead(t, q)
}

func testHeldDeadline(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	for lifetime := time.Second; ; lifetime *= 2 { // a slow machine needs longer from Put to Pull
		ended := fmt.Sprint("end ", lifetime)
		if err := q.Put(fixturetest.PatientContext(t), bus.Job{ID: fmt.Sprint(lifetime), Lifetime: lifetime}); err != nil {
			t.Fatal(err)
		}
		putJob(t, q, ended, "")
		d := pullAny(t, q)
		if d.ID == ended {
			ackJob(t, q, d)
			continue
		}
		<-time.After(time.Until(d.Deadline.Add(clockStep)))
		checkCode(t, "extend", q.Extend(fixturetest.PatientContext(t), d), fault.Deadline)
		checkCode(t, "ack", q.Ack(fixturetest.PatientContext(t), d), fault.Deadline)
		checkCode(t, "release", q.Release(fixturetest.PatientContext(t), d), fault.Deadline)
		ackJob(t, q, pullJob(t, q, ended, 1))
		return
	}
}

// testManyWorkers: each job goes to one worker.
func testManyWorkers(t *testing.T, qs bus.Queues) {
	q := openQueue(t, qs, bus.QueueConfig{Lease: longLease})
	const jobs, workers, putters = 200, 8, 4
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	defer cancel()
	var all sync.WaitGroup
	got := make(chan bus.Delivery, jobs)
	for range workers {
		all.Go(func() {
			for {
				d, err := q.Pull(ctx)
				if errors.Is(err, context.Canceled) {
					return
				}
				if err == nil {
					err = q.Ack(ctx, d)
				}
				if err != nil {
					t.Errorf("worker: %v", err)
					return
				}
				got <- d
			}
		})
	}
	for p := range putters {
		all.Go(func() {
			for i := p; i < jobs; i += putters {
				if err := q.Put(ctx, bus.Job{ID: fmt.Sprint(i), Data: fmt.Appendf(nil, "job %d", i), Lifetime: time.Minute * 5}); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	seen := map[string]bool{}
	for range jobs {
		select {
		case d := <-got:
			if seen[d.ID] || d.Attempt != 1 || !bytes.Equal(d.Data, []byte("job "+d.ID)) {
				t.Errorf("delivery %+v", d)
			}
			seen[d.ID] = true
		case <-ctx.Done():
			t.Fatalf("%d jobs of %d came", len(seen), jobs)
		}
	}
	checkDepth(t, q, 0, 0)
	cancel()
	all.Wait()
}

func testQueuesApart(t *testing.T, qs bus.Queues) {
	a := openQueue(t, qs, bus.QueueConfig{Name: "ns.a", Lease: longLease, MaxAttempts: 1})
	b := openQueue(t, qs, bus.QueueConfig{Name: "ns.b", Lease: longLease, MaxAttempts: 1})
	again := openQueue(t, qs, bus.QueueConfig{Name: "ns.a", Lease: longLease, MaxAttempts: 1})
	putJob(t, a, "x", "a")
	putJob(t, b, "x", "b")
	for q, data := range map[bus.Queue]string{again: "a", b: "b"} {
		d := pullJob(t, q, "x", 1)
		if string(d.Data) != data {
			t.Errorf("data %q, want %q", d.Data, data)
		}
		releaseJob(t, q, d)
	}
	putJob(t, a, "y", "")
	pullJob(t, a, "y", 1)
	checkDead(t, a, "x:a:1")
	checkDead(t, b)
}
