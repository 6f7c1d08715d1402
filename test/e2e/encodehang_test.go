//go:build unix

package e2e

import (
	"net/http"
	"sync"
	"syscall"
	"testing"

	"penstock/internal/config"
)

// TestEncoderHangs: an encode worker which hangs costs no request its answer, and requests of text alone, which come
// meanwhile, are answered too.
func TestEncoderHangs(t *testing.T) {
	t.Parallel()
	requests := illustrations(t, "What is it?")
	want := start(t, "workers=1").askAll(requests)
	f, join := encodeFleet(t)
	w := launch(t, config.Worker, join...)
	encoder := startWorkerProcess(t, append(join, "role=encode")...)
	f.serves("penstock-tiny", 1)
	f.encoders(1)
	w.knowsEmbeddings(1)
	if err := encoder.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	got := make([]answer, len(requests))
	for i, r := range requests {
		running.Go(func() { got[i] = f.complete("/v1/chat/completions", r) })
	}
	f.eventually("an encode worker is asked", func() bool { return w.metric(`penstock_embedding_cache_misses_total{tier="memory"}`) != "0" })
	for i := range 4 {
		if a := f.complete("/v1/chat/completions", chat(longPrompt(i), 3)); a.status != http.StatusOK {
			t.Errorf("text %d: %+v", i, a)
		}
	}
	running.Wait()
	for i, a := range got {
		if a.status != http.StatusOK || a.text != want[i] {
			t.Errorf("request %d: %+v, want %q", i, a, want[i])
		}
	}
	if err := encoder.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	if n := w.count(encodedJobs); n == 0 {
		t.Error("the worker encoded nothing itself")
	}
}
