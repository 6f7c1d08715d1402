package dialects

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"penstock/internal/enginemock"
)

// TestAdaptersComeAndGo: a LoRA adapter that is loaded into an engine while it serves becomes a model of its own, whose
// cache is its own, and is none when it is unloaded; what is cached of the model stays known.
func TestAdaptersComeAndGo(t *testing.T) {
	for _, c := range []struct {
		dialect      enginemock.Dialect
		load, unload string
	}{
		{enginemock.VLLM, "/v1/load_lora_adapter", "/v1/unload_lora_adapter"},
		{enginemock.SGLang, "/load_lora_adapter", "/unload_lora_adapter"},
	} {
		t.Run(string(c.dialect), func(t *testing.T) {
			t.Parallel() // the engine is asked every ten seconds
			h := build(t, c.dialect, plan{servers: 1, mimic: func(m *enginemock.Config) { m.Adapters = []enginemock.Adapter{{Name: "first", Path: "/first"}} }})
			p := prompt(1, 100)
			h.ask(p, 5, false, nil)
			h.settled()
			h.tell(h.engines[0].URL()+c.load, `{"lora_name":"poet","lora_path":"/poet"}`)
			h.eventually(h.lists("poet", true))
			a := h.askModel("poet", p, 5, false, nil)
			if a.status != http.StatusOK || a.expected != 0 || a.cached != 0 {
				t.Errorf("the adapter's first answer: %+v", a)
			}
			h.settled()
			for _, model := range []string{"poet", "m"} {
				if a := h.askModel(model, p, 5, false, nil); a.status != http.StatusOK || a.expected != 96 || a.cached != 96 {
					t.Errorf("a known prompt of %s: %+v", model, a)
				}
			}
			h.tell(h.engines[0].URL()+c.unload, `{"lora_name":"poet"}`)
			h.eventually(h.lists("poet", false))
			h.eventually(h.lists("first", true))
			if a := h.askModel("poet", p, 5, false, nil); a.status != http.StatusNotFound {
				t.Errorf("an adapter that is gone: %+v", a)
			}
			if a := h.ask(p, 5, false, nil); a.expected != 96 || a.cached != 96 {
				t.Errorf("the model, after that: %+v", a)
			}
		})
	}
}

// tell posts to an engine.
func (h *house) tell(url, body string) {
	h.t.Helper()
	res, err := h.client.Post(url, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		h.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		h.t.Fatalf("%s: %s", url, res.Status)
	}
}

// lists says whether clients see a model, or see it no longer.
func (h *house) lists(model string, want bool) func() error {
	return func() error {
		var all struct {
			Data []struct {
				ID string `json:"id"`
			} `json:"data"`
		}
		if err := json.NewDecoder(strings.NewReader(h.get("/v1/models"))).Decode(&all); err != nil {
			return err
		}
		found := false
		for _, m := range all.Data {
			found = found || m.ID == model
		}
		if found != want {
			return fmt.Errorf("is %q listed: %v, want %v", model, found, want)
		}
		return nil
	}
}
