// Package limit keeps account of what a client may use: requests and tokens in a
// minute, and requests at once.
//
// The first two are token buckets: full at first, filled evenly within a minute,
// so that after a pause a minute's worth may come at once. Tokens of a request are
// known only after it was let in, so their bucket may fall below zero, and nothing
// more is let in until it has recovered: a client gets what it may over time, and
// is never refused for the size of one request.
package limit

import (
	"fmt"
	"time"

	"penstock/core/kv"
)

// Limits are what one account may use; 0 is no limit.
type Limits struct {
	RequestsPerMinute int
	TokensPerMinute   int // of prompts and of answers
	MaxInflight       int // requests at once
}

// Most bounds each limit: far beyond any fleet, and far from the end of the numbers.
const Most = 1_000_000_000

// Validate reports the first limit that cannot be.
func (l *Limits) Validate() error {
	for _, f := range [...]struct {
		name string
		v    int
	}{
		{"requests_per_minute", l.RequestsPerMinute},
		{"tokens_per_minute", l.TokensPerMinute},
		{"max_inflight", l.MaxInflight},
	} {
		if f.v < 0 || f.v > Most {
			return fmt.Errorf("%s must be between 0, which is no limit, and %d", f.name, Most)
		}
	}
	return nil
}

// Kind names a limit.
type Kind uint8

// The kinds. None is that of a verdict that lets a request in.
const (
	None Kind = iota
	Requests
	Tokens
	Inflight
)

var kindNames = [...]string{None: "none", Requests: "requests_per_minute", Tokens: "tokens_per_minute", Inflight: "max_inflight"}

// String returns the name that the limit has in files and metrics.
func (k Kind) String() string { return kindNames[k] }

// Verdict says whether a request may come in.
type Verdict struct {
	// Over is the limit that does not allow it; None lets it in.
	Over Kind
	// Wait is how long until that limit allows it again, at most a day; 0 is not
	// known, since it depends on when others end.
	Wait time.Duration
}

// Account is what one client has used. It has one owner: no method may run beside
// another one. Times come from one clock and do not go back; one that does counts
// as the latest.
type Account struct {
	limits   Limits
	requests bucket
	tokens   bucket
	inflight int
}

// New returns an account that has used nothing.
func New(now kv.Mono, l Limits) *Account {
	return &Account{limits: l, requests: newBucket(now, l.RequestsPerMinute), tokens: newBucket(now, l.TokensPerMinute)}
}

// Set changes the limits. What was used stays used.
func (a *Account) Set(now kv.Mono, l Limits) {
	a.limits = l
	a.requests.set(now, l.RequestsPerMinute)
	a.tokens.set(now, l.TokensPerMinute)
}

// Enter lets a request in, until Leave, or says why not. A request that is refused
// uses nothing.
func (a *Account) Enter(now kv.Mono) Verdict {
	a.requests.fill(now)
	a.tokens.fill(now)
	switch {
	case a.limits.MaxInflight > 0 && a.inflight >= a.limits.MaxInflight:
		return Verdict{Over: Inflight}
	case !a.tokens.has(1):
		return Verdict{Over: Tokens, Wait: a.tokens.until(1)}
	case !a.requests.has(1):
		return Verdict{Over: Requests, Wait: a.requests.until(1)}
	}
	a.requests.take(1)
	a.inflight++
	return Verdict{}
}

// Leave ends a request that was let in.
func (a *Account) Leave() { a.inflight-- }

// Spend counts n tokens, also of a request that has left.
func (a *Account) Spend(now kv.Mono, n int) {
	a.tokens.fill(now)
	a.tokens.take(n)
}

// Inflight is how many requests are in.
func (a *Account) Inflight() int { return a.inflight }

// Check states what always holds.
func (a *Account) Check() error {
	switch {
	case a.inflight < 0:
		return fmt.Errorf("limit: %d requests are in flight", a.inflight)
	case a.requests.level < 0:
		return fmt.Errorf("limit: the requests are overdrawn by %d", -a.requests.level)
	case a.requests.level > a.requests.full() || a.tokens.level > a.tokens.full():
		return fmt.Errorf("limit: a bucket is over its brim: %d, %d", a.requests.level, a.tokens.level)
	}
	return nil
}
