package frontend

import (
	"fmt"
	"regexp"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestCachedLate: the answer gives the engine's cached tokens when it reports them, at the end of the
// answer if necessary, and never invents them.
func TestCachedLate(t *testing.T) {
	prompt := `"prompt":"0123456789"`
	for _, tt := range []struct {
		name    string
		scripts []script
		body    string
		usage   string // of the answer
		said    string // to the router, by attempt
		cached  string // in the metric
	}{
		{"at once", []script{{cached: 7}}, prompt, `"prompt_tokens_details":{"cached_tokens":7}`, "map[R#1:7]", "7"},
		{"late", []script{{cached: 7, late: true}}, prompt, `"prompt_tokens_details":{"cached_tokens":7}`, "map[R#1:7]", "7"},
		{"none, late", []script{{late: true}}, prompt, `"prompt_tokens_details":{"cached_tokens":0}`, "map[R#1:0]", "0"},
		{"late, in one delta", []script{{cached: 3, late: true, batch: 9}}, prompt, `"prompt_tokens_details":{"cached_tokens":3}`, "map[R#1:3]", "3"},
		{"late, of two choices", []script{{cached: 7, late: true}}, prompt + `,"n":2`, `"prompt_tokens_details":{"cached_tokens":7}`, "map[R#1:7]", "7"},
		{"never", []script{{cached: engine.CachedUnknown, late: true}}, prompt, "", "map[R#1:-1]", "0"},
		{"ended before it was said", []script{{cached: 7, late: true}}, prompt + `,"stop":"hi"`, "", "map[R#1:-1]", "0"},
		{"died before it was said", []script{{cached: 7, late: true, dieAfter: 1}, {cached: 5}}, prompt, "", "map[R#1:-1 R#2:5]", "0"},
		{"of one prompt of two", []script{{cached: engine.CachedUnknown, late: true}}, `"prompt":["0123","45"]`, "", "map[R#1:-1 R/1#1:-1]", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, stream := range []string{"false", `true,"stream_options":{"include_usage":true}`} {
				inWorld(t, Config{}, func(t *testing.T, w *world) {
					for i := range tt.scripts {
						from := &tt.scripts[i]
						w.worker(kv.WorkerID(i+1), &script{
							say: func(int) string { return "hi, you" }, cached: from.cached, late: from.late, batch: from.batch, dieAfter: from.dieAfter,
						})
					}
					got := w.post("/v1/completions", fmt.Sprintf(`{"model":"bytes",%s,"stream":%s}`, tt.body, stream), "x-request-id", "R")
					if got.status != 200 {
						t.Fatal(got)
					}
					if details := regexp.MustCompile(`"prompt_tokens_details":\{[^}]*\}`).FindString(got.body); details != tt.usage {
						t.Errorf("stream %s: usage has %q, want %q", stream, details, tt.usage)
					}
					if said := fmt.Sprint(w.router.said()); said != tt.said {
						t.Errorf("stream %s: the router was told %s, want %s", stream, said, tt.said)
					}
					if n := w.metric(`frontend_cached_tokens_total{model="bytes"}`); n != tt.cached {
						t.Errorf("stream %s: %s cached tokens are counted, want %s", stream, n, tt.cached)
					}
				})
			}
		})
	}
}
