package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock/internal/doctor"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"

	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// checkpoints are directories as transformers writes them (tools/fixtures/make_configs.py), without weights;
// they share a tokenizer.
const checkpoints = "testdata/checkpoints"

// checkpointDir copies the files of a checkpoint, and the shared files, into a directory.
func checkpointDir(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range []string{checkpoints, filepath.Join(checkpoints, name)} {
		entries, err := os.ReadDir(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				continue
			}
			data, err := os.ReadFile(filepath.Join(from, e.Name()))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, e.Name()), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// startSimServer runs "penstock sim --dialect vllm" of the model in dir until the end of the test.
func startSimServer(t *testing.T, dir string) SimReady {
	t.Helper()
	fs := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	flags := config.AddSimServerFlags(fs)
	if err := fs.Parse([]string{"--speedup", "1000", "--model-path", dir, "--sim-context-length", "4096", "--kv-cache-blocks", "1024", "--served-model-name", "m"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan SimReady, 1), make(chan error, 1)
	go func() {
		ended <- RunSim(ctx, cfg, SimServer{Mock: enginemock.Config{Dialect: "vllm", HTTPAddr: "127.0.0.1:0", KVEvents: "tcp://127.0.0.1:0", Ranks: 1}}, &enginemocktest.LogBuffer{}, func(r SimReady) { ready <- r })
	}()
	select {
	case r := <-ready:
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		return r
	case err := <-ended:
		cancel()
		t.Fatal(err)
		return SimReady{}
	}
}

// postChat posts a conversation of parts and a question, and returns the answer.
func postChat(t *testing.T, url string, parts ...string) (status int, header http.Header, body string) {
	t.Helper()
	content := strings.Join(append(parts, `{"type":"text","text":"Where does the water go?"}`), ",")
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","max_tokens":3,"messages":[{"role":"user","content":[`+content+`]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b.String()
}

// pictureURL is the message part of a PNG of the given size.
func pictureURL(t *testing.T, w, h int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, w, h))); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, base64.StdEncoding.EncodeToString(b.Bytes()))
}

// TestCheckpointsOfTransformers: in front of a running engine, a checkpoint is served as transformers writes
// it, though the built-in engine could compute few of them, whether it is named or the engine says where it is.
// The pictures of families which are counted take part in routing.
func TestCheckpointsOfTransformers(t *testing.T) {
	entries, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	uncounted := map[string]bool{"gemma3n": true, "gemma4": true, "gemma4_unified": true, "olmo3": true}
	const thin = "one side is more than 200 times the other, and this one has 8 by 3200 pixels"
	refuses := map[string]string{
		"qwen2_vl": thin, "qwen2_5_vl": thin, "qwen3_vl": thin, "qwen3_vl_moe": thin, "qwen3_5": thin, "qwen3_5_moe": thin, "qwen4_exp": thin,
	}
	hears := map[string]bool{"qwen2_audio": true, "ultravox": true}
	count := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		count++
		t.Run(e.Name(), func(t *testing.T) {
			dir := checkpointDir(t, e.Name())
			sim := startSimServer(t, dir)
			ready, _ := startUp(t, "ENGINE=vllm="+sim.URL+",events="+sim.KVEvents, "MODEL_PATH="+dir)
			if status := ready.Engines[0]; status.Tokenizer != dir || !status.Chat {
				t.Errorf("it is served as %+v", status)
			}
			answerFrom(t, ready.URL, "m")
			unnamed, _ := startUp(t, "ENGINE=vllm="+sim.URL+",events="+sim.KVEvents)
			if status := unnamed.Engines[0]; status.Tokenizer != dir || !status.Chat {
				t.Errorf("without --model-path it is served as %+v", status)
			}
			if status, _, body := postChat(t, ready.URL); status != http.StatusOK {
				t.Errorf("a text: %d %s", status, body)
			}
			if uncounted[e.Name()] {
				return
			}
			part := pictureURL(t, 300, 200)
			if hears[e.Name()] {
				part = string(remote.SamplePart("audio"))
			}
			status, header, body := postChat(t, ready.URL, part)
			if why := header.Get("x-penstock-text-only"); status != http.StatusOK || why != "" {
				t.Errorf("a picture or sound: %d, %q, %s", status, why, body)
			}
			if hears[e.Name()] {
				return
			}
			var answer struct {
				Usage struct {
					Prompt int `json:"prompt_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Usage.Prompt < 60 {
				t.Errorf("a picture: a prompt of %d tokens (%v)", answer.Usage.Prompt, err)
			}
			want := http.StatusOK
			if words := refuses[e.Name()]; words != "" {
				want = http.StatusBadRequest
			}
			if status, _, body := postChat(t, ready.URL, pictureURL(t, 8, 3200)); status != want || !strings.Contains(body, refuses[e.Name()]) {
				t.Errorf("a thin picture: %d %s", status, body)
			}
		})
	}
	if count < 24 {
		t.Errorf("there are %d checkpoints", count)
	}
}

// TestCheckpointOfEachFamily: there is a checkpoint of each family which docs/media-tokens.md names.
func TestCheckpointOfEachFamily(t *testing.T) {
	have := map[string]bool{}
	configs, err := filepath.Glob(filepath.Join(checkpoints, "*", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range configs {
		var c struct {
			Type string `json:"model_type"`
		}
		if b, err := os.ReadFile(path); err != nil || json.Unmarshal(b, &c) != nil {
			t.Fatalf("%s: %v", path, err)
		}
		have[c.Type] = true
	}
	page, err := os.ReadFile("../../docs/media-tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"gemma3n", "gemma4", "olmo3"}
	for line := range strings.Lines(string(page)) {
		if types, ok := strings.CutPrefix(line, "* `model_type`: "); ok {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(types, -1) {
				want = append(want, m[1])
			}
		}
	}
	if len(want) < 20 {
		t.Errorf("the page names %d families", len(want)-3)
	}
	for _, family := range want {
		if !have[family] {
			t.Errorf("there is no checkpoint of %s", family)
		}
	}
}

// TestUncountedFamily: if a model's media are not counted here, /health reports that vLLM itself can be
// asked, and no longer once it is.
func TestUncountedFamily(t *testing.T) {
	dir := checkpointDir(t, "gemma4")
	sim := startSimServer(t, dir)
	of := "vllm=" + sim.URL
	settings := []string{"ENGINE=" + of + ",media=image,events=" + sim.KVEvents, "MODEL_PATH=" + dir}
	const why, remedy = `requests with image are routed by their text alone: it is not known here whether and how models of type "gemma4" show media`, "start vLLM with --enable-scale-out and frontends with --preprocess engine"
	ready, log := startUp(t, slices.Clone(settings)...)
	waitFor(t, func() bool {
		warnings := warningsIn(t, ready.URL)
		i := slices.IndexFunc(warnings, func(w engine.Warning) bool { return w.Code == engine.WarnMediaUncounted })
		return i >= 0 && strings.Contains(warnings[i].Detail, why) && strings.Contains(warnings[i].Remedy, remedy)
	})
	waitFor(t, func() bool { return strings.Contains(log.String(), "--enable-scale-out") })
	finding := func(more ...string) (of doctor.Finding) {
		for _, f := range doctor.Examine(t.Context(), doctor.Examination{Config: enginemocktest.LoadSettings(t, config.Up, slices.Concat(settings, more)...)}) {
			if strings.HasPrefix(f.Check, engine.WarnMediaUncounted) {
				of = f
			}
		}
		return of
	}
	if f := finding("HTTP_ADDR=127.0.0.1:0"); f.Status != doctor.CheckWarn || !strings.Contains(f.Detail, why) || !strings.Contains(f.Remedy, remedy) {
		t.Errorf("the doctor finds %+v", f)
	}
	if f := finding("HTTP_ADDR=127.0.0.1:0", "PREPROCESS=engine"); f != (doctor.Finding{}) {
		t.Errorf("the doctor finds %+v", f)
	}
}

// warningsIn returns the warnings of all workers.
func warningsIn(t *testing.T, url string) []engine.Warning {
	t.Helper()
	resp, err := http.Get(url + "/v1/router/workers")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table struct {
		Rows []struct {
			Warnings []engine.Warning `json:"warnings"`
		} `json:"rows"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
		t.Fatal(err)
	}
	var all []engine.Warning
	for i := range table.Rows {
		all = append(all, table.Rows[i].Warnings...)
	}
	return all
}
