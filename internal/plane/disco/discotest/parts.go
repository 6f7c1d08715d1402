package discotest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/disco"
)

func testEmpty(t *testing.T, r disco.Registry) {
	watch(t, r, disco.Worker).await("")
}

func testRegister(t *testing.T, r disco.Registry) {
	w := watch(t, r, disco.Worker)
	w.await("")
	register(t, r, worker(1, 1, "a"))
	w.await("1/1@a")
	register(t, r, worker(2, 5, "b"))
	w.await("1/1@a 2/5@b")
	// A registered instance is visible: a new watch sees both at once.
	late := watch(t, r, disco.Worker)
	late.await("1/1@a 2/5@b")
	if n := len(late.sets()); n != 1 {
		t.Errorf("the set as it was came in %d pieces: %v", n, late.sets())
	}
}

func testEveryField(t *testing.T, r disco.Registry) {
	in := disco.Instance{
		Kind: disco.Frontend, ID: kv.MaxWorkerID, Epoch: 1<<64 - 1,
		Namespace: "penstock", Component: "backend", Endpoint: "generate",
		Addr: "127.0.0.1:1", Host: "höst", PID: 12345, Name: "näme",
		Meta: []byte("{\"a\":\"\x00\xff<>&\"}"), Unconfirmed: true,
	}
	register(t, r, in)
	w := watch(t, r, disco.Frontend)
	w.await(fmt.Sprintf("%d/%d@127.0.0.1:1", in.ID, in.Epoch))
	in.Unconfirmed = false // watchers set it, not the instance
	if got := w.sets()[0][0]; !reflect.DeepEqual(got, in) {
		t.Errorf("got  %+v\nwant %+v", got, in)
	}
}

func testOrder(t *testing.T, r disco.Registry) {
	for _, id := range []kv.WorkerID{30, 4, 100, 0, 20} {
		register(t, r, worker(id, 1, "x"))
	}
	watch(t, r, disco.Worker).await("0/1@x 4/1@x 20/1@x 30/1@x 100/1@x")
}

func testKindsApart(t *testing.T, r disco.Registry) {
	workers, routers := watch(t, r, disco.Worker), watch(t, r, disco.Router)
	workers.await("")
	routers.await("")
	register(t, r, worker(1, 1, "w"))
	workers.await("1/1@w")
	in := worker(1, 1, "r") // the same ID is another instance
	in.Kind = disco.Router
	l := register(t, r, in)
	routers.await("1/1@r")
	release(t, l)
	routers.await("")
	if n := len(workers.sets()); n != 2 {
		t.Errorf("the watcher of workers was called %d times, want 2", n)
	}
}

func testUpdate(t *testing.T, r disco.Registry) {
	l := register(t, r, worker(1, 7, "a"))
	w := watch(t, r, disco.Worker)
	w.await("1/7@a")
	for _, addr := range []string{"b", "c", "d"} {
		if err := l.Update(t.Context(), worker(1, 7, addr)); err != nil {
			t.Fatal(err)
		}
	}
	w.await("1/7@d")
	n := len(w.sets())
	// An update without changes calls no sink. The second update shows that the first had its
	// chance.
	if err := l.Update(t.Context(), worker(1, 7, "d")); err != nil {
		t.Fatal(err)
	}
	in := worker(1, 7, "d")
	in.Meta = []byte("m")
	if err := l.Update(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	w.awaitSets(n + 1)
	if got := w.sets()[n][0]; string(got.Meta) != "m" {
		t.Errorf("an update that changed nothing was shown: %+v", got)
	}
}

// awaitSets waits until n sets have arrived.
func (w *watcher) awaitSets(n int) {
	w.t.Helper()
	for len(w.sets()) < n {
		select {
		case <-w.change:
		case <-w.done:
			w.t.Fatalf("Watch returned %v", w.err)
		}
	}
}

func testUpdateOfAnother(t *testing.T, r disco.Registry) {
	l := register(t, r, worker(1, 7, "a"))
	other := worker(1, 7, "x")
	other.Kind = disco.Router
	for _, in := range []disco.Instance{worker(2, 7, "x"), worker(1, 8, "x"), other} {
		if err := l.Update(t.Context(), in); fault.Of(err) != fault.Invalid {
			t.Errorf("update to %+v: error %v, want Invalid", in, err)
		}
	}
	watch(t, r, disco.Worker).await("1/7@a")
}

func testRelease(t *testing.T, r disco.Registry) {
	w := watch(t, r, disco.Worker)
	l := register(t, r, worker(1, 1, "a"))
	register(t, r, worker(2, 1, "b"))
	w.await("1/1@a 2/1@b")
	release(t, l)
	w.await("2/1@b")
	release(t, l) // idempotent
	select {
	case <-l.Lost():
		t.Error("a lease that was released, and not replaced, is lost")
	default:
	}
	if err := l.Update(t.Context(), worker(1, 1, "c")); fault.Of(err) != fault.Conflict {
		t.Errorf("update after release: error %v, want Conflict", err)
	}
	watch(t, r, disco.Worker).await("2/1@b")
}

// testRegisterAgain registers one identity several times in a row.
func testRegisterAgain(t *testing.T, r disco.Registry) {
	w := watch(t, r, disco.Worker)
	for range 3 {
		l := register(t, r, worker(1, 1, "a"))
		w.await("1/1@a")
		release(t, l)
		w.await("")
	}
}

func testHigherEpoch(t *testing.T, r disco.Registry) {
	w := watch(t, r, disco.Worker)
	old := register(t, r, worker(1, 1, "old"))
	w.await("1/1@old")
	register(t, r, worker(1, 2, "new"))
	w.await("1/2@new")
	if err := old.Update(t.Context(), worker(1, 1, "older")); fault.Of(err) != fault.Conflict {
		t.Errorf("update by the old life: error %v, want Conflict", err)
	}
	awaitLost(t, old)
	release(t, old) // must not remove the newer incarnation
	register(t, r, worker(2, 1, "b"))
	w.await("1/2@new 2/1@b")
	for _, set := range w.sets()[2:] {
		if len(set) == 0 || set[0].ID != 1 {
			t.Errorf("the instance was away while it was replaced: %s", text(set))
		}
	}
}

// awaitLost waits until the lease reports that a newer incarnation has replaced it.
func awaitLost(t *testing.T, l disco.Lease) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Error("a lease that a newer life has replaced is not lost")
	}
}

func testLowerEpoch(t *testing.T, r disco.Registry) {
	register(t, r, worker(1, 5, "a"))
	for _, epoch := range []uint64{0, 4, 5} {
		if _, err := r.Register(t.Context(), worker(1, epoch, "b")); fault.Of(err) != fault.Conflict {
			t.Errorf("epoch %d: error %v, want Conflict", epoch, err)
		}
	}
	watch(t, r, disco.Worker).await("1/5@a")
}

func testLateWatcher(t *testing.T, r disco.Registry) {
	l := register(t, r, worker(1, 1, "a"))
	if err := l.Update(t.Context(), worker(1, 1, "b")); err != nil {
		t.Fatal(err)
	}
	gone := register(t, r, worker(2, 1, "gone"))
	release(t, gone)
	w := watch(t, r, disco.Worker)
	w.await("1/1@b")
	if n := len(w.sets()); n != 1 {
		t.Errorf("the first set came in %d pieces", n)
	}
}

// testSinkKeeps overwrites the sets that its sink received.
func testSinkKeeps(t *testing.T, r disco.Registry) {
	in := worker(1, 1, "a")
	in.Meta = []byte("meta")
	l := register(t, r, in)
	clear(in.Meta) // Register has copied it
	ctx, cancel := context.WithCancel(t.Context())
	other := watch(t, r, disco.Worker)
	other.await("1/1@a")
	n := 0
	err := r.Watch(ctx, disco.Worker, func(set []disco.Instance) {
		if string(set[0].Meta) != "meta" {
			t.Errorf("set %d has meta %q", n, set[0].Meta)
		}
		clear(set[0].Meta)
		clear(set)
		if n++; n == 2 {
			cancel()
			return
		}
		in := worker(1, 1, "b")
		in.Meta = []byte("meta")
		if err := l.Update(t.Context(), in); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
	other.await("1/1@b")
	for _, set := range other.sets() {
		if string(set[0].Meta) != "meta" {
			t.Errorf("another watcher's set was changed: %+v", set[0])
		}
	}
}

func testContextEnds(t *testing.T, r disco.Registry) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := r.Watch(ctx, disco.Worker, func([]disco.Instance) {
		n++
		cancel()
	})
	if err != nil || n != 1 {
		t.Errorf("Watch returned %v after %d sets, want nil after one", err, n)
	}
	if err := r.Watch(ctx, disco.Worker, func([]disco.Instance) { t.Error("a set after the end") }); err != nil {
		t.Errorf("Watch returned %v, want nil", err)
	}
	if _, err := r.Register(ctx, worker(1, 1, "a")); err != context.Canceled {
		t.Errorf("Register returned %v, want context.Canceled", err)
	}
}

func testRefused(t *testing.T, r disco.Registry) {
	huge := worker(1, 1, "a")
	huge.Meta = make([]byte, disco.MaxRecord)
	if _, err := r.Register(t.Context(), huge); fault.Of(err) != fault.TooLarge {
		t.Errorf("a huge record: error %v, want TooLarge", err)
	}
	if _, err := r.Register(t.Context(), worker(kv.MaxWorkerID+1, 1, "a")); fault.Of(err) != fault.Invalid {
		t.Errorf("a huge id: error %v, want Invalid", err)
	}
	for _, kind := range []disco.Kind{"", "a.b", "*", ">", "a b", "é", disco.Kind(strings.Repeat("k", 65))} {
		in := worker(1, 1, "a")
		in.Kind = kind
		if _, err := r.Register(t.Context(), in); fault.Of(err) != fault.Invalid {
			t.Errorf("kind %q: Register returned %v, want Invalid", kind, err)
		}
		err := r.Watch(t.Context(), kind, func([]disco.Instance) { t.Errorf("kind %q has instances", kind) })
		if fault.Of(err) != fault.Invalid {
			t.Errorf("kind %q: Watch returned %v, want Invalid", kind, err)
		}
	}
	l := register(t, r, worker(1, 1, "a"))
	if err := l.Update(t.Context(), huge); fault.Of(err) != fault.TooLarge {
		t.Errorf("update to a huge record: error %v, want TooLarge", err)
	}
	large := worker(1, 1, "large")
	large.Meta = make([]byte, disco.MaxRecord*3/4-1<<10)
	if err := l.Update(t.Context(), large); err != nil {
		t.Error(err)
	}
	watch(t, r, disco.Worker).await("1/1@large")
}

// testMany registers and releases from many goroutines at once.
func testMany(t *testing.T, r disco.Registry) {
	const n = 60
	w := watch(t, r, disco.Worker)
	leases := make([]disco.Lease, n)
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := f(i); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) (err error) {
		leases[i], err = r.Register(t.Context(), worker(kv.WorkerID(i), 1, "a"))
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	var all, half []string
	for i := range n {
		all = append(all, fmt.Sprintf("%d/1@a", i))
		if i%2 == 1 {
			half = append(half, all[i])
		}
	}
	w.await(strings.Join(all, " "))
	each(func(i int) error {
		if i%2 == 0 {
			return leases[i].Release(t.Context())
		}
		return nil
	})
	w.await(strings.Join(half, " "))
	each(func(i int) error { return leases[i].Release(t.Context()) })
	w.await("")
}

// testOneWinner registers several incarnations of one instance concurrently: the highest epoch wins
// in any order.
func testOneWinner(t *testing.T, r disco.Registry) {
	const n = 8
	leases := make([]disco.Lease, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l, err := r.Register(t.Context(), worker(1, uint64(i), fmt.Sprint("life", i)))
			if err != nil && (fault.Of(err) != fault.Conflict || i == n-1) {
				t.Errorf("epoch %d: %v", i, err)
			}
			if err == nil {
				leases[i] = l
			}
		})
	}
	wg.Wait()
	watch(t, r, disco.Worker).await(fmt.Sprintf("1/%d@life%d", n-1, n-1))
	for _, l := range leases {
		if l != nil {
			release(t, l)
		}
	}
	watch(t, r, disco.Worker).await("")
}
