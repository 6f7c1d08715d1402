package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

// until is a writer which calls found once when its output contains the text.
type until struct {
	mu    sync.Mutex
	all   bytes.Buffer
	text  string
	found func()
}

func (u *until) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.Write(p)
	if strings.Contains(u.all.String(), u.text) {
		u.found()
	}
	return len(p), nil
}

// TestLogWithoutScreen: if standard error is not a terminal, it contains only the log, which says where the
// process serves, in JSON if configured.
func TestLogWithoutScreen(t *testing.T) {
	for _, command := range [][]string{
		{"up", "--http-addr", "127.0.0.1:0"},
		{"frontend", "--http-addr", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--drain-grace", "0s"},
		{"worker", "--nats-listen", "127.0.0.1:0"},
		{"router", "--nats-listen", "127.0.0.1:0"},
		{"sim", "--http-addr", "127.0.0.1:0"},
	} {
		for _, format := range []string{"text", "json"} {
			ctx, stop := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
			log := &until{text: map[string]string{"text": "msg=serving ", "json": `"msg":"serving"`}[format], found: stop}
			cmd := newRootCommand()
			cmd.SetArgs(append(command, "--log-format", format))
			cmd.SetOut(log)
			cmd.SetErr(log)
			if err := cmd.ExecuteContext(ctx); err != nil {
				t.Errorf("%s: %v", command, err)
			}
			if ctx.Err() == context.DeadlineExceeded {
				t.Errorf("%s in %s did not say that it serves: %s", command, format, log.all.String())
			}
			stop()
			for line := range strings.Lines(log.all.String()) {
				if format == "json" && !json.Valid([]byte(line)) || format == "text" && !strings.HasPrefix(line, "time=") {
					t.Errorf("%s in %s is no record of a log: %q", command, format, line)
				}
			}
		}
	}
}

// TestCurlLine: the printed curl command works unchanged with TLS and keys.
func TestCurlLine(t *testing.T) {
	r := node.Ready{URL: "https://127.0.0.1:8443", Model: "m", Chat: true, Engine: "tiny", Workers: 2, RouterMode: "kv", Keys: true}
	r.Access = node.Access{CertFile: "/etc/pen stock/host.pem", KeyFile: "keys.yaml"}
	named := r
	named.Access.Name = "llm.example.com"
	for _, tt := range []struct {
		ready node.Ready
		has   []string
	}{
		{r, []string{
			"curl -N https://127.0.0.1:8443/v1/chat/completions \\\n      --cacert '/etc/pen stock/host.pem' \\\n", ` -H "Authorization: Bearer $PENSTOCK_API_KEY"`,
			"export PENSTOCK_API_KEY=KEY first, with a key of keys.yaml", "(with --server https://127.0.0.1:8443 --ca '/etc/pen stock/host.pem')",
		}},
		{named, []string{
			"curl -N https://llm.example.com:8443/v1/chat", " --connect-to llm.example.com:8443:127.0.0.1:8443 \\\n", "(with --server https://llm.example.com:8443 --ca",
		}},
	} {
		var b strings.Builder
		printWelcome(&b, tt.ready)
		for _, s := range tt.has {
			if !strings.Contains(b.String(), s) {
				t.Errorf("%s\nlacks %q", b.String(), s)
			}
		}
	}
}
