// Package limit accounts for what a client may use: requests and tokens per minute, and concurrent requests.
//
// The first two are token buckets: full at first and refilled evenly over a minute, so that after a pause a
// minute's worth may come at once. The tokens of a request are known only after it was admitted, so their
// bucket may become negative, and nothing more is admitted until it has recovered: a client gets its rate
// over time, and is never refused because of the size of one request.
package limit

import (
	"fmt"
	"time"

	"penstock/core/kv"
)

// Limits are what one account may use; 0 is unlimited.
type Limits struct {
	RequestsPerMinute int
	TokensPerMinute   int // of prompts and outputs
	MaxInflight       int // concurrent requests
}

// MaxLimit bounds each limit: far more than any fleet needs, and far from an integer overflow.
const MaxLimit = 1_000_000_000

// Validate reports the first invalid limit.
func (l *Limits) Validate() error {
	for _, f := range [...]struct {
		name string
		v    int
	}{
		{"requests_per_minute", l.RequestsPerMinute},
		{"tokens_per_minute", l.TokensPerMinute},
		{"max_inflight", l.MaxInflight},
	} {
		if f.v < 0 || f.v > MaxLimit {
			return fmt.Errorf("%s must be between 0, which is no limit, and %d", f.name, MaxLimit)
		}
	}
	return nil
}

// LimitKind identifies a limit.
type LimitKind uint8

// The kinds. None is for an admitted request.
const (
	None LimitKind = iota
	Requests
	Tokens
	Inflight
)

var kindNames = [...]string{None: "none", Requests: "requests_per_minute", Tokens: "tokens_per_minute", Inflight: "max_inflight"}

// String returns the limit's name in files and metrics.
func (k LimitKind) String() string { return kindNames[k] }

// Admission says whether a request is admitted.
type Admission struct {
	// Exceeded is the limit which does not allow the request; None admits it.
	Exceeded LimitKind
	// Wait is how long until that limit allows it again, at most a day; 0 is unknown, because it depends on
	// the end of other requests.
	Wait time.Duration
}

// Account is what one client has used. It has one owner: its methods must not run concurrently. Times come
// from one clock and should not go backwards; an earlier time counts as the latest one.
type Account struct {
	limits   Limits
	requests bucket
	tokens   bucket
	inflight int
}

// New returns an unused account.
func New(now kv.Mono, l Limits) *Account {
	return &Account{limits: l, requests: newBucket(now, l.RequestsPerMinute), tokens: newBucket(now, l.TokensPerMinute)}
}

// SetLimits changes the limits. What was used stays used.
func (a *Account) SetLimits(now kv.Mono, l Limits) {
	a.limits = l
	a.requests.setLimit(now, l.RequestsPerMinute)
	a.tokens.setLimit(now, l.TokensPerMinute)
}

// Admit admits a request, until Release, or says why not. A refused request uses nothing.
func (a *Account) Admit(now kv.Mono) Admission {
	a.requests.refill(now)
	a.tokens.refill(now)
	switch {
	case a.limits.MaxInflight > 0 && a.inflight >= a.limits.MaxInflight:
		return Admission{Exceeded: Inflight}
	case !a.tokens.hasUnits(1):
		return Admission{Exceeded: Tokens, Wait: a.tokens.waitFor(1)}
	case !a.requests.hasUnits(1):
		return Admission{Exceeded: Requests, Wait: a.requests.waitFor(1)}
	}
	a.requests.takeUnits(1)
	a.inflight++
	return Admission{}
}

// Release ends an admitted request.
func (a *Account) Release() { a.inflight-- }

// SpendTokens counts n tokens, also of a request which was released.
func (a *Account) SpendTokens(now kv.Mono, n int) {
	a.tokens.refill(now)
	a.tokens.takeUnits(n)
}

// Inflight returns how many requests are admitted and not released.
func (a *Account) Inflight() int { return a.inflight }

// Check reports the first violated invariant.
func (a *Account) Check() error {
	switch {
	case a.inflight < 0:
		return fmt.Errorf("limit: %d requests are in flight", a.inflight)
	case a.requests.level < 0:
		return fmt.Errorf("limit: the requests are overdrawn by %d", -a.requests.level)
	case a.requests.level > a.requests.capacity() || a.tokens.level > a.tokens.capacity():
		return fmt.Errorf("limit: a bucket is over its brim: %d, %d", a.requests.level, a.tokens.level)
	}
	return nil
}
