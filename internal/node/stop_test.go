package node

import (
	"context"
	"io"
	"testing"

	"penstock/internal/config"
)

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
