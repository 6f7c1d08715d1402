package enginefeed

import (
	"time"

	"penstock/core/kv"
)

// hopeless is for how long nothing is asked for again that cannot be read, after that did not help: an
// engine of which no batch can be read would have to repeat each.
const hopeless = 30 * time.Second

// doubt is about a batch that could not be read.
type doubt struct {
	open bool   // it was asked for again
	seq  uint64 // which one it is
	// upTo is the number up to which there were batches when it was asked for again: they come with it.
	upTo   uint64
	failed bool // asking did not help, at failedAt
	at     kv.Mono
}

// Unreadable says that the payload of an Apply cannot be decoded. Where the engine can be asked, the
// machine goes back to before that batch, once, and asks: what was published may be sound and only its
// way here was not. Then again is true, and the effects that stood behind the Apply must not be done, as they come again.
// If it cannot be asked, or the batch comes as it was, all is forgotten, and what stands behind the Apply is done.
func (m *Machine) Unreadable(now kv.Mono, e *Effect, out []Effect) (effects []Effect, again bool) {
	d := &m.doubt
	second := d.open && d.seq == e.Seq
	if second {
		d.open, d.failed, d.at = false, true, now
	}
	r := &m.recent[e.Seq%uint64(len(m.recent))]
	applied := m.known && e.Seq < m.next && r.used && r.seq == e.Seq && r.stamp == stampOf(e.Payload)
	if second || !applied || m.cfg.Replay == NoReplay || !m.health.Connected || d.failed && now.Sub(d.at) < hopeless {
		m.holed = true
		return append(out, Effect{Kind: Forget, Reason: Garbled}), false
	}
	*d = doubt{open: true, seq: e.Seq, upTo: max(m.next, d.upTo)}
	m.next, m.empty = e.Seq, false
	if !m.repair.active {
		return m.begin(now, out), true
	}
	return m.ask(now, out), true
}

// behind reports whether batches that came once are still to come again.
func (m *Machine) behind() bool { return m.known && m.next < m.doubt.upTo }

// remembers reports whether it is known what was applied under a number.
func (m *Machine) remembers(seq uint64) bool {
	r := &m.recent[seq%uint64(len(m.recent))]
	return r.used && r.seq == seq
}
