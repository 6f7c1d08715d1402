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
			kept := s.metric("penstock_embedding_cache_bytes") != "0"
			if kept != (c.hits > 0) {
				t.Errorf("%s bytes are kept", s.metric("penstock_embedding_cache_bytes"))
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

// expectEncoder compares the metrics of encoders.
func (s *server) expectEncoder(jobs, hits, misses int) {
	s.t.Helper()
	for line, want := range map[string]int{
		`penstock_encode_jobs_total{outcome="ok"}`:        jobs,
		`penstock_encode_jobs_total{outcome="error"}`:     0,
		`penstock_encode_jobs_total{outcome="cancelled"}`: 0,
		"penstock_embedding_cache_hits_total":             hits,
		"penstock_embedding_cache_misses_total":           misses,
		"penstock_embedding_cache_evictions_total":        0,
	} {
		if got := s.metric(line); got != strconv.Itoa(want) {
			s.t.Errorf("%s is %q, want %d", line, got, want)
		}
	}
}
