package enginefeed

import (
	"time"

	"penstock/core/kv"
)

// MachineConfig bounds a Machine.
type MachineConfig struct {
	// Replay says whether the engine can be asked to repeat batches.
	Replay Replay
	// HeldFrames and HeldBytes bound the live batches that wait for a repair; 0 is 8192 and 64 MiB.
	HeldFrames, HeldBytes int
	// Attempt is how long a repair may go without a batch before it is tried again, Total how long
	// it may take in all; 0 is 2 s and 2 min.
	Attempt, Total time.Duration
}

// Replay says whether an engine can be asked to repeat what it published.
type Replay uint8

// Whether it can.
const (
	NoReplay Replay = iota
	HasReplay
)

// EffectKind says what a Machine wants done.
type EffectKind uint8

// The kinds of effect.
const (
	// Apply: decode Payload and apply it to the table; if it cannot be decoded, clear the table. Payload is valid until
	// the next call of the machine, or as long as the frame that came in.
	Apply EffectKind = iota + 1
	// Forget: clear the table, for Reason. What is applied after it builds anew.
	Forget
	// Ask: give up what was asked before and ask for all batches from From on, as RequestReplay says it; hand in what comes
	// with Attempt.
	Ask
	// StopAsking: what was asked for is not needed any more.
	StopAsking
	// Barrier: the point of the feed at which the snapshot of name ID was taken.
	Barrier
)

// Reason says why what was known is forgotten.
type Reason uint8

// The reasons.
const (
	Restarted  Reason = iota + 1 // the engine began anew
	Unrepaired                   // batches are lost for good
)

// String returns the reason's name.
func (r Reason) String() string {
	switch r {
	case Restarted:
		return "restarted"
	case Unrepaired:
		return "unrepaired"
	}
	return "reason?"
}

// Effect is one thing to do. Effects are done in order.
type Effect struct {
	Kind    EffectKind
	Payload []byte // Apply
	Seq     uint64 // Apply, Barrier
	From    uint64 // Ask
	Attempt uint32 // Ask
	Reason  Reason // Forget
	ID      string // Barrier
}

// Machine decides what is applied of a feed. It has one user at a time.
type Machine struct{}

// NewMachine returns the machine of a feed of which nothing was seen.
func NewMachine(cfg MachineConfig) *Machine { return &Machine{} }

// Connected says that the subscription stands: what is published from now on arrives.
func (m *Machine) Connected(now kv.Mono, out []Effect) []Effect { return out }

// Disconnected says that the subscription broke. What was asked for goes on.
func (m *Machine) Disconnected(now kv.Mono, out []Effect) []Effect { return out }

// EngineRestarted says that the engine is known, from elsewhere, to have begun anew.
func (m *Machine) EngineRestarted(now kv.Mono, out []Effect) []Effect { return out }

// Live takes the frames of a live message: topic, number, batch. The machine copies what it keeps.
func (m *Machine) Live(now kv.Mono, frames [][]byte, out []Effect) []Effect { return out }

// Replayed takes the frames of an answer to what was asked with the number attempt.
func (m *Machine) Replayed(now kv.Mono, attempt uint32, frames [][]byte, out []Effect) []Effect {
	return out
}

// ReplayFailed says that what was asked with the number attempt gets no further answer.
func (m *Machine) ReplayFailed(now kv.Mono, attempt uint32, out []Effect) []Effect { return out }

// Tick says what time it is. It is called at Deadline.
func (m *Machine) Tick(now kv.Mono, out []Effect) []Effect { return out }

// Deadline returns when Tick is due; ok is false if it is not.
func (m *Machine) Deadline() (at kv.Mono, ok bool) { return 0, false }

// Next returns the number of the next batch; ok is false if none was seen.
func (m *Machine) Next() (seq uint64, ok bool) { return 0, false }

// Health returns what the machine has seen.
func (m *Machine) Health() Health { return Health{} }

// RequestReplay returns the frames that ask for all batches from a number on.
func RequestReplay(from uint64) [][]byte { return nil }

// Health is what a Machine has seen since it was made.
type Health struct {
	Connected bool
	Repairing bool   // live batches wait for lost ones
	Late      bool   // the feed was joined after its beginning: what was cached before is unknown
	Seq       uint64 // of the last batch that was applied, if Applied is not 0
	LastAt    kv.Mono
	// Applied counts batches, Repeated those of them that came by being asked for.
	Applied, Repeated uint64
	Duplicates        uint64 // batches that came once more, and were dropped
	Gaps              uint64 // times that the numbers jumped
	Repaired          uint64 // gaps that were filled
	Unrepaired        uint64 // holes that were not, each of which cost all that was known
	UnrepairedAt      kv.Mono
	Restarts          uint64
	Malformed         uint64 // messages that are none of this protocol
	Held              int    // live batches that wait
	HeldBytes         int
}
