package enginefeed

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// MachineConfig bounds a Machine.
type MachineConfig struct {
	// Replay says whether the engine can be asked to repeat batches.
	Replay Replay
	// HeldFrames and HeldBytes bound the live batches that wait for a repair.
	HeldFrames, HeldBytes int
	// Attempt is how long an attempt at a repair may go without a batch, Total how long a repair may take in all.
	Attempt, Total time.Duration
}

// EnsureDefaults fills in what is not set: 8,192 batches, 64 MiB, 2 s and 2 min.
func (c *MachineConfig) EnsureDefaults() {
	if c.HeldFrames == 0 {
		c.HeldFrames = 8192
	}
	if c.HeldBytes == 0 {
		c.HeldBytes = 64 << 20
	}
	if c.Attempt == 0 {
		c.Attempt = 2 * time.Second
	}
	if c.Total == 0 {
		c.Total = 2 * time.Minute
	}
}

// Replay says whether an engine can be asked to repeat what it published.
type Replay uint8

// Whether it can.
const (
	NoReplay Replay = iota
	HasReplay
)

// Times, and attempts at a repair. Where nothing was applied yet nothing is wrong either, and to hold live
// batches back for long costs more than the old ones are worth.
const (
	// shortest is how long an engine takes at least to begin anew: to load a model.
	shortest     = 5 * time.Second
	maxAttempts  = 8
	joinAttempts = 3
	firstWait    = 100 * time.Millisecond
	longestWait  = 2 * time.Second
)

// EffectKind says what a Machine wants done.
type EffectKind uint8

// The kinds of effect.
const (
	// Apply: decode Payload and apply it to the table; if it cannot be decoded, tell Unreadable.
	Apply EffectKind = iota + 1
	// Forget: clear the table, for Reason. What is applied after it builds anew.
	Forget
	// Ask: give up what was asked before and ask for all batches from From on, as RequestReplay says it; hand in what
	// comes, and its failure, with Attempt.
	Ask
	// StopAsking: what was asked for is not needed any more.
	StopAsking
	// Barrier: the point of the feed at which the snapshot of name ID was taken.
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

// Reason says why what was known is forgotten.
type Reason uint8

// The reasons.
const (
	Restarted  Reason = iota + 1 // the engine began anew
	Unrepaired                   // batches are lost for good
	Garbled                      // a batch cannot be read
)

// String returns the reason's name.
func (r Reason) String() string {
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

// Effect is one thing to do. Effects are done in order.
type Effect struct {
	Kind EffectKind
	// Payload is the batch, as long as the frames that came in are valid. Apply only.
	Payload []byte
	Seq     uint64 // the batch's number. Apply and Barrier only
	From    uint64 // Ask only
	Attempt uint32 // Ask only
	Reason  Reason // Forget only
	ID      string // Barrier only
}

// Machine decides what is applied of a feed: every batch once and in order, and nothing after a hole
// before what was known is forgotten. Frames come in by Live and Replayed, effects come out.
//
// A batch that is missing is asked for, and live ones are held until it has come; if it does not, the
// machine gives up, has everything forgotten and goes on with what it holds. It asks from the last batch
// that it applied, not from the one behind it: by that it knows whether the engine that
// answers is the one that it knew. An engine that counts from the beginning again is a new one. What a feed
// that is joined late had before cannot be wrong, only missing.
//
// A Machine has one user at a time.
type Machine struct {
	cfg    MachineConfig
	known  bool   // next means something
	next   uint64 // the number of the next batch
	life   string // of the publisher, "" if it does not say
	recent [64]struct {
		stamp stamp
		seq   uint64
		used  bool
	}
	empty  bool   // the last batch that was applied had no events
	holed  bool   // what was known in this life was forgotten
	latest uint64 // the largest number of a live batch in this life, if hasLive
	live   bool   // there was one
	links  int    // connections that stand
	goneAt kv.Mono
	// unsure says that the subscription was broken for so long that the engine may be another one
	// of which the numbers fit by chance.
	unsure bool
	repair repair
	doubt  doubt
	held   []held // by number
	health Health
}

// held is a live batch that waits.
type held struct {
	message
	stamp stamp
}

// repair is an attempt to get what is missing.
type repair struct {
	active   bool
	began    kv.Mono
	tries    int
	attempt  uint32  // the number of the last Ask
	waiting  bool    // for the moment of the next Ask
	at       kv.Mono // that moment, or when the attempt last went on
	answered bool    // there was a batch in this attempt
	checking bool    // the first batch should be the one that was applied last
}

// NewMachine returns the machine of a feed of which nothing was seen.
func NewMachine(cfg MachineConfig) *Machine {
	cfg.EnsureDefaults()
	return &Machine{cfg: cfg}
}

// Connected says that a connection of the subscription stands: what is published there from now on arrives. What was
// published before is asked for. Where publishers dial us, there may be a second one before the first is gone.
func (m *Machine) Connected(now kv.Mono, out []Effect) []Effect {
	m.links++
	if m.known && m.life == "" && !m.health.Connected && now.Sub(m.goneAt) >= shortest {
		m.unsure = true
	}
	m.health.Connected = true
	if m.cfg.Replay == HasReplay {
		return m.begin(now, out)
	}
	return out
}

// Disconnected says that a connection of the subscription broke. If it was the last one, what is held may be of another life of the engine by the time that
// the rest comes, so that it is dropped, and asked for with the rest when the subscription stands again.
func (m *Machine) Disconnected(now kv.Mono, out []Effect) []Effect {
	if m.links = max(0, m.links-1); m.links > 0 {
		return out
	}
	m.health.Connected, m.goneAt = false, now
	m.release()
	m.live = false
	return m.stop(out)
}

// stop ends a repair that may be under way.
func (m *Machine) stop(out []Effect) []Effect {
	if !m.repair.active {
		return out
	}
	m.repair.active = false
	return append(out, Effect{Kind: StopAsking})
}

// Adrift reports whether what is known is of before the subscription broke, and nothing has
// come since that would tell whether the engine is still in the same life. With replay it is asked.
func (m *Machine) Adrift() bool { return m.known && !m.live && m.cfg.Replay != HasReplay }

// EngineRestarted says that the engine is known, from elsewhere, to have begun anew.
func (m *Machine) EngineRestarted(now kv.Mono, out []Effect) []Effect {
	return m.restart(now, "", out)
}

// Live takes the frames of a live message: topic, number, batch. The machine copies what it keeps.
func (m *Machine) Live(now kv.Mono, frames [][]byte, out []Effect) []Effect {
	msg, ok := liveMessage(frames)
	if !ok || msg.end {
		m.health.Malformed++
		return out
	}
	m.health.LastAt = now
	if msg.life != "" && m.life != "" && msg.life != m.life {
		out = m.reset(msg.life, out)
	}
	p := stampOf(msg.payload)
	switch m.judge(&msg, p) {
	case again:
		m.health.Duplicates++
		return out
	case filler:
		m.note(msg.seq, p, msg.payload)
		return m.say(&msg, out)
	case reborn:
		out = m.reset(msg.life, out)
	}
	if msg.life != "" {
		m.life = msg.life
	}
	m.latest, m.live = max(m.latest, msg.seq), true
	switch {
	case m.repair.active:
		return m.hold(now, &msg, p, out)
	case m.unsure:
		m.known, m.unsure = false, false
		return m.first(now, &msg, p, m.lost(now, out))
	case m.known && msg.seq == m.next:
		return m.apply(&msg, p, out)
	case !m.known:
		return m.first(now, &msg, p, out)
	}
	m.health.Gaps++
	if m.cfg.Replay == HasReplay {
		out = m.begin(now, out)
		return m.hold(now, &msg, p, out)
	}
	out = m.lost(now, out)
	m.next = msg.seq
	return m.apply(&msg, p, out)
}

// verdict is what a live batch is.
type verdict uint8

const (
	fresh  verdict = iota // in order, or ahead of it
	again                 // seen before
	filler                // behind a sign of life that had its number
	reborn                // of a new life
)

// judge says what a live batch is, by its number and what was seen under that number.
func (m *Machine) judge(msg *message, p stamp) verdict {
	if !m.known {
		if !m.live || msg.seq > m.latest {
			return fresh
		}
		if i, found := m.find(msg.seq); found && m.held[i].stamp == p {
			return again
		}
		return reborn
	}
	if msg.seq >= m.next {
		if i, found := m.find(msg.seq); found && m.held[i].stamp != p && msg.life == "" {
			return reborn
		}
		return fresh
	}
	r := &m.recent[msg.seq%uint64(len(m.recent))]
	switch {
	case r.used && r.seq == msg.seq && r.stamp == p:
		return again
	case msg.life == "" || msg.life != m.life:
		return reborn
	case m.empty && msg.seq == m.next-1 && !bare(msg.payload):
		return filler
	}
	return again
}

// find returns where in the held batches a number is, or belongs.
func (m *Machine) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(m.held, seq, func(h held, seq uint64) int {
		switch {
		case h.seq < seq:
			return -1
		case h.seq > seq:
			return 1
		}
		return 0
	})
}

// first takes the first batch of a life, when no repair is under way.
func (m *Machine) first(now kv.Mono, msg *message, p stamp, out []Effect) []Effect {
	if m.cfg.Replay == HasReplay && msg.seq > 0 {
		out = m.begin(now, out)
		return m.hold(now, msg, p, out)
	}
	m.start(msg.seq)
	return m.apply(msg, p, out)
}

// start begins a life with a number. Simulators count from 1.
func (m *Machine) start(seq uint64) {
	m.known, m.next = true, seq
	m.health.Late = seq > 1
}

// restart begins with a new life of the engine, from its beginning if that can be asked for.
func (m *Machine) restart(now kv.Mono, life string, out []Effect) []Effect {
	out = m.reset(life, out)
	if m.cfg.Replay == HasReplay {
		out = m.begin(now, out)
	}
	return out
}

// reset has everything forgotten because the engine has a new life.
func (m *Machine) reset(life string, out []Effect) []Effect {
	m.health.Restarts++
	out = append(out, Effect{Kind: Forget, Reason: Restarted})
	out = m.stop(out)
	m.known, m.life, m.live, m.latest, m.empty, m.unsure, m.holed = false, life, false, 0, false, false, false
	m.doubt.open, m.doubt.upTo = false, 0
	m.release()
	for i := range m.recent {
		m.recent[i].used = false
	}
	return out
}

// apply applies the next batch, and those that are held behind it.
func (m *Machine) apply(msg *message, p stamp, out []Effect) []Effect {
	out = m.one(msg, p, out)
	n := 0
	for ; n < len(m.held) && m.held[n].seq <= m.next; n++ {
		if h := &m.held[n]; h.seq == m.next {
			out = m.one(&h.message, h.stamp, out)
		}
		m.health.HeldBytes -= len(m.held[n].payload)
	}
	m.held = slices.Delete(m.held, 0, n)
	return out
}

// one applies the batch whose number is next.
func (m *Machine) one(msg *message, p stamp, out []Effect) []Effect {
	m.next = msg.seq + 1
	m.note(msg.seq, p, msg.payload)
	return m.say(msg, out)
}

// say has a batch applied.
func (m *Machine) say(msg *message, out []Effect) []Effect {
	m.health.Applied++
	if len(msg.payload) > 0 {
		out = append(out, Effect{Kind: Apply, Payload: msg.payload, Seq: msg.seq})
	}
	if msg.barrier != "" {
		out = append(out, Effect{Kind: Barrier, Seq: msg.seq, ID: msg.barrier})
	}
	return out
}

// note remembers what was applied under a number.
func (m *Machine) note(seq uint64, p stamp, payload []byte) {
	r := &m.recent[seq%uint64(len(m.recent))]
	r.stamp, r.seq, r.used = p, seq, true
	m.empty = bare(payload)
}

// lost has everything forgotten because of a hole.
func (m *Machine) lost(now kv.Mono, out []Effect) []Effect {
	m.health.Unrepaired++
	m.health.UnrepairedAt = now
	m.holed = true
	return append(out, Effect{Kind: Forget, Reason: Unrepaired})
}

// History says whether all that the engine published in this life was applied.
func (m *Machine) History() History {
	if !m.known || m.health.Late || m.holed {
		return PartialHistory
	}
	return WholeHistory
}

// Next returns the number of the next batch; ok is false if none was seen in this life of the engine.
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

// Health is what a Machine has seen since it was made.
type Health struct {
	Connected bool
	Repairing bool   // live batches wait for lost ones
	Late      bool   // the feed was joined after its beginning: some of what is cached is unknown
	Seq       uint64 // of the last batch that was applied
	LastAt    kv.Mono
	// Applied counts batches, one that could not be read each time that it came. Repeated are those of them
	// that came by being asked for.
	Applied, Repeated uint64
	Duplicates        uint64 // batches that came once more, and were dropped
	Gaps              uint64 // times that numbers of live batches jumped
	Repaired          uint64 // repairs that ended with nothing missing
	Unrepaired        uint64 // holes that remained, each of which cost all that was known
	UnrepairedAt      kv.Mono
	Restarts          uint64
	Malformed         uint64 // messages that are none of this protocol
	Held              int    // live batches that wait
	HeldBytes         int
}

// Check returns what is wrong with the machine's state, nil if nothing is: for tests.
func (m *Machine) Check() error {
	var errs []error
	if !m.repair.active && len(m.held) > 0 {
		errs = append(errs, fmt.Errorf("%d batches are held and nothing is repaired", len(m.held)))
	}
	if len(m.held) > m.cfg.HeldFrames || m.health.HeldBytes > m.cfg.HeldBytes {
		errs = append(errs, fmt.Errorf("%d batches of %d bytes are held", len(m.held), m.health.HeldBytes))
	}
	bytes := 0
	for i, h := range m.held {
		bytes += len(h.payload)
		if i > 0 && h.seq <= m.held[i-1].seq || m.known && h.seq <= m.next-1 && m.next > 0 {
			errs = append(errs, fmt.Errorf("batch %d is held behind another one, or was applied (next is %d)", h.seq, m.next))
		}
	}
	if bytes != m.health.HeldBytes {
		errs = append(errs, fmt.Errorf("%d bytes are held, %d are counted", bytes, m.health.HeldBytes))
	}
	return errors.Join(errs...)
}
