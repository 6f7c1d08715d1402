package node

import (
	"context"
	"io"
	"testing"

	"penstock/internal/config"
)

// Who stops a node before it is ready gets neither readiness nor an error,
// wherever it was.
func TestStoppedWhileLoading(t *testing.T) {
	cfg, err := config.Load("", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Up(ctx, cfg, io.Discard, func(Ready) { t.Error("ready") }); err != nil {
		t.Error(err)
	}
}
