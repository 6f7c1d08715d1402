// Package replica exchanges reservations between the routers of the same workers, so that each router counts
// the requests of all.
//
// Every router numbers the changes to its own reservations (added, prefilled, grown, freed) and publishes
// them once, in small batches, over a plane which may lose, repeat and reorder messages. A reservation is
// identified by its router and the number of the change which added it; request ids and prompt tokens are not
// sent. Applying the same changes in any order, any number of times, gives the same state.
//
// A router detects lost changes by a gap in the numbers, or by the digest which each router sends four times
// a second: the number of its reservations, and the sum of a hash of each. A gap is filled from the latest
// changes, which the sender keeps. If it no longer has them, or if a digest differs, it sends pages which
// list all its reservations. A page is the truth about a range of numbers, so it repairs every router which
// receives it, whatever else was lost. After the last fault all routers agree within [ConvergenceTime],
// provided that sending a list takes no more than a second.
//
// The reservations of a router which dies count until the others detect its silence. Routers which receive
// their own messages over the same plane detect it soon. A router which does not cannot tell a dead router
// from a dead plane, and waits longer.
//
// A Replica is the state machine of one router. It has one owner, which also owns its tables.
package replica

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/slots"
)

// ConvergenceTime is how long after the last fault routers agree again: the wait for a digest, the wait for a
// gap to close by itself, one request while the answer to another is in transit, and its answer.
const Heals = 3 * time.Second

const (
	// growthInterval is the time between two publications of output growth.
	growEvery = 250 * time.Millisecond
	// reorderGrace is how long a gap may be due to reordering.
	grace = 50 * time.Millisecond
	// requestInterval is the time between two requests to the same router, and resendInterval between two
	// answers with the same batch.
	askEvery    = 500 * time.Millisecond
	resendEvery = 200 * time.Millisecond
	// maxGaps is the number of gaps up to which missing changes are requested, and gapTimeout how long; after
	// that a list is requested.
	maxHoles = 8
	patience = time.Second
	// answerInterval is the time between two answers, each of at most answerBytes without its last message.
	pace        = 5 * time.Millisecond
	answerBytes = 256 << 10

	// maxKeptBytes bounds the batches which are kept, sent or not.
	keepBytes = 4 << 20
	// maxRequests bounds the pending requests of other routers.
	maxAsks = 64

	maxPeers   = 64
	maxEntries = 1 << 17 // per peer
	maxNamed   = 8 << 20 // blocks of prompts of all peers: about 50 bytes each
	maxSpans   = 256     // ranges of known changes after a gap
	maxEarly   = 1 << 16 // reservations with changes in these ranges
)

// Config identifies a Replica and sets its timing.
type Config struct {
	// Router is its id, not 0 and unique among the routers. Epoch identifies its incarnation: a later one is
	// larger.
	Router, Epoch uint64
	// Delay is how long a change may wait to be batched with others; 0 is 1 ms.
	Delay time.Duration
	// DigestEvery is the time between two digests; 0 is 250 ms.
	DigestEvery time.Duration
	// PeerTimeout is how long this router must receive its own messages, but none of a peer, to remove the
	// peer with its reservations; 0 is 1.25 s.
	Silence time.Duration
	// DeafTimeout is the same for while it does not receive its own messages either; 0 is 10 s.
	Deaf time.Duration
}

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *time.Duration
		v     time.Duration
	}{{&c.Delay, time.Millisecond}, {&c.DigestEvery, 250 * time.Millisecond}, {&c.Silence, 1250 * time.Millisecond}, {&c.Deaf, 10 * time.Second}} {
		if *f.field == 0 {
			*f.field = f.v
		}
	}
}

// Validate reports every problem of c at once. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if c.Router == 0 {
		errs = append(errs, errors.New("replica: a router's id must not be 0"))
	}
	if min(c.Delay, c.DigestEvery) <= 0 || c.Silence <= c.DigestEvery || c.Deaf < c.Silence {
		errs = append(errs, fmt.Errorf("replica: delay %v and digest interval %v must be positive, silence %v longer than that, and deaf %v no shorter", c.Delay, c.DigestEvery, c.Silence, c.Deaf))
	}
	return errors.Join(errs...)
}

// TableFinder finds the tables in which other routers' reservations are counted.
type Tables interface {
	// TableOf returns the table which holds the load of w, or nil if w is not known here.
	Table(w kv.Worker) *slots.Table
}

// Replica publishes the reservations of this router's tables, and counts those of other routers. It is the
// journal of these tables.
type Replica struct {
	cfg    Config
	tables Tables
	now    kv.Mono
	own    own
	peers  []*peer // ascending by router
	// lastEcho is when a message of this router last came back to it. hearsSince is since when they have,
	// without a pause of half of PeerTimeout.
	echo, hears kv.Mono
	// namedBlocks counts the blocks in the chains of all peers, up to maxNamed.
	named, mostNamed int
	stats            Stats
	in               message // scratch of HandleMessage
}

// Stats are counts since the replica was created.
type Stats struct {
	// Changes counts published changes, and Batches their batches. Unsent batches were dropped before they
	// were sent, because they were not collected in time; other routers request them.
	Changes, Batches, Unsent uint64
	// Resent counts batches sent again on request, Pages the pages of lists.
	Resent, Pages uint64
	// Asked counts requests for missing changes and lists.
	Asked uint64
	// Holes counts gaps in the numbers of others, Mismatches their digests which differed, Healed the lists
	// which were received completely.
	Holes, Mismatches, Healed uint64
	// Refused counts messages which could not be read, or exceeded a limit.
	Refused uint64
}

// New returns the replica of a router without reservations and without known peers.
func New(cfg Config, tables Tables) (*Replica, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Replica{cfg: cfg, tables: tables, mostNamed: maxNamed}, nil
}

// Stats returns the counts so far.
func (r *Replica) Stats() Stats { return r.stats }

// OwnReservations returns how many reservations this router has.
func (r *Replica) Own() int { return r.own.count }

// PeerInfo is what is known of another router.
type Peer struct {
	Router, Epoch uint64
	// Requests counts its reservations. Unplaced of them do not count for any worker here, because their
	// workers are not known, or no longer.
	Requests, Unplaced int
	// Heard is when a message last came from it. Agreed is when its digest last matched the reservations
	// known here (0: never).
	Heard, Agreed kv.Mono
	// Behind is since when some of its changes have been missing; it is valid only if Lacking.
	Behind  kv.Mono
	Lacking bool
}

// AppendPeers appends to dst what is known of each other router, ascending by id.
func (r *Replica) Peers(dst []Peer) []Peer {
	for _, p := range r.peers {
		out := Peer{
			Router: p.router, Epoch: p.epoch, Requests: len(p.entries), Heard: p.heard, Agreed: p.agreed,
			Behind: p.behind, Lacking: p.lacking(),
		}
		for _, e := range p.entries { // only counts
			if _, ok := e.ref.View(); !ok {
				out.Unplaced++
			}
		}
		dst = append(dst, out)
	}
	return dst
}

// RequestUnplaced requests lists from the routers with reservations on workers which have become known since
// the reservations were published, so that these are counted.
func (r *Replica) Revisit(now kv.Mono) {
	r.now = max(r.now, now)
	for _, p := range r.peers {
		for _, e := range p.entries { // only checks whether there is one
			if _, ok := e.ref.View(); !ok && r.tables.Table(e.worker) != nil {
				p.suspect(r.now)
				break
			}
		}
	}
}

// AdvanceTime sets the time; call it before reservations change.
func (r *Replica) Advance(now kv.Mono) { r.now = max(r.now, now) }

// HasPending reports whether there is something to publish, now or soon.
func (r *Replica) Pending() bool {
	o := &r.own
	return len(r.peers) > 0 && (o.open.n > 0 || o.sent < len(o.kept) || len(o.grown) > 0 || o.listing || len(o.asks) > 0 || o.digests <= r.now)
}

// Next returns when Step has something to do if nothing else happens before.
func (r *Replica) Next() kv.Mono {
	at := r.own.next(r)
	for _, p := range r.peers {
		at = min(at, p.heard.Add(r.cfg.Deaf)) // an echo is a message, which sets a new deadline
		if p.lacking() {
			at = min(at, p.askAt)
		}
	}
	return at
}

// Step appends to out the messages which are due at now, and removes peers which have timed out. The caller
// must not change the messages, and publishes them in order; a message which it cannot publish is recovered
// like a lost one.
func (r *Replica) Step(now kv.Mono, out [][]byte) [][]byte {
	r.now = max(r.now, now)
	r.miss()
	out = r.own.step(r, out)
	for _, p := range r.peers {
		if p.lacking() && r.now >= p.askAt {
			out = append(out, r.ask(p))
		}
	}
	return out
}

// LeaveMessage returns the message which says that this router and its reservations end. It is the last one.
func (r *Replica) Leave() []byte { return appendHeader(nil, kindLeave, r.cfg.Router, r.cfg.Epoch) }

// requestMissing returns a request for the missing changes of p, from the first gap to the last. It requests
// a list instead if there are many gaps, if the changes do not arrive, or if nothing of p is known yet: a
// list has only the existing reservations, the changes the whole history.
func (r *Replica) ask(p *peer) []byte {
	r.stats.Asked++
	p.askAt = r.now.Add(askEvery)
	from, to := uint64(0), uint64(0)
	if p.listing = p.listing || p.next == 1 || len(p.ahead) > maxHoles || r.now.Sub(p.behind) > patience; !p.listing {
		from, to = p.next, p.missing()
	}
	return appendWant(appendHeader(nil, kindWant, r.cfg.Router, r.cfg.Epoch), want{p.router, p.epoch, from, to})
}

// recordEcho records that a message of this router came back.
func (r *Replica) echoed() {
	if r.now.Sub(r.echo) > r.cfg.Silence/2 {
		r.hears = r.now // messages which others sent meanwhile may still be in transit
	}
	r.echo = r.now
	r.miss()
}

// hasTimedOut reports whether a peer has been silent for too long.
func (r *Replica) gone(p *peer) bool {
	return r.echo.Sub(max(p.heard, r.hears)) >= r.cfg.Silence || r.now.Sub(p.heard) >= r.cfg.Deaf
}

// removeTimedOut removes the peers which have been silent for too long.
func (r *Replica) miss() {
	r.peers = slices.DeleteFunc(r.peers, func(p *peer) bool {
		gone := r.gone(p)
		if gone {
			p.clear()
		}
		return gone
	})
}

// HandleMessage handles a message of the plane. The router's own messages must be passed too; it only records
// that they arrive. It keeps no part of data. An error says that the message could not be read; nothing of it
// was applied.
func (r *Replica) Accept(now kv.Mono, data []byte) error {
	r.now = max(r.now, now)
	m := &r.in
	if err := m.decode(data); err != nil {
		r.stats.Refused++
		return err
	}
	if m.router == r.cfg.Router {
		r.echoed()
		return nil
	}
	p := r.peer(m.router, m.epoch)
	if p == nil {
		return nil
	}
	p.heard = r.now
	switch m.kind {
	case kindChanges:
		r.changed(p, m)
	case kindDigest:
		r.compare(p, m.digest)
	case kindPage:
		r.turn(p, m)
	case kindWant:
		if m.want.router == r.cfg.Router && m.want.epoch == r.cfg.Epoch {
			r.own.asked(m.want)
		}
	case kindLeave:
		p.clear()
		r.peers = slices.DeleteFunc(r.peers, func(o *peer) bool { return o == p })
	}
	return nil
}
