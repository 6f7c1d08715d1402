package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/internal/config"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
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

// TestReadyWithin: the start of an engine that takes a minute has a longer limit.
func TestReadyWithin(t *testing.T) {
	for want, settings := range map[time.Duration][]string{
		readyTimeout:               {"ENGINE=tiny", "SIM_STARTUP=60s"},
		readyTimeout + time.Minute: {"ENGINE=sim", "SIM_STARTUP=60s"},
	} {
		if got := startTimeout(enginemocktest.LoadSettings(t, config.Up, settings...)); got != want {
			t.Errorf("%q: %v, want %v", settings, got, want)
		}
	}
}

// A process ends at a NATS server that is too old, as a failure and not as a timeout.
func TestNATSTooOld(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t)) // a process that does not end
	defer cancel()
	for _, command := range []config.Command{config.Worker, config.Frontend, config.Router} {
		cfg := enginemocktest.LoadSettings(t, command, "NATS="+natsdtest.ServeVersion(t, "2.9.10"), "HTTP_ADDR=127.0.0.1:0")
		run := map[config.Command]func() error{
			config.Worker:   func() error { return RunWorker(ctx, cfg, new(bytes.Buffer), nil) },
			config.Frontend: func() error { return RunFrontend(ctx, cfg, new(bytes.Buffer), nil) },
			config.Router:   func() error { return RunRouter(ctx, cfg, new(bytes.Buffer), nil) },
		}[command]
		if err := run(); !errors.Is(err, natsd.ErrTooOld) || errors.Is(err, config.ErrNotReady) {
			t.Errorf("%s: error %v, want ErrTooOld", command, err)
		}
	}
}
