package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
)

// cachedTokens asks for a completion of a prompt and returns the worker that answered, how many tokens were
// cached as the engine reports, and how many blocks were expected to be.
func cachedTokens(t *testing.T, url, prompt string) (worker string, cached, expected int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": 3})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Error any `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != nil {
		t.Fatalf("%s: %v %v", resp.Status, answer.Error, err)
	}
	expected, _ = strconv.Atoi(resp.Header.Get("x-penstock-overlap-blocks"))
	return resp.Header.Get("x-penstock-worker"), answer.Usage.Details.Cached, expected
}

// knownBlocks is how many blocks of a prompt the router knows at the worker that it would choose.
func knownBlocks(t *testing.T, url, prompt string) int {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/router/best_worker", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var best struct {
		Blocks int `json:"overlap_blocks"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&best); err != nil {
		t.Fatal(err)
	}
	return best.Blocks
}

// startUp runs up with its own adapters until the end of the test, and returns what it announces once it is
// ready.
func startUp(t *testing.T, env ...string) (Ready, *enginemocktest.LogBuffer) {
	t.Helper()
	cfg := enginemocktest.LoadSettings(t, config.Up, append(env, "HTTP_ADDR=127.0.0.1:0")...)
	ctx, cancel := context.WithCancel(context.Background())
	log := &enginemocktest.LogBuffer{}
	ready, ended := make(chan Ready, 1), make(chan error, 1)
	go func() { ended <- RunUp(ctx, cfg, log, func(r Ready) { ready <- r }) }()
	select {
	case r := <-ready:
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("%v\n%s", err, log)
			}
		})
		return r, log
	case err := <-ended:
		cancel()
		t.Fatalf("%v\n%s", err, log)
	}
	return Ready{}, log
}

// TestRequestsPassAsTheyAre: without a local tokenizer requests reach the engine unchanged, a remedy is shown
// on the screen, and the requests of one conversation go to one engine.
func TestRequestsPassAsTheyAre(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	for _, dialect := range []enginemock.Dialect{enginemock.VLLM, enginemock.SGLang, enginemock.TRTLLM, enginemock.LlamaCPP} {
		t.Run(string(dialect), func(t *testing.T) {
			elsewhere := func(c *enginemock.Config) { c.Root = "/nowhere/here" }
			a, _ := enginemocktest.StartEngineMock(t, dialect, dir, elsewhere)
			b, _ := enginemocktest.StartEngineMock(t, dialect, dir, elsewhere)
			r, log := startUp(t, "ENGINE="+a+","+b)
			for _, e := range r.Engines {
				if e.State != engines.StateServing || e.Tokenizer != "engine" || len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "--model-path") {
					t.Errorf("%+v", e)
				}
			}
			if !r.Chat || r.Workers != 2 {
				t.Errorf("%+v", r)
			}
			body := `{"model": "m", "messages": [{"role": "user", "content": "Where does the water go?"}], "max_tokens": 5}`
			resp, err := http.Post(r.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var answer struct {
				Choices []struct {
					Message struct {
						Content string `json:"content"`
					} `json:"message"`
				} `json:"choices"`
			}
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" {
				t.Errorf("%s %+v %v\n%s", resp.Status, answer, err, log)
			}
		})
	}
}

// TestInFrontOfMimics: the adapters recognize engine mocks, tokenize for them, and their cached blocks decide
// routing.
func TestInFrontOfMimics(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	prompt := strings.Repeat("Where does the water go? It flows downhill. ", 20)
	for _, c := range []struct {
		name    string
		dialect enginemock.Dialect
		servers int
		change  func(*enginemock.Config)
	}{
		{"vllm", enginemock.VLLM, 2, nil},
		{"vllm of last year", enginemock.VLLMLegacy, 2, nil},
		{"vllm with two ranks", enginemock.VLLM, 1, func(c *enginemock.Config) {
			host, port := fixturetest.ReservePorts(t, 4)
			c.Ranks, c.KVEvents, c.KVReplay = 2, fmt.Sprintf("tcp://%s:%d", host, port), fmt.Sprintf("tcp://%s:%d", host, port+2)
		}},
		{"sglang", enginemock.SGLang, 2, nil},
		{"trtllm with pulled events", enginemock.TRTLLM, 2, nil},
		{"llamacpp", enginemock.LlamaCPP, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			modelPath := ""
			if c.dialect == enginemock.TRTLLM || c.dialect == enginemock.LlamaCPP {
				modelPath = dir // they report no root
			}
			block, blocks := 16, 25 // of the prompt
			if c.dialect == enginemock.LlamaCPP {
				block, blocks = 32, 12
			}
			var specs []string
			for range c.servers {
				spec, _ := enginemocktest.StartEngineMock(t, c.dialect, dir, c.change)
				specs = append(specs, spec)
			}
			r, log := startUp(t, "ENGINE="+strings.Join(specs, ","), "ROUTER_PREDICTED_TTL=0s", "MODEL_PATH="+modelPath)
			if r.Workers != 2 {
				t.Errorf("%d workers", r.Workers)
			}
			for _, e := range r.Engines {
				if e.State != engines.StateServing || e.Tokenizer != dir || e.BlockSize != block || e.Model != "m" || !e.Chat {
					t.Errorf("%+v", e)
				}
			}
			worker, cached, expected := cachedTokens(t, r.URL, prompt)
			if cached != 0 || expected != 0 {
				t.Errorf("the first time %d tokens were cached, %d blocks expected", cached, expected)
			}
			waitFor(t, func() bool { return knownBlocks(t, r.URL, prompt) >= blocks })
			again, cached, expected := cachedTokens(t, r.URL, prompt)
			if again != worker || expected != blocks || cached < (blocks-1)*block || cached > (blocks+1)*block {
				t.Errorf("worker %s after %s: %d tokens cached, %d blocks expected\n%s", again, worker, cached, expected, log)
			}
		})
	}
}
