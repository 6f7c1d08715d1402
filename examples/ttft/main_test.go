package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestChoose: less to prefill is sooner, unless what runs slows it down more.
func TestChoose(t *testing.T) {
	m := timeModel{prefill: time.Millisecond, decode: 100 * time.Microsecond}
	for _, tt := range []struct {
		loads []workerLoad
		want  uint64
	}{
		{[]workerLoad{{WorkerID: 1, PrefillTokens: 100}, {WorkerID: 2, PrefillTokens: 10}}, 2},
		{[]workerLoad{{WorkerID: 1, PrefillTokens: 100}, {WorkerID: 2, PrefillTokens: 10, DecodeBlocks: 901}}, 1},
		{[]workerLoad{{WorkerID: 3, PrefillTokens: 5}, {WorkerID: 1, PrefillTokens: 5}}, 3},
	} {
		if got, err := m.chooseWorker(tt.loads); err != nil || got.WorkerID != tt.want {
			t.Errorf("%v: chose %d, %v, want %d", tt.loads, got.WorkerID, err, tt.want)
		}
	}
	if _, err := m.chooseWorker(nil); err == nil {
		t.Error("chose among no workers")
	}
}

// TestRun: the worker that was chosen is the one that the request names.
func TestRun(t *testing.T) {
	var asked, sent requestBody
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/router/potential_loads", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, `[{"worker_id":1,"dp_rank":0,"potential_prefill_tokens":9,"potential_decode_blocks":1,"active_requests":0},
			{"worker_id":2,"dp_rank":1,"potential_prefill_tokens":4,"potential_decode_blocks":1,"active_requests":0}]`)
	})
	mux.HandleFunc("POST /v1/router/generate", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	var out bytes.Buffer
	if err := runExample(t.Context(), []string{"--server", server.URL, "--model", "m", "1", "2", "3"}, &out); err != nil {
		t.Fatal(err)
	}
	if asked.Model != "m" || len(asked.TokenIDs) != 3 || asked.WorkerID != 0 || sent.WorkerID != 2 || sent.Rank != 1 || len(sent.TokenIDs) != 3 {
		t.Errorf("asked %+v, sent %+v", asked, sent)
	}
	if !strings.HasPrefix(out.String(), "worker 2 rank 1: ") || !strings.Contains(out.String(), "[DONE]") {
		t.Errorf("printed %q", out.String())
	}
	if err := runExample(t.Context(), []string{"--server", server.URL + "/nowhere", "1"}, &out); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("of a server that does not know the call: %v", err)
	}
}
