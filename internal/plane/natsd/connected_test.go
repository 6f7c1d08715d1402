package natsd

import (
	"context"
	"errors"
	"testing"

	"penstock/core/fault"
)

// A time limit of the client library is not the caller's.
func TestUnavailableIsNotTheContexts(t *testing.T) {
	err := Unavailable("publish t", context.DeadlineExceeded)
	if errors.Is(err, context.DeadlineExceeded) || fault.Of(err) != fault.Unavailable {
		t.Errorf("error %v", err)
	}
}
