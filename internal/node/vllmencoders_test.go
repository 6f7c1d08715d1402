package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"penstock/internal/config"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

// startSharing starts a mocked vLLM of a role, which sees, and returns its setting.
func startSharing(t *testing.T, role enginemock.ECRole, store, root string) (spec string, s *enginemock.Server) {
	t.Helper()
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 4096, "max_position_embeddings": 4096}`, "")
	spec, s = enginemocktest.StartEngineMock(t, enginemock.VLLM, dir, func(c *enginemock.Config) {
		c.Pipe, c.Root, c.ECRole, c.ECStore = pipe, root, role, store
	})
	return spec + ",ec-role=" + string(role), s
}

// showSquares asks about pictures of one colour each.
func showSquares(t *testing.T, url string, shades ...uint8) {
	t.Helper()
	parts := `{"type":"text","text":"What is this?"}`
	for _, shade := range shades {
		parts += fmt.Sprintf(`,{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, base64.StdEncoding.EncodeToString(squarePNG(t, shade)))
	}
	body := `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":[` + parts + `]}]}`
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if said, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s %v", resp.Status, said, err)
	}
}

// TestEncodedByVLLM: a vLLM which takes what others encode gets the pictures of its requests from one which encodes,
// each encoded once; what that one does not encode it encodes itself.
func TestEncodedByVLLM(t *testing.T) {
	store := t.TempDir()
	taking, consumer := startSharing(t, enginemock.ECConsumer, store, "penstock-sim")
	giving, producer := startSharing(t, enginemock.ECProducer, store, "penstock-sim")
	r, log := startUp(t, "ENGINE="+taking+","+giving)
	if r.Workers != 1 || r.EncodeWorkers != 1 || len(r.Engines) != 2 || r.Engines[1].Role != "encode" {
		t.Fatalf("%+v\n%s", r, log)
	}
	// The consumer's adapter watches discovery itself: it may not know the producer yet.
	shade := uint8(100)
	waitFor(t, func() bool {
		before := producer.ECStats().Encoded
		shade++
		showSquares(t, r.URL, shade)
		return producer.ECStats().Encoded > before
	})
	// The start checks show both of them a picture. The consumer encodes it if it is first.
	first, started := producer.ECStats().Encoded, consumer.ECStats()
	expect := func(what string, encoded int, want enginemock.ECStats) {
		t.Helper()
		want.Encoded, want.Loaded = want.Encoded+started.Encoded, want.Loaded+started.Loaded
		if n, got := producer.ECStats().Encoded-first, consumer.ECStats(); n != encoded || got != want {
			t.Errorf("%s: the producer encoded %d, the consumer %+v; want %d and %+v\n%s", what, n, got, encoded, want, log)
		}
	}
	showSquares(t, r.URL, 10, 20)
	expect("two pictures", 2, enginemock.ECStats{Loaded: 2})
	showSquares(t, r.URL, 20, 10, 20)
	showSquares(t, r.URL)
	expect("shown again, and none", 2, enginemock.ECStats{Loaded: 2})
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() { showSquares(t, r.URL, 30) })
	}
	asking.Wait()
	expect("eight requests at once", 3, enginemock.ECStats{Loaded: 3})
	if err := producer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultError}); err != nil {
		t.Fatal(err)
	}
	showSquares(t, r.URL, 40)
	expect("the producer fails", 3, enginemock.ECStats{Loaded: 3, Encoded: 1})
}

// TestOtherModelEncodes: a producer of another model is refused.
func TestOtherModelEncodes(t *testing.T) {
	store := t.TempDir()
	taking, _ := startSharing(t, enginemock.ECConsumer, store, "penstock-sim")
	giving, _ := startSharing(t, enginemock.ECProducer, store, "/another/model")
	cfg := enginemocktest.LoadSettings(t, config.Up, "ENGINE="+taking+","+giving, "HTTP_ADDR=127.0.0.1:0")
	log := &enginemocktest.LogBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := RunUp(ctx, cfg, log, func(Ready) { cancel() })
	if err == nil || !strings.Contains(err.Error(), "encoder is vllm 0.29.0") || !strings.Contains(err.Error(), "/another/model") {
		t.Errorf("%v\n%s", err, log)
	}
}
