package node

import (
	"context"
	"io"
	"net"
	"testing"

	"penstock/internal/config"
)

func TestReachable(t *testing.T) {
	for _, tc := range []struct{ listens, want string }{
		{"127.0.0.1:8000", "127.0.0.1:8000"},
		{"[::1]:8000", "[::1]:8000"},
		{"192.0.2.1:8000", "192.0.2.1:8000"},
		{"0.0.0.0:8000", "localhost:8000"},
		{"[::]:8000", "localhost:8000"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tc.listens)
		if err != nil {
			t.Fatal(err)
		}
		if got := reachableAddr(addr); got != tc.want {
			t.Errorf("a listener at %s is reached at %s, want %s", tc.listens, got, tc.want)
		}
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		"0.0.0.0:1": false, "[::]:1": false, ":1": false, "192.0.2.1:1": false, "example.org:1": false, "nonsense": false,
	} {
		if got := config.IsLoopback(addr); got != want {
			t.Errorf("loopback(%q) = %v", addr, got)
		}
	}
}

// A node stopped before it is ready returns neither readiness nor an error, at whatever point it was stopped.
func TestStoppedWhileLoading(t *testing.T) {
	cfg, err := config.Load("", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := RunUp(ctx, cfg, io.Discard, func(Ready) { t.Error("ready") }); err != nil {
		t.Error(err)
	}
}
