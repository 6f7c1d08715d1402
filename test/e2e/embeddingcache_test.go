package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"penstock/internal/config"
)

// TestEmbeddingCache: a picture that was shown in another conversation is not encoded again, except for
// another cache salt or with the cache off. The answers are the same.
func TestEmbeddingCache(t *testing.T) {
	picture := dataURI("image/png", pngOf(t, picture(1, 84, 112)))
	ask := func(s *server, before, salt string) string {
		s.t.Helper()
		request := showing(8, said(before), shown("image", picture))
		request["cache_salt"] = salt
		got := s.complete("/v1/chat/completions", request)
		if got.status != http.StatusOK || got.output != 8 {
			s.t.Fatalf("%+v", got)
		}
		return got.text
	}
	before := []string{"A lock of a canal:", "This is about dams. What do you see?", "Look at the gate:"}
	var want []string
	for _, c := range []struct {
		name               string
		settings           []string
		jobs, hits, misses int
	}{
		{name: "up", jobs: 1, hits: 2, misses: 1},
		{name: "off", settings: []string{"embedding-cache-capacity-gb=0"}, jobs: 3, misses: 3},
		{name: "too small", settings: []string{"embedding-cache-capacity-gb=0.000001"}, jobs: 3, misses: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, append(c.settings, "workers=2")...)
			s.expectEncoder(0, 0, 0)
			for i, text := range before {
				got := ask(s, text, "a")
				if len(want) == i {
					want = append(want, got)
				} else if got != want[i] {
					t.Errorf("%q, want %q", got, want[i])
				}
			}
			s.expectEncoder(c.jobs, c.hits, c.misses)
			if got := ask(s, before[0], "b"); got != want[0] {
				t.Errorf("with another salt %q, want %q", got, want[0])
			}
			s.expectEncoder(c.jobs+1, c.hits, c.misses+1)
			kept := s.metric(`penstock_embedding_cache_bytes{tier="memory"}`) != "0"
			if kept != (c.hits > 0) {
				t.Errorf("%s bytes are kept", s.metric(`penstock_embedding_cache_bytes{tier="memory"}`))
			}
		})
	}
	t.Run("worker", func(t *testing.T) {
		f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
		w := launch(t, config.Worker, "nats="+f.started.NATS, "http-addr=127.0.0.1:0")
		f.serves("penstock-tiny", 1)
		for i, text := range before {
			if got := ask(&f.server, text, "a"); got != want[i] {
				t.Errorf("%q, want %q", got, want[i])
			}
		}
		w.expectEncoder(1, 2, 1)
		if _, page := f.do(http.MethodGet, "/metrics", nil); strings.Contains(string(page), "penstock_encode_") {
			t.Error("a frontend has the metrics of encoders")
		}
	})
}

// TestHolderOfEmbedding: a picture which was shown to one of two worker processes is shown to it again, with another
// text, though the other one is as idle; after that process was killed it goes to the other.
func TestHolderOfEmbedding(t *testing.T) {
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-mode=time")
	workers := map[string]*workerProcess{}
	for _, id := range []string{"1", "2"} {
		workers[id] = startWorkerProcess(t, "nats="+f.started.NATS, "http-addr=127.0.0.1:0", "worker-id="+id)
	}
	f.serves("penstock-tiny", 2)
	held := func(entries string) {
		t.Helper()
		f.eventually("penstock_embedding_index_entries is "+entries, func() bool { return f.metric("penstock_embedding_index_entries") == entries })
	}
	// ask shows a picture behind a text and returns the worker which answered.
	ask := func(seed uint64, before string) string {
		t.Helper()
		request := showing(4, said(before), shown("image", dataURI("image/png", pngOf(t, picture(seed, 224, 224)))))
		got := f.complete("/v1/chat/completions", request)
		if got.status != http.StatusOK {
			t.Fatalf("%+v", got)
		}
		return got.worker
	}
	affinities := func(seed uint64, before string) map[string]float64 {
		t.Helper()
		request := showing(4, said(before), shown("image", dataURI("image/png", pngOf(t, picture(seed, 224, 224)))))
		got := map[string]float64{}
		for _, c := range explainOf(&f.server, request) {
			got[strconv.FormatUint(c.WorkerID, 10)] = c.EmbeddingAffinity
		}
		return got
	}
	first := ask(1, "A lock of a canal:")
	held("1")
	for i, text := range []string{"What do you see?", "Name the colours:", "Describe it.", "Is it old?"} {
		if got := ask(1, text); got != first {
			t.Errorf("question %d went to worker %s, %s holds the picture", i, got, first)
		}
	}
	workers[first].expectEncoder(1, 4, 1)
	if got := affinities(1, "Who made it?"); len(got) != 2 || got[first] <= 0 || got[other(first)] != 0 {
		t.Errorf("worker %s holds the picture, explained as %v", first, got)
	}
	if got := affinities(2, "Who made it?"); got["1"] != 0 || got["2"] != 0 {
		t.Errorf("no worker holds the other picture, explained as %v", got)
	}
	workers[first].kill()
	f.serves("penstock-tiny", 1)
	held("0")
	if got := ask(1, "Where is it?"); got != other(first) {
		t.Errorf("after the holder was killed: %s", got)
	}
	held("1")
}

// TestRowsOfWorkerOnHost: a worker process copies what another one of its host has encoded out of that one's memory,
// without a transfer, and unmaps the memory when that process was killed.
func TestRowsOfWorkerOnHost(t *testing.T) {
	if !hasShared {
		t.Skip("there is no shared memory on this system")
	}
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-mode=round-robin")
	workers := map[string]*workerProcess{}
	for _, id := range []string{"1", "2"} {
		workers[id] = startWorkerProcess(t, "nats="+f.started.NATS, "http-addr=127.0.0.1:0", "worker-id="+id)
	}
	f.serves("penstock-tiny", 2)
	ask := func(text string) answer {
		t.Helper()
		got := f.complete("/v1/chat/completions", showing(8, said(text), shown("image", dataURI("image/png", pngOf(t, picture(1, 224, 224))))))
		if got.status != http.StatusOK {
			t.Fatalf("%+v", got)
		}
		return got
	}
	want := ask("What do you see?")
	w := workers[other(want.worker)]
	const regions = "penstock_embedding_cache_regions"
	w.eventually("the other worker can read the memory of the first", func() bool {
		return w.metric("penstock_embedding_index_holdings") == "1" && w.metric(regions) == "1"
	})
	if got := ask("What do you see?"); got.worker == want.worker || got.text != want.text {
		t.Errorf("%+v, want the answer of the first worker: %+v", got, want)
	}
	w.expectEncoder(0, 0, 1)
	for line, want := range map[string]int{
		`penstock_embedding_cache_hits_total{tier="region"}`: 1, `penstock_embedding_cache_misses_total{tier="region"}`: 0,
		`penstock_xfer_transfers_total{outcome="ok",side="owner",transport="shm"}`: 0,
		`penstock_xfer_transfers_total{outcome="ok",side="owner",transport="tcp"}`: 0,
	} {
		if got := w.count(line); got != want {
			t.Errorf("%s is %d, want %d", line, got, want)
		}
	}
	workers[want.worker].kill()
	f.serves("penstock-tiny", 1)
	w.eventually("the memory of the killed worker is unmapped", func() bool { return w.metric(regions) == "0" })
	ask("Name the colours:")
	w.expectEncoder(0, 1, 1)
}

// TestFetchOff: with embedding-fetch off a worker encodes what another one holds, of which it knows; encode workers are
// asked all the same.
func TestFetchOff(t *testing.T) {
	t.Parallel()
	f, join := encodeFleet(t, "router-mode=round-robin")
	join = append(join, "embedding-fetch=off")
	workers := []*process{launch(t, config.Worker, join...), launch(t, config.Worker, join...)}
	f.serves("penstock-tiny", 2)
	ask := func(seed uint64) {
		f.askAll([]map[string]any{showing(8, said("Look:"), shown("image", dataURI("image/png", pngOf(t, picture(seed, 224, 224)))))})
	}
	jobs := func() int { return workers[0].count(encodedJobs) + workers[1].count(encodedJobs) }
	ask(1)
	next := workers[workers[0].count(encodedJobs)]
	next.eventually("it is known what the first one holds", func() bool { return next.count("penstock_embedding_index_holdings") == 1 })
	ask(1)
	if jobs() != 2 {
		t.Errorf("encoded %d times, want 2", jobs())
	}
	encoder := launch(t, config.Worker, append(join, "role=encode")...)
	f.encoders(1)
	for _, w := range workers {
		w.knowsEmbeddings(1)
	}
	ask(2)
	if jobs() != 2 {
		t.Errorf("a worker has encoded, and not the encode worker")
	}
	encoder.expectEncoder(1, 0, 1)
}

func other(id string) string { return map[string]string{"1": "2", "2": "1"}[id] }

// expectEncoder compares the metrics of encoders.
func (s *server) expectEncoder(jobs, hits, misses int) {
	s.t.Helper()
	for line, want := range map[string]int{
		`penstock_encode_jobs_total{outcome="ok"}`:                jobs,
		`penstock_encode_jobs_total{outcome="error"}`:             0,
		`penstock_encode_jobs_total{outcome="cancelled"}`:         0,
		`penstock_embedding_cache_hits_total{tier="memory"}`:      hits,
		`penstock_embedding_cache_misses_total{tier="memory"}`:    misses,
		`penstock_embedding_cache_evictions_total{tier="memory"}`: 0,
	} {
		if got := s.metric(line); got != strconv.Itoa(want) {
			s.t.Errorf("%s is %q, want %d", line, got, want)
		}
	}
}

// TestSimulatedEmbeddingCache: engine sim looks media up by key as engine tiny does, and has the same metrics.
func TestSimulatedEmbeddingCache(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "served-model-name=penstock-tiny", "workers=1", "sim-speedup=1000")
	s.askAll(illustrations(t, "What is it?"))
	if jobs, misses := s.count(encodedJobs), s.count(`penstock_embedding_cache_misses_total{tier="memory"}`); jobs != 6 || misses != 6 {
		t.Errorf("%d objects were encoded and %d missed, want 6", jobs, misses)
	}
	before := s.count(`penstock_embedding_cache_hits_total{tier="memory"}`)
	s.askAll(illustrations(t, "Which one?"))
	jobs, hits := s.count(encodedJobs), s.count(`penstock_embedding_cache_hits_total{tier="memory"}`)
	if jobs != 6 || hits < before+5 || s.count(`penstock_embedding_cache_bytes{tier="memory"}`) == 0 {
		t.Errorf("%d objects were encoded, %d were hits, and %d before", jobs, hits, before)
	}
	off := start(t, "engine=sim", "served-model-name=penstock-tiny", "workers=1", "sim-speedup=1000", "embedding-cache-capacity-gb=0")
	off.askAll(illustrations(t, "What is it?"))
	off.askAll(illustrations(t, "Which one?"))
	if jobs, hits := off.count(encodedJobs), off.count(`penstock_embedding_cache_hits_total{tier="memory"}`); jobs < 12 || hits != 0 {
		t.Errorf("with the cache off %d objects were encoded, and %d were hits", jobs, hits)
	}
}
