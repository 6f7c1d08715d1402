package engineevents

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// MachineConfig bounds a Machine.
type MachineConfig struct {
	// Replay says whether the engine can repeat batches.
	Replay ReplaySupport
	// HeldFrames and HeldBytes bound the live batches which wait for a repair.
	HeldFrames, HeldBytes int
	// AttemptTimeout is how long one attempt at a repair may go without a batch. RepairTimeout bounds the
	// whole repair.
	AttemptTimeout, RepairTimeout time.Duration
}

// EnsureDefaults sets unset fields: 8,192 batches, 64 MiB, 2 s and 2 min.
func (c *MachineConfig) EnsureDefaults() {
	c.HeldFrames = cmp.Or(c.HeldFrames, 8192)
	c.HeldBytes = cmp.Or(c.HeldBytes, 64<<20)
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, 2*time.Second)
	c.RepairTimeout = cmp.Or(c.RepairTimeout, 2*time.Minute)
}

// ReplaySupport says whether an engine can repeat what it published.
type ReplaySupport uint8

// The values of ReplaySupport.
const (
	NoReplay ReplaySupport = iota
	HasReplay
)

// Times, and attempts at a repair. Before the first batch is applied nothing can be wrong, and holding live
// batches back for long costs more than the old ones are worth.
const (
	// minRestartTime is the least time an engine takes to restart: it must load a model.
	minRestartTime  = 5 * time.Second
	maxAttempts     = 8
	maxJoinAttempts = 3
	minRetryDelay   = 100 * time.Millisecond
	maxRetryDelay   = 2 * time.Second
)

// EffectKind is the kind of an action which a Machine requests.
type EffectKind uint8

// The kinds of effect.
const (
	// Apply: decode Payload and apply it to the table. If it cannot be decoded, call ReportUnreadable.
	Apply EffectKind = iota + 1
	// Forget: clear the table, for Reason. Later Apply effects rebuild it.
	Forget
	// Ask: cancel the previous request and ask for all batches from From on, with the frames of
	// RequestReplay. Hand in the answers, and a failure, with Attempt.
	Ask
	// StopAsking: the answers to the last Ask are not needed any more.
	StopAsking
	// Barrier: the point of the feed at which the snapshot named ID was taken.
	Barrier
)

// String returns the kind's name.
func (k EffectKind) String() string {
	names := [...]string{"effect?", "apply", "forget", "ask", "stop", "barrier"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// ForgetReason says why known state is forgotten.
type ForgetReason uint8

// The reasons.
const (
	Restarted  ForgetReason = iota + 1 // the engine restarted
	Unrepaired                         // batches are lost for good
	Garbled                            // a batch cannot be read
)

// String returns the reason's name.
func (r ForgetReason) String() string {
	switch r {
	case Restarted:
		return "restarted"
	case Unrepaired:
		return "unrepaired"
	case Garbled:
		return "garbled"
	}
	return "reason?"
}

// Effect is one action to perform. Effects are performed in order.
type Effect struct {
	Kind EffectKind
	// Payload is the batch. It is valid as long as the frames handed in. Apply only.
	Payload []byte
	Seq     uint64       // the batch's number. Apply and Barrier only
	From    uint64       // Ask only
	Attempt uint32       // Ask only
	Reason  ForgetReason // Forget only
	ID      string       // Barrier only
}

// Machine decides which batches of a feed are applied: every batch once and in order, and none after a gap
// before the known state is forgotten. Frames come in by HandleLive and HandleReplay, effects come out.
//
// States:
//
//	unknown     !known: no batch of this epoch was applied
//	in order    known, no repair: a live batch with number next is applied
//	repairing   repair.active: live batches are held, and missing ones were asked for
//	waiting     repair.active && repair.waiting: the next Ask is due at repair.timerAt
//	            (in all states the subscription may be up or down: health.Connected)
//
//	state      event                                            next       effects
//	unknown    HandleLive, without replay or with number 0      in order   Apply
//	unknown    HandleLive otherwise; the batch is held          repairing  Ask
//	any        Connected, with replay                           repairing  Ask
//	in order   HandleLive, the next batch                       in order   Apply
//	in order   HandleLive after a gap, without replay           in order   Forget, Apply
//	in order   HandleLive after a gap; the batch is held        repairing  Ask
//	repairing  HandleLive, HandleReplay: the next batch         repairing  Apply, and of held ones
//	repairing  the same, or the end: nothing is missing         in order   StopAsking
//	repairing  ReplayFailed, a gap in it, AttemptTimeout        waiting
//	waiting    Tick at the time of the next Ask                 repairing  Ask
//	both       too many attempts, RepairTimeout                 in order   StopAsking, Forget, Apply
//	both       Disconnected after the last connection           as before  StopAsking
//	any        a batch of another epoch, EngineRestarted        unknown    Forget, StopAsking
//	           the same with replay                             repairing  Forget, Ask
//
// The machine asks for a missing batch, and holds live ones until it arrives. If it does not arrive, the
// machine gives up, makes the caller forget everything, and continues with the batches it holds. It asks
// from the last batch which it applied, not from the next one: that batch shows whether the engine which
// answers is the one it knew. An engine which counts from the start again is a new one. State from before a
// late join cannot be wrong, only missing.
//
// A Machine must have one user at a time.
type Machine struct {
	cfg    MachineConfig
	known  bool   // next is valid
	next   uint64 // the number of the next batch
	epoch  string // the publisher's epoch, "" if it does not send one
	recent [64]struct {
		stamp payloadStamp
		seq   uint64
		used  bool
	}
	lastEmpty      bool   // the last applied batch had no events
	forgotState    bool   // state of this epoch was forgotten
	latestLive     uint64 // the largest number of a live batch in this epoch, if live
	hasLive        bool   // a live batch arrived in this epoch
	connections    int    // open connections
	disconnectedAt kv.Mono
	// unsure says that the subscription was down long enough for another engine to have taken over whose
	// numbers fit by chance.
	unsure     bool
	repair     repairState
	unreadable unreadableBatch
	held       []heldBatch // in order of number
	health     Health
}

// heldBatch is a live batch which waits.
type heldBatch struct {
	feedMessage
	stamp payloadStamp
}

// repairState is the repair which is in progress.
type repairState struct {
	active    bool
	startedAt kv.Mono
	tries     int
	attempt   uint32  // the number of the last Ask
	waiting   bool    // until the next Ask
	timerAt   kv.Mono // the time of the next Ask, or of the attempt's last progress
	answered  bool    // this attempt returned a batch
	checking  bool    // the first batch should be the last applied one
}

// NewMachine returns the machine of a feed which has not been seen yet.
func NewMachine(cfg MachineConfig) *Machine {
	cfg.EnsureDefaults()
	return &Machine{cfg: cfg}
}

// Connected says that a subscription connection is up: what is published from now on arrives. The machine
// asks for what was published before. If publishers dial us, a second connection may open before the first
// one closes.
func (m *Machine) Connected(now kv.Mono, out []Effect) []Effect {
	m.connections++
	if m.known && m.epoch == "" && !m.health.Connected && now.Sub(m.disconnectedAt) >= minRestartTime {
		m.unsure = true
	}
	m.health.Connected = true
	if m.cfg.Replay == HasReplay {
		return m.startRepair(now, out)
	}
	return out
}

// Disconnected says that a subscription connection closed. After the last one the machine drops the held
// batches, because the engine may have another epoch when the rest arrives. It asks for them with the rest
// when the subscription is up again.
func (m *Machine) Disconnected(now kv.Mono, out []Effect) []Effect {
	if m.connections = max(0, m.connections-1); m.connections > 0 {
		return out
	}
	m.health.Connected, m.disconnectedAt = false, now
	m.dropHeld()
	m.hasLive = false
	return m.stopRepair(out)
}

// stopRepair ends a repair if one is in progress.
func (m *Machine) stopRepair(out []Effect) []Effect {
	if !m.repair.active {
		return out
	}
	m.repair.active = false
	return append(out, Effect{Kind: StopAsking})
}

// IsUnconfirmed reports whether the known state is from before the subscription broke, and no batch has
// shown since then whether the engine is in the same epoch. With replay the machine asks instead.
func (m *Machine) IsUnconfirmed() bool { return m.known && !m.hasLive && m.cfg.Replay != HasReplay }

// EngineRestarted says that another source knows of an engine restart.
func (m *Machine) EngineRestarted(now kv.Mono, out []Effect) []Effect {
	return m.restartEpoch(now, "", out)
}

// HandleLive handles the frames of a live message: topic, number, batch. The machine copies what it keeps.
func (m *Machine) HandleLive(now kv.Mono, frames [][]byte, out []Effect) []Effect {
	msg, ok := parseLive(frames)
	if !ok || msg.isEnd {
		m.health.Malformed++
		return out
	}
	m.health.LastAt = now
	if msg.epoch != "" && m.epoch != "" && msg.epoch != m.epoch {
		out = m.resetEpoch(msg.epoch, out)
	}
	p := stampPayload(msg.payload)
	switch m.classifyLive(&msg, p) {
	case verdictDuplicate:
		m.health.Duplicates++
		return out
	case verdictFiller:
		m.recordApplied(msg.seq, p, msg.payload)
		return m.emitApply(&msg, out)
	case verdictNewEpoch:
		out = m.resetEpoch(msg.epoch, out)
	}
	if msg.epoch != "" {
		m.epoch = msg.epoch
	}
	m.latestLive, m.hasLive = max(m.latestLive, msg.seq), true
	switch {
	case m.repair.active:
		return m.holdLive(now, &msg, p, out)
	case m.unsure:
		m.known, m.unsure = false, false
		return m.applyFirst(now, &msg, p, m.forgetUnrepaired(now, out))
	case m.known && msg.seq == m.next:
		return m.applyNext(&msg, p, out)
	case !m.known:
		return m.applyFirst(now, &msg, p, out)
	}
	m.health.Gaps++
	if m.cfg.Replay == HasReplay {
		out = m.startRepair(now, out)
		return m.holdLive(now, &msg, p, out)
	}
	out = m.forgetUnrepaired(now, out)
	m.next = msg.seq
	return m.applyNext(&msg, p, out)
}

// liveVerdict classifies a live batch.
type liveVerdict uint8

const (
	verdictFresh     liveVerdict = iota // in order, or ahead of it
	verdictDuplicate                    // seen before
	verdictFiller                       // after a heartbeat which had its number
	verdictNewEpoch                     // of a new epoch
)

// classifyLive classifies a live batch by its number and by what was seen under that number.
func (m *Machine) classifyLive(msg *feedMessage, p payloadStamp) liveVerdict {
	if !m.known {
		if !m.hasLive || msg.seq > m.latestLive {
			return verdictFresh
		}
		if i, found := m.findHeld(msg.seq); found && m.held[i].stamp == p {
			return verdictDuplicate
		}
		return verdictNewEpoch
	}
	if msg.seq >= m.next {
		if i, found := m.findHeld(msg.seq); found && m.held[i].stamp != p && msg.epoch == "" {
			return verdictNewEpoch
		}
		return verdictFresh
	}
	r := &m.recent[msg.seq%uint64(len(m.recent))]
	switch {
	case r.used && r.seq == msg.seq && r.stamp == p:
		return verdictDuplicate
	case msg.epoch == "" || msg.epoch != m.epoch:
		return verdictNewEpoch
	case m.lastEmpty && msg.seq == m.next-1 && !hasNoEvents(msg.payload):
		return verdictFiller
	}
	return verdictDuplicate
}

// findHeld returns the index of a number in the held batches, or where it belongs.
func (m *Machine) findHeld(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(m.held, seq, func(h heldBatch, seq uint64) int {
		switch {
		case h.seq < seq:
			return -1
		case h.seq > seq:
			return 1
		}
		return 0
	})
}

// applyFirst handles the first batch of an epoch when no repair is in progress.
func (m *Machine) applyFirst(now kv.Mono, msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	if m.cfg.Replay == HasReplay && msg.seq > 0 {
		out = m.startRepair(now, out)
		return m.holdLive(now, msg, p, out)
	}
	m.startAt(msg.seq)
	return m.applyNext(msg, p, out)
}

// startAt starts an epoch at a number. Simulators count from 1.
func (m *Machine) startAt(seq uint64) {
	m.known, m.next = true, seq
	m.health.Late = seq > 1
}

// restartEpoch starts a new epoch of the engine, from its beginning if that can be asked for.
func (m *Machine) restartEpoch(now kv.Mono, life string, out []Effect) []Effect {
	out = m.resetEpoch(life, out)
	if m.cfg.Replay == HasReplay {
		out = m.startRepair(now, out)
	}
	return out
}

// resetEpoch forgets everything because the engine has a new epoch.
func (m *Machine) resetEpoch(life string, out []Effect) []Effect {
	m.health.Restarts++
	out = append(out, Effect{Kind: Forget, Reason: Restarted})
	out = m.stopRepair(out)
	m.known, m.epoch, m.hasLive, m.latestLive, m.lastEmpty, m.unsure, m.forgotState = false, life, false, 0, false, false, false
	m.unreadable.asked, m.unreadable.replayEnd = false, 0
	m.dropHeld()
	for i := range m.recent {
		m.recent[i].used = false
	}
	return out
}

// applyNext applies the next batch, and the held batches which follow it.
func (m *Machine) applyNext(msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	out = m.applyOne(msg, p, out)
	n := 0
	for ; n < len(m.held) && m.held[n].seq <= m.next; n++ {
		if h := &m.held[n]; h.seq == m.next {
			out = m.applyOne(&h.feedMessage, h.stamp, out)
		}
		m.health.HeldBytes -= len(m.held[n].payload)
	}
	m.held = slices.Delete(m.held, 0, n)
	return out
}

// applyOne applies the batch whose number is next.
func (m *Machine) applyOne(msg *feedMessage, p payloadStamp, out []Effect) []Effect {
	m.next = msg.seq + 1
	m.recordApplied(msg.seq, p, msg.payload)
	return m.emitApply(msg, out)
}

// emitApply appends the effects of a batch.
func (m *Machine) emitApply(msg *feedMessage, out []Effect) []Effect {
	m.health.Applied++
	if len(msg.payload) > 0 {
		out = append(out, Effect{Kind: Apply, Payload: msg.payload, Seq: msg.seq})
	}
	if msg.barrier != "" {
		out = append(out, Effect{Kind: Barrier, Seq: msg.seq, ID: msg.barrier})
	}
	return out
}

// recordApplied records what was applied under a number.
func (m *Machine) recordApplied(seq uint64, p payloadStamp, payload []byte) {
	r := &m.recent[seq%uint64(len(m.recent))]
	r.stamp, r.seq, r.used = p, seq, true
	m.lastEmpty = hasNoEvents(payload)
}

// forgetUnrepaired forgets everything because of a gap.
func (m *Machine) forgetUnrepaired(now kv.Mono, out []Effect) []Effect {
	m.health.Unrepaired++
	m.health.UnrepairedAt = now
	m.forgotState = true
	return append(out, Effect{Kind: Forget, Reason: Unrepaired})
}

// History says whether everything which the engine published in this epoch was applied.
func (m *Machine) History() History {
	if !m.known || m.health.Late || m.forgotState {
		return PartialHistory
	}
	return WholeHistory
}

// Next returns the number of the next batch. ok is false if none was seen in this epoch.
func (m *Machine) Next() (seq uint64, ok bool) { return m.next, m.known }

// Health returns what the machine has seen.
func (m *Machine) Health() Health {
	h := m.health
	h.Repairing, h.Held = m.repair.active, len(m.held)
	if m.known && m.next > 0 {
		h.Seq = m.next - 1
	}
	return h
}

// Health is what a Machine has seen since it was created.
type Health struct {
	Connected bool
	Repairing bool   // live batches wait for missing ones
	Late      bool   // the feed was joined after its start: part of the cache is unknown
	Seq       uint64 // of the last applied batch
	LastAt    kv.Mono
	// Applied counts batches; an unreadable batch counts each time it arrives. Repeated counts the applied
	// batches which came from a replay.
	Applied, Repeated uint64
	Duplicates        uint64 // batches which arrived again and were dropped
	Gaps              uint64 // how often the numbers of live batches jumped
	Repaired          uint64 // repairs which ended with nothing missing
	Unrepaired        uint64 // gaps which remained; each cost all known state
	UnrepairedAt      kv.Mono
	Restarts          uint64
	Malformed         uint64 // messages which do not follow this protocol
	Held              int    // live batches which wait
	HeldBytes         int
}

// Check verifies the machine's invariants, for tests.
func (m *Machine) Check() error {
	var errs []error
	if !m.repair.active && len(m.held) > 0 {
		errs = append(errs, fault.New(fault.Invalid, "%d batches are held and nothing is repaired", len(m.held)))
	}
	if len(m.held) > m.cfg.HeldFrames || m.health.HeldBytes > m.cfg.HeldBytes {
		errs = append(errs, fault.New(fault.Invalid, "%d batches of %d bytes are held", len(m.held), m.health.HeldBytes))
	}
	bytes := 0
	for i, h := range m.held {
		bytes += len(h.payload)
		if i > 0 && h.seq <= m.held[i-1].seq || m.known && h.seq <= m.next-1 && m.next > 0 {
			errs = append(errs, fault.New(fault.Invalid, "batch %d is held behind another one, or was applied (next is %d)", h.seq, m.next))
		}
	}
	if bytes != m.health.HeldBytes {
		errs = append(errs, fault.New(fault.Invalid, "%d bytes are held, %d are counted", bytes, m.health.HeldBytes))
	}
	return errors.Join(errs...)
}
