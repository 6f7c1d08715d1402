package batch

import (
	"context"

	"penstock/core/kv"
)

// WatchKV reports the cache to sink as the contract of [engine.KVSource] says. A
// watcher that is further behind than a description of the whole cache is long
// is started over. It returns nil when ctx ends, sink's error if sink fails, and
// an Unavailable error when the engine has stopped.
func (e *Engine) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return e.watchers.Watch(ctx, e.poke, errStopped(), sink)
}
