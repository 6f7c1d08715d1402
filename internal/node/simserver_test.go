package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"

	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/edge/prep/chat"
)

// TestSim: an engine mock serves with the settings of its command line, and ends with its context.
func TestSim(t *testing.T) {
	for _, dialect := range SimDialects() {
		t.Run(dialect, func(t *testing.T) {
			fs := pflag.NewFlagSet("sim", pflag.ContinueOnError)
			flags := config.AddSimServerFlags(fs)
			if err := fs.Parse([]string{"--speedup", "1000", "--kv-cache-blocks", "128", "--served-model-name", "llama"}); err != nil {
				t.Fatal(err)
			}
			cfg, err := flags.Load()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			as := SimServer{Mock: enginemock.Config{Dialect: enginemock.Dialect(dialect), HTTPAddr: "127.0.0.1:0", KVEvents: "tcp://127.0.0.1:0", Ranks: 2}, ExportModel: dir, Adapters: []string{"poet=/poet"}, Faults: []string{"limit,count=1"}, Features: []string{"details=off"}}
			if err := as.Validate(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready, done := make(chan SimReady, 1), make(chan error, 1)
			var log bytes.Buffer
			go func() { done <- RunSim(ctx, cfg, as, &log, func(r SimReady) { ready <- r }) }()
			var r SimReady
			select {
			case r = <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			if r.Model != "llama" || r.Blocks != 128 || r.KVEvents == "" {
				t.Errorf("ready: %+v", r)
			}
			if facts, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || !strings.Contains(string(facts), "vocab_size") {
				t.Errorf("the exported model: %v %s", err, facts)
			}
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for _, want := range []int{http.StatusTooManyRequests, http.StatusOK} {
				res, err := c.Post(r.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"llama","prompt":"Where does the water go?","max_tokens":3}`))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if res.StatusCode != want {
					t.Errorf("%d %s, want %d", res.StatusCode, body, want)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBadSim: every invalid setting is reported at once.
func TestBadSim(t *testing.T) {
	as := SimServer{Mock: enginemock.Config{Dialect: "triton", KVReplay: "tcp://*:1"}, Faults: []string{"stall,for=soon"}, Features: []string{"tokens"}, Headers: []string{"x"}, MediaLimits: []string{"pictures=1"}, Family: "llava"}
	err := as.Validate()
	for _, want := range []string{"triton", "no events", "soon", "neither on nor off", "NAME=VALUE", "image=N", "qwen2-vl is there"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in %v", want, err)
		}
	}
}

// TestExportsAtOnce: mocks which start together export one model to one directory, and a concurrent reader
// never finds a part of a file.
func TestExportsAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sim-model")
	cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "ENGINE=sim")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			own, err := engines.ExportBuiltin(cfg, dir, engines.FamilyQwen2VL)
			if err != nil {
				t.Error(err)
				return
			}
			for _, name := range []string{"config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json"} {
				data, err := os.ReadFile(filepath.Join(own.Engine.ModelPath, name))
				if err != nil || !json.Valid(data) {
					t.Errorf("%s: %d bytes that are not JSON, %v", name, len(data), err)
				}
			}
		})
	}
	all.Wait()
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil || pipe.Family == nil || pipe.Family.Name() != "qwen2-vl" && pipe.Family.Name() != "qwen2_vl" {
		t.Errorf("%v, %+v", err, pipe)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("%v, %v", entries, err)
	}
}
