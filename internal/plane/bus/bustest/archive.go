package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

// RunArchive tests the archive that open returns. Each part gets its own archive without objects;
// open registers its cleanup with t.Cleanup.
func RunArchive(t *testing.T, open func(t *testing.T) bus.Archive) {
	parts := []struct {
		name string
		test func(*testing.T, bus.Archive)
	}{
		{"objects", testObjects},
		{"sizes", testObjectSizes},
		{"data is copied", testObjectCopied},
		{"names", testObjectNames},
		{"contexts", testArchiveContexts},
		{"lock/one at a time", testLockOne},
		{"lock/tokens", testLockTokens},
		{"lock/ends", testLockEnds},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

func putObject(t *testing.T, a bus.Archive, name string, data []byte) {
	t.Helper()
	if err := a.Put(fixturetest.PatientContext(t), name, data); err != nil {
		t.Fatalf("put %s: %v", name, err)
	}
}

// checkObjects checks the objects whose names begin with prefix.
func checkObjects(t *testing.T, a bus.Archive, prefix string, want ...bus.ArchiveObject) {
	t.Helper()
	got, err := a.List(fixturetest.PatientContext(t), prefix)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("objects %q: %v, %v, want %v", prefix, got, err, want)
	}
}

func testObjects(t *testing.T, a bus.Archive) {
	checkObjects(t, a, "")
	if _, err := a.Get(fixturetest.PatientContext(t), "one"); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("get from an empty archive: %v, want NotFound", err)
	}
	if err := a.Delete(fixturetest.PatientContext(t), "one"); err != nil {
		t.Errorf("delete from an empty archive: %v", err)
	}
	putObject(t, a, "ns.two", []byte("22"))
	putObject(t, a, "ns.one", []byte("1"))
	putObject(t, a, "other", nil)
	checkObjects(t, a, "", bus.ArchiveObject{Name: "ns.one", Size: 1}, bus.ArchiveObject{Name: "ns.two", Size: 2}, bus.ArchiveObject{Name: "other"})
	checkObjects(t, a, "ns.", bus.ArchiveObject{Name: "ns.one", Size: 1}, bus.ArchiveObject{Name: "ns.two", Size: 2})
	putObject(t, a, "ns.one", []byte("another"))
	putObject(t, a, "ns.one", []byte("a third"))
	for name, want := range map[string]string{"ns.one": "a third", "ns.two": "22", "other": ""} {
		if got, err := a.Get(fixturetest.PatientContext(t), name); err != nil || string(got) != want {
			t.Errorf("get %s: %q, %v, want %q", name, got, err, want)
		}
	}
	for range 2 {
		if err := a.Delete(fixturetest.PatientContext(t), "ns.one"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	checkObjects(t, a, "", bus.ArchiveObject{Name: "ns.two", Size: 2}, bus.ArchiveObject{Name: "other"})
	if _, err := a.Get(fixturetest.PatientContext(t), "ns.one"); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("get what was deleted: %v, want NotFound", err)
	}
	putObject(t, a, "ns.one", []byte("again"))
	if got, err := a.Get(fixturetest.PatientContext(t), "ns.one"); err != nil || string(got) != "again" {
		t.Errorf("get what was put again: %q, %v", got, err)
	}
}

// testObjectSizes stores objects of one message, of the maximum size of one message, and of many
// messages.
func testObjectSizes(t *testing.T, a bus.Archive) {
	for _, n := range []int{0, 1, 1 << 10, 256<<10 - 1, 256 << 10, 256<<10 + 1, 20<<20 + 17} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 31 >> 8)
		}
		putObject(t, a, "o", data)
		if got, err := a.Get(fixturetest.PatientContext(t), "o"); err != nil || !bytes.Equal(got, data) {
			t.Errorf("an object of %d bytes came back with %d, %v", n, len(got), err)
		}
		checkObjects(t, a, "", bus.ArchiveObject{Name: "o", Size: uint64(n)})
	}
	if err := a.Put(fixturetest.PatientContext(t), "big", make([]byte, bus.MaxObject+1)); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("oversize object: %v, want TooLarge", err)
	}
}

func testObjectCopied(t *testing.T, a bus.Archive) {
	data := []byte("data")
	putObject(t, a, "o", data)
	clear(data)
	for range 2 {
		got, err := a.Get(fixturetest.PatientContext(t), "o")
		if err != nil || string(got) != "data" {
			t.Errorf("got %q, %v", got, err)
		}
		clear(got)
	}
}

func testObjectNames(t *testing.T, a bus.Archive) {
	long := strings.Repeat("n", bus.MaxName)
	putObject(t, a, long, []byte("x"))
	checkObjects(t, a, "n", bus.ArchiveObject{Name: long, Size: 1})
	for _, name := range []string{"", ".", "a b", "a/b", "*", "é", long + "n"} {
		if err := a.Put(fixturetest.PatientContext(t), name, nil); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("put %q: %v, want Invalid", name, err)
		}
		if _, err := a.Get(fixturetest.PatientContext(t), name); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("get %q: %v, want Invalid", name, err)
		}
		if err := a.Delete(fixturetest.PatientContext(t), name); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("delete %q: %v, want Invalid", name, err)
		}
		if err := a.Lock(fixturetest.PatientContext(t), name, failIfHeld(t)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("lock %q: %v, want Invalid", name, err)
		}
	}
}

func testArchiveContexts(t *testing.T, a bus.Archive) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := a.Get(ctx, "o")
	_, listErr := a.List(ctx, "")
	for what, err := range map[string]error{
		"put": a.Put(ctx, "o", []byte("x")), "get": getErr, "list": listErr, "delete": a.Delete(ctx, "o"), "lock": a.Lock(ctx, "l", failIfHeld(t)),
	} {
		if err != context.Canceled {
			t.Errorf("%s with an ended context: %v, want context.Canceled", what, err)
		}
	}
	checkObjects(t, a, "")
}

// failIfHeld returns a function which must not be called.
func failIfHeld(t *testing.T) func(context.Context, uint64) error {
	return func(context.Context, uint64) error {
		t.Error("the lock was held")
		return nil
	}
}

// testLockOne lets many goroutines acquire one lock: never two hold it at once, and each of the
// others gets an error.
func testLockOne(t *testing.T, a bus.Archive) {
	const goroutines, rounds = 6, 5
	var wg sync.WaitGroup
	var mu sync.Mutex
	holders, held, refused := 0, 0, 0
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				err := a.Lock(fixturetest.PatientContext(t), "l", func(context.Context, uint64) error {
					mu.Lock()
					holders++
					held++
					if holders != 1 {
						t.Errorf("%d hold the lock", holders)
					}
					mu.Unlock()
					// Locks with different names are independent.
					if err := a.Lock(fixturetest.PatientContext(t), "l", failIfHeld(t)); fault.CodeOf(err) != fault.Conflict {
						t.Errorf("a lock that is held: %v, want Conflict", err)
					}
					mu.Lock()
					holders--
					mu.Unlock()
					return nil
				})
				mu.Lock()
				switch {
				case fault.CodeOf(err) == fault.Conflict:
					refused++
				case err != nil:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if held == 0 || held+refused != goroutines*rounds {
		t.Errorf("held %d times, refused %d, of %d", held, refused, goroutines*rounds)
	}
	if err := a.Lock(fixturetest.PatientContext(t), "m", func(ctx context.Context, _ uint64) error {
		return a.Lock(ctx, "n", func(context.Context, uint64) error { return nil })
	}); err != nil {
		t.Errorf("two locks: %v", err)
	}
}

func testLockTokens(t *testing.T, a bus.Archive) {
	last := uint64(0)
	for range 5 {
		if err := a.Lock(fixturetest.PatientContext(t), "l", func(_ context.Context, token uint64) error {
			if token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			last = token
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// testLockEnds: the lock is free after its holder has returned, failed or been canceled.
func testLockEnds(t *testing.T, a bus.Archive) {
	if err := a.Lock(fixturetest.PatientContext(t), "l", func(context.Context, uint64) error { return errDone }); err != errDone {
		t.Errorf("a holder's error came back as %v", err)
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	err := a.Lock(ctx, "l", func(ctx context.Context, _ uint64) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a holder whose context ended: %v", err)
	}
	if err := a.Lock(fixturetest.PatientContext(t), "l", func(context.Context, uint64) error { return nil }); err != nil {
		t.Errorf("after both: %v", err)
	}
}
