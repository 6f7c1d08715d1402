package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
)

// TestSimulatedEncoding: while an engine encodes a picture, which takes longer than the test, its worker reports the
// request as encoding, with its blocks; texts are served, unless the busy threshold counts those blocks; and when its
// client leaves nothing is held of it.
func TestSimulatedEncoding(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=1", "sim-speedup=100", "sim-encoder=1:1e8", "kv-cache-blocks=256")
	pictures := servePictures(t)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	body := chatOf(simulated, "", 4)
	body["messages"] = []any{map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "text", "text": "Look at this:"},
		map[string]any{"type": "image_url", "image_url": map[string]any{"url": pictures.uri(t, "/red.png")}},
	}}}
	go func() {
		a, err := s.stream(ctx, "/v1/chat/completions", body)
		ended <- fmt.Errorf("%+v: %w", a, err)
	}()
	s.eventually("the picture is encoded", func() bool {
		r := s.workers()[0].Load.Reported
		return r != nil && r.Encoding == 1 && r.Waiting == 1 && r.Running == 0 && r.UsedBlocks > 1
	})
	held := s.workers()[0].Load
	for i := range 3 {
		if a := s.complete("/v1/chat/completions", chatOf(simulated, longPrompt(i), 8)); a.status != http.StatusOK || a.output != 8 {
			t.Errorf("a text beside it: %+v", a)
		}
	}
	if held.ActiveRequests != 1 || held.ActiveBlocks < held.Reported.UsedBlocks-1 { // it counts full blocks
		t.Errorf("the router counts %+v", held)
	}
	threshold := func(share float64) {
		t.Helper()
		if resp, data := s.do(http.MethodPost, "/busy_threshold", map[string]any{"model": simulated, "active_decode_blocks_threshold": share}); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", resp.Status, data)
		}
	}
	threshold(float64(held.ActiveBlocks-1) / 256)
	if a := s.complete("/v1/chat/completions", chatOf(simulated, "hello", 4)); a.status != http.StatusServiceUnavailable {
		t.Errorf("beyond the threshold: %+v", a)
	}
	select {
	case err := <-ended:
		t.Errorf("the picture was encoded: %v", err)
	default:
	}
	leave()
	<-ended
	s.idle()
	if a := s.complete("/v1/chat/completions", chatOf(simulated, "hello", 4)); a.status != http.StatusOK {
		t.Errorf("when it has left: %+v", a)
	}
}
