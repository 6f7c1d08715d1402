package limit

import (
	"time"

	"penstock/core/kv"
)

// partsPerUnit is the number of parts of a unit in a bucket. A bucket of limit units per minute gains limit
// parts per microsecond, so that no part is lost to rounding.
const one = int64(time.Minute / time.Microsecond)

// maxDebt bounds the debt of a bucket, in units: more than any prompt with its output.
const deepest = 50 * Most

// bucket holds up to limit units and gains as many per minute. A limit of 0 is unlimited.
type bucket struct {
	limit int64
	level int64   // in parts
	at    kv.Mono // of level
}

func newBucket(now kv.Mono, limit int) bucket {
	b := bucket{limit: int64(limit), at: now}
	b.level = b.full()
	return b
}

func (b *bucket) full() int64 { return b.limit * one }

// setLimit changes the limit. Raising it adds the difference to the level; lowering it cuts the level to the
// new capacity.
func (b *bucket) set(now kv.Mono, limit int) {
	b.fill(now)
	was := b.full()
	b.limit = int64(limit)
	b.level = min(b.full(), b.level+max(0, b.full()-was))
}

// refill adds what was gained since the last call. A rest of less than a microsecond is left for the next
// call.
func (b *bucket) fill(now kv.Mono) {
	since := time.Duration(now - b.at)
	if since <= 0 {
		return
	}
	micros := int64(since / time.Microsecond)
	b.at += kv.Mono(micros * int64(time.Microsecond))
	if b.limit == 0 {
		return
	}
	if need := b.full() - b.level; micros >= (need+b.limit-1)/b.limit {
		b.level = b.full()
		return
	}
	b.level += micros * b.limit
}

// hasUnits reports whether n units are available.
func (b *bucket) has(n int) bool { return b.limit == 0 || b.level >= int64(n)*one }

// takeUnits removes n units, even if they are not available.
func (b *bucket) take(n int) {
	if b.limit == 0 || n <= 0 {
		return
	}
	b.level = max(-deepest*one, b.level-min(int64(n), deepest)*one)
}

// maxWait bounds the reported wait.
const longest = 24 * time.Hour

// waitFor returns how long after the last refill n units, at most the limit, are available; at most maxWait.
func (b *bucket) until(n int) time.Duration {
	if b.has(n) {
		return 0
	}
	need := int64(n)*one - b.level
	return time.Duration(min((need+b.limit-1)/b.limit, int64(longest/time.Microsecond))) * time.Microsecond
}
