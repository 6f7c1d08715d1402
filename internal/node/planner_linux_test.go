package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
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
		if r.URL.Path == "/broken" {
			panic("a defect")
		}
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(http.StatusOK) // too late
		_, _ = io.WriteString(w, "tea")
	})}}
	if _, err := c.Get(ownServer + "/broken"); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("a handler with a defect: %v", err)
	}
	resp, err := c.Get(ownServer + "/pot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "tea" || resp.StatusCode != http.StatusTeapot || !strings.HasPrefix(resp.Status, "418 ") || resp.Header.Get("X-Path") != "/pot" {
		t.Errorf("%+v, %q, %v", resp, body, err)
	}
}

// TestTokensOfUp: where up and the processes of its planner are alone on their planes, these ask for a token.
func TestTokensOfUp(t *testing.T) {
	applies := []string{"PLANNER=on", "PLANNER_APPLY=on", "PLANNER_CONNECTOR=process"}
	for _, tt := range []struct {
		settings []string
		want     bool
	}{
		{applies, true},
		{append(applies, "NATS_LISTEN=127.0.0.1:0"), false},
		{[]string{"PLANNER=on"}, false},
	} {
		cfg := enginemocktest.LoadSettings(t, config.Up, tt.settings...)
		remove, err := createTokens(cfg)
		if err != nil {
			t.Fatal(err)
		}
		file := cfg.NATS.TokenFile
		if (file != "") != tt.want || file != cfg.RPC.TokenFile {
			t.Errorf("%q: the tokens are in %q and %q", tt.settings, file, cfg.RPC.TokenFile)
		}
		if tt.want {
			if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 || info.Size() < 26 { // 128 bits
				t.Errorf("%v, %v", info, err)
			}
			if args := cfg.WorkerArgs("nats://127.0.0.1:4222"); !slices.Contains(args, "--nats-token-file="+file) || !slices.Contains(args, "--rpc-token-file="+file) {
				t.Errorf("the processes get %q", args)
			}
		}
		remove()
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q stays: %v", file, err)
		}
	}
}
