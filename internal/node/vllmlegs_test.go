package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"penstock/internal/config"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// startProcess runs a role of a fleet until stop, or the end of the test.
func startProcess(t *testing.T, command config.Command, run func(context.Context, *config.Loaded, io.Writer, func(Started)) error, env ...string) (s Started, stop func()) {
	t.Helper()
	cfg := enginemocktest.LoadSettings(t, command, env...)
	ctx, cancel := context.WithCancel(context.Background())
	log := &enginemocktest.LogBuffer{}
	ready, ended := make(chan Started, 1), make(chan error, 1)
	go func() { ended <- run(ctx, cfg, log, func(s Started) { ready <- s }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v\n%s", command, err, log)
		}
	})
	select {
	case s = <-ready:
		t.Cleanup(stop)
	case err := <-ended:
		cancel()
		t.Fatalf("%s: %v\n%s", command, err, log)
	}
	return s, stop
}

// divided is what an answer says of a request which may have been divided.
type divided struct {
	Text            string
	Cached          int
	Prefill, Decode uint64
}

// askDivided asks for a completion.
func askDivided(t *testing.T, url, prompt string, header ...string) divided {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0, "nvext": map[string]any{"extra_fields": []string{"worker_id"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s %v", resp.Status, data, err)
	}
	var answer struct {
		Choices []struct{ Text string }
		Usage   struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Ext struct {
			Worker struct {
				Prefill uint64 `json:"prefill_worker_id"`
				Decode  uint64 `json:"decode_worker_id"`
			} `json:"worker_id"`
		} `json:"nvext"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return divided{answer.Choices[0].Text, answer.Usage.Details.Cached, answer.Ext.Worker.Prefill, answer.Ext.Worker.Decode}
}

// TestPrefillByVLLM: processes of a fleet in front of vLLM which hand prompts over. The answers are those of one engine, the
// prefill engine keeps nothing, and without it the decode engine serves on.
func TestPrefillByVLLM(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	serve := func(seed uint64) (spec string, s *enginemock.Server) {
		spec, s = enginemocktest.StartEngineMock(t, enginemock.VLLM, dir, func(c *enginemock.Config) { c.Seed, c.Features.HideReceived = seed, enginemock.On })
		return spec + ",kv-connector=nixl", s
	}
	prefillSpec, prefill := serve(1)
	decodeSpec, decode := serve(2)
	aloneSpec, _ := serve(3)
	alone, _ := startUp(t, "ENGINE="+aloneSpec)
	fleet := []string{"DISCOVERY=file", "DISCOVERY_DIR=" + t.TempDir()}
	with := func(env ...string) []string { return append(env, fleet...) }
	_, stop := startProcess(t, config.Worker, RunWorker, with("ROLE=prefill", "WORKER_ID=11", "ENGINE="+prefillSpec)...)
	startProcess(t, config.Worker, RunWorker, with("ROLE=decode", "WORKER_ID=1", "CANARY_INTERVAL=0s", "ENGINE="+decodeSpec)...)
	f, _ := startProcess(t, config.Frontend, RunFrontend, with("HTTP_ADDR=127.0.0.1:0")...)
	prefill.EndLeases() // of the checks at the start
	awaitWorkers(t, f.URL, 2)

	prompt := func(n int) string { return strings.Repeat(fmt.Sprintf("prompt %d says ", n), 40) }
	for i := range 3 {
		want := askDivided(t, alone.URL, prompt(i))
		got := askDivided(t, f.URL, prompt(i))
		if got.Text != want.Text || got.Prefill != 11 || got.Decode != 1 || got.Cached != 0 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if sent, got := prefill.TransferStats(), decode.TransferStats(); sent != (enginemock.TransferStats{Sent: 3}) || got.Received != 3 || got.Missed != 0 {
		t.Errorf("the prefill engine has %+v, the decode engine %+v", sent, got)
	}
	// What the prefill engine has cached is what the client is told.
	if got := askDivided(t, f.URL, prompt(0)+prompt(7), "x-prefill-instance-id", "11"); got.Prefill != 11 || got.Cached == 0 {
		t.Errorf("of a prompt whose beginning is known: %+v", got)
	}
	// A decode leg fails, as one whose blocks cannot be fetched: the prompt is computed again. What the second prefill leg
	// finds is the first one's, and not cached for the client.
	if err := decode.Faults().Set(enginemock.Fault{Kind: enginemock.FaultError, Count: 1}); err != nil {
		t.Fatal(err)
	}
	want := askDivided(t, alone.URL, prompt(20))
	if got := askDivided(t, f.URL, prompt(20)); got.Text != want.Text || got.Prefill != 11 || got.Cached != 0 {
		t.Errorf("after a decode leg which failed: %+v, want %+v", got, want)
	}
	if n := decode.Faults().TriggerCount(enginemock.FaultError); n != 1 || prefill.TransferStats().Reused != 0 {
		t.Errorf("%d decode legs failed, and the prefill engine has %+v", n, prefill.TransferStats())
	}
	// A worker which is named and does not exist computes nothing, and no request fails for it.
	if got := askDivided(t, f.URL, prompt(8), "x-prefill-instance-id", "12"); got.Prefill != 1 {
		t.Errorf("of a prefill worker which does not exist: %+v", got)
	}
	stop()
	want = askDivided(t, alone.URL, prompt(9))
	if got := askDivided(t, f.URL, prompt(9)); got.Text != want.Text || got.Prefill != 1 {
		t.Errorf("without prefill worker: %+v, want %+v", got, want)
	}
}

// awaitWorkers waits until a frontend sees so many workers of all roles.
func awaitWorkers(t *testing.T, url string, n int) {
	t.Helper()
	waitFor(t, func() bool {
		resp, err := http.Get(url + "/v1/router/workers")
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return strings.Count(string(data), `"state":"ready"`) == n
	})
}
