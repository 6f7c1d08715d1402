package fetch

import "slices"

// budget is the memory that downloads under way share. A download states at its begin how much it may
// come to need, and reserves as its bytes come. The budget follows the banker's algorithm: it grants a
// reservation only if afterwards there is still an order in which every download could take all that it
// may need and finish. So downloads that hold memory and wait for more never wait for each other in a
// circle, and a host that announces much and sends little holds little.
//
// No host and no client has more than share bytes; a single download fits into a share.
//
// Invariants: 0 <= held <= most for each claim; held is the sum over all claims, and never above limit;
// the sum over the claims of a host or of a client is never above share; the claims are safe.
type budget struct {
	limit, share int64
	held         int64
	claims       []*claim // in the order in which they began
}

// claim is what one download reserved, and may come to need at any one moment.
type claim struct {
	owner      owner
	held, most int64
}

// add begins a download, which holds nothing yet. most is at most b.share.
func (b *budget) add(c *claim) { b.claims = append(b.claims, c) }

// remove ends a download, whose memory is the caller's or free.
func (b *budget) remove(c *claim) {
	b.held -= c.held
	c.held = 0
	b.claims = slices.DeleteFunc(b.claims, func(other *claim) bool { return other == c })
}

// resize changes what a download holds. Growth must be allowed.
func (b *budget) resize(c *claim, by int64) {
	c.held += by
	b.held += by
}

// sharing reports whether n more bytes leave the shares of the download's client and host as they must be.
func (b *budget) sharing(c *claim, n int64) bool {
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

// bounds says which bounds count.
type bounds int

const (
	alone      bounds = iota // limit
	withShares               // limit and share
)

// safe reports whether all downloads could finish within the bounds, one after the other, if c held n
// bytes more.
func (b *budget) safe(c *claim, n int64, within bounds) bool {
	b.resize(c, n)
	defer b.resize(c, -n)
	free := b.limit - b.held
	clients, hosts := map[string]int64{}, map[string]int64{}
	if within == withShares {
		for _, c := range b.claims {
			clients[c.owner.client] += c.held
			hosts[c.owner.host] += c.held
		}
	}
	finishes := func(c *claim) bool {
		need := c.most - c.held
		return need <= free && (within == alone ||
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
