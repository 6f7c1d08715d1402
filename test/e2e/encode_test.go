package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"penstock/internal/config"
)

// encoders waits until a frontend's fleet has so many encode workers.
func (s *server) encoders(n int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d encode workers", n), func() bool {
		var table struct{ Rows []roleRow }
		s.get("/v1/router/workers", &table)
		have := 0
		for _, r := range table.Rows {
			if r.Role == "encode" && r.State == "ready" {
				have++
			}
		}
		return have == n
	})
}

// knowsEmbeddings waits until the workers of a process know so many others whose embeddings they may use, encode workers
// among them. A frontend which sees an encode worker says nothing of this: each worker watches discovery itself.
func (s *server) knowsEmbeddings(workers int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d workers with embeddings are known", workers), func() bool {
		return s.sum("penstock_embedding_feed_workers") == workers
	})
}

// count returns a metric as a number.
func (s *server) count(line string) int {
	s.t.Helper()
	value, err := strconv.ParseFloat(s.metric(line), 64)
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return int(value)
}

const encodedJobs = `penstock_encode_jobs_total{outcome="ok"}`

// illustrations are requests which show pictures, videos and sounds, by their words.
func illustrations(t *testing.T, words string) (requests []map[string]any) {
	image := func(seed uint64, w, h int) map[string]any {
		return shown("image", dataURI("image/png", pngOf(t, picture(seed, w, h))))
	}
	return []map[string]any{
		showing(8, said(words), image(1, 84, 112)),
		showing(8, said(words), image(1, 84, 112), said("and"), image(2, 300, 200), said("differ?")),
		showing(8, said(words), shown("video", film(t, 1)), shown("audio", sound(1))),
		showing(8, image(3, 60, 400), said(words), shown("audio", sound(2))),
	}
}

// askAll sends requests one after another, and returns the texts of the answers.
func (s *server) askAll(requests []map[string]any) (texts []string) {
	s.t.Helper()
	for i, r := range requests {
		got := s.complete("/v1/chat/completions", r)
		if got.status != http.StatusOK || got.output != 8 {
			s.t.Fatalf("request %d: %+v\n%s", i, got, s.log)
		}
		texts = append(texts, got.text)
	}
	return texts
}

// expectTexts compares the texts of answers.
func expectTexts(t *testing.T, what string, want, got []string) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: answer %d is %q, want %q", what, i, got[i], want[i])
		}
	}
}

// TestEncodeWorkersInOneProcess: up with encode workers gives the answers of up without, and its workers encode
// nothing that others do.
func TestEncodeWorkersInOneProcess(t *testing.T) {
	t.Parallel()
	requests := append(illustrations(t, "What is it?"), illustrations(t, "What else?")...)
	plain := start(t, "workers=1")
	want := plain.askAll(requests)
	s := start(t, "workers=2", "encode-workers=2")
	s.encoders(2)
	expectTexts(t, "with encode workers", want, s.askAll(requests))
	if n := s.count(encodedJobs); n != 6 {
		t.Errorf("%d objects were encoded", n)
	}
	if called := s.calledWorkers(); len(called) < 2 {
		t.Errorf("workers %v were called", called)
	}
	if n := s.count(`penstock_xfer_transfers_total{outcome="ok",side="owner",transport="mem"}`); n != 6 {
		t.Errorf("rows came %d times", n)
	}
}

// encodeFleet is a fleet whose frontend has the embedded NATS server.
func encodeFleet(t *testing.T, settings ...string) (f *process, join []string) {
	t.Helper()
	f = launch(t, config.Frontend, append([]string{"nats-listen=127.0.0.1:0"}, settings...)...)
	return f, append([]string{"nats=" + f.started.NATS, "http-addr=127.0.0.1:0"}, settings...)
}

// TestEncodeWorkers: what a worker has not encoded it asks an encode worker for: the answers are those without. What it
// was sent it keeps, by salt; an encode worker which has the rows reads no media; with the caches off everything is
// encoded each time.
func TestEncodeWorkers(t *testing.T) {
	t.Parallel()
	requests := illustrations(t, "What is it?")
	want := start(t, "workers=1").askAll(requests)
	for _, request := range []string{"tcp", "http", "nats"} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			f, join := encodeFleet(t)
			join = append(join, "request-plane="+request)
			encoder := launch(t, config.Worker, append(join, "role=encode")...)
			w := launch(t, config.Worker, join...)
			f.serves("penstock-tiny", 1)
			f.encoders(1)
			w.knowsEmbeddings(1)
			for range 2 {
				expectTexts(t, "with an encode worker", want, f.askAll(requests))
			}
			encoder.expectEncoder(6, 0, 6)
			if n := w.count(encodedJobs); n != 0 {
				t.Errorf("the worker encoded %d objects", n)
			}
			if n := w.count(`penstock_embedding_cache_misses_total{tier="memory"}`); n != 6 {
				t.Errorf("the worker missed %d objects", n)
			}
			transport := map[bool]string{true: "shm", false: "none"}[hasShared]
			if n := w.count(fmt.Sprintf(`penstock_xfer_transfers_total{outcome="ok",side="owner",transport=%q}`, transport)); hasShared && n != 6 {
				t.Errorf("rows came %d times by shared memory", n)
			}
			// The salt costs an encoding, at both.
			for i := range requests {
				requests := illustrations(t, "What is it?")
				requests[i]["cache_salt"] = "b"
				expectTexts(t, "with another salt", want[i:i+1], f.askAll(requests[i:i+1]))
			}
			if n := encoder.count(encodedJobs); n != 12 {
				t.Errorf("with another salt %d objects were encoded", n)
			}
			id := strconv.FormatUint(uint64(encoder.started.WorkerID), 10)
			f.eventually("no call", func() bool { return encoder.metric(`penstock_worker_inflight{worker="`+id+`"}`) == "0" })
		})
	}
}

// regionHits counts the look-ups which another worker's memory answered.
const regionHits = `penstock_embedding_cache_hits_total{tier="region"}`

// TestEncoderHitsReadNoMedia: an encode worker which has the rows of a picture neither fetches it nor takes what a
// frontend decoded, and its worker, which keeps no rows, does not either: it asks for the rows, or reads them in the
// memory of the encode worker once it knows that they are there.
func TestEncoderHitsReadNoMedia(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings []string
		asked    int // how often the picture is, by all; 0 is more than once, in pieces
	}{
		"url":     {nil, 0},
		"decoded": {[]string{"frontend-decoding=true", "mm-transfer=network"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGallery(t, map[string][]byte{"/picture.png": pngOf(t, picture(1, 200, 150))})
			f, join := encodeFleet(t, "media-allow-private=true")
			join = append(join, c.settings...)
			encoder := launch(t, config.Worker, append(join, "role=encode")...)
			w := launch(t, config.Worker, append(join, "embedding-cache-capacity-gb=0")...)
			f.serves("penstock-tiny", 1)
			f.encoders(1)
			w.knowsEmbeddings(1)
			asked, taken := 0, 0
			received := func() (n int) {
				for _, transport := range []string{"shm", "tcp"} {
					n += encoder.count(fmt.Sprintf(`penstock_xfer_transfers_total{outcome="ok",side="owner",transport=%q}`, transport))
				}
				return n
			}
			for i := range 3 {
				got := f.complete("/v1/chat/completions", showing(8, said(fmt.Sprint("Look, ", i, ": ")), shown("image", g.url+"/picture.png"), said("What is it?")))
				if got.status != http.StatusOK {
					t.Fatalf("%+v", got)
				}
				if i == 0 {
					asked, taken = g.count("/picture.png"), received()
				}
			}
			if n := g.count("/picture.png"); n != asked || c.asked > 0 && n != c.asked {
				t.Errorf("the picture was asked for %d times, %d for the first request", n, asked)
			}
			if n := received(); n != taken || (taken > 0) != (c.asked > 0) {
				t.Errorf("the encode worker took %d decoded pictures, %d for the first request", n, taken)
			}
			read := w.count(regionHits)
			encoder.expectEncoder(1, 2-read, 1)
			w.expectEncoder(0, 0, 3)
		})
	}
}

// TestMissesOfManyWorkers: a picture which eight workers miss at once is encoded once.
func TestMissesOfManyWorkers(t *testing.T) {
	t.Parallel()
	const workers = 8
	f, join := encodeFleet(t, "router-mode=round-robin")
	var encoders []*process
	for range 3 {
		encoders = append(encoders, launch(t, config.Worker, append(join, "role=encode")...))
	}
	var all []*process
	for range workers {
		all = append(all, launch(t, config.Worker, append(join, "kv-cache-blocks=200", "encode-timeout=1h")...))
	}
	f.serves("penstock-tiny", workers)
	f.encoders(3)
	for _, w := range all {
		w.knowsEmbeddings(len(encoders) + workers - 1)
	}
	request := showing(8, said("Look:"), shown("image", dataURI("image/png", pngOf(t, picture(5, 500, 400)))))
	answers := make([]answer, workers)
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() { answers[i] = f.complete("/v1/chat/completions", request) })
	}
	running.Wait()
	by := map[string]bool{}
	for i, a := range answers {
		by[a.worker] = true
		if a.status != http.StatusOK || a.text != answers[0].text {
			t.Errorf("answer %d: %+v", i, a)
		}
	}
	jobs, misses := 0, 0
	for _, p := range encoders {
		jobs += p.count(encodedJobs)
	}
	for _, p := range all {
		jobs += p.count(encodedJobs)
		misses += p.count(`penstock_embedding_cache_misses_total{tier="memory"}`)
	}
	if len(by) != workers || jobs != 1 || misses != workers {
		t.Errorf("%d workers missed a picture %d times, and it was encoded %d times", len(by), misses, jobs)
	}
}

// TestHoldersComeFirst: an encode worker which has the rows of a picture gives them, from its memory or asked for them,
// although the hash of the key names another one since that has joined.
func TestHoldersComeFirst(t *testing.T) {
	t.Parallel()
	const pictures = 8 // half of them would go to the second worker, and all to the first one by chance in 1 of 256 runs
	f, join := encodeFleet(t)
	w := launch(t, config.Worker, append(join, "embedding-cache-capacity-gb=0", "kv-cache-blocks=2000")...)
	first := launch(t, config.Worker, append(join, "role=encode")...)
	f.serves("penstock-tiny", 1)
	f.encoders(1)
	w.knowsEmbeddings(1)
	ask := func(words string) {
		for i := range uint64(pictures) {
			f.askAll([]map[string]any{showing(8, said(words), shown("image", dataURI("image/png", pngOf(t, picture(i, 84, 112)))))})
		}
	}
	ask("Look: ")
	first.expectEncoder(pictures, 0, pictures)
	w.eventually("the worker knows what the first one holds", func() bool { return w.count("penstock_embedding_index_holdings") == pictures })
	read := 0
	if hasShared {
		w.eventually("the worker can read the memory of the first one", func() bool { return w.count("penstock_embedding_cache_regions") == 1 })
		read = pictures
	}
	second := launch(t, config.Worker, append(join, "role=encode")...)
	f.encoders(2)
	w.knowsEmbeddings(2)
	ask("And now this one: ")
	first.expectEncoder(pictures, pictures-read, pictures)
	if n := w.count(regionHits); n != read {
		t.Errorf("the worker read %d pictures in the memory of the first one, want %d", n, read)
	}
	second.expectEncoder(0, 0, 0)
	w.expectEncoder(0, 0, 2*pictures)
}

// TestEncodeWorkersReadMemory: an encode worker maps the memory of a worker of its host, and knows what that holds, so that
// it reads there what it is asked for: see TestEncoderReadsSharedRows of the engine.
func TestEncodeWorkersReadMemory(t *testing.T) {
	t.Parallel()
	f, join := encodeFleet(t)
	w := launch(t, config.Worker, join...)
	f.serves("penstock-tiny", 1)
	f.askAll(illustrations(t, "What is it?"))
	w.expectEncoder(6, 1, 6)
	encoder := launch(t, config.Worker, append(join, "role=encode")...)
	f.encoders(1)
	encoder.eventually("the encode worker can read what the worker has encoded", func() bool {
		return encoder.count("penstock_embedding_index_holdings") == 6 && (encoder.count("penstock_embedding_cache_regions") == 1 || !hasShared)
	})
}

// TestEncodersAreKilled: encode workers which are killed in the middle of their work cost no request its answer:
// workers which wait ask the next, and encode themselves when there is none.
func TestEncodersAreKilled(t *testing.T) {
	t.Parallel()
	const n = 8
	requests := make([]map[string]any, n)
	for i := range requests {
		var parts []map[string]any
		for j := range 2 {
			parts = append(parts, said(fmt.Sprint("Picture ", j)), shown("image", dataURI("image/png", pngOf(t, picture(uint64(10*i+j), 140, 140)))))
		}
		requests[i] = showing(8, parts...)
	}
	want := start(t, "workers=1", "kv-cache-blocks=4000").askAll(requests)
	f, join := encodeFleet(t)
	w := launch(t, config.Worker, append(join, "kv-cache-blocks=4000")...)
	encoders := []*workerProcess{startWorkerProcess(t, append(join, "role=encode")...), startWorkerProcess(t, append(join, "role=encode")...)}
	f.serves("penstock-tiny", 1)
	f.encoders(2)
	w.knowsEmbeddings(2)
	for round, e := range encoders {
		came := func() int {
			return w.count(`penstock_xfer_transfers_total{outcome="ok",side="owner",transport="shm"}`) + w.count(`penstock_xfer_transfers_total{outcome="ok",side="owner",transport="tcp"}`)
		}
		before := came()
		got := make([]answer, n)
		var running sync.WaitGroup
		for i, r := range requests {
			body := map[string]any{"cache_salt": fmt.Sprint(round)}
			for k, v := range r {
				body[k] = v
			}
			running.Go(func() { got[i] = f.complete("/v1/chat/completions", body) })
		}
		if hasShared {
			f.eventually("rows come from encode workers", func() bool { return came() > before+2 })
		}
		e.kill()
		running.Wait()
		for i, a := range got {
			if a.status != http.StatusOK || a.text != want[i] {
				t.Errorf("round %d, request %d: %+v, want %q", round, i, a, want[i])
			}
		}
	}
	f.encoders(0)
	if own := w.count(encodedJobs); own == 0 {
		t.Error("without encode workers the worker encoded nothing")
	}
	if left := w.count(`penstock_embedding_cache_bytes{tier="memory"}`); left == 0 {
		t.Error("nothing is kept")
	}
}
