// Package replica tells the routers of the same workers what each of them has sent
// there, so that each counts the requests of all.
//
// Every router numbers the changes to its own reservations (made, computed, grown,
// freed) and says them once, in small batches, over a plane that may lose, repeat and
// reorder. A reservation is named by its router and the number of the change that made
// it; names of requests and tokens of prompts stay where they are. Applied in any order,
// and any number of times, the same changes leave the same state.
//
// What was lost is noticed by a hole in the numbers, or by the digest that each router
// says four times a second: how many reservations it has, and the sum of a hash of each. A
// hole is filled from what the router keeps of its last changes, else, and when a digest
// differs, by pages that list all it has. A page is the truth about a range of numbers,
// so that it heals whoever hears it, whatever else was lost. After the last fault every
// router agrees with every other one within [Heals], as long as its list takes no longer
// than a second to send.
//
// A router that dies says nothing more, and nothing less: what it had sent counts until
// it is missed. It is missed soon, by those who hear themselves over the same plane. One
// that does not hear itself cannot tell a dead router from a dead plane, and waits longer.
//
// A Replica is the machine of one router. It has one owner, which also owns its tables.
package replica

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/slots"
)

// Heals is the time in which routers come to agree again after the last fault: the wait
// for a digest, that for a hole to close by itself, one question that comes while
// another's answer is on its way, and its answer.
const Heals = 3 * time.Second

const (
	// growEvery is how often the growth of answers is told.
	growEvery = 250 * time.Millisecond
	// grace is how long a hole may be the doing of reordering.
	grace = 50 * time.Millisecond
	// askEvery is the time between two questions to the same router, and resendEvery
	// that between two answers with the same batch.
	askEvery    = 500 * time.Millisecond
	resendEvery = 200 * time.Millisecond
	// maxHoles is how many holes are asked for, and patience for how long, before a list
	// is.
	maxHoles = 8
	patience = time.Second
	// pace is the time between two answers, of answerBytes at most but for the last
	// message of each.
	pace        = 5 * time.Millisecond
	answerBytes = 256 << 10

	// keepBytes bounds what is kept of changes that were told, and of those that wait.
	keepBytes = 4 << 20
	// maxAsks bounds the holes of others that wait for an answer.
	maxAsks = 64

	maxPeers   = 64
	maxEntries = 1 << 17 // of one peer
	maxNamed   = 8 << 20 // blocks of prompts, of all peers: some 50 bytes each
	maxSpans   = 256     // ranges of changes that are known behind a hole
	maxEarly   = 1 << 16 // reservations that they speak of
)

// Config is who a Replica is.
type Config struct {
	// Router is its id, not 0, and unlike that of any other; Epoch is one life of it:
	// a later one is larger.
	Router, Epoch uint64
	// Delay is how long a change may wait for others to go with it: 1 ms unless set.
	Delay time.Duration
	// DigestEvery is the time between two digests: 250 ms unless set.
	DigestEvery time.Duration
	// Silence is for how long this router must hear its own words, and none of another
	// router, to take that one to be gone with all it had sent: 1.25 s unless set.
	Silence time.Duration
	// Deaf is the same for while it does not hear its own words either: 10 s unless set.
	Deaf time.Duration
}

// EnsureDefaults fills in what is not set.
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

// Tables finds the tables that other routers' reservations are counted in.
type Tables interface {
	// Table returns the table that has the load of w, or nil if w is not known here.
	Table(w kv.Worker) *slots.Table
}

// Replica tells others of the reservations of this router's tables, and counts theirs.
// It is the journal of those tables.
type Replica struct {
	cfg    Config
	tables Tables
	now    kv.Mono
	own    own
	peers  []*peer // ascending by router
	// echo is when a word of this router last came back to it, and hears since when they
	// have, without a pause of half of Silence.
	echo, hears kv.Mono
	// named are the blocks of chains of all peers that are counted, up to mostNamed.
	named, mostNamed int
	stats            Stats
	in               message // scratch of Accept
}

// Stats count since the replica was made.
type Stats struct {
	// Changes were told, in Batches; Unsent of those were dropped before they were,
	// because nobody took them: others ask for them.
	Changes, Batches, Unsent uint64
	// Resent are batches that somebody asked for again, Pages those of lists.
	Resent, Pages uint64
	// Asked are questions for what was missed.
	Asked uint64
	// Holes were noticed in the numbers of others, Mismatches in what their digests
	// said. Healed are the lists that were taken over as a whole.
	Holes, Mismatches, Healed uint64
	// Refused are messages that could not be read or were more than is remembered.
	Refused uint64
}

// New returns the replica of a router that has no reservations yet, and knows no other.
func New(cfg Config, tables Tables) (*Replica, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Replica{cfg: cfg, tables: tables, mostNamed: maxNamed}, nil
}

// Stats returns the counts so far.
func (r *Replica) Stats() Stats { return r.stats }

// Own returns how many reservations of this router last.
func (r *Replica) Own() int { return r.own.count }

// Peer is what is known of another router.
type Peer struct {
	Router, Epoch uint64
	// Requests are its reservations. Unplaced of them count for nothing here: they are
	// on workers that are not known, or not any more.
	Requests, Unplaced int
	// Heard is when it was last heard of, Agreed when its digest last was what is known
	// of it here (0: never).
	Heard, Agreed kv.Mono
	// Behind is since when something of it is missing; it means something only if
	// Lacking.
	Behind  kv.Mono
	Lacking bool
}

// Peers appends to dst what is known of each other router, ascending by id.
func (r *Replica) Peers(dst []Peer) []Peer {
	for _, p := range r.peers {
		out := Peer{
			Router: p.router, Epoch: p.epoch, Requests: len(p.entries), Heard: p.heard, Agreed: p.agreed,
			Behind: p.behind, Lacking: p.lacking(),
		}
		for _, e := range p.entries { // their number alone
			if _, ok := e.ref.View(); !ok {
				out.Unplaced++
			}
		}
		dst = append(dst, out)
	}
	return dst
}

// Revisit has the reservations of others counted that are on workers which have become
// known since they were told: their routers are asked for lists.
func (r *Replica) Revisit(now kv.Mono) {
	r.now = max(r.now, now)
	for _, p := range r.peers {
		for _, e := range p.entries { // whether there is one
			if _, ok := e.ref.View(); !ok && r.tables.Table(e.worker) != nil {
				p.suspect(r.now)
				break
			}
		}
	}
}

// Advance tells the time, before reservations change.
func (r *Replica) Advance(now kv.Mono) { r.now = max(r.now, now) }

// Pending reports whether there is something to tell another router, or soon.
func (r *Replica) Pending() bool {
	o := &r.own
	return len(r.peers) > 0 && (o.open.n > 0 || o.sent < len(o.kept) || len(o.grown) > 0 || o.listing || len(o.asks) > 0 || o.digests <= r.now)
}

// Next returns when Step has something to do, if nothing else happens before.
func (r *Replica) Next() kv.Mono {
	at := r.own.next(r)
	for _, p := range r.peers {
		at = min(at, p.heard.Add(r.cfg.Deaf)) // an echo comes by itself
		if p.lacking() {
			at = min(at, p.askAt)
		}
	}
	return at
}

// Step appends to out the messages that are due at now, and forgets who has been silent
// for too long. The messages must not be changed. They are to be published in order;
// one that cannot be is healed as any that is lost.
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

// Leave returns the message that says that this router ends and all it has sent with
// it. It is the last one.
func (r *Replica) Leave() []byte { return appendHeader(nil, kindLeave, r.cfg.Router, r.cfg.Epoch) }

// ask returns a question for what is missing of p: for the changes from the first hole
// to the last, or for a list when there are many holes, or the changes do not come, or
// nothing of p is known yet: its list is what lasts, its changes are all that ever was.
func (r *Replica) ask(p *peer) []byte {
	r.stats.Asked++
	p.askAt = r.now.Add(askEvery)
	from, to := uint64(0), uint64(0)
	if p.listing = p.listing || p.next == 1 || len(p.ahead) > maxHoles || r.now.Sub(p.behind) > patience; !p.listing {
		from, to = p.next, p.missing()
	}
	return appendWant(appendHeader(nil, kindWant, r.cfg.Router, r.cfg.Epoch), want{p.router, p.epoch, from, to})
}

// echoed notes that a word of this router came back.
func (r *Replica) echoed() {
	if r.now.Sub(r.echo) > r.cfg.Silence/2 {
		r.hears = r.now // what others said meanwhile may still be on its way
	}
	r.echo = r.now
	r.miss()
}

// gone reports whether another router has been silent for too long.
func (r *Replica) gone(p *peer) bool {
	return r.echo.Sub(max(p.heard, r.hears)) >= r.cfg.Silence || r.now.Sub(p.heard) >= r.cfg.Deaf
}

// miss forgets who is gone.
func (r *Replica) miss() {
	r.peers = slices.DeleteFunc(r.peers, func(p *peer) bool {
		gone := r.gone(p)
		if gone {
			p.clear()
		}
		return gone
	})
}

// Accept takes a message of the plane. Its own must come too: of them it heeds only that
// they do. It keeps no part of data. An error says that the message cannot be read, and
// that nothing of it was taken.
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
