package router

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// member is one rank of a worker that discovery knows.
type member struct {
	worker   kv.Worker
	in       disco.Instance
	card     engine.Card
	checksum string         // of card
	experts  []route.Expert // of card

	// unfit says in what card is not the one that its model is served by, and
	// saidUnfit what of that is in the log; "" if it is.
	unfit, saidUnfit string

	// load is the worker's last report; it means something only if reported.
	load     engine.LoadReport
	loadAt   kv.Mono
	reported bool
	// leaving is until when a refused call counts that said that the worker drains.
	leaving kv.Mono
}

// brokenInstance is one that discovery knows and nobody can use.
type brokenInstance struct {
	in      disco.Instance
	problem string
}

// setInstances takes over the set of workers from discovery. What was cached by those
// that are gone is forgotten before newcomers get requests.
func (r *Router) setInstances(ins []disco.Instance) {
	next, broken := r.parse(ins)
	lives := livesOf(next)
	r.predict.know(lives)
	r.cache.know(lives)
	r.wake() // newcomers can be asked for what is missing of them
	defer r.saw()
	var joined, left []change
	defer func() { // once mu is free
		r.roster.note(joined, left)
		r.reportUnfit()
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, m := range next {
		if old := r.member(m.worker); old != nil && old.in.Epoch == m.in.Epoch {
			in, card, checksum, experts := m.in, m.card, m.checksum, m.experts
			*m = *old
			m.in, m.card, m.checksum, m.experts = in, card, checksum, experts
		}
	}
	joined, left = missing(next, r.mu.members), missing(r.mu.members, next)
	r.mu.members, r.mu.broken = next, broken
	r.mu.health.Set(now, watched(next))
	r.wakeProbe()
	r.rebuild()
	if r.mu.replica != nil {
		r.mu.replica.Revisit(now)
		r.tell()
	}
}

// parse returns the members among ins, ascending, and those that cannot be used.
func (r *Router) parse(ins []disco.Instance) (members []*member, broken []brokenInstance) {
	known := r.cards()
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
		members = appendRanks(members, in, card, card.Checksum(), hosted(&card))
	}
	slices.SortFunc(members, func(a, b *member) int { return a.worker.Compare(b.worker) })
	members = slices.CompactFunc(members, func(a, b *member) bool { return a.worker == b.worker })
	slices.SortFunc(broken, func(a, b brokenInstance) int { return cmp.Compare(a.in.ID, b.in.ID) })
	return members, broken
}

// cards returns a member of each known worker, for its decoded card: a set of
// hundreds changes by one at a time.
func (r *Router) cards() map[kv.WorkerID]*member {
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

// hosted returns the experts of a card, in the order that decisions need.
func hosted(card *engine.Card) []route.Expert {
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

// member returns the member of w, or nil. The caller holds mu.
func (r *Router) member(w kv.Worker) *member {
	at, ok := findMember(r.mu.members, w)
	if !ok {
		return nil
	}
	return r.mu.members[at]
}

func findMember(members []*member, w kv.Worker) (at int, ok bool) {
	return slices.BinarySearchFunc(members, w, func(m *member, w kv.Worker) int { return m.worker.Compare(w) })
}

// fresh is how long a load report speaks for a worker.
const fresh = 30 * time.Second

// loaded returns the adapters, ascending, that the worker said its engine has in memory.
func (m *member) loaded() []string {
	if !m.reported || !slices.IsSorted(m.load.Adapters) {
		return nil
	}
	return m.load.Adapters
}

// draining reports whether the worker said so of this life.
func (m *member) draining(now kv.Mono) bool {
	return now < m.leaving || m.says(now, engine.StateDraining)
}

// says reports whether the worker's last report is of a state, and not too old.
func (m *member) says(now kv.Mono, state string) bool {
	return m.reported && m.load.State == state && now.Sub(m.loadAt) < fresh
}

// livesOf is the members' part of know.
func livesOf(members []*member) map[kv.Worker]life {
	lives := make(map[kv.Worker]life, len(members))
	for _, m := range members {
		lives[m.worker] = life{epoch: m.in.Epoch, blockSize: m.card.BlockSize, publishes: m.card.KVEvents, noReuse: m.card.NoReuse}
	}
	return lives
}

// claimsOf returns what members say of their feeds.
func claimsOf(members []*member) []claim {
	claims := make([]claim, 0, len(members))
	for _, m := range members {
		said := claim{worker: m.worker}
		if m.reported {
			said.Claim = feed.Claim{Epoch: m.load.Epoch, Next: m.load.KVNext, Attempted: m.load.KVAttempted, At: m.loadAt}
		}
		claims = append(claims, said)
	}
	return claims
}
