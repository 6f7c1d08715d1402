package node

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/config"
	"penstock/internal/enginemock/enginemocktest"
)

// TestChildrenGetSIGPIPE: a process goes on when the reader of its log is gone, and the programs which it starts do not: they
// inherit no ignored signal.
func TestChildrenGetSIGPIPE(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cfg := enginemocktest.LoadSettings(t, config.PlannerCommand, "HTTP_ADDR=127.0.0.1:0")
	if err := RunPlanner(ctx, cfg, io.Discard, func(Started) {
		defer stop()
		status, err := exec.Command("/bin/cat", "/proc/self/status").Output()
		found := regexp.MustCompile(`SigIgn:\s*([0-9a-f]+)`).FindSubmatch(status)
		if err != nil || found == nil {
			t.Errorf("%q, %v", status, err)
			return
		}
		if ignored, err := strconv.ParseUint(string(found[1]), 16, 64); err != nil || ignored&(1<<(syscall.SIGPIPE-1)) != 0 {
			t.Errorf("a child ignores the signals %s, %v", found[1], err)
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestHandlerTransport: a client reads what a handler of its process answers, with its status.
func TestHandlerTransport(t *testing.T) {
	c := http.Client{Transport: handlerTransport{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Path", r.URL.Path)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "tea")
	})}}
	resp, err := c.Get(ownServer + "/pot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "tea" || resp.StatusCode != http.StatusTeapot || !strings.HasPrefix(resp.Status, "418 ") || resp.Header.Get("X-Path") != "/pot" {
		t.Errorf("%+v, %q, %v", resp, body, err)
	}
}
