package rpc

import (
	"context"
	"fmt"
	"runtime/debug"

	"penstock/core/fault"
)

// invoke runs the handler and tells report what its caller gets: once, in this
// goroutine, and also when the handler panics or ends the goroutine that it was
// given, which is a call that failed and no more.
func invoke(ctx context.Context, h Handler, method string, body []byte, send func([]byte) error, report func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// A panic, or runtime.Goexit, for which recover returns nil.
		report(&fault.Error{
			Code:    fault.Internal,
			Message: fmt.Sprintf("call %s: the handler crashed; the log says why", method),
			Err:     fmt.Errorf("panic: %v\n%s", recover(), debug.Stack()),
		})
	}()
	err := h(ctx, method, body, send)
	returned = true
	report(outcome(method, err))
}
