package router

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// member is one rank of a worker that discovery lists.
type member struct {
	worker   kv.Worker
	in       disco.Instance
	card     engine.Card
	checksum string         // of card
	experts  []route.Expert // of card

	// unfit says how card differs from its model's reference card; "" if it does not. loggedUnfit is the
	// part of that already logged.
	unfit, loggedUnfit string

	// load is the worker's last report; it is valid only if reported.
	load     engine.LoadReport
	loadAt   kv.Mono
	reported bool
	// drainingUntil is the time until which a call refused with Draining overrides the reports.
	drainingUntil kv.Mono
	// ttft compares predicted with observed times to the first token; nil before the first one.
	ttft *ttftRecord
}

// brokenInstance is an instance in discovery that cannot be used.
type brokenInstance struct {
	in      disco.Instance
	problem string
}

// setInstances takes over the set of workers from discovery. It drops the caches of removed workers
// before new ones get requests.
func (r *Router) setInstances(ins []disco.Instance) {
	next, broken := r.parseInstances(ins)
	lives := livesOf(next)
	r.predictions.setWorkers(lives)
	r.cache.setWorkers(lives)
	r.wakeMaintainer() // new workers can be asked for missing events
	defer r.markWorkersSeen()
	var joined, left []memberChange
	defer func() { // after mu is released
		r.membership.logChanges(joined, left)
		r.reportUnfit()
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, m := range next {
		if old := r.memberLocked(m.worker); old != nil && old.in.Epoch == m.in.Epoch {
			in, card, checksum, experts := m.in, m.card, m.checksum, m.experts
			*m = *old
			m.in, m.card, m.checksum, m.experts = in, card, checksum, experts
		}
	}
	joined, left = missingFrom(next, r.mu.members), missingFrom(r.mu.members, next)
	r.mu.members, r.mu.broken = next, broken
	r.mu.health.SetWorkers(now, healthWorkers(next))
	r.wakeProber()
	r.rebuildPoolsLocked()
	if r.mu.replica != nil {
		r.mu.replica.RequestUnplaced(now)
		r.wakeSyncLocked()
	}
}

// parseInstances returns the members among ins, ascending, and the unusable instances.
func (r *Router) parseInstances(ins []disco.Instance) (members []*member, broken []brokenInstance) {
	known := r.membersByID()
	for _, in := range ins {
		if in.Namespace != r.cfg.Namespace || in.Component != r.cfg.Component {
			continue
		}
		if in.ID == 0 || in.ID > kv.MaxWorkerID {
			broken = append(broken, brokenInstance{in, fmt.Sprintf("its id %d is out of range", in.ID)})
			continue
		}
		if old := known[in.ID]; old != nil && bytes.Equal(old.in.Meta, in.Meta) {
			members = appendRanks(members, in, old.card, old.checksum, old.experts)
			continue
		}
		card, err := engine.DecodeCard(in.Meta)
		if err != nil {
			broken = append(broken, brokenInstance{in, err.Error()})
			continue
		}
		members = appendRanks(members, in, card, card.Checksum(), hostedExperts(&card))
	}
	slices.SortFunc(members, func(a, b *member) int { return a.worker.Compare(b.worker) })
	members = slices.CompactFunc(members, func(a, b *member) bool { return a.worker == b.worker })
	slices.SortFunc(broken, func(a, b brokenInstance) int { return cmp.Compare(a.in.ID, b.in.ID) })
	return members, broken
}

// membersByID returns one member of each known worker, to reuse its decoded card: of hundreds of
// workers few change at a time.
func (r *Router) membersByID() map[kv.WorkerID]*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	cards := make(map[kv.WorkerID]*member, len(r.mu.members))
	for _, m := range r.mu.members {
		cards[m.worker.ID] = m
	}
	return cards
}

func appendRanks(members []*member, in disco.Instance, card engine.Card, checksum string, experts []route.Expert) []*member {
	for rank := range card.Ranks {
		members = append(members, &member{
			worker: kv.Worker{ID: in.ID, Rank: uint32(rank)}, in: in, card: card, checksum: checksum, experts: experts,
		})
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
		lives[m.worker] = incarnation{epoch: m.in.Epoch, blockSize: m.card.BlockSize, publishes: m.card.KVEvents, noReuse: m.card.NoPrefixCache}
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
