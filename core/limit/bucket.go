package limit

import (
	"time"

	"penstock/core/kv"
)

// one is how many parts a unit of a bucket has. A bucket of limit units a minute
// gains limit parts in a microsecond, so that no part is lost to rounding.
const one = int64(time.Minute / time.Microsecond)

// deepest bounds what a bucket owes, in units: more than any prompt and its answers.
const deepest = 50 * Most

// bucket holds up to limit units and gains as many in a minute. A limit of 0 holds
// without end.
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

// set changes the limit. A higher one adds to what is there what it is higher by, a
// lower one leaves what it can hold.
func (b *bucket) set(now kv.Mono, limit int) {
	b.fill(now)
	was := b.full()
	b.limit = int64(limit)
	b.level = min(b.full(), b.level+max(0, b.full()-was))
}

// fill adds what came since the last call. What is less than a microsecond waits
// for the next.
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

// has reports whether n units are there.
func (b *bucket) has(n int) bool { return b.limit == 0 || b.level >= int64(n)*one }

// take removes n units, whether they are there or not.
func (b *bucket) take(n int) {
	if b.limit == 0 || n <= 0 {
		return
	}
	b.level = max(-deepest*one, b.level-min(int64(n), deepest)*one)
}

// longest bounds what a wait is said to be.
const longest = 24 * time.Hour

// until is how long it takes from the last fill until n units, at most the limit,
// are there; longest if it takes longer.
func (b *bucket) until(n int) time.Duration {
	if b.has(n) {
		return 0
	}
	need := int64(n)*one - b.level
	return time.Duration(min((need+b.limit-1)/b.limit, int64(longest/time.Microsecond))) * time.Microsecond
}
