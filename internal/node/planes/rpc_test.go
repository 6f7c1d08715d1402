package planes

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/internal/config"
	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
)

// TestUnguardedRequestPlane: whatever the role, a process warns once when it begins to serve calls beyond its machine
// without TLS or to any caller, and not before.
func TestUnguardedRequestPlane(t *testing.T) {
	dir := t.TempDir()
	pair := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "fleet"})
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	cert, key, token := write("cert.pem", pair.Cert), write("key.pem", pair.Key), write("token", []byte("secret"))
	const beyond = "RPC_ADDR=0.0.0.0:0"
	tls := []string{beyond, "RPC_TLS_CERT=" + cert, "RPC_TLS_KEY=" + key}
	for _, c := range []struct {
		env   []string
		warns int
	}{
		{[]string{beyond}, 1},
		{[]string{beyond, "RPC_TOKEN_FILE=" + token}, 1},
		{tls, 1},
		{slices.Concat(tls, []string{"RPC_TOKEN_FILE=" + token}), 0},
		{slices.Concat(tls, []string{"RPC_TLS_CA=" + cert}), 0},
		{[]string{"RPC_ADDR=127.0.0.1:0"}, 0},
		{nil, 0},
	} {
		for _, role := range []config.Command{config.Frontend, config.Worker, config.Router} {
			env := append([]string{"DISCOVERY=file", "DISCOVERY_DIR=" + dir, "RPC_ADVERTISE=127.0.0.1"}, c.env...)
			var log bytes.Buffer
			p := &Set{}
			if err := p.OpenRPC(enginemocktest.LoadSettings(t, role, env...), slog.New(slog.NewTextHandler(&log, nil))); err != nil {
				t.Fatal(err)
			}
			const warning = "listens beyond this machine"
			if strings.Contains(log.String(), warning) {
				t.Errorf("%s %v: warned before anything is served", role, c.env)
			}
			for range 2 {
				ctx, stop := context.WithCancel(t.Context())
				if err := p.RPC.Serve(ctx, p.Addr, nil, func(string) { stop() }); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), warning); n != c.warns {
				t.Errorf("%s %v: %d warnings, want %d", role, c.env, n, c.warns)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestBulkUCX: a binary without UCX refuses the setting, and says how to get one with it.
func TestBulkUCX(t *testing.T) {
	built := xferHasUCX()
	for _, role := range []config.Command{config.Frontend, config.Worker} {
		env := []string{"DISCOVERY=file", "DISCOVERY_DIR=" + t.TempDir(), "BULK_UCX=true", "MM_TRANSFER=network"}
		if role == config.Frontend {
			env = env[:3]
		}
		p := &Set{}
		err := p.OpenRPC(enginemocktest.LoadSettings(t, role, env...), slog.New(slog.DiscardHandler))
		if built && err != nil || !built && (err == nil || !strings.Contains(err.Error(), "bulk-ucx") || !strings.Contains(err.Error(), "-tags ucx")) {
			t.Errorf("%s: %v", role, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// xferHasUCX reports whether this binary has UCX.
func xferHasUCX() bool {
	p, err := xfer.NewUCXPlane(xfer.TCPConfig{})
	if err == nil {
		err = p.Close()
	}
	return err == nil
}
