package bus

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/core/fault"
)

// naiveLine is a queue written from the table of states: every question is answered from the history of
// each job.
type naiveLine struct {
	cfg  QueueConfig
	jobs []*naiveJob // all that were ever put, in order
	dead []*naiveJob
}

type naiveJob struct {
	id       string
	put      time.Time
	deadline time.Time
	state    string // waiting, held, returned, dead, gone
	attempts int
	until    time.Time // end of the lease if held
	returned [2]int64  // order of return: time, then delivery or release
	delivery int64
	died     time.Time
}

// settle applies what time has done.
func (n *naiveLine) settle(now time.Time) {
	for _, j := range n.jobs {
		if j.state == "held" && !now.Before(j.until) {
			j.state, j.returned = "returned", [2]int64{j.until.UnixNano(), j.delivery}
		}
		if (j.state == "held" || j.state == "waiting" || j.state == "returned") && !now.Before(j.deadline) {
			j.state = "gone"
		}
		if j.state == "dead" && now.Sub(j.died) >= DeadAge {
			j.state = "gone"
		}
	}
}

func (n *naiveLine) count(states ...string) (c int) {
	for _, j := range n.jobs {
		if slices.Contains(states, j.state) {
			c++
		}
	}
	return c
}

func (n *naiveLine) putJob(now time.Time, job Job) fault.Code {
	n.settle(now)
	for _, j := range n.jobs {
		if j.id == job.ID && now.Sub(j.put) < n.cfg.MaxLifetime {
			return 0
		}
	}
	if n.count("waiting", "held", "returned") >= n.cfg.MaxJobs {
		return fault.Overloaded
	}
	n.jobs = append(n.jobs, &naiveJob{id: job.ID, put: now, deadline: now.Add(job.Lifetime), state: "waiting"})
	return 0
}

func (n *naiveLine) pullJob(now time.Time, delivery int64) *naiveJob {
	n.settle(now)
	for {
		var best *naiveJob
		for _, j := range n.jobs {
			if j.state == "returned" && (best == nil || slices.Compare(j.returned[:], best.returned[:]) < 0) {
				best = j
			}
		}
		for _, j := range n.jobs {
			if best == nil && j.state == "waiting" {
				best = j
			}
		}
		if best == nil {
			return nil
		}
		if best.attempts < n.cfg.MaxAttempts {
			best.attempts++
			best.state, best.until, best.delivery = "held", now.Add(n.cfg.Lease), delivery
			return best
		}
		best.state, best.died = "dead", now
		n.dead = append(n.dead, best)
	}
}

// useDelivery is Extend, Ack or Release of an attempt of a job.
func (n *naiveLine) useDelivery(now time.Time, op string, j *naiveJob, attempt int, step int64) fault.Code {
	n.settle(now)
	switch {
	case !now.Before(j.deadline):
		return fault.Deadline
	case j.state != "held" || j.attempts != attempt:
		return fault.Conflict
	}
	switch op {
	case "extend":
		j.until = now.Add(n.cfg.Lease)
	case "ack":
		j.state = "gone"
	case "release":
		j.state, j.returned = "returned", [2]int64{now.UnixNano(), 1<<40 + step}
	}
	return 0
}

func (n *naiveLine) listDead(now time.Time) (ids []string) {
	n.settle(now)
	for _, j := range n.dead {
		if j.state == "dead" {
			ids = append(ids, fmt.Sprint(j.id, " ", j.attempts))
		}
	}
	return ids
}

// TestJobLine compares the queue in memory with the naive one, over random calls at random times.
func TestJobLine(t *testing.T) {
	for seed := range uint64(300) {
		if err := compareLines(seed); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

type comparedDelivery struct {
	line    Delivery
	naive   *naiveJob
	attempt int
}

func compareLines(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := QueueConfig{Name: "q", MaxJobs: 1 + rng.IntN(8), MaxAttempts: 1 + rng.IntN(3), Lease: 2 * time.Second, MaxLifetime: 10 * time.Second}
	line, naive := newJobLine(cfg), &naiveLine{cfg: cfg}
	now := time.Unix(1_700_000_000, 0)
	var held []comparedDelivery
	code := func(err error) fault.Code {
		if err == nil {
			return 0
		}
		return fault.CodeOf(err)
	}
	for step := range int64(400) {
		now = now.Add(time.Duration(rng.IntN(4)*rng.IntN(4)) * 250 * time.Millisecond)
		if rng.IntN(200) == 0 {
			now = now.Add(DeadAge)
		}
		var got, want any
		op := rng.IntN(10)
		switch {
		case op < 3:
			job := Job{ID: fmt.Sprint(rng.IntN(60)), Lifetime: time.Duration(1+rng.IntN(40)) * 250 * time.Millisecond}
			got, want = code(line.putJob(now, job)), naive.putJob(now, job)
		case op < 6:
			d, ok := line.pullJob(now)
			j := naive.pullJob(now, step)
			if got, want = d.ID, ""; j != nil {
				got, want = fmt.Sprint(ok, d.ID, d.Attempt, d.Deadline), fmt.Sprint(true, j.id, j.attempts, j.deadline)
				held = append(held, comparedDelivery{d, j, j.attempts})
			}
		case op < 9 && len(held) > 0:
			d := held[rng.IntN(len(held))]
			switch op {
			case 6:
				got, want = code(line.extendJob(now, d.line)), naive.useDelivery(now, "extend", d.naive, d.attempt, step)
			case 7:
				got, want = code(line.ackJob(now, d.line)), naive.useDelivery(now, "ack", d.naive, d.attempt, step)
			case 8:
				got, want = code(line.releaseJob(now, d.line)), naive.useDelivery(now, "release", d.naive, d.attempt, step)
			}
		default:
			depth := line.describeDepth(now)
			var dead []string
			for _, d := range line.listDead(now) {
				dead = append(dead, fmt.Sprint(d.ID, " ", d.Attempts))
			}
			got = fmt.Sprint(depth.Waiting, depth.Started, dead)
			naive.settle(now)
			want = fmt.Sprint(naive.count("waiting"), naive.count("held", "returned"), naive.listDead(now))
			if len(dead) > 0 && rng.IntN(4) == 0 {
				drop := line.dead[rng.IntN(len(line.dead))].ID
				line.dropDead(drop)
				for _, j := range naive.dead {
					if j.id == drop && j.state == "dead" {
						j.state = "gone"
					}
				}
			}
		}
		if got != want {
			return fmt.Errorf("step %d, op %d: got %v, want %v", step, op, got, want)
		}
		if err := line.check(); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

// What a queue remembers is bounded.
func TestJobLineBounds(t *testing.T) {
	cfg := QueueConfig{Name: "q", MaxJobs: 4, MaxAttempts: 1, Lease: time.Second, MaxLifetime: time.Hour}
	l := newJobLine(cfg)
	now := time.Unix(1_700_000_000, 0)
	const n = 2*MaxDead + 1
	for i := range n {
		for _, id := range []string{fmt.Sprint(i), fmt.Sprint("end ", i)} {
			if err := l.putJob(now, Job{ID: id, Lifetime: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		d, _ := l.pullJob(now)
		if err := l.releaseJob(now, d); err != nil {
			t.Fatal(err)
		}
		d, _ = l.pullJob(now)
		if err := l.ackJob(now, d); err != nil || d.ID != fmt.Sprint("end ", i) {
			t.Fatal(d, err)
		}
		if err := l.check(); err != nil {
			t.Fatal(err)
		}
	}
	dead := l.listDead(now)
	if len(dead) != MaxDead || dead[0].ID != fmt.Sprint(n-MaxDead) || dead[MaxDead-1].ID != fmt.Sprint(n-1) {
		t.Errorf("%d dead letters from %s to %s", len(dead), dead[0].ID, dead[len(dead)-1].ID)
	}
	if k := len(l.ids.order); k != 4*rememberedIDs {
		t.Errorf("%d ids are remembered", k)
	}
}

func TestJudgeOffer(t *testing.T) {
	deadline := time.Unix(1000, 0)
	for _, tt := range []struct {
		left    time.Duration
		attempt uint64
		want    offerVerdict
	}{
		{time.Second, 1, offerDeliver},
		{1, 3, offerDeliver},
		{1, 4, offerDead},
		{time.Second, 1 << 63, offerDead},
		{0, 1, offerExpired},
		{-1, 1, offerExpired},
		{0, 4, offerExpired}, // a job whose time is up is no dead letter
	} {
		if got := judgeOffer(deadline.Add(-tt.left), deadline, tt.attempt, 3); got != tt.want {
			t.Errorf("%v before the deadline, attempt %d of 3: %d, want %d", tt.left, tt.attempt, got, tt.want)
		}
	}
}

func TestLeaseTable(t *testing.T) {
	var table leaseTable
	now := time.Unix(1000, 0)
	delivery := func(id, receipt string) Delivery {
		return Delivery{ID: id, Receipt: receipt, Attempt: 1, Deadline: now.Add(time.Minute)}
	}
	a, b, c := delivery("a", "1"), delivery("b", "2"), delivery("c", "3")
	table.grantLease(c, now.Add(2*time.Second))
	table.grantLease(a, now.Add(2*time.Second))
	table.grantLease(b, now.Add(time.Second))
	if at, ok := table.nextLapse(); !ok || !at.Equal(now.Add(time.Second)) {
		t.Errorf("the next lease passes at %v, %v", at, ok)
	}
	for _, tt := range []struct {
		after time.Duration
		d     Delivery
		want  fault.Code
	}{
		{0, a, 0},
		{time.Second, b, fault.Conflict},
		{time.Second - 1, b, 0},
		{0, delivery("a", "4"), fault.Conflict},
		{time.Minute, a, fault.Deadline},
	} {
		_, err := table.checkLease(now.Add(tt.after), tt.d)
		if got := fault.CodeOf(err); err != nil && got != tt.want || (err == nil) != (tt.want == 0) {
			t.Errorf("%s after %v: %v, want %v", tt.d.ID, tt.after, err, tt.want)
		}
	}
	if got := table.removeLapsed(now.Add(2 * time.Second)); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("passed %v", got)
	}
	table.extendLease(a, now.Add(time.Hour)) // too late
	if _, ok := table.nextLapse(); ok {
		t.Error("a lease came back")
	}
}

// check returns an error if the invariants do not hold.
func (l *jobLine) check() error {
	if n := len(l.waiting) + len(l.returned) + len(l.held.leases); n != len(l.jobs) || n > l.cfg.MaxJobs {
		return fmt.Errorf("%d jobs wait, are returned or held, of %d; %d are allowed", n, len(l.jobs), l.cfg.MaxJobs)
	}
	if len(l.dead) > MaxDead || len(l.ids.put) > l.ids.limit {
		return fmt.Errorf("%d dead letters, %d ids", len(l.dead), len(l.ids.put))
	}
	for id, j := range l.jobs {
		held := l.held.leases[j.receipt]
		if j.id != id || j.attempts > l.cfg.MaxAttempts || held != nil && held.id != id {
			return fmt.Errorf("job %s: %+v", id, j)
		}
		if places := countJob(l.waiting, j) + countJob(l.returned, j); places > 1 || (places == 1) == (held != nil) {
			return fmt.Errorf("job %s is in %d lists, and held: %v", id, places, held != nil)
		}
	}
	return nil
}

func countJob(list []*lineJob, j *lineJob) (n int) {
	for _, o := range list {
		if o == j {
			n++
		}
	}
	return n
}
