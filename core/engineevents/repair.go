package engineevents

import (
	"slices"
	"time"

	"penstock/core/kv"
)

// startRepair starts a repair.
func (m *Machine) startRepair(now kv.Mono, out []Effect) []Effect {
	m.repair = repairState{active: true, startedAt: now, attempt: m.repair.attempt}
	return m.askReplay(now, out)
}

// askReplay asks for what is missing: from the last applied batch, or from the first batch of all.
func (m *Machine) askReplay(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	r.attempt++
	r.tries++
	r.waiting, r.timerAt, r.answered, r.checking = false, now, false, m.known && m.next > 0 && m.hasRecent(m.next-1)
	from := uint64(0)
	switch {
	case r.checking:
		from = m.next - 1
	case m.known:
		from = m.next
	}
	return append(out, Effect{Kind: Ask, From: from, Attempt: r.attempt})
}

// holdLive holds a live batch until the missing batches before it have arrived.
func (m *Machine) holdLive(now kv.Mono, msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	if m.known && msg.seq == m.next && !m.unsure {
		return m.finishIfCaughtUp(m.applyNext(msg, p, out))
	}
	at, found := m.findHeld(msg.seq)
	if found {
		m.health.Duplicates++
		return out
	}
	if len(m.held) == m.cfg.HeldFrames || m.health.HeldBytes+len(msg.payload) > m.cfg.HeldBytes {
		return m.overflowHeld(now, msg, p, out)
	}
	kept := heldBatch{*msg, p}
	kept.payload = slices.Clone(msg.payload)
	m.held = slices.Insert(m.held, at, kept)
	m.health.HeldBytes += len(kept.payload)
	return out
}

// overflowHeld gives up because the next batch exceeds the bounds, and continues with that batch.
func (m *Machine) overflowHeld(now kv.Mono, msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	out = m.giveUpRepair(now, out)
	switch {
	case !m.known:
		m.startAt(msg.seq)
	case msg.seq < m.next:
		m.health.Duplicates++ // part of a gap which was given up
		return out
	case msg.seq > m.next:
		out = m.forgetUnrepaired(now, out)
		m.next = msg.seq
	}
	return m.applyNext(msg, p, out)
}

// finishIfCaughtUp ends a repair when no batch is held any more.
func (m *Machine) finishIfCaughtUp(out []Effect) []Effect {
	if len(m.held) > 0 || m.awaitsReplay() {
		return out
	}
	return m.finishRepair(out)
}

// finishRepair ends a repair after which nothing is missing.
func (m *Machine) finishRepair(out []Effect) []Effect {
	m.health.Repaired++
	return m.stopRepair(out)
}

// dropHeld drops the held batches.
func (m *Machine) dropHeld() {
	m.held, m.health.HeldBytes = nil, 0
}

// HandleReplay handles the frames of one answer to the Ask with this attempt number.
func (m *Machine) HandleReplay(now kv.Mono, attempt uint32, frames [][]byte, out []Effect) []Effect {
	r := &m.repair
	if !r.active || r.waiting || attempt != r.attempt {
		return out // an answer to an older Ask
	}
	msg, ok := parseReplay(frames)
	switch {
	case !ok:
		m.health.Malformed++
		return m.scheduleRetry(now, out)
	case msg.isEnd:
		return m.handleReplayEnd(now, out)
	case msg.epoch != "" && m.epoch != "" && msg.epoch != m.epoch:
		return m.restartEpoch(now, msg.epoch, out)
	case msg.epoch != "":
		m.epoch = msg.epoch
	}
	r.timerAt = now
	p := stampPayload(msg.payload)
	if !m.known {
		r.answered = true
		m.startAt(msg.seq)
		return m.applyReplayed(&msg, p, out)
	}
	if r.checking && !r.answered && msg.seq+1 == m.next {
		r.answered = true
		if last := &m.recent[msg.seq%uint64(len(m.recent))]; last.stamp != p {
			return m.restartEpoch(now, msg.epoch, out)
		}
		m.unsure = false
		if waited := len(m.held) > 0; waited {
			return m.finishIfCaughtUp(m.applyHeld(out))
		}
		return out
	}
	switch {
	case msg.seq < m.next:
		m.health.Duplicates++ // it was not asked for, or arrives twice
		return out
	case msg.seq == m.next && !m.unsure:
		r.answered = true
		return m.applyReplayed(&msg, p, out)
	case r.answered:
		return m.scheduleRetry(now, out) // a gap in the middle: the next attempt may fill it
	}
	// The engine has dropped the missing batches.
	r.answered, m.unsure = true, false
	out = m.forgetUnrepaired(now, out)
	m.next = msg.seq
	return m.applyReplayed(&msg, p, out)
}

// applyReplayed applies the next batch, which came from a replay.
func (m *Machine) applyReplayed(msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	m.health.Repeated++
	waited := len(m.held) > 0
	out = m.applyNext(msg, p, out)
	if waited {
		return m.finishIfCaughtUp(out)
	}
	return out
}

// handleReplayEnd handles the end of a replay.
func (m *Machine) handleReplayEnd(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	switch {
	case r.checking && !r.answered:
		// The engine which answers has never published the last applied batch: it is another one.
		return m.restartEpoch(now, "", out)
	case !m.known && len(m.held) > 0:
		m.startAt(m.held[0].seq)
		out = m.applyHeld(out)
	}
	if len(m.held) == 0 && !m.awaitsReplay() {
		return m.finishRepair(out)
	}
	return m.scheduleRetry(now, out)
}

// applyHeld applies the held batches from the next one on.
func (m *Machine) applyHeld(out []Effect) []Effect {
	if len(m.held) == 0 || m.held[0].seq != m.next {
		return out
	}
	h := m.held[0]
	m.held = slices.Delete(m.held, 0, 1)
	m.health.HeldBytes -= len(h.payload)
	return m.applyNext(&h.feedMessage, h.stamp, out)
}

// ReplayFailed says that the Ask with this attempt number gets no further answer.
func (m *Machine) ReplayFailed(now kv.Mono, attempt uint32, out []Effect) []Effect {
	if !m.repair.active || m.repair.waiting || attempt != m.repair.attempt {
		return out
	}
	return m.scheduleRetry(now, out)
}

// scheduleRetry waits before it asks again, or gives up.
func (m *Machine) scheduleRetry(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	most := maxAttempts
	if !m.known {
		most = maxJoinAttempts
	}
	if r.tries >= most || now.Sub(r.startedAt) >= m.cfg.RepairTimeout {
		return m.giveUpRepair(now, out)
	}
	r.waiting = true
	r.timerAt = now.Add(min(maxRetryDelay, minRetryDelay<<(r.tries-1)))
	return out
}

// giveUpRepair ends a repair without the missing batches, and continues with the held ones. If none are
// held, nothing is known to be missing.
func (m *Machine) giveUpRepair(now kv.Mono, out []Effect) []Effect {
	m.repair.active = false
	out = append(out, Effect{Kind: StopAsking})
	for len(m.held) > 0 {
		if m.known {
			out = m.forgetUnrepaired(now, out)
			m.next = m.held[0].seq
		} else {
			m.startAt(m.held[0].seq)
		}
		out = m.applyHeld(out)
	}
	if m.awaitsReplay() {
		out = m.forgetUnrepaired(now, out)
		m.next = m.unreadable.replayEnd
	}
	return out
}

// Tick advances the time. It is called at Deadline, or at any time.
func (m *Machine) Tick(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	switch {
	case !r.active:
		return out
	case now.Sub(r.startedAt) >= m.cfg.RepairTimeout:
		return m.giveUpRepair(now, out)
	case r.waiting && now >= r.timerAt:
		return m.askReplay(now, out)
	case !r.waiting && now.Sub(r.timerAt) >= m.cfg.AttemptTimeout:
		return m.scheduleRetry(now, out)
	}
	return out
}

// Deadline returns when Tick is due. ok is false if it is not.
func (m *Machine) Deadline() (at kv.Mono, ok bool) {
	r := &m.repair
	if !r.active {
		return 0, false
	}
	at = r.timerAt
	if !r.waiting {
		at = r.timerAt.Add(m.cfg.AttemptTimeout)
	}
	return min(at, r.startedAt.Add(m.cfg.RepairTimeout)), true
}

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
