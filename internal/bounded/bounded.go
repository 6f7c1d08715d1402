// Package bounded limits the resources used by concurrent requests: memory, for which requests wait
// in order ([MemoryBudget]), goroutines ([ForEach]), and what is kept for later ones ([Cache]).
package bounded

import (
	"container/list"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ForEach calls do with each number below n, with at most hands calls at a time. After the first
// error it cancels ctx for the other calls and starts no more. It waits for all started calls and
// returns the first error. A panic in do becomes its error.
func ForEach(ctx context.Context, n, hands int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan int, n)
	for i := range n {
		queue <- i
	}
	close(queue)
	hands = min(n, max(hands, 1))
	done := make(chan error, hands)
	for range hands {
		go func() { // the loop below waits for it
			done <- RecoverPanic(func() error {
				for i := range queue {
					if err := ctx.Err(); err != nil {
						return err
					}
					if err := do(ctx, i); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	var first error
	for range hands {
		if err := <-done; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// RecoverPanic calls f and converts a panic in it to an error, so that a bug fails only the request
// in which it occurs. The panic value may contain part of a prompt, so only the runtime's own
// panics are kept.
func RecoverPanic(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("panic: %w\n%s", p, debug.Stack())
		default:
			err = fmt.Errorf("panic: %T\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// Cache is a map which evicts its least recently used entries beyond a limit. It is not safe for concurrent
// use.
type Cache[K comparable, V any] struct {
	limit, used int
	weigh       func(V) int
	order       list.List // of *cacheEntry[K, V], the most recently used first
	byKey       map[K]*list.Element
}

type cacheEntry[K comparable, V any] struct {
	key   K
	value V
}

// NewCache returns an empty cache of at most limit: the sum of what weigh returns for its values.
func NewCache[K comparable, V any](limit int, weigh func(V) int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, weigh: weigh, byKey: map[K]*list.Element{}}
}

// CountEntries is the weigh of a cache whose limit is a number of entries.
func CountEntries[V any](V) int { return 1 }

// Get returns the value of a key, which is the most recently used one then.
func (c *Cache[K, V]) Get(key K) (v V, ok bool) {
	at, ok := c.byKey[key]
	if !ok {
		return v, false
	}
	c.order.MoveToFront(at)
	return at.Value.(*cacheEntry[K, V]).value, true
}

// Put sets the value of a key, and evicts what no longer fits: also the value itself if it is too large alone.
func (c *Cache[K, V]) Put(key K, v V) {
	c.Remove(key)
	c.byKey[key] = c.order.PushFront(&cacheEntry[K, V]{key, v})
	c.used += c.weigh(v)
	for c.used > c.limit {
		c.Remove(c.order.Back().Value.(*cacheEntry[K, V]).key)
	}
}

// Remove removes a key, if it is there.
func (c *Cache[K, V]) Remove(key K) {
	if at, ok := c.byKey[key]; ok {
		c.used -= c.weigh(c.order.Remove(at).(*cacheEntry[K, V]).value)
		delete(c.byKey, key)
	}
}

// Used returns the sum of the weights.
func (c *Cache[K, V]) Used() int { return c.used }

// Len returns the number of entries.
func (c *Cache[K, V]) Len() int { return len(c.byKey) }
