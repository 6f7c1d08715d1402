package frontend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// relist changes the adapters of a registered worker.
func (w *world) relist(id kv.WorkerID, adapters ...string) {
	w.t.Helper()
	for _, in := range w.registry.instances() {
		if in.ID == id {
			card := must(engine.DecodeCard(in.Meta))
			card.Adapters = adapters
			in.Meta = must(engine.EncodeCard(card))
			w.registry.set(in)
		}
	}
	synctest.Wait()
}

// TestAdapters: an adapter is a model of its own, on the workers that serve it, under its own name and
// with its own block hashes, while a worker serves it.
func TestAdapters(t *testing.T) {
	adapters := func(names ...string) func(*engine.Card) {
		return func(c *engine.Card) { c.Adapters, c.Embeddings = names, true }
	}
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		plain := constant("plain")
		both := constant("both")
		w.worker(1, plain, adapters("law"))
		w.worker(2, both, adapters("law", "med", "other"))
		w.worker(3, constant("of its own"), func(c *engine.Card) { c.Name, c.Aliases = "other", []string{"law-too"} })
		ids := func() string {
			var list struct {
				Data []struct{ ID, Root, Parent string }
			}
			if err := json.Unmarshal([]byte(w.get("/v1/models").body), &list); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(list.Data)
		}
		if got, want := ids(), "[{bytes bytes } {law law bytes} {med med bytes} {other other } {b bytes } {law-too other }]"; got != want {
			t.Errorf("models %s, want %s", got, want)
		}
		if !strings.Contains(w.log.String(), "its name is that of another model, alias or adapter") {
			t.Error("nothing is said of the adapter that has another model's name")
		}
		if a := w.get("/v1/models/med"); a.status != 200 || !strings.Contains(a.body, `"parent":"bytes"`) {
			t.Error(a)
		}
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			prompt := `"prompt":"hi"`
			if path != "/v1/completions" {
				prompt = `"messages":[{"role":"user","content":"hi"}]`
			}
			if a := w.post(path, `{"model":"med","cache_salt":"s",`+prompt+`}`); a.status != 200 || !strings.Contains(a.body, `"model":"med"`) {
				t.Error(a)
			}
			reqs := w.router.routed()
			last := reqs[len(reqs)-1]
			if last.Model != "med" || last.Salt != (kv.Salt{LoRA: "med", Namespace: "s"}) {
				t.Errorf("routed as %q with %+v", last.Model, last.Salt)
			}
		}
		if seen := both.seen(); len(seen) != 2 || seen[0].Model != "med" || seen[0].Salt.LoRA != "med" || len(plain.seen()) != 0 {
			t.Errorf("%+v", seen)
		}
		if a := w.post("/v1/embeddings", `{"model":"law","input":"hi"}`); a.status != 200 {
			t.Error(a)
		}
		if n := w.metric(`frontend_requests_total{endpoint="completions",model="med",status="200"}`); n != "1" {
			t.Errorf("%s requests are counted for the adapter", n)
		}

		// The set changes: new adapters are served, removed ones are unknown.
		w.relist(2, "law", "new")
		if a := w.post("/v1/completions", `{"model":"new","prompt":"hi"}`); a.status != 200 {
			t.Error(a)
		}
		if a := w.post("/v1/completions", `{"model":"med","prompt":"hi"}`); a.status != 404 {
			t.Error(a)
		}
		if h := w.get("/health"); strings.Contains(h.body, "unfit") || !strings.Contains(h.body, `{"id":"law","parent":"bytes","status":"healthy","workers":2,"ready_workers":2}`) {
			t.Errorf("different adapters make workers unfit: %s", h.body)
		}
		// Without a worker they are unavailable, like their model.
		w.registry.remove(1)
		w.registry.remove(2)
		synctest.Wait()
		if a := w.post("/v1/completions", `{"model":"law","prompt":"hi"}`); a.status != 503 {
			t.Error(a)
		}
		w.worker(4, both, adapters("law"))
		if a := w.post("/v1/completions", `{"model":"law","prompt":"hi"}`); a.status != 200 {
			t.Error(a)
		}
		if got, want := ids(), "[{bytes bytes } {law law bytes} {other other } {b bytes } {law-too other }]"; got != want {
			t.Errorf("models %s, want %s", got, want)
		}
	})
}

// TestAdaptersOfKeys: a key that lists models may use the adapters that it lists.
func TestAdaptersOfKeys(t *testing.T) {
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, _ *bytes.Buffer) {
		w.worker(1, constant("hi"), func(c *engine.Card) { c.Adapters = []string{"other", "tiny"} })
		for model, status := range map[string]int{"bytes": 404, "other": 404, "tiny": 200} {
			if a := w.post("/v1/completions", `{"model":"`+model+`","prompt":"hi"}`, "Authorization", "Bearer "+tinyKey); a.status != status {
				t.Errorf("%s: %v", model, a)
			}
		}
		if a := w.ask("GET", "/v1/models", "", "Authorization", "Bearer "+tinyKey); strings.Count(a.body, `"id"`) != 1 || !strings.Contains(a.body, `"id":"tiny"`) {
			t.Error(a)
		}
	})
}
