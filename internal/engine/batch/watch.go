package batch

import (
	"context"

	"penstock/core/kv"
)

// WatchKV reports the content of the cache to sink; see [engine.KVSource]. A watcher that lags by more than
// the length of a description of the whole cache is restarted. It returns nil when ctx ends, sink's error if
// sink fails, and an Unavailable error when the engine has stopped.
func (e *Engine) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return e.watchers.Watch(ctx, e.wakeLoop, stoppedError(), sink)
}
