package router

import (
	"cmp"
	"slices"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// prefillPeer is a prefill worker which computes prompts for decode workers of a pool.
type prefillPeer struct {
	member *member
	near   []kv.WorkerID // decode workers to which its blocks go through memory of one host, ascending
}

// exchangesBlocks reports whether a worker of a role gives KV blocks to others, or takes them.
func exchangesBlocks(card *engine.Card, role engine.Role) bool {
	return card.Role == role && card.Exchange != nil
}

// findPrefillPeersLocked returns the prefill workers, ascending, which compute prompts for members of a model's pool, and
// whether their distances to these differ.
func (r *Router) findPrefillPeersLocked(model string, members []*member) (peers []prefillPeer, differ bool) {
	anyNear, anyFar := false, false
	for _, m := range r.mu.members {
		if m.worker.Rank != 0 || m.in.Card.Name != model || m.in.Unfit != "" || !exchangesBlocks(m.in.Card, engine.RolePrefill) {
			continue
		}
		p, far := prefillPeer{member: m}, 0
		for _, d := range members {
			switch {
			case !exchangesBlocks(d.in.Card, engine.RoleDecode):
			case disagg.DistanceBetween(m.in.Card.Exchange, d.in.Card.Exchange) == disagg.SameHost:
				p.near = append(p.near, d.worker.ID)
			default:
				far++
			}
		}
		if len(p.near)+far > 0 {
			peers = append(peers, p)
		}
		anyNear, anyFar = anyNear || len(p.near) > 0, anyFar || far > 0
	}
	return peers, anyNear && anyFar
}

// usesPrefillPeerLocked reports whether prompts can be sent to a prefill worker now: it answers, and what it has to compute, as
// it reports, is within the busy threshold of its model.
func (r *Router) usesPrefillPeerLocked(now kv.Mono, p *modelPool, m *member) bool {
	state, _ := r.memberStateLocked(now, m)
	limit := p.router.BusyThresholds().PrefillTokens
	isBusy := limit > 0 && m.reported && now.Sub(m.loadAt) < reportValidFor && m.load.Load.PrefillTokens > limit
	return state == route.Ready && !isBusy
}

// appendPrefillHoldersLocked appends the prefill workers of p which hold something of a prompt with the overlaps, the one
// which holds most first.
func (r *Router) appendPrefillHoldersLocked(holders []kv.PrefixHolder, p *modelPool, overlaps []kv.Overlap) []kv.PrefixHolder {
	now := r.now()
	for _, peer := range p.prefillPeers {
		at, found := slices.BinarySearchFunc(overlaps, peer.member.worker, func(o kv.Overlap, w kv.Worker) int { return o.Worker.Compare(w) })
		if found && overlaps[at].Depth() > 0 && r.usesPrefillPeerLocked(now, p, peer.member) {
			holders = append(holders, kv.PrefixHolder{Worker: peer.member.worker.ID, Tokens: overlaps[at].Depth() * p.blockSize})
		}
	}
	slices.SortFunc(holders, func(a, b kv.PrefixHolder) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Worker, b.Worker))
	})
	return holders[:min(len(holders), engine.MaxPrefillHolders)]
}

// describePrefillLocked sets what q says of prefill workers, and returns the ones which hold most of its prompt.
func (r *Router) describePrefillLocked(p *modelPool, q *route.Query) (holders []kv.PrefixHolder) {
	q.Near = nil
	if len(p.prefillPeers) == 0 {
		return nil
	}
	holders = r.appendPrefillHoldersLocked(nil, p, q.Overlaps)
	if !p.distancesDiffer {
		return holders
	}
	now, most := r.now(), 0
	if len(holders) > 0 {
		most = holders[0].Tokens
	}
	for _, peer := range p.prefillPeers {
		held := slices.ContainsFunc(holders, func(h kv.PrefixHolder) bool { return h.Worker == peer.member.worker.ID && h.Tokens == most })
		if held || most == 0 && r.usesPrefillPeerLocked(now, p, peer.member) {
			q.Near = append(q.Near, peer.near...)
		}
	}
	slices.Sort(q.Near)
	return holders
}

// addPrefillLocked adds to a decision which prefill workers hold most of the prompt, if its worker can have prompts
// computed by them.
func (r *Router) addPrefillLocked(d *route.Decision, holders []kv.PrefixHolder) {
	if len(holders) == 0 {
		return
	}
	if m := r.memberLocked(d.Worker); m != nil && exchangesBlocks(m.in.Card, engine.RoleDecode) {
		d.Prefill = holders
	}
}
