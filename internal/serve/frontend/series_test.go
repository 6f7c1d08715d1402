package frontend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/internal/edge/keys"
	"penstock/internal/engine"
)

// series returns the lines of /metrics that contain a text, and the size of the whole.
func (w *world) series(with string) (lines []string, size int) {
	w.t.Helper()
	page := w.get("/metrics").body
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "penstock_") && strings.Contains(line, with) {
			lines = append(lines, line)
		}
	}
	return lines, len(page)
}

// TestSeriesOfAdapters: an adapter has its own counters while it is served, and no series after it is
// removed, however many are added and removed. Its requests count in the histograms of its model.
func TestSeriesOfAdapters(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("ok"), func(c *engine.Card) { c.Adapters = []string{"law"} })
		use := func(name string, status int) {
			t.Helper()
			for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/messages"} {
				body := `{"model":"` + name + `","max_tokens":3,"prompt":"hi","messages":[{"role":"user","content":"hi"}]}`
				if path == "/v1/completions" {
					body = `{"model":"` + name + `","prompt":"hi"}`
				} else {
					body = strings.Replace(body, `"prompt":"hi",`, "", 1)
				}
				if a := w.post(path, body); a.status != status {
					t.Fatal(a)
				}
			}
		}
		use("law", 200)
		use("nothing", 404)
		for _, line := range []string{`frontend_requests_total{endpoint="messages",model="law",status="200"}`, `frontend_request_duration_seconds_count{endpoint="messages",model="bytes"}`} {
			if v := w.metric(line); v != "1" {
				t.Errorf("%s is %q", line, v)
			}
		}
		_, one := w.series("")
		for round := range 10 {
			var names []string
			for i := range 100 {
				names = append(names, fmt.Sprintf("adapter-%d-%02d-%s", round, i, strings.Repeat("x", 100)))
			}
			w.relist(1, names...)
			for _, name := range names {
				use(name, 200)
			}
			if lines, size := w.series(""); size > one+200<<10 {
				t.Fatalf("with 100 adapters %d bytes in %d lines are scraped, before %d", size, len(lines), one)
			}
		}
		w.relist(1)
		use("law", 404)
		if lines, size := w.series("adapter-"); len(lines) > 0 || size > one+1000 {
			t.Errorf("without adapters %d bytes are scraped, with one %d; %d lines are of adapters", size, one, len(lines))
		}
		if n := w.metric(`frontend_request_duration_seconds_count{endpoint="messages",model="bytes"}`); n != "1001" {
			t.Errorf("%s requests of adapters are in the histogram of their model", n)
		}
	})
}

// TestSeriesOfModels: the series of models that are added and removed stay within modelRoom. A model
// without workers keeps its own while there is room.
func TestSeriesOfModels(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		use := func(name string, status int) {
			t.Helper()
			if a := w.post("/v1/completions", `{"model":"`+name+`","prompt":"hi"}`); a.status != status {
				t.Fatal(a)
			}
		}
		const requests = `frontend_requests_total{endpoint="completions",model="bytes",status="200"}`
		w.worker(1, constant("ok"))
		use("bytes", 200)
		w.registry.remove(1)
		use("bytes", 503)
		w.worker(1, constant("ok"))
		use("bytes", 200)
		if v := w.metric(requests); v != "2" {
			t.Errorf("after its worker was away %s requests of a model are counted", v)
		}
		for i := range 300 {
			name := fmt.Sprintf("model-%d-%s", i, strings.Repeat("y", 150))
			w.worker(2, constant("ok"), func(c *engine.Card) { c.Name, c.Aliases = name, nil })
			use(name, 200)
			w.registry.remove(2)
		}
		if _, size := w.series(""); size > modelRoom+200<<10 {
			t.Errorf("%d bytes are scraped", size)
		}
		if v := w.metric(requests); v != "2" {
			t.Errorf("after others came and went %s requests of a model are counted", v)
		}
	})
}

// TestSeriesOfKeys: the series of any number of keys stay within keyRoom, and their sums are complete.
func TestSeriesOfKeys(t *testing.T) {
	var file strings.Builder
	file.WriteString("keys:\n  - {name: admin, key: " + adminKey + ", admin: true}\n  - {name: other, key: " + userKey + "}\n")
	for i := range 1000 {
		fmt.Fprintf(&file, "  - {name: k%04d-%s, key: sk-%016d}\n", i, strings.Repeat("z", 58), i)
	}
	path := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	inWorldWith(t, Config{}, func(d *Deps) { d.Keys = must(keys.Open(path)) }, func(t *testing.T, w *world) {
		w.worker(1, constant("ok"))
		secrets := []string{userKey}
		for i := range 1000 {
			secrets = append(secrets, fmt.Sprintf("sk-%016d", i))
		}
		for _, secret := range secrets {
			if a := w.ask("POST", "/v1/completions", `{"model":"bytes","prompt":"hi"}`, "Authorization", "Bearer "+secret); a.status != 200 {
				t.Fatal(a)
			}
		}
		page := w.ask("GET", "/metrics", "", "Authorization", "Bearer "+adminKey).body
		sum, rows := 0, 0
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "penstock_frontend_key_requests_total{") {
				var n int
				_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &n)
				sum, rows = sum+n, rows+1
			}
		}
		if len(page) > keyRoom+100<<10 || sum != 1001 || rows < 100 {
			t.Errorf("%d bytes are scraped, with %d requests of %d keys", len(page), sum, rows)
		}
	})
}
