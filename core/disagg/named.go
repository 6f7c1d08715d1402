package disagg

import (
	"time"

	"penstock/core/kv"
)

// namedFailures are the prefill workers which failed requests that name them. Such a worker gets no request until a time
// has passed, and then one, until that has ended: each further one would wait in vain as long.
type namedFailures struct {
	retryAt map[Incarnation]kv.Mono
}

// maxNamedFailures bounds how many workers are remembered. Of further ones nothing is.
const maxNamedFailures = 256

// holdsBack reports whether requests which name w are not sent there. A retry which is let through holds others back for
// a time.
func (n *namedFailures) holdsBack(now kv.Mono, w Incarnation) bool {
	at, failed := n.retryAt[w]
	return failed && now < at
}

// startRetry makes one request the retry of w, if that has failed, which may last for a time.
func (n *namedFailures) startRetry(now kv.Mono, w Incarnation, lasts time.Duration) {
	if _, failed := n.retryAt[w]; failed {
		n.retryAt[w] = now.Add(lasts)
	}
}

// recordEnd records how a handoff ended which named w. lost is the time which it took from a request that w did not serve.
func (n *namedFailures) recordEnd(now kv.Mono, w Incarnation, end HandoffState, lost time.Duration) {
	_, failed := n.retryAt[w]
	switch {
	case end == Decoding:
		delete(n.retryAt, w)
	case end == Local && lost > 0:
		if !failed {
			n.forgetOld(now)
		}
		if failed || len(n.retryAt) < maxNamedFailures {
			n.retryAt[w] = now.Add(min(retryPauses*lost, maxPause))
		}
	case failed: // it said nothing of w: the next one is the retry
		n.retryAt[w] = min(n.retryAt[w], now)
	}
}

// forgetOld forgets the workers which could have been tried again long ago.
func (n *namedFailures) forgetOld(now kv.Mono) {
	for w, at := range n.retryAt {
		if now.Sub(at) > maxPause {
			delete(n.retryAt, w)
		}
	}
}
