package engineevents

import (
	"time"

	"penstock/core/kv"
)

// unreadableBackoff is how long the machine does not ask again for unreadable batches after asking did not
// help. Otherwise an engine whose batches can never be read would have to repeat each of them.
const unreadableBackoff = 30 * time.Second

// unreadableBatch is the state of the batch which could not be read.
type unreadableBatch struct {
	asked bool   // the engine was asked to repeat it
	seq   uint64 // its number
	// replayEnd is the number after the last batch which had arrived when the machine asked: those batches
	// are repeated too.
	replayEnd uint64
	failed    bool // asking did not help, at failedAt
	failedAt  kv.Mono
}

// ReportUnreadable says that the payload of an Apply cannot be decoded. If the engine can be asked, the
// machine goes back to before that batch, once, and asks: the published bytes may be sound, and only the
// transfer was not. Then again is true, and the effects after the Apply must not be performed, because they
// come again. If the engine cannot be asked, or the batch arrives unchanged, everything is forgotten, and
// the effects after the Apply are performed.
func (m *Machine) ReportUnreadable(now kv.Mono, e *Effect, out []Effect) (effects []Effect, again bool) {
	d := &m.unreadable
	second := d.asked && d.seq == e.Seq
	if second {
		d.asked, d.failed, d.failedAt = false, true, now
	}
	r := &m.recent[e.Seq%uint64(len(m.recent))]
	applied := m.known && e.Seq < m.next && r.used && r.seq == e.Seq && r.stamp == stampPayload(e.Payload)
	if second || !applied || m.cfg.Replay == NoReplay || !m.health.Connected || d.failed && now.Sub(d.failedAt) < unreadableBackoff {
		m.forgotState = true
		return append(out, Effect{Kind: Forget, Reason: Garbled}), false
	}
	*d = unreadableBatch{asked: true, seq: e.Seq, replayEnd: max(m.next, d.replayEnd)}
	m.next, m.lastEmpty = e.Seq, false
	if !m.repair.active {
		return m.startRepair(now, out), true
	}
	return m.askReplay(now, out), true
}

// awaitsReplay reports whether batches which had arrived once are still to be repeated.
func (m *Machine) awaitsReplay() bool { return m.known && m.next < m.unreadable.replayEnd }

// hasRecent reports whether the machine still knows what it applied under a number.
func (m *Machine) hasRecent(seq uint64) bool {
	r := &m.recent[seq%uint64(len(m.recent))]
	return r.used && r.seq == seq
}
