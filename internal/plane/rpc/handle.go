package rpc

import (
	"context"
	"fmt"
	"runtime/debug"

	"penstock/core/fault"
)

// handle has h serve a call and passes done its outcome, also if h panics or
// ends its goroutine; the cause of an Internal one is for logs.
func handle(ctx context.Context, h Handler, method string, body []byte, send func([]byte) error, done func(error)) {
	returned := false
	var err error
	defer func() {
		if !returned {
			// A panic, or runtime.Goexit, for which recover returns nil.
			err = &fault.Error{
				Code:    fault.Internal,
				Message: fmt.Sprintf("call %s: the handler crashed; the log of its process says why", method),
				Err:     fmt.Errorf("panic: %v\n%s", recover(), debug.Stack()),
			}
		}
		done(err)
	}()
	err = outcome(method, h(ctx, method, body, send))
	returned = true
}
