package rpc

import (
	"context"
	"fmt"
	"runtime/debug"

	"penstock/core/fault"
)

// invokeHandler runs the handler and passes its outcome to report: exactly once, in this goroutine.
// A handler which panics or calls runtime.Goexit fails its own call only.
func invokeHandler(ctx context.Context, h Handler, method string, body []byte, send func([]byte) error, report func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// recover returns nil after runtime.Goexit.
		report(&fault.Error{
			Code:    fault.Internal,
			Message: fmt.Sprintf("call %s: the handler crashed; the log says why", method),
			Err:     fmt.Errorf("panic: %v\n%s", recover(), debug.Stack()),
		})
	}()
	err := h(ctx, method, body, send)
	returned = true
	report(handlerOutcome(method, err))
}
