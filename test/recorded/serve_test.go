package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// TestServe asks a running system: a plain answer, one that moves to another
// worker half way, and one that breaks after its first bytes.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	lines, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- runServer(ctx, "127.0.0.1:0", recordings, out, os.Stderr) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	line, err := bufio.NewReader(lines).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var ready struct{ URL string }
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for name, want := range map[string]string{
		"text":     `"finish_reason":"stop"`,
		"migrated": `"attempts":2`,
		"broken":   "server_error",
	} {
		body := `{"model":"hermes","stream":true,"messages":[{"role":"user","content":"play:` + name + `"}]}`
		resp, err := client.Post(ready.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(got, []byte(want)) {
			t.Errorf("%s: status %d, %v, without %s:\n%.2000s", name, resp.StatusCode, err, want, got)
		}
	}
}

func TestServeNothing(t *testing.T) {
	err := runServer(t.Context(), "127.0.0.1:0", t.TempDir(), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "there is no directory with a dialect.json") {
		t.Error(err)
	}
}
