package handoff

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/bus"
)

// TestUnreachedOwners: all jobs together repeat attempts for a time which begins with the first failure, until the owner is
// reached or forgotten.
func TestUnreachedOwners(t *testing.T) {
	at := func(d time.Duration) kv.Mono { return kv.Mono(d) }
	const within = 2 * time.Second
	var u unreachedOwners
	check := func(owner string, now, want time.Duration) {
		t.Helper()
		if got := u.planAttempts(owner, at(now), within); got != at(want) {
			t.Errorf("attempts which begin at %v are repeated until %v, want %v", now, time.Duration(got), want)
		}
	}
	check("a", time.Second, 3*time.Second)
	u.add("a", at(time.Second))
	u.add("a", at(4*time.Second))
	check("a", 5*time.Second, 3*time.Second)
	check("b", 5*time.Second, 7*time.Second)
	u.forget("a")
	check("a", 5*time.Second, 7*time.Second)

	u.add("a", at(10*time.Second))
	check("a", 10*time.Second+unreachedMemory, 12*time.Second)
	const later = 11*time.Second + unreachedMemory
	check("a", later, later+within)
	u.add("a", at(later))
	check("a", later+time.Second, later+within)

	for i := range 2 * maxUnreached {
		u.add(fmt.Sprint(i), at(later))
	}
	u.add("a", at(later+time.Second))
	if len(u.of) != maxUnreached || u.of["a"].last != at(later+time.Second) {
		t.Errorf("%d owners are remembered, one since %+v", len(u.of), u.of["a"])
	}
	u.add("c", at(later+2*unreachedMemory))
	if len(u.of) != 1 {
		t.Errorf("%d owners are remembered", len(u.of))
	}
}

// TestUnreachedOwnerIsTriedOnce: after a job which did not reach the memory of the decode worker for its time, each further one
// makes one attempt, until one succeeds.
func TestUnreachedOwnerIsTriedOnce(t *testing.T) {
	for name, tokens := range map[string]int{"large": large, "small": 400} {
		eachWay(t, name, func(t *testing.T, q bus.Queue) {
			const reachWait = time.Second
			r := newRig(t, rigConfig{blocks: []int{16, 64}, queue: q, prefill: func(c *PrefillWorkerConfig) { c.ReachWait = reachWait }})
			refused := fault.New(fault.Unavailable, "refused")
			attempts, failure := 0, error(refused)
			n := r.prefills[0]
			n.bulk.opening = func() error {
				attempts++
				return failure
			}
			id := 0
			// send returns the jobs of a further request; some of them may find that the worker failed before.
			send := func() (jobs int, o *HandoffOutcome) {
				id++
				attempts = 0
				before := n.Stats().Jobs
				req := newRequest(id, tokens, 5)
				o = r.expect(req, r.start(r.ctx, req))
				synctest.Wait()
				return int(n.Stats().Jobs - before), o
			}
			if jobs, o := send(); attempts < 4 || o.Lost > reachWait+time.Second {
				t.Errorf("%d attempts of %d jobs: %+v", attempts, jobs, o)
			}
			time.Sleep(reachWait) // virtual time (synctest): another attempt may have had its time yet
			if jobs, o := send(); attempts == 0 || attempts > jobs || o.Lost > reachWait/2 {
				t.Errorf("%d attempts of %d jobs: %+v", attempts, jobs, o)
			}
			failure = nil
			if jobs, o := send(); jobs != 1 || attempts != 1 || !isRemote(o) {
				t.Errorf("%d attempts of %d jobs: %+v", attempts, jobs, o)
			}
			failure = fault.New(fault.NotFound, "the transfer is over") // says an owner which is reached
			if jobs, o := send(); attempts == 0 || attempts > jobs {
				t.Errorf("%d attempts of %d jobs: %+v", attempts, jobs, o)
			}
			time.Sleep(reachWait) // virtual, as above
			failure = refused
			if jobs, o := send(); attempts < 4 {
				t.Errorf("%d attempts of %d jobs: %+v", attempts, jobs, o)
			}
			r.expectIdle()
		})
	}
}
