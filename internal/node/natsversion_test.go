package node

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/config"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// A process ends at a NATS server that is too old, as a failure and not as a timeout, and doctor fails for
// the same reason.
func TestNATSTooOld(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a process that does not end
	defer cancel()
	for _, command := range []config.Command{config.Worker, config.Frontend, config.Router} {
		cfg := settingsOf(t, command, "NATS="+natsdtest.ServeVersion(t, "2.9.10"), "HTTP_ADDR=127.0.0.1:0")
		run := map[config.Command]func() error{
			config.Worker:   func() error { return RunWorker(ctx, cfg, new(bytes.Buffer), nil) },
			config.Frontend: func() error { return RunFrontend(ctx, cfg, new(bytes.Buffer), nil) },
			config.Router:   func() error { return RunRouter(ctx, cfg, new(bytes.Buffer), nil) },
		}[command]
		if err := run(); !errors.Is(err, natsd.ErrTooOld) || errors.Is(err, ErrNotReady) {
			t.Errorf("%s: error %v, want ErrTooOld", command, err)
		}
		found := Examine(t.Context(), Examination{Config: cfg})
		checkFinding(t, found, "nats", CheckFail, "2.9.10")
		checkNoFinding(t, found, "jetstream")
	}
}
