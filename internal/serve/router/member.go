package router

import (
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// member is one rank of a worker that the catalog lists.
type member struct {
	worker  kv.Worker
	in      *catalog.Worker // as of the last snapshot
	experts []route.Expert  // of its card

	// load is the worker's last report; it is valid only if reported.
	load     engine.LoadReport
	loadAt   kv.Mono
	reported bool
	// drainingUntil is the time until which a call refused with Draining overrides the reports.
	drainingUntil kv.Mono
	// ttft compares predicted with observed times to the first token; nil before the first one.
	ttft *ttftRecord
}

// applySnapshot takes over the workers and models of a snapshot. It drops the caches of removed workers
// before new ones get requests.
func (r *Router) applySnapshot(s *catalog.Snapshot) {
	next := newMembers(s)
	lives := livesOf(next)
	r.predictions.setWorkers(lives)
	r.cache.setWorkers(lives)
	r.setEmbeddingWorkers(next)
	r.wakeMaintainer() // new workers can be asked for missing events
	old := r.replaceMembers(s, next)
	r.membership.logChanges(missingFrom(s, old), missingFrom(old, s))
}

// replaceMembers makes next, the members of a snapshot, the router's members, and returns the snapshot
// before it.
func (r *Router) replaceMembers(s *catalog.Snapshot, next []*member) *catalog.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, before := r.now(), r.mu.snapshot
	for _, m := range next {
		old := r.memberLocked(m.worker)
		if old != nil && old.in.Epoch == m.in.Epoch {
			in := m.in
			*m = *old
			m.in = in
		}
		if old == nil || old.in.Card != m.in.Card {
			m.experts = hostedExperts(m.in.Card)
		} else {
			m.experts = old.experts
		}
	}
	r.mu.members = next
	r.mu.health.SetWorkers(now, healthWorkers(next))
	r.wakeProber()
	r.rebuildPoolsLocked(s)
	if r.mu.replica != nil {
		r.mu.replica.RequestUnplaced(now)
		r.wakeSyncLocked()
	}
	return before
}

// newMembers returns the ranks of the usable workers of a snapshot, ascending.
func newMembers(s *catalog.Snapshot) (members []*member) {
	for _, w := range s.Workers {
		for rank := range w.Card.Ranks { // of an unusable one: none
			members = append(members, &member{worker: kv.Worker{ID: w.ID, Rank: uint32(rank)}, in: w})
		}
	}
	return members
}

// hostedExperts returns the experts of a card, in the order that decisions need.
func hostedExperts(card *engine.Card) []route.Expert {
	var out []route.Expert
	for _, l := range card.Experts {
		for i, id := range l.Experts {
			e := route.Expert{Layer: l.Layer, Expert: id, Share: 1}
			if l.Shares != nil {
				e.Share = l.Shares[i]
			}
			out = append(out, e)
		}
	}
	return out
}

// memberLocked returns the member of w, or nil.
func (r *Router) memberLocked(w kv.Worker) *member {
	at, ok := memberIndex(r.mu.members, w)
	if !ok {
		return nil
	}
	return r.mu.members[at]
}

func memberIndex(members []*member, w kv.Worker) (at int, ok bool) {
	return slices.BinarySearchFunc(members, w, func(m *member, w kv.Worker) int { return m.worker.Compare(w) })
}

// reportValidFor is how long a load report is valid.
const reportValidFor = 30 * time.Second

// loadedAdapters returns the adapters, ascending, that the worker reports as loaded in its engine.
func (m *member) loadedAdapters() []string {
	if !m.reported || !slices.IsSorted(m.load.Adapters) {
		return nil
	}
	return m.load.Adapters
}

// isDraining reports whether the worker said that it drains.
func (m *member) isDraining(now kv.Mono) bool {
	return now < m.drainingUntil || m.reportsState(now, engine.StateDraining)
}

// reportsState reports whether the worker's last report has a state, and is not too old.
func (m *member) reportsState(now kv.Mono, state string) bool {
	return m.reported && m.load.State == state && now.Sub(m.loadAt) < reportValidFor
}

// incarnationsOf returns what setWorkers needs of the members.
func livesOf(members []*member) map[kv.Worker]incarnation {
	lives := make(map[kv.Worker]incarnation, len(members))
	for _, m := range members {
		lives[m.worker] = incarnation{
			epoch: m.in.Epoch, blockSize: m.in.Card.BlockSize, publishes: m.in.Card.KVEvents, noReuse: m.in.Card.NoPrefixCache,
			pool: m.in.Card.Pool, foreignPool: m.in.ForeignPool,
		}
	}
	return lives
}

// claimsOf returns the feed positions that members report.
func claimsOf(members []*member) []feedClaim {
	claims := make([]feedClaim, 0, len(members))
	for _, m := range members {
		said := feedClaim{worker: m.worker}
		if m.reported {
			said.PublishReport = kvfeed.PublishReport{Epoch: m.load.Epoch, Next: m.load.KVNext, Attempted: m.load.KVAttempted, At: m.loadAt}
		}
		claims = append(claims, said)
	}
	return claims
}
