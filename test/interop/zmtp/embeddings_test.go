package zmtp

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// embeddings is what a reader of the events of an embedding cache knows.
type embeddings struct {
	Source struct{ Worker, Epoch uint64 }
	Held   []struct {
		Key         string
		Rows, Bytes int
	}
	Log []struct {
		Number uint64
		Kind   int
		Key    string
	}
	Asked int
}

// startUp runs Penstock with one worker, which publishes its embedding cache at a port and the next one, until the test
// ends. The cache has room for two pictures.
func startUp(t *testing.T) (url string, port int) {
	t.Helper()
	binary := os.Getenv("PENSTOCK_BINARY")
	if binary == "" {
		t.Fatal("PENSTOCK_BINARY is not set: run test/interop/zmtp.sh, which builds it")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = ln.Addr().(*net.TCPAddr).Port
	_ = ln.Close()
	cmd := exec.Command(binary, "up", "--json", "--workers", "1", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir(),
		"--embedding-events", fmt.Sprintf("tcp://:%d", port), "--embedding-cache-capacity-gb", "0.000123") // 132,071 bytes
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PENSTOCK_") }) // they name settings
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ URL string }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		t.Fatalf("penstock up: %v\n%s", err, log.String())
	}
	return ready.URL, port
}

// show asks about a picture of one colour, whose rows take 64 KiB.
func show(t *testing.T, url string, shade uint8) {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, 224, 224))
	for i := range img.Pix {
		img.Pix[i] = shade
	}
	img.Set(0, 0, color.White)
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"model": "penstock-tiny", "max_tokens": 2, "messages": []any{map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "text", "text": fmt.Sprint("shade ", shade)},
		map[string]any{"type": "image_url", "image_url": map[string]string{"url": "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes())}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, answer)
	}
}

// TestEmbeddingEvents has a subscriber of libzmq follow the embedding cache of a worker from the beginning, and catch up
// with what it has lost. The reader is written from docs/format/embedding-event.md alone.
func TestEmbeddingEvents(t *testing.T) {
	url, port := startUp(t)
	peer := startPeer(t)
	sub := peer.socket("SUB", options{"SUBSCRIBE": "embedding-events"})
	sub.connect(fmt.Sprint("tcp://127.0.0.1:", port))
	sub.awaitEvent("connected")
	dealer := peer.socket("DEALER", nil)
	dealer.connect(fmt.Sprint("tcp://127.0.0.1:", port+1))
	follow := func(upto, drop int) answer {
		t.Helper()
		return sub.ask("embeddings", args{"dealer": dealer.id, "upto": upto, "drop": drop})
	}
	show(t, url, 1)
	show(t, url, 2)
	got := follow(4, 0) // cleared, added, added
	if len(got.Held) != 2 || got.Source.Worker != 1 || got.Source.Epoch == 0 || got.Held[0].Rows != 64 || got.Held[0].Bytes != 65536 {
		t.Fatalf("%+v", got.embeddings)
	}
	first := got.Held[0].Key
	show(t, url, 3) // in place of the first one
	got = follow(6, 1)
	kinds := ""
	for _, e := range got.Log {
		kinds += fmt.Sprint(e.Kind)
	}
	if kinds != "31121" || len(got.Held) != 2 || got.Log[3].Key != first || got.Asked < 2 {
		t.Errorf("%s: %+v", kinds, got.embeddings)
	}
	// A subscriber which comes later reads all of it again.
	late := peer.socket("SUB", options{"SUBSCRIBE": "embedding-events"})
	late.connect(fmt.Sprint("tcp://127.0.0.1:", port))
	late.awaitEvent("connected")
	if got := late.ask("embeddings", args{"dealer": dealer.id, "upto": 6}); len(got.Held) != 2 || len(got.Log) != 5 {
		t.Errorf("a late one: %+v", got.embeddings)
	}
}
