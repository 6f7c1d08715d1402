package limit

import (
	"time"

	"penstock/core/kv"
)

// partsPerUnit is the number of parts of a unit in a bucket. A bucket of limit units per minute gains limit
// parts per microsecond, so that no part is lost to rounding.
const partsPerUnit = int64(time.Minute / time.Microsecond)

// maxDebt bounds the debt of a bucket, in units: more than any prompt with its output.
const maxDebt = 50 * MaxLimit

// bucket holds up to limit units and gains as many per minute. A limit of 0 is unlimited.
type bucket struct {
	limit  int64
	level  int64   // in parts
	filled kv.Mono // of level
}

func newBucket(now kv.Mono, limit int) bucket {
	b := bucket{limit: int64(limit), filled: now}
	b.level = b.capacity()
	return b
}

func (b *bucket) capacity() int64 { return b.limit * partsPerUnit }

// setLimit changes the limit. Raising it adds the difference to the level; lowering it cuts the level to the
// new capacity.
func (b *bucket) setLimit(now kv.Mono, limit int) {
	b.refill(now)
	was := b.capacity()
	b.limit = int64(limit)
	b.level = min(b.capacity(), b.level+max(0, b.capacity()-was))
}

// refill adds what was gained since the last call. A rest of less than a microsecond is left for the next
// call.
func (b *bucket) refill(now kv.Mono) {
	since := time.Duration(now - b.filled)
	if since <= 0 {
		return
	}
	micros := int64(since / time.Microsecond)
	b.filled += kv.Mono(micros * int64(time.Microsecond))
	if b.limit == 0 {
		return
	}
	if need := b.capacity() - b.level; micros >= (need+b.limit-1)/b.limit {
		b.level = b.capacity()
		return
	}
	b.level += micros * b.limit
}

// hasUnits reports whether n units are available.
func (b *bucket) hasUnits(n int) bool { return b.limit == 0 || b.level >= int64(n)*partsPerUnit }

// takeUnits removes n units, even if they are not available.
func (b *bucket) takeUnits(n int) {
	if b.limit == 0 || n <= 0 {
		return
	}
	b.level = max(-maxDebt*partsPerUnit, b.level-min(int64(n), maxDebt)*partsPerUnit)
}

// maxWait bounds the reported wait.
const maxWait = 24 * time.Hour

// waitFor returns how long after the last refill n units, at most the limit, are available; at most maxWait.
func (b *bucket) waitFor(n int) time.Duration {
	if b.hasUnits(n) {
		return 0
	}
	need := int64(n)*partsPerUnit - b.level
	return time.Duration(min((need+b.limit-1)/b.limit, int64(maxWait/time.Microsecond))) * time.Microsecond
}
