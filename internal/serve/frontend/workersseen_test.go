package frontend

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoConnectionBeforeFirstSight: a new frontend accepts no connection before the registry is read, so
// that its first clients are not told that no model exists.
func TestNoConnectionBeforeFirstSight(t *testing.T) {
	inSilentWorld(t, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		came := make(chan *http.Response, 1)
		go func() { came <- w.send(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(hello)) }()
		time.Sleep(firstReadTimeout - time.Nanosecond)
		synctest.Wait()
		if len(came) != 0 {
			t.Fatal("an answer before the registry is read")
		}
		w.registry.silence(false)
		if a := read(<-came); a.status != http.StatusOK {
			t.Errorf("%d %q", a.status, a.body)
		}
	})
}

// TestRegistryAwayAtStart: without a registry a frontend says so after a while.
func TestRegistryAwayAtStart(t *testing.T) {
	inSilentWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		a := w.post("/v1/completions", hello)
		if took := time.Since(began); a.status != http.StatusServiceUnavailable || took != firstReadTimeout {
			t.Errorf("%d after %v: %q", a.status, took, a.body)
		}
		if !strings.Contains(w.log.String(), "the registry does not answer") {
			t.Errorf("the log does not say why: %s", w.log)
		}
	})
}

// TestStopBeforeFirstSight: the wait does not delay the stop.
func TestStopBeforeFirstSight(t *testing.T) {
	inSilentWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.stop()
		err := <-w.ran
		if took := time.Since(began); err != nil || took != 0 {
			t.Errorf("%v after %v", err, took)
		}
		w.ran <- err // for the end of the world
	})
}
