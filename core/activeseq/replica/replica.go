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
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// ConvergenceTime is how long after the last fault routers agree again: the wait for a digest, the wait for a
// gap to close by itself, one request while the answer to another is in transit, and its answer.
const ConvergenceTime = 3 * time.Second

const (
	// growthInterval is the time between two publications of output growth.
	growthInterval = 250 * time.Millisecond
	// reorderGrace is how long a gap may be due to reordering.
	reorderGrace = 50 * time.Millisecond
	// requestInterval is the time between two requests to the same router, and resendInterval between two
	// answers with the same batch.
	requestInterval = 500 * time.Millisecond
	resendInterval  = 200 * time.Millisecond
	// maxGaps is the number of gaps up to which missing changes are requested, and gapTimeout how long; after
	// that a list is requested.
	maxGaps    = 8
	gapTimeout = time.Second
	// answerInterval is the time between two answers, each of at most answerBytes without its last message.
	answerInterval = 5 * time.Millisecond
	answerBytes    = 256 << 10

	// maxKeptBytes bounds the batches which are kept, sent or not.
	maxKeptBytes = 4 << 20
	// maxRequests bounds the pending requests of other routers.
	maxRequests = 64

	maxPeers        = 64
	maxReservations = 1 << 17 // per peer
	maxNamedBlocks  = 8 << 20 // blocks of prompts of all peers: about 50 bytes each
	maxRanges       = 256     // ranges of known changes after a gap
	maxEarlyUpdates = 1 << 16 // reservations with changes in these ranges
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
	PeerTimeout time.Duration
	// DeafTimeout is the same for while it does not receive its own messages either; 0 is 10 s.
	DeafTimeout time.Duration
}

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	for _, f := range [...]struct {
		field *time.Duration
		v     time.Duration
	}{{&c.Delay, time.Millisecond}, {&c.DigestEvery, 250 * time.Millisecond}, {&c.PeerTimeout, 1250 * time.Millisecond}, {&c.DeafTimeout, 10 * time.Second}} {
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
	if min(c.Delay, c.DigestEvery) <= 0 || c.PeerTimeout <= c.DigestEvery || c.DeafTimeout < c.PeerTimeout {
		errs = append(errs, fmt.Errorf("replica: delay %v and digest interval %v must be positive, silence %v longer than that, and deaf %v no shorter", c.Delay, c.DigestEvery, c.PeerTimeout, c.DeafTimeout))
	}
	return errors.Join(errs...)
}

// TableFinder finds the tables in which other routers' reservations are counted.
type TableFinder interface {
	// TableOf returns the table which holds the load of w, or nil if w is not known here.
	TableOf(w kv.Worker) *activeseq.ReservationTable
}

// Replica publishes the reservations of this router's tables, and counts the reservations of other routers. It
// is the journal of these tables. For each other router it is in one of these states:
//
//	state    event                                            next     effects
//	unknown  a message                                        current  a digest, and what the message does
//	current  changes which continue the known ones            current  counted in the tables
//	current  a digest which agrees                            current
//	current  a digest of the same changes which differs       listing  a request for a list
//	current  changes or a digest beyond a gap                 gap      a request after reorderGrace
//	gap      the missing changes                              current  counted in the tables
//	gap      more than maxGaps, or none of it in gapTimeout   listing  a request for a list
//	listing  a page                                           listing  its range of numbers is replaced
//	listing  the last page                                    current, or gap if there are later changes
//	any      leave, a later epoch, or PeerTimeout of silence  unknown  its reservations are freed
//
// HandleMessage takes the messages; Tick, at Deadline, returns the requests, digests, changes and pages to send.
type Replica struct {
	cfg    Config
	tables TableFinder
	now    kv.Mono
	local  localState
	peers  []*peerState // ascending by router
	// lastEcho is when a message of this router last came back to it. hearsSince is since when they have,
	// without a pause of half of PeerTimeout.
	lastEcho, hearsSince kv.Mono
	echoedSeq            uint64 // the latest of this router's changes which came back
	// namedBlocks counts the blocks in the chains of all peers, up to maxNamedBlocks.
	namedBlocks, maxNamed int
	stats                 Stats
	scratch               message // scratch of HandleMessage
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
func New(cfg Config, tables TableFinder) (*Replica, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Replica{cfg: cfg, tables: tables, maxNamed: maxNamedBlocks}, nil
}

// Stats returns the counts so far.
func (r *Replica) Stats() Stats { return r.stats }

// OwnReservations returns how many reservations this router has.
func (r *Replica) OwnReservations() int { return r.local.activeCount }

// PeerInfo is what is known of another router.
type PeerInfo struct {
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
func (r *Replica) AppendPeers(dst []PeerInfo) []PeerInfo {
	for _, p := range r.peers {
		out := PeerInfo{
			Router: p.router, Epoch: p.epoch, Requests: len(p.reservations), Heard: p.lastHeard, Agreed: p.lastAgreed,
			Behind: p.gapSince, Lacking: p.hasGap(),
		}
		for _, e := range p.reservations { // only counts
			if _, ok := e.ref.Reservation(); !ok {
				out.Unplaced++
			}
		}
		dst = append(dst, out)
	}
	return dst
}

// CountRouters returns the number of known routers, with this one.
func (r *Replica) CountRouters() int { return len(r.peers) + 1 }

// EchoedNumber returns the number of the latest change of this router which came back over the plane: the other
// routers have probably received it too, and this router what they published before it.
func (r *Replica) EchoedNumber() uint64 { return r.echoedSeq }

// PlaceOf returns the place of this router in the order of the known routers, from 0 on.
func (r *Replica) PlaceOf() int {
	at, _ := slices.BinarySearchFunc(r.peers, r.cfg.Router, func(p *peerState, id uint64) int { return cmp.Compare(p.router, id) })
	return at
}

// RequestUnplaced requests lists from the routers with reservations on workers which have become known since
// the reservations were published, so that these are counted.
func (r *Replica) RequestUnplaced(now kv.Mono) {
	r.now = max(r.now, now)
	for _, p := range r.peers {
		for _, e := range p.reservations { // only checks whether there is one
			if _, ok := e.ref.Reservation(); !ok && r.tables.TableOf(e.worker) != nil {
				p.requestList(r.now)
				break
			}
		}
	}
}

// AdvanceTime sets the time; call it before reservations change.
func (r *Replica) AdvanceTime(now kv.Mono) { r.now = max(r.now, now) }

// HasPending reports whether there is something to publish, now or soon.
func (r *Replica) HasPending() bool {
	o := &r.local
	return len(r.peers) > 0 && (o.openBatch.count > 0 || o.sentBatches < len(o.keptBatches) || len(o.growing) > 0 || o.listing || len(o.requests) > 0 || o.nextDigest <= r.now)
}

// Deadline returns when Tick has something to do if nothing else happens before.
func (r *Replica) Deadline() kv.Mono {
	at := r.local.nextDeadline(r)
	for _, p := range r.peers {
		at = min(at, p.lastHeard.Add(r.cfg.DeafTimeout)) // an echo is a message, which sets a new deadline
		if p.hasGap() {
			at = min(at, p.nextRequest)
		}
	}
	return at
}

// Tick appends to out the messages which are due at now, and removes peers which have timed out. The caller
// must not change the messages, and publishes them in order; a message which it cannot publish is recovered
// like a lost one.
func (r *Replica) Tick(now kv.Mono, out [][]byte) [][]byte {
	r.now = max(r.now, now)
	r.removeTimedOut()
	out = r.local.appendDue(r, out)
	for _, p := range r.peers {
		if p.hasGap() && r.now >= p.nextRequest {
			out = append(out, r.requestMissing(p))
		}
	}
	return out
}

// LeaveMessage returns the message which says that this router and its reservations end. It is the last one.
func (r *Replica) LeaveMessage() []byte {
	return appendHeader(nil, kindLeave, r.cfg.Router, r.cfg.Epoch)
}

// requestMissing returns a request for the missing changes of p, from the first gap to the last. It requests
// a list instead if there are many gaps, if the changes do not arrive, or if nothing of p is known yet: a
// list has only the existing reservations, the changes the whole history.
func (r *Replica) requestMissing(p *peerState) []byte {
	r.stats.Asked++
	p.nextRequest = r.now.Add(requestInterval)
	from, to := uint64(0), uint64(0)
	if p.wantsList = p.wantsList || p.nextSeq == 1 || len(p.ahead) > maxGaps || r.now.Sub(p.gapSince) > gapTimeout; !p.wantsList {
		from, to = p.nextSeq, p.lastMissing()
	}
	return appendRequest(appendHeader(nil, kindRequest, r.cfg.Router, r.cfg.Epoch), rangeRequest{p.router, p.epoch, from, to})
}

// recordEcho records that a message of this router came back.
func (r *Replica) recordEcho() {
	if r.now.Sub(r.lastEcho) > r.cfg.PeerTimeout/2 {
		r.hearsSince = r.now // messages which others sent meanwhile may still be in transit
	}
	r.lastEcho = r.now
	r.removeTimedOut()
}

// hasTimedOut reports whether a peer has been silent for too long.
func (r *Replica) hasTimedOut(p *peerState) bool {
	return r.lastEcho.Sub(max(p.lastHeard, r.hearsSince)) >= r.cfg.PeerTimeout || r.now.Sub(p.lastHeard) >= r.cfg.DeafTimeout
}

// removeTimedOut removes the peers which have been silent for too long.
func (r *Replica) removeTimedOut() {
	r.peers = slices.DeleteFunc(r.peers, func(p *peerState) bool {
		gone := r.hasTimedOut(p)
		if gone {
			p.removeAll()
		}
		return gone
	})
}

// HandleMessage handles a message of the plane. The router's own messages must be passed too; it only records
// that they arrive. It keeps no part of data. An error says that the message could not be read; nothing of it
// was applied.
func (r *Replica) HandleMessage(now kv.Mono, data []byte) error {
	r.now = max(r.now, now)
	m := &r.scratch
	if err := m.decodeFrom(data); err != nil {
		r.stats.Refused++
		return err
	}
	if m.router == r.cfg.Router {
		r.recordEcho()
		if m.kind == kindChanges && m.epoch == r.cfg.Epoch {
			r.echoedSeq = max(r.echoedSeq, m.first+uint64(len(m.changes))-1)
		}
		return nil
	}
	p := r.lookupPeer(m.router, m.epoch)
	if p == nil {
		return nil
	}
	p.lastHeard = r.now
	switch m.kind {
	case kindChanges:
		r.applyBatch(p, m)
	case kindDigest:
		r.compareDigest(p, m.digest)
	case kindPage:
		r.applyPage(p, m)
	case kindRequest:
		if m.request.router == r.cfg.Router && m.request.epoch == r.cfg.Epoch {
			r.local.queueRequest(m.request)
		}
	case kindLeave:
		p.removeAll()
		r.peers = slices.DeleteFunc(r.peers, func(o *peerState) bool { return o == p })
	}
	return nil
}
