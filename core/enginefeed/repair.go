package enginefeed

import (
	"slices"

	"penstock/core/kv"
)

// startRepair starts a repair.
func (m *Machine) begin(now kv.Mono, out []Effect) []Effect {
	m.repair = repair{active: true, began: now, attempt: m.repair.attempt}
	return m.ask(now, out)
}

// askReplay asks for what is missing: from the last applied batch, or from the first batch of all.
func (m *Machine) ask(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	r.attempt++
	r.tries++
	r.waiting, r.at, r.answered, r.checking = false, now, false, m.known && m.next > 0 && m.remembers(m.next-1)
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
func (m *Machine) hold(now kv.Mono, msg *message, p stamp, out []Effect) []Effect {
	if m.known && msg.seq == m.next && !m.unsure {
		return m.caughtUp(m.apply(msg, p, out))
	}
	at, found := m.find(msg.seq)
	if found {
		m.health.Duplicates++
		return out
	}
	if len(m.held) == m.cfg.HeldFrames || m.health.HeldBytes+len(msg.payload) > m.cfg.HeldBytes {
		return m.overflow(now, msg, p, out)
	}
	kept := held{*msg, p}
	kept.payload = slices.Clone(msg.payload)
	m.held = slices.Insert(m.held, at, kept)
	m.health.HeldBytes += len(kept.payload)
	return out
}

// overflowHeld gives up because the next batch exceeds the bounds, and continues with that batch.
func (m *Machine) overflow(now kv.Mono, msg *message, p stamp, out []Effect) []Effect {
	out = m.giveUp(now, out)
	switch {
	case !m.known:
		m.start(msg.seq)
	case msg.seq < m.next:
		m.health.Duplicates++ // part of a gap which was given up
		return out
	case msg.seq > m.next:
		out = m.lost(now, out)
		m.next = msg.seq
	}
	return m.apply(msg, p, out)
}

// finishIfCaughtUp ends a repair when no batch is held any more.
func (m *Machine) caughtUp(out []Effect) []Effect {
	if len(m.held) > 0 || m.behind() {
		return out
	}
	return m.finish(out)
}

// finishRepair ends a repair after which nothing is missing.
func (m *Machine) finish(out []Effect) []Effect {
	m.health.Repaired++
	return m.stop(out)
}

// dropHeld drops the held batches.
func (m *Machine) release() {
	m.held, m.health.HeldBytes = nil, 0
}

// HandleReplay handles the frames of one answer to the Ask with this attempt number.
func (m *Machine) Replayed(now kv.Mono, attempt uint32, frames [][]byte, out []Effect) []Effect {
	r := &m.repair
	if !r.active || r.waiting || attempt != r.attempt {
		return out // an answer to an older Ask
	}
	msg, ok := replayMessage(frames)
	switch {
	case !ok:
		m.health.Malformed++
		return m.retry(now, out)
	case msg.end:
		return m.ended(now, out)
	case msg.life != "" && m.life != "" && msg.life != m.life:
		return m.restart(now, msg.life, out)
	case msg.life != "":
		m.life = msg.life
	}
	r.at = now
	p := stampOf(msg.payload)
	if !m.known {
		r.answered = true
		m.start(msg.seq)
		return m.repeated(&msg, p, out)
	}
	if r.checking && !r.answered && msg.seq+1 == m.next {
		r.answered = true
		if last := &m.recent[msg.seq%uint64(len(m.recent))]; last.stamp != p {
			return m.restart(now, msg.life, out)
		}
		m.unsure = false
		if waited := len(m.held) > 0; waited {
			return m.caughtUp(m.drain(out))
		}
		return out
	}
	switch {
	case msg.seq < m.next:
		m.health.Duplicates++ // it was not asked for, or arrives twice
		return out
	case msg.seq == m.next && !m.unsure:
		r.answered = true
		return m.repeated(&msg, p, out)
	case r.answered:
		return m.retry(now, out) // a gap in the middle: the next attempt may fill it
	}
	// The engine has dropped the missing batches.
	r.answered, m.unsure = true, false
	out = m.lost(now, out)
	m.next = msg.seq
	return m.repeated(&msg, p, out)
}

// applyReplayed applies the next batch, which came from a replay.
func (m *Machine) repeated(msg *message, p stamp, out []Effect) []Effect {
	m.health.Repeated++
	waited := len(m.held) > 0
	out = m.apply(msg, p, out)
	if waited {
		return m.caughtUp(out)
	}
	return out
}

// handleReplayEnd handles the end of a replay.
func (m *Machine) ended(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	switch {
	case r.checking && !r.answered:
		// The engine which answers has never published the last applied batch: it is another one.
		return m.restart(now, "", out)
	case !m.known && len(m.held) > 0:
		m.start(m.held[0].seq)
		out = m.drain(out)
	}
	if len(m.held) == 0 && !m.behind() {
		return m.finish(out)
	}
	return m.retry(now, out)
}

// applyHeld applies the held batches from the next one on.
func (m *Machine) drain(out []Effect) []Effect {
	if len(m.held) == 0 || m.held[0].seq != m.next {
		return out
	}
	h := m.held[0]
	m.held = slices.Delete(m.held, 0, 1)
	m.health.HeldBytes -= len(h.payload)
	return m.apply(&h.message, h.stamp, out)
}

// ReplayFailed says that the Ask with this attempt number gets no further answer.
func (m *Machine) ReplayFailed(now kv.Mono, attempt uint32, out []Effect) []Effect {
	if !m.repair.active || m.repair.waiting || attempt != m.repair.attempt {
		return out
	}
	return m.retry(now, out)
}

// scheduleRetry waits before it asks again, or gives up.
func (m *Machine) retry(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	most := maxAttempts
	if !m.known {
		most = joinAttempts
	}
	if r.tries >= most || now.Sub(r.began) >= m.cfg.Total {
		return m.giveUp(now, out)
	}
	r.waiting = true
	r.at = now.Add(min(longestWait, firstWait<<(r.tries-1)))
	return out
}

// giveUpRepair ends a repair without the missing batches, and continues with the held ones. If none are
// held, nothing is known to be missing.
func (m *Machine) giveUp(now kv.Mono, out []Effect) []Effect {
	m.repair.active = false
	out = append(out, Effect{Kind: StopAsking})
	for len(m.held) > 0 {
		if m.known {
			out = m.lost(now, out)
			m.next = m.held[0].seq
		} else {
			m.start(m.held[0].seq)
		}
		out = m.drain(out)
	}
	if m.behind() {
		out = m.lost(now, out)
		m.next = m.doubt.upTo
	}
	return out
}

// Tick advances the time. It is called at Deadline, or at any time.
func (m *Machine) Tick(now kv.Mono, out []Effect) []Effect {
	r := &m.repair
	switch {
	case !r.active:
		return out
	case now.Sub(r.began) >= m.cfg.Total:
		return m.giveUp(now, out)
	case r.waiting && now >= r.at:
		return m.ask(now, out)
	case !r.waiting && now.Sub(r.at) >= m.cfg.Attempt:
		return m.retry(now, out)
	}
	return out
}

// Deadline returns when Tick is due. ok is false if it is not.
func (m *Machine) Deadline() (at kv.Mono, ok bool) {
	r := &m.repair
	if !r.active {
		return 0, false
	}
	at = r.at
	if !r.waiting {
		at = r.at.Add(m.cfg.Attempt)
	}
	return min(at, r.began.Add(m.cfg.Total)), true
}
