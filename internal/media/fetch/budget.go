package fetch

import "slices"

// downloadBudget is the memory which downloads in progress share. A download declares at its start
// how much it may need, and reserves memory as its bytes arrive. The budget follows the banker's
// algorithm: it grants a reservation only if afterwards there is still an order in which every
// download could reserve all that it may need and finish. So downloads which hold memory and wait
// for more cannot deadlock, and a host which announces much and sends little holds little.
//
// No host and no client has more than share bytes; a single download fits into a share.
//
// Invariants: 0 <= held <= most for each claim; held is the sum over all claims, and never above
// limit; the sum over the claims of a host or of a client is never above share; the claims are
// safe.
type downloadBudget struct {
	limit, share int64
	held         int64
	claims       []*downloadClaim // in order of their start
}

// downloadClaim is what one download has reserved, and the most it may need at any time.
type downloadClaim struct {
	owner      account
	held, most int64
}

// addClaim starts a download, which holds nothing yet. most is at most b.share.
func (b *downloadBudget) addClaim(c *downloadClaim) { b.claims = append(b.claims, c) }

// removeClaim ends a download. Its memory is free or passes to the caller.
func (b *downloadBudget) removeClaim(c *downloadClaim) {
	b.held -= c.held
	c.held = 0
	b.claims = slices.DeleteFunc(b.claims, func(other *downloadClaim) bool { return other == c })
}

// resize changes what a download holds. The caller must have checked growth with isSafe.
func (b *downloadBudget) resize(c *downloadClaim, by int64) {
	c.held += by
	b.held += by
}

// fitsShares reports whether the download's client and host stay within their shares with n more
// bytes.
func (b *downloadBudget) fitsShares(c *downloadClaim, n int64) bool {
	client, host := n, n
	for _, other := range b.claims {
		if other.owner.client == c.owner.client {
			client += other.held
		}
		if other.owner.host == c.owner.host {
			host += other.held
		}
	}
	return (c.owner.client == "" || client <= b.share) && (c.owner.host == "" || host <= b.share)
}

// budgetBounds selects the bounds to check.
type budgetBounds int

const (
	limitOnly      budgetBounds = iota // limit
	limitAndShares                     // limit and share
)

// isSafe reports whether all downloads could finish within the bounds, one after another, if c held
// n more bytes.
func (b *downloadBudget) isSafe(c *downloadClaim, n int64, within budgetBounds) bool {
	b.resize(c, n)
	defer b.resize(c, -n)
	free := b.limit - b.held
	clients, hosts := map[string]int64{}, map[string]int64{}
	if within == limitAndShares {
		for _, c := range b.claims {
			clients[c.owner.client] += c.held
			hosts[c.owner.host] += c.held
		}
	}
	finishes := func(c *downloadClaim) bool {
		need := c.most - c.held
		return need <= free && (within == limitOnly ||
			(c.owner.client == "" || clients[c.owner.client]+need <= b.share) &&
				(c.owner.host == "" || hosts[c.owner.host]+need <= b.share))
	}
	left := slices.Clone(b.claims)
	for len(left) > 0 {
		rest := left[:0]
		for _, c := range left {
			if !finishes(c) {
				rest = append(rest, c)
				continue
			}
			free += c.held
			clients[c.owner.client] -= c.held
			hosts[c.owner.host] -= c.held
		}
		if len(rest) == len(left) {
			return false
		}
		left = rest
	}
	return true
}
