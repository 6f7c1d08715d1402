// Package discotest is the conformance suite of registries. It relies only on the contract: no fake
// time, no knowledge of the store.
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
	"penstock/internal/fixturetest"
	"penstock/internal/plane/disco"
)

func testEmpty(t *testing.T, r disco.Registry) {
	startWatch(t, r, disco.KindWorker).awaitSet("")
}

func testRegister(t *testing.T, r disco.Registry) {
	w := startWatch(t, r, disco.KindWorker)
	w.awaitSet("")
	registerInstance(t, r, newWorker(1, 1, "a"))
	w.awaitSet("1/1@a")
	registerInstance(t, r, newWorker(2, 5, "b"))
	w.awaitSet("1/1@a 2/5@b")
	// A registered instance is visible: a new watch sees both at once.
	late := startWatch(t, r, disco.KindWorker)
	late.awaitSet("1/1@a 2/5@b")
	if n := len(late.recordedSets()); n != 1 {
		t.Errorf("the set as it was came in %d pieces: %v", n, late.recordedSets())
	}
}

func testEveryField(t *testing.T, r disco.Registry) {
	in := disco.Instance{
		Kind: disco.KindFrontend, ID: kv.MaxWorkerID, Epoch: 1<<64 - 1,
		Namespace: "penstock", Component: "backend", Endpoint: "generate",
		Addr: "127.0.0.1:1", Host: "höst", PID: 12345, Name: "näme",
		Meta: []byte("{\"a\":\"\x00\xff<>&\"}"), Unconfirmed: true,
	}
	registerInstance(t, r, in)
	w := startWatch(t, r, disco.KindFrontend)
	w.awaitSet(fmt.Sprintf("%d/%d@127.0.0.1:1", in.ID, in.Epoch))
	in.Unconfirmed = false // watchers set it, not the instance
	if got := w.recordedSets()[0][0]; !reflect.DeepEqual(got, in) {
		t.Errorf("got  %+v\nwant %+v", got, in)
	}
}

func testOrder(t *testing.T, r disco.Registry) {
	for _, id := range []kv.WorkerID{30, 4, 100, 0, 20} {
		registerInstance(t, r, newWorker(id, 1, "x"))
	}
	startWatch(t, r, disco.KindWorker).awaitSet("0/1@x 4/1@x 20/1@x 30/1@x 100/1@x")
}

func testKindsApart(t *testing.T, r disco.Registry) {
	workers, routers := startWatch(t, r, disco.KindWorker), startWatch(t, r, disco.KindRouter)
	workers.awaitSet("")
	routers.awaitSet("")
	registerInstance(t, r, newWorker(1, 1, "w"))
	workers.awaitSet("1/1@w")
	in := newWorker(1, 1, "r") // the same ID is another instance
	in.Kind = disco.KindRouter
	l := registerInstance(t, r, in)
	routers.awaitSet("1/1@r")
	releaseLease(t, l)
	routers.awaitSet("")
	if n := len(workers.recordedSets()); n != 2 {
		t.Errorf("the watcher of workers was called %d times, want 2", n)
	}
}

func testUpdate(t *testing.T, r disco.Registry) {
	l := registerInstance(t, r, newWorker(1, 7, "a"))
	w := startWatch(t, r, disco.KindWorker)
	w.awaitSet("1/7@a")
	for _, addr := range []string{"b", "c", "d"} {
		if err := l.Update(fixturetest.PatientContext(t), newWorker(1, 7, addr)); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitSet("1/7@d")
	n := len(w.recordedSets())
	// An update without changes calls no sink. The second update shows that the first had its
	// chance.
	if err := l.Update(fixturetest.PatientContext(t), newWorker(1, 7, "d")); err != nil {
		t.Fatal(err)
	}
	in := newWorker(1, 7, "d")
	in.Meta = []byte("m")
	if err := l.Update(fixturetest.PatientContext(t), in); err != nil {
		t.Fatal(err)
	}
	w.awaitSets(n + 1)
	if got := w.recordedSets()[n][0]; string(got.Meta) != "m" {
		t.Errorf("an update that changed nothing was shown: %+v", got)
	}
}

// awaitSets waits until n sets have arrived.
func (w *setRecorder) awaitSets(n int) {
	w.t.Helper()
	for len(w.recordedSets()) < n {
		select {
		case <-w.change:
		case <-w.done:
			w.t.Fatalf("Watch returned %v", w.err)
		}
	}
}

func testUpdateOfAnother(t *testing.T, r disco.Registry) {
	l := registerInstance(t, r, newWorker(1, 7, "a"))
	other := newWorker(1, 7, "x")
	other.Kind = disco.KindRouter
	for _, in := range []disco.Instance{newWorker(2, 7, "x"), newWorker(1, 8, "x"), other} {
		if err := l.Update(fixturetest.PatientContext(t), in); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("update to %+v: error %v, want Invalid", in, err)
		}
	}
	startWatch(t, r, disco.KindWorker).awaitSet("1/7@a")
}

func testRelease(t *testing.T, r disco.Registry) {
	w := startWatch(t, r, disco.KindWorker)
	l := registerInstance(t, r, newWorker(1, 1, "a"))
	registerInstance(t, r, newWorker(2, 1, "b"))
	w.awaitSet("1/1@a 2/1@b")
	releaseLease(t, l)
	w.awaitSet("2/1@b")
	releaseLease(t, l) // idempotent
	select {
	case <-l.Lost():
		t.Error("a lease that was released, and not replaced, is lost")
	default:
	}
	if err := l.Update(fixturetest.PatientContext(t), newWorker(1, 1, "c")); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("update after release: error %v, want Conflict", err)
	}
	startWatch(t, r, disco.KindWorker).awaitSet("2/1@b")
}

// testRegisterAgain registers one identity several times in a row.
func testRegisterAgain(t *testing.T, r disco.Registry) {
	w := startWatch(t, r, disco.KindWorker)
	for range 3 {
		l := registerInstance(t, r, newWorker(1, 1, "a"))
		w.awaitSet("1/1@a")
		releaseLease(t, l)
		w.awaitSet("")
	}
}

func testHigherEpoch(t *testing.T, r disco.Registry) {
	w := startWatch(t, r, disco.KindWorker)
	old := registerInstance(t, r, newWorker(1, 1, "old"))
	w.awaitSet("1/1@old")
	registerInstance(t, r, newWorker(1, 2, "new"))
	w.awaitSet("1/2@new")
	if err := old.Update(fixturetest.PatientContext(t), newWorker(1, 1, "older")); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("update by the old life: error %v, want Conflict", err)
	}
	awaitLost(t, old)
	releaseLease(t, old) // must not remove the newer incarnation
	registerInstance(t, r, newWorker(2, 1, "b"))
	w.awaitSet("1/2@new 2/1@b")
	for _, set := range w.recordedSets()[2:] {
		if len(set) == 0 || set[0].ID != 1 {
			t.Errorf("the instance was away while it was replaced: %s", formatSet(set))
		}
	}
}

// awaitLost waits until the lease reports that a newer incarnation has replaced it.
func awaitLost(t *testing.T, l disco.Lease) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(waitLimit):
		t.Error("a lease that a newer life has replaced is not lost")
	}
}

func testLowerEpoch(t *testing.T, r disco.Registry) {
	registerInstance(t, r, newWorker(1, 5, "a"))
	for _, epoch := range []uint64{0, 4, 5} {
		if _, err := r.Register(fixturetest.PatientContext(t), newWorker(1, epoch, "b")); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("epoch %d: error %v, want Conflict", epoch, err)
		}
	}
	startWatch(t, r, disco.KindWorker).awaitSet("1/5@a")
}

func testLateWatcher(t *testing.T, r disco.Registry) {
	l := registerInstance(t, r, newWorker(1, 1, "a"))
	if err := l.Update(fixturetest.PatientContext(t), newWorker(1, 1, "b")); err != nil {
		t.Fatal(err)
	}
	gone := registerInstance(t, r, newWorker(2, 1, "gone"))
	releaseLease(t, gone)
	w := startWatch(t, r, disco.KindWorker)
	w.awaitSet("1/1@b")
	if n := len(w.recordedSets()); n != 1 {
		t.Errorf("the first set came in %d pieces", n)
	}
}

// testSinkKeeps overwrites the sets that its sink received.
func testSinkKeeps(t *testing.T, r disco.Registry) {
	in := newWorker(1, 1, "a")
	in.Meta = []byte("meta")
	l := registerInstance(t, r, in)
	clear(in.Meta) // Register has copied it
	ctx, cancel := context.WithCancel(t.Context())
	other := startWatch(t, r, disco.KindWorker)
	other.awaitSet("1/1@a")
	n := 0
	err := r.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
		if string(set[0].Meta) != "meta" {
			t.Errorf("set %d has meta %q", n, set[0].Meta)
		}
		clear(set[0].Meta)
		clear(set)
		if n++; n == 2 {
			cancel()
			return
		}
		in := newWorker(1, 1, "b")
		in.Meta = []byte("meta")
		if err := l.Update(fixturetest.PatientContext(t), in); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
	other.awaitSet("1/1@b")
	for _, set := range other.recordedSets() {
		if string(set[0].Meta) != "meta" {
			t.Errorf("another watcher's set was changed: %+v", set[0])
		}
	}
}

func testContextEnds(t *testing.T, r disco.Registry) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := r.Watch(ctx, disco.KindWorker, func([]disco.Instance) {
		n++
		cancel()
	})
	if err != nil || n != 1 {
		t.Errorf("Watch returned %v after %d sets, want nil after one", err, n)
	}
	if err := r.Watch(ctx, disco.KindWorker, func([]disco.Instance) { t.Error("a set after the end") }); err != nil {
		t.Errorf("Watch returned %v, want nil", err)
	}
	if _, err := r.Register(ctx, newWorker(1, 1, "a")); err != context.Canceled {
		t.Errorf("Register returned %v, want context.Canceled", err)
	}
}

func testRefused(t *testing.T, r disco.Registry) {
	huge := newWorker(1, 1, "a")
	huge.Meta = make([]byte, disco.MaxRecord)
	if _, err := r.Register(fixturetest.PatientContext(t), huge); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("a huge record: error %v, want TooLarge", err)
	}
	if _, err := r.Register(fixturetest.PatientContext(t), newWorker(kv.MaxWorkerID+1, 1, "a")); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a huge id: error %v, want Invalid", err)
	}
	for _, kind := range []disco.Kind{"", "a.b", "*", ">", "a b", "é", disco.Kind(strings.Repeat("k", 65))} {
		in := newWorker(1, 1, "a")
		in.Kind = kind
		if _, err := r.Register(fixturetest.PatientContext(t), in); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("kind %q: Register returned %v, want Invalid", kind, err)
		}
		err := r.Watch(t.Context(), kind, func([]disco.Instance) { t.Errorf("kind %q has instances", kind) })
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("kind %q: Watch returned %v, want Invalid", kind, err)
		}
	}
	l := registerInstance(t, r, newWorker(1, 1, "a"))
	if err := l.Update(fixturetest.PatientContext(t), huge); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("update to a huge record: error %v, want TooLarge", err)
	}
	large := newWorker(1, 1, "large")
	large.Meta = make([]byte, disco.MaxRecord*3/4-1<<10)
	if err := l.Update(fixturetest.PatientContext(t), large); err != nil {
		t.Error(err)
	}
	startWatch(t, r, disco.KindWorker).awaitSet("1/1@large")
}

// testMany registers and releases from many goroutines at once.
func testMany(t *testing.T, r disco.Registry) {
	const n = 60
	w := startWatch(t, r, disco.KindWorker)
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
		leases[i], err = r.Register(fixturetest.PatientContext(t), newWorker(kv.WorkerID(i), 1, "a"))
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
	w.awaitSet(strings.Join(all, " "))
	each(func(i int) error {
		if i%2 == 0 {
			return leases[i].Release(fixturetest.PatientContext(t))
		}
		return nil
	})
	w.awaitSet(strings.Join(half, " "))
	each(func(i int) error { return leases[i].Release(fixturetest.PatientContext(t)) })
	w.awaitSet("")
}

// testOneWinner registers several incarnations of one instance concurrently: the highest epoch wins
// in any order.
func testOneWinner(t *testing.T, r disco.Registry) {
	const n = 8
	leases := make([]disco.Lease, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l, err := r.Register(fixturetest.PatientContext(t), newWorker(1, uint64(i), fmt.Sprint("life", i)))
			if err != nil && (fault.CodeOf(err) != fault.Conflict || i == n-1) {
				t.Errorf("epoch %d: %v", i, err)
			}
			if err == nil {
				leases[i] = l
			}
		})
	}
	wg.Wait()
	startWatch(t, r, disco.KindWorker).awaitSet(fmt.Sprintf("1/%d@life%d", n-1, n-1))
	for _, l := range leases {
		if l != nil {
			releaseLease(t, l)
		}
	}
	startWatch(t, r, disco.KindWorker).awaitSet("")
}

// Run tests the registry that open returns. Each part gets its own registry without instances; open
// registers its cleanup with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) disco.Registry) {
	parts := []struct {
		name string
		test func(*testing.T, disco.Registry)
	}{
		{"empty", testEmpty},
		{"register", testRegister},
		{"every field", testEveryField},
		{"order", testOrder},
		{"kinds apart", testKindsApart},
		{"update", testUpdate},
		{"update of another", testUpdateOfAnother},
		{"release", testRelease},
		{"register again", testRegisterAgain},
		{"higher epoch", testHigherEpoch},
		{"lower epoch", testLowerEpoch},
		{"late watcher", testLateWatcher},
		{"sink keeps the set", testSinkKeeps},
		{"context ends", testContextEnds},
		{"refused", testRefused},
		{"many", testMany},
		{"one winner", testOneWinner},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}
