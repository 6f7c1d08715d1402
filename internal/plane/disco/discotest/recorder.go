package discotest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/disco"
)

// waitLimit bounds every wait of the suite; no test passes by reaching it.
const waitLimit = 5 * time.Minute

// setRecorder collects the sets of one Watch.
type setRecorder struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{} // closed when Watch has returned
	err    error         // what it returned
	change chan struct{} // holds a token after a set
	mu     struct {
		sync.Mutex
		sets [][]disco.Instance
	}
}

// startWatch starts a watch which ends with the test.
func startWatch(t *testing.T, r disco.Registry, kind disco.Kind) *setRecorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &setRecorder{t: t, cancel: cancel, done: make(chan struct{}), change: make(chan struct{}, 1)}
	go func() {
		defer close(w.done)
		w.err = r.Watch(ctx, kind, w.record)
	}()
	t.Cleanup(func() {
		w.cancel()
		<-w.done
		if w.err != nil {
			t.Errorf("Watch returned %v after its context ended, want nil", w.err)
		}
	})
	return w
}

func (w *setRecorder) record(set []disco.Instance) {
	w.mu.Lock()
	w.mu.sets = append(w.mu.sets, set)
	w.mu.Unlock()
	select {
	case w.change <- struct{}{}:
	default:
	}
}

// recordedSets returns all sets so far.
func (w *setRecorder) recordedSets() [][]disco.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([][]disco.Instance(nil), w.mu.sets...)
}

// awaitSet waits until the newest set, as text, is want.
func (w *setRecorder) awaitSet(want string) {
	w.t.Helper()
	limit := time.After(waitLimit)
	for {
		last := "nothing"
		if sets := w.recordedSets(); len(sets) > 0 {
			last = formatSet(sets[len(sets)-1])
		}
		if last == want {
			return
		}
		select {
		case <-w.change:
		case <-w.done:
			w.t.Fatalf("Watch returned %v while waiting for [%s]", w.err, want)
		case <-limit:
			w.t.Fatalf("[%s] did not come; the newest set is [%s]", want, last)
		}
	}
}

// formatSet formats a set as "id/epoch@addr", with a "?" after unconfirmed instances.
func formatSet(set []disco.Instance) string {
	var parts []string
	for _, in := range set {
		s := fmt.Sprintf("%d/%d@%s", in.ID, in.Epoch, in.Addr)
		if in.Unconfirmed {
			s += "?"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func newWorker(id kv.WorkerID, epoch uint64, addr string) disco.Instance {
	return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: epoch, Addr: addr}
}

// registerInstance registers in until the end of the test.
func registerInstance(t *testing.T, r disco.Registry, in disco.Instance) disco.Lease {
	t.Helper()
	l, err := r.Register(fixturetest.PatientContext(t), in)
	if err != nil {
		t.Fatalf("register %d: %v", in.ID, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := l.Release(ctx); err != nil {
			t.Errorf("release %d: %v", in.ID, err)
		}
	})
	return l
}

func releaseLease(t *testing.T, l disco.Lease) {
	t.Helper()
	if err := l.Release(fixturetest.PatientContext(t)); err != nil {
		t.Fatalf("release: %v", err)
	}
}
