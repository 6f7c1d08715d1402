package natsd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
)

// A time limit of the client library is not the caller's.
func TestUnavailableIsNotTheContexts(t *testing.T) {
	err := WrapUnavailable("publish t", context.DeadlineExceeded)
	if errors.Is(err, context.DeadlineExceeded) || fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v", err)
	}
}

// TestPublishWithoutConnection: the error says that there is no connection, not that a buffer
// of the client library is full.
func TestPublishWithoutConnection(t *testing.T) {
	err := WrapUnavailable("publish t", nats.ErrReconnectBufExceeded).Error()
	if !strings.Contains(err, "no connection") || strings.Contains(err, "buffer") {
		t.Errorf("error %q", err)
	}
}
