package bustest

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/bus"
)

// BusFaults configures how a bus misbehaves. Probabilities are from 0 to 1. The zero value is a bus
// without faults.
type BusFaults struct {
	// Topics are the names of the affected topics; nil means all.
	Topics []string
	// Fail is the probability that Publish, DescribeTopic or Purge returns Unavailable. As with a
	// real store, that does not tell what happened to the message: half of them are stored.
	Fail float64
	// Lose is the probability that Publish returns nil but the message is lost, as if its publisher
	// had never sent it.
	Lose float64
	// Drop is the probability that one subscription misses a message. On a durable topic its Seq is
	// skipped.
	Drop float64
	// Duplicate is the probability that a message is delivered twice in a row.
	Duplicate float64
	// Reorder is the probability that a message is delivered after its successor. It is held until
	// the successor arrives.
	Reorder float64
	// Delay is the upper bound of a random delay of each delivery.
	Delay time.Duration
}

// FaultyBus wraps another bus and injects faults. It deliberately violates the contract of Bus, for
// tests of the code that must tolerate that.
type FaultyBus struct {
	inner bus.Bus
	seed  uint64
	mu    struct {
		sync.Mutex
		faults     BusFaults
		published  map[faultSite]uint64 // messages so far, by topic and key
		subscribed map[string]uint64
	}
}

var _ bus.Bus = (*FaultyBus)(nil)

// faultSite is a place for faults: publishing to a topic under a key, or the nth subscription to a
// topic.
type faultSite struct {
	topic, key string
	sub        uint64 // 0 for publishing
}

// WithFaults wraps inner. The fate of a message depends only on the seed, its topic and key, and
// the number of messages before it: with its key for publishing, of the subscription for delivery.
func WithFaults(inner bus.Bus, seed uint64, f BusFaults) *FaultyBus {
	b := &FaultyBus{inner: inner, seed: seed}
	b.mu.faults = f
	b.mu.published = make(map[faultSite]uint64)
	b.mu.subscribed = make(map[string]uint64)
	return b
}

// Set replaces the faults of subsequent messages.
func (b *FaultyBus) Set(f BusFaults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.faults = f
}

// Publish implements Bus.
func (b *FaultyBus) Publish(ctx context.Context, t bus.Topic, key string, data []byte) error {
	s := faultSite{topic: t.Name, key: key}
	f, rng := b.activeFaults(t.Name), b.randFor(s, b.nextIndex(s))
	fail, keep, lose := rng.Float64() < f.Fail, rng.Float64() < 0.5, rng.Float64() < f.Lose
	if lose && !fail || fail && !keep {
		if fail {
			return errInjected(t)
		}
		return ctx.Err()
	}
	err := b.inner.Publish(ctx, t, key, data)
	if err == nil && fail {
		return errInjected(t)
	}
	return err
}

// DescribeTopic implements Bus. It fails as Publish does.
func (b *FaultyBus) DescribeTopic(ctx context.Context, t bus.Topic) (bus.TopicState, error) {
	if b.opRand(t.Name, "span").Float64() < b.activeFaults(t.Name).Fail {
		return bus.TopicState{}, fault.New(fault.Unavailable, "look at %s: no answer (injected)", t.Name)
	}
	return b.inner.DescribeTopic(ctx, t)
}

// Purge implements Bus. Half of the failed calls take effect.
func (b *FaultyBus) Purge(ctx context.Context, t bus.Topic, below uint64) error {
	rng := b.opRand(t.Name, "purge")
	fail, done := rng.Float64() < b.activeFaults(t.Name).Fail, rng.Float64() < 0.5
	if fail && !done {
		return fault.New(fault.Unavailable, "purge %s: whether it was done is not known (injected)", t.Name)
	}
	err := b.inner.Purge(ctx, t, below)
	if err == nil && fail {
		return fault.New(fault.Unavailable, "purge %s: whether it was done is not known (injected)", t.Name)
	}
	return err
}

// opRand returns the random source of the next op on a topic. The space in its faultSite, which no
// topic name contains, separates it from the faultSites of messages.
func (b *FaultyBus) opRand(topic, op string) *rand.Rand {
	s := faultSite{topic: topic + " " + op}
	return b.randFor(s, b.nextIndex(s))
}

func errInjected(t bus.Topic) error {
	return fault.New(fault.Unavailable, "publish %s: whether it was kept is not known (injected)", t.Name)
}

// Subscribe implements Bus.
func (b *FaultyBus) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	d := &faultySubscription{bus: b, site: faultSite{topic: t.Name, sub: b.nextSubscription(t.Name)}, sink: sink}
	return b.inner.Subscribe(ctx, t, from, func(m bus.Message) error { return d.deliverMessage(ctx, m) }, ready)
}

// faultySubscription is one subscription of a FaultyBus.
type faultySubscription struct {
	bus  *FaultyBus
	site faultSite
	sink func(bus.Message) error
	n    uint64       // messages so far
	held *bus.Message // to be delivered after the next message
}

func (d *faultySubscription) deliverMessage(ctx context.Context, m bus.Message) error {
	f, rng := d.bus.activeFaults(d.site.topic), d.bus.randFor(d.site, d.n)
	d.n++
	drop, twice, late := rng.Float64() < f.Drop, rng.Float64() < f.Duplicate, rng.Float64() < f.Reorder
	if f.Delay > 0 {
		t := time.NewTimer(time.Duration(rng.Int64N(int64(f.Delay))))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
	var due []bus.Message
	switch {
	case drop:
	case late && d.held == nil:
		m.Data = bytes.Clone(m.Data)
		d.held = &m
		return nil
	case twice:
		due = append(due, m, m)
	default:
		due = append(due, m)
	}
	if d.held != nil {
		due = append(due, *d.held)
		d.held = nil
	}
	for _, m := range due {
		if err := d.sink(m); err != nil {
			return err
		}
	}
	return nil
}

// activeFaults returns the current faults of a topic.
func (b *FaultyBus) activeFaults(topic string) BusFaults {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.mu.faults; f.Topics == nil || slices.Contains(f.Topics, topic) {
		return f
	}
	return BusFaults{}
}

// nextIndex returns the number of messages so far at s, and increments it.
func (b *FaultyBus) nextIndex(s faultSite) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.mu.published[s]
	b.mu.published[s] = n + 1
	return n
}

// nextSubscription numbers the subscriptions to a topic from 1.
func (b *FaultyBus) nextSubscription(topic string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.subscribed[topic]++
	return b.mu.subscribed[topic]
}

// randFor returns the random source of the nth message at s.
func (b *FaultyBus) randFor(s faultSite, n uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(s.topic + "\x00" + s.key + "\x00"))
	h.Write(binary.LittleEndian.AppendUint64(nil, s.sub))
	h.Write(binary.LittleEndian.AppendUint64(nil, n))
	return rand.New(rand.NewPCG(b.seed, h.Sum64()))
}
