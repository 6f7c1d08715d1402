package enginemock_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/core/engineevents"
	"penstock/internal/enginemock"
)

// releases holds what each release of SGLang does with salts, as observed at the real ones: the cached tokens
// of one prompt of 96 tokens with these salts, in sequence.
func releases() map[string][]float64 {
	return map[string][]float64{
		// cache_salt A, A, B, none; extra_key A, A, B, none
		"0.5.9":  {0, 80, 80, 80, 80, 80, 80, 80},
		"0.5.17": {0, 80, 80, 80, 0, 80, 0, 80},
		"0.5.23": {0, 80, 0, 0, 0, 80, 0, 80},
	}
}

// TestSGLangSalts: the release decides which fields keep caches apart.
func TestSGLangSalts(t *testing.T) {
	for _, version := range enginemock.EngineVersions(enginemock.SGLang) {
		t.Run(version, func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: enginemock.SGLang, EngineVersion: version, Seed: 3})
			var got []float64
			for _, field := range []string{"cache_salt", "extra_key"} {
				for _, salt := range []string{"A", "A", "B", ""} {
					ask := map[string]any{"input_ids": prompt(1, 96), "sampling_params": map[string]any{"max_new_tokens": 1}}
					if salt != "" {
						ask[field] = salt
					}
					got = append(got, at(t, post(t, s, "/generate", ask), "meta_info", "cached_tokens").(float64))
				}
			}
			if want := releases()[version]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v tokens are cached, want %v", got, want)
			}
		})
	}
}

// published returns the events of the next batches, up to n of them.
func published(t *testing.T, in <-chan message, n int) (all []engineevents.Event) {
	t.Helper()
	for timeout := time.After(patience); len(all) < n; {
		select {
		case m := <-in:
			var d engineevents.Decoder
			var b engineevents.Batch
			if err := d.Decode(m.payload, &b); err != nil {
				t.Fatal(err)
			}
			all = append(all, b.Events...)
		case <-timeout:
			t.Fatalf("%d events, want %d", len(all), n)
		}
	}
	return all
}

// TestSGLangEvents: a release with arrays has an event for each page, and names blocks by their tokens alone;
// a release with maps has an event for a whole node, which names the salt.
func TestSGLangEvents(t *testing.T) {
	for _, c := range []struct {
		version string
		each    int // events of one prompt
		salt    string
		named   bool // by the salt
	}{{"0.5.9", 6, "", false}, {"0.5.17", 6, "", false}, {"0.5.23", 1, "A", true}} {
		t.Run(c.version, func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: enginemock.SGLang, EngineVersion: c.version, Open: opener(t, shape{size: 16}), KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Seed: 3})
			in := subscribe(t, s, 0)
			post(t, s, "/generate", map[string]any{"input_ids": prompt(1, 96), "sampling_params": map[string]any{"max_new_tokens": 1}})
			plain := published(t, in, c.each)
			field := "extra_key"
			if c.salt != "" {
				field = "cache_salt"
			}
			post(t, s, "/generate", map[string]any{"input_ids": prompt(1, 96), field: "A", "sampling_params": map[string]any{"max_new_tokens": 1}})
			if c.version == "0.5.9" { // the field is dropped: the blocks are there
				return
			}
			salted := published(t, in, c.each)
			if len(plain) != c.each || len(salted) != c.each {
				t.Fatalf("%d and %d events, want %d", len(plain), len(salted), c.each)
			}
			if salted[0].Salt != c.salt {
				t.Errorf("the salt is %q, want %q", salted[0].Salt, c.salt)
			}
			if same := salted[0].Hashes[0] == plain[0].Hashes[0]; same == c.named {
				t.Errorf("the names are the same: %v", same)
			}
			first := replay(t, s.ReplayAddr(), 0)[0]
			if payload := string(first[len(first)-1]); !strings.Contains(payload, "AllBlocksCleared") {
				t.Errorf("the first batch is %q", payload)
			}
		})
	}
}

// TestSGLangAdapters: an unloaded adapter is loaded again by a request for it, and does not find what it had
// cached. The events of older releases do not distinguish its blocks from the model's.
func TestSGLangAdapters(t *testing.T) {
	for _, c := range []struct {
		version string
		lora    string
	}{{"0.5.17", ""}, {"0.5.23", "poet"}} {
		t.Run(c.version, func(t *testing.T) {
			s := start(t, enginemock.Config{
				Dialect: enginemock.SGLang, EngineVersion: c.version, Open: opener(t, shape{size: 16}), KVEvents: "tcp://127.0.0.1:0",
				Adapters: []enginemock.Adapter{{Name: "poet", Path: "/poet"}}, Seed: 3,
			})
			in := subscribe(t, s, 0)
			cached := func() float64 {
				return at(t, post(t, s, "/generate", map[string]any{
					"input_ids": prompt(1, 96), "lora_path": "poet", "sampling_params": map[string]any{"max_new_tokens": 1},
				}), "meta_info", "cached_tokens").(float64)
			}
			if first, second := cached(), cached(); first != 0 || second != 80 {
				t.Errorf("%v and %v tokens are cached", first, second)
			}
			if got := published(t, in, 1)[0].LoRA; got != c.lora {
				t.Errorf("the event is of adapter %q, want %q", got, c.lora)
			}
			if status, _, body := ask(t, s, "POST", "/unload_lora_adapter", `{"lora_name":"poet"}`); status != http.StatusOK {
				t.Fatal(status, body)
			}
			if _, _, body := ask(t, s, "GET", "/v1/models", ""); strings.Contains(body, "poet") {
				t.Error("an unloaded adapter is a model")
			}
			if got := cached(); got != 0 {
				t.Errorf("%v tokens are cached after the adapter was loaded again", got)
			}
			if _, _, body := ask(t, s, "GET", "/v1/models", ""); !strings.Contains(body, "poet") {
				t.Error("an adapter that is used is no model")
			}
		})
	}
}

// TestSGLangStarts: while it starts it answers health requests with 503, and serves the rest.
func TestSGLangStarts(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.SGLang, Startup: time.Hour, Seed: 3})
	for path, want := range map[string]int{"/health": 503, "/ready": 503, "/model_info": 200, "/v1/models": 200} {
		if status, _, _ := ask(t, s, "GET", path, ""); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
}

// TestSGLangLoads: /v1/loads has the sum of the ranks in old releases alone, and health requests /ready in new
// ones alone.
func TestSGLangLoads(t *testing.T) {
	for version, c := range map[string]struct {
		sums  bool
		ready int
	}{"0.5.9": {true, 404}, "0.5.17": {false, 404}, "0.5.23": {false, 200}} {
		s := start(t, enginemock.Config{Dialect: enginemock.SGLang, EngineVersion: version, Seed: 3})
		status, _, body := ask(t, s, "GET", "/v1/loads", "")
		if status != http.StatusOK {
			t.Fatal(status, body)
		}
		loads := decoded(t, body)
		rank := at(t, loads, "loads").([]any)[0].(map[string]any)
		_, sums := loads["aggregate"]
		_, total := rank["num_total_reqs"]
		_, tokens := rank["num_total_tokens"]
		if sums != c.sums || total != c.sums || tokens == c.sums {
			t.Errorf("%s: %s", version, body)
		}
		if status, _, _ := ask(t, s, "GET", "/ready", ""); status != c.ready {
			t.Errorf("%s: /ready is %d, want %d", version, status, c.ready)
		}
	}
}

// TestSGLangTextParts: text parts of a message are joined with spaces.
func TestSGLangTextParts(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.SGLang, Pipe: withTemplate(t), Seed: 3})
	tokens := func(content string) string {
		status, _, body := ask(t, s, "POST", "/tokenize", `{"messages":[{"role":"user","content":`+content+`}]}`)
		if status != http.StatusOK {
			t.Fatal(status, body)
		}
		return fmt.Sprint(at(t, decoded(t, body), "tokens"))
	}
	if parts, text := tokens(`[{"type":"text","text":"hi"},{"type":"text","text":"there"}]`), tokens(`"hi there"`); parts != text {
		t.Errorf("the parts are %s, the text %s", parts, text)
	}
}
