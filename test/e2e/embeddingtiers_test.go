package e2e

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"penstock/internal/config"
)

// askAbout shows picture seed to s behind a text, for requests of a salt, and returns the answer.
func (s *server) askAbout(seed uint64, before, salt string) string {
	s.t.Helper()
	request := showing(8, said(before), shown("image", dataURI("image/png", pngOf(s.t, picture(seed, 224, 224)))))
	request["cache_salt"] = salt
	got := s.complete("/v1/chat/completions", request)
	if got.status != http.StatusOK || got.output != 8 {
		s.t.Fatalf("%+v", got)
	}
	return got.text
}

// forOnePicture is a capacity in GiB for the 64 KiB of one picture.
const forOnePicture = "embedding-cache-capacity-gb=0.0001"

// TestDiskTierAfterKill: what a worker's memory evicted to disk is used by the next process after SIGKILL: nothing is
// encoded, and the answers are the same. Another salt encodes, and shows none of it.
func TestDiskTierAfterKill(t *testing.T) {
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	settings := []string{"nats=" + f.started.NATS, "http-addr=127.0.0.1:0", "embedding-cache-disk=" + t.TempDir(), forOnePicture}
	w := startWorkerProcess(t, settings...)
	f.serves("penstock-tiny", 1)
	want := map[uint64]string{}
	for seed := uint64(1); seed <= 3; seed++ {
		want[seed] = f.askAbout(seed, "What is it?", "a")
	}
	w.eventually("two entries are on disk", func() bool { return w.count(`penstock_embedding_cache_bytes{tier="disk"}`) == 2*(64<<10+4<<10) })
	w.kill()
	f.serves("penstock-tiny", 0) // its registration has ended: the one worker below is the next process
	w = startWorkerProcess(t, settings...)
	f.serves("penstock-tiny", 1)
	for seed := uint64(1); seed <= 2; seed++ {
		if got := f.askAbout(seed, "What is it?", "a"); got != want[seed] {
			t.Errorf("picture %d: %q, want %q", seed, got, want[seed])
		}
	}
	jobs, hits := w.count(encodedJobs), w.count(`penstock_embedding_cache_hits_total{tier="disk"}`)
	if jobs+hits != 2 || jobs > 0 && !w.gaveUp() {
		t.Errorf("%d objects were encoded, %d were hits on disk\n%s", jobs, hits, w.log)
	}
	if got := f.askAbout(1, "What is it?", "b"); got != want[1] || w.count(encodedJobs) != jobs+1 {
		t.Errorf("another salt: %q, %d objects were encoded", got, w.count(encodedJobs))
	}
}

// gaveUp reports whether a process has given up waiting for rows which are elsewhere, because that took longer than the
// product's limit of some seconds. Then, and only then, it encodes what it could have had.
func (s *server) gaveUp() bool {
	log := s.log.String()
	return strings.Contains(log, "a tier of the embedding cache does not answer") ||
		regexp.MustCompile(`a worker did not give the rows which it holds.*deadline exceeded`).MatchString(log)
}

// TestObjectTier: what one worker's memory evicted to the object store the other one finds there.
func TestObjectTier(t *testing.T) {
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	settings := []string{"nats=" + f.started.NATS, "http-addr=127.0.0.1:0", "embedding-cache-object-store-gb=0.1", forOnePicture}
	w := launch(t, config.Worker, settings...)
	f.serves("penstock-tiny", 1)
	want := f.askAbout(1, "What is it?", "a")
	f.askAbout(2, "What is it?", "a")
	const stored = `penstock_embedding_cache_bytes{tier="object_store"}`
	w.eventually("it is stored", func() bool { return w.count(stored) > 0 })
	w.stop()
	f.serves("penstock-tiny", 0)
	w = launch(t, config.Worker, settings...)
	f.serves("penstock-tiny", 1)
	w.eventually("it is known", func() bool { return w.count(stored) > 0 })
	got := f.askAbout(1, "What is it?", "a")
	jobs := w.count(encodedJobs)
	if got != want || jobs > 1 || jobs > 0 && !w.gaveUp() {
		t.Errorf("%q, want %q; %d objects were encoded\n%s", got, want, jobs, w.log)
	}
	f.askAbout(1, "What is it?", "b")
	if n := w.count(encodedJobs); n != jobs+1 {
		t.Errorf("another salt: %d objects were encoded", n)
	}
}

// TestRowsOfAnotherWorker: what one of two workers has encoded the other one fetches from it, and answers the same;
// another salt encodes.
func TestRowsOfAnotherWorker(t *testing.T) {
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-mode=round-robin")
	var workers []*process
	for range 2 {
		workers = append(workers, launch(t, config.Worker, "nats="+f.started.NATS, "http-addr=127.0.0.1:0"))
	}
	f.serves("penstock-tiny", 2)
	jobs := func() int { return workers[0].count(encodedJobs) + workers[1].count(encodedJobs) }
	want := f.askAbout(1, "What is it?", "a")
	for _, w := range workers {
		w.eventually("both know of the entry", func() bool { return w.metric("penstock_embedding_index_entries") == "1" })
	}
	got := f.askAbout(1, "What is it?", "a")
	before := jobs()
	if gaveUp := workers[0].gaveUp() || workers[1].gaveUp(); got != want || before > 2 || before > 1 && !gaveUp {
		t.Errorf("%q, want %q; %d objects were encoded\n%s\n%s", got, want, before, workers[0].log, workers[1].log)
	}
	for _, w := range workers {
		if n := w.count(`penstock_embedding_cache_misses_total{tier="memory"}`); n != 1 {
			t.Errorf("a worker missed %d times", n)
		}
	}
	f.askAbout(1, "What is it?", "b")
	if jobs() != before+1 {
		t.Errorf("another salt: %d objects were encoded", jobs())
	}
}
