package encoder

import (
	"context"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/internal/bounded"
	"penstock/internal/engine"
)

// The bounds of the handoffs which are kept for further requests: bytes, and how long one is believed. Its engine
// drops rows by rules of its own, and does not say so.
const (
	handoffBytes = 16 << 20
	handoffAge   = time.Minute
)

// handoffKey says what a handoff is of.
type handoffKey struct {
	salt, encoder string
	kind          uint8
	hash          uint64
	digest        kv.Digest
}

// handoff is where an engine finds the rows of an object, and the worker which said so.
type handoff struct {
	by   *peer
	json []byte
	at   time.Time
}

// handoffOverhead is an estimate of an entry's size beside its JSON, in bytes.
const handoffOverhead = 256

func newHandoffs() *bounded.Cache[handoffKey, handoff] {
	return bounded.NewCache[handoffKey](handoffBytes, func(h handoff) int { return len(h.json) + handoffOverhead })
}

func handoffKeyOf(job *engine.EncodeJob) handoffKey {
	return handoffKey{job.Key.Salt, job.Key.Encoder, job.Key.Kind, job.Object.Key.Hash, job.Key.Digest}
}

// HandOffObject returns the handoff of an object, see [engine.Encoded]: a recent one of a worker which is still there,
// or that of the workers which are asked as for EncodeObject. It must not be changed.
func (c *Coordinator) HandOffObject(ctx context.Context, job *engine.EncodeJob) ([]byte, error) {
	key := handoffKeyOf(job)
	if known := c.knownHandoff(key); known != nil {
		return known, nil
	}
	job.HandOff = true
	answer, by, err := c.askInOrder(ctx, job)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.handoffs.Put(key, handoff{by, answer.Handoff, time.Now()})
	return answer.Handoff, nil
}

// knownHandoff returns the handoff which is kept for an object; nil if there is none.
func (c *Coordinator) knownHandoff(key handoffKey) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.mu.handoffs.Get(key)
	if !ok || time.Since(h.at) > handoffAge || !slices.Contains(c.mu.workers, h.by) {
		return nil
	}
	return h.json
}

// ForgetHandoff drops the handoff of an object: an engine has not found the rows.
func (c *Coordinator) ForgetHandoff(job *engine.EncodeJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.handoffs.Remove(handoffKeyOf(job))
}
