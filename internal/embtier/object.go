package embtier

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
)

// objectStore is the store of a tier in an object store.
type objectStore struct{ of Objects }

func (s objectStore) read(ctx context.Context, key kv.Digest, size int64) ([]byte, error) {
	data, err := s.of.GetObject(ctx, entryName(key), size)
	switch fault.CodeOf(err) {
	case fault.NotFound:
		return nil, fs.ErrNotExist
	case fault.Conflict, fault.TooLarge: // it is not what was put
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return data, err
}

// write stores a record, unless another process has: its record is the same.
func (s objectStore) write(ctx context.Context, key kv.Digest, record []byte) error {
	if err := s.of.PutObject(ctx, entryName(key), record); fault.CodeOf(err) != fault.Conflict {
		return err
	}
	return nil
}

func (s objectStore) remove(ctx context.Context, key kv.Digest) error {
	return s.of.DeleteObject(ctx, entryName(key))
}

func (s objectStore) touch(ctx context.Context, key kv.Digest) error {
	return s.of.TouchObject(ctx, entryName(key))
}

// followPause is how long after a failure the objects are followed again.
const followPause = 5 * time.Second

// followObjects keeps the index of a level like the object store until ctx ends. While the store fails, what is known
// stays.
func (l *level) followObjects(ctx context.Context, objects Objects) {
	for {
		begin := sync.OnceFunc(l.clearIndex) // what is there is told again
		err := objects.FollowObjects(ctx, func(name string, size int64) {
			begin()
			l.observeObject(name, size)
		}, begin)
		if ctx.Err() != nil {
			return
		}
		l.throttle.Log(ctx, slog.LevelWarn, "the object store of the embedding cache cannot be followed: the cache goes on without it, and tries again", "error", err)
		again := time.NewTimer(followPause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
	}
}

func (l *level) clearIndex() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.index.Clear()
}

// observeObject takes in that an object is there or, with a size of -1, gone.
func (l *level) observeObject(name string, size int64) {
	key, ok := parseName(name)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if size < 0 {
		l.mu.index.Remove(key)
		return
	}
	for _, e := range l.mu.index.Observe(embcache.TierEntry{Key: key, Bytes: size}, nil) {
		l.queueLocked(task{removeTask, e.Key})
	}
}

// compile-time guards.
var (
	_ store = objectStore{}
	_ store = (*disk)(nil)
)
