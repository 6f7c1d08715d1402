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
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// checkpoints are directories as transformers writes them (tools/fixtures/make_configs.py), without weights; they share a tokenizer.
const checkpoints = "testdata/checkpoints"

// checkpointDir copies the files of a checkpoint, and those that all of them share, into a directory.
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

// simulated runs "penstock sim --dialect vllm" of the model in dir until the end of the test.
func simulated(t *testing.T, dir string) SimReady {
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
		ended <- Sim(ctx, cfg, SimServer{Dialect: "vllm", HTTPAddr: "127.0.0.1:0", KVEvents: "tcp://127.0.0.1:0", Ranks: 1}, &lockedBuffer{}, func(r SimReady) { ready <- r })
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

// asks posts a conversation that shows what parts say beside a question, and returns the answer.
func asks(t *testing.T, url string, parts ...string) (status int, header http.Header, body string) {
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

// pictureOf is the part of a message that shows a PNG of that size.
func pictureOf(t *testing.T, w, h int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, w, h))); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, base64.StdEncoding.EncodeToString(b.Bytes()))
}

// TestCheckpointsOfTransformers: in front of an engine that runs already, a checkpoint is served as transformers writes it,
// though the built-in engine could compute few of them; and the pictures of families that are counted take part in routing.
func TestCheckpointsOfTransformers(t *testing.T) {
	entries, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	uncounted := map[string]string{
		"gemma3n": "unsupported_model", "gemma4": "unsupported_model", "gemma4_unified": "unsupported_model", "olmo3": "unsupported_model",
		"phi3_v": "unsupported_model", // it is counted, and its placeholder is text
	}
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
			sim := simulated(t, dir)
			ready, _ := upOn(t, "ENGINE=vllm="+sim.URL+",events="+sim.KVEvents, "MODEL_PATH="+dir)
			if status := ready.Engines[0]; status.Tokenizer != dir || !status.Chat {
				t.Errorf("it is served as %+v", status)
			}
			answerFrom(t, ready.URL, "m")
			if status, _, body := asks(t, ready.URL); status != http.StatusOK {
				t.Errorf("a text: %d %s", status, body)
			}
			if hears[e.Name()] || uncounted[e.Name()] != "" {
				return
			}
			status, header, body := asks(t, ready.URL, pictureOf(t, 300, 200))
			if why := header.Get("x-penstock-text-only"); status != http.StatusOK || why != "" {
				t.Errorf("a picture: %d, %q, %s", status, why, body)
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
			if status, _, body := asks(t, ready.URL, pictureOf(t, 8, 3200)); status != want || !strings.Contains(body, refuses[e.Name()]) {
				t.Errorf("a thin picture: %d %s", status, body)
			}
		})
	}
	if count < 24 {
		t.Errorf("there are %d checkpoints", count)
	}
}
