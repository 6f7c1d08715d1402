package engineevents

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
)

// publisherSim simulates a publisher and the connection to the machine: frames are lost, repeated or reordered, the
// engine restarts, the subscription breaks, answers are slow, truncated, wrong or missing.
type publisherSim struct {
	*rand.Rand
	t       *testing.T
	m       *Machine
	now     kv.Mono
	framing int // of answers: 0 old, 1 new, 2 with the publisher's id
	ids     bool
	lies    bool
	garbles bool
	again   int

	life    int
	seq     uint64
	kept    [][]byte // payloads, the last ones of this epoch
	most    int
	up      bool
	delayed [][][]byte

	asked    bool
	attempt  uint32
	answers  [][][]byte // in flight
	answerAt kv.Mono

	// What was applied since the last Forget.
	fresh   bool
	lastSeq uint64
	lastOf  int
	applied int
	forgets map[ForgetReason]int
	log     []string
}

func (w *publisherSim) payload() []byte {
	return fmt.Appendf(nil, "life %6d batch %8d of some length", w.life, w.seq)
}

func (w *publisherSim) id() []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 8), uint64(w.life))
}

func (w *publisherSim) frames(seq uint64, payload []byte) [][]byte {
	number := binary.BigEndian.AppendUint64(nil, seq)
	if w.ids {
		number = append(number, w.id()...)
	}
	return [][]byte{[]byte("kv@pod"), number, payload}
}

func (w *publisherSim) publish() {
	p := w.payload()
	f := w.frames(w.seq, p)
	w.seq++
	w.kept = append(w.kept, p)
	if len(w.kept) > w.most {
		w.kept = w.kept[1:]
	}
	if !w.up {
		return
	}
	switch w.IntN(25) {
	case 0: // lost
	case 1:
		w.live(f)
		w.live(f)
	case 2:
		w.delayed = append(w.delayed, f)
	default:
		w.live(f)
	}
	if len(w.delayed) > 0 && w.IntN(3) == 0 {
		w.live(w.delayed[0])
		w.delayed = w.delayed[1:]
	}
}

func (w *publisherSim) live(f [][]byte) {
	w.log = append(w.log, fmt.Sprintf("live %q", f))
	w.do(w.m.HandleLive(w.now, f, nil))
}

// restart starts a new epoch, which takes a while. If a proxy hides the restart, the machine sees only the
// first batch.
func (w *publisherSim) restart() {
	hidden := w.up && w.IntN(3) == 0
	if w.up && !hidden {
		w.do(w.m.Disconnected(w.now, nil))
	}
	w.log = append(w.log, "restart")
	w.life++
	w.seq, w.kept, w.delayed = 0, nil, nil
	w.answers = nil
	w.now = w.now.Add(6 * time.Second)
	w.tick()
	switch {
	case hidden:
		p := w.payload()
		f := w.frames(w.seq, p)
		w.seq++
		w.kept = append(w.kept, p)
		w.live(f)
	case w.up:
		w.do(w.m.Connected(w.now, nil))
	}
}

// answer prepares the engine's answer.
func (w *publisherSim) answer(from uint64) {
	w.answers, w.answerAt = nil, w.now
	switch w.IntN(12) {
	case 0: // nothing ever comes
		return
	case 1:
		w.answerAt = w.now.Add(5 * time.Second)
	}
	oldest := w.seq - uint64(len(w.kept))
	for i, p := range w.kept {
		seq := oldest + uint64(i)
		if seq < from {
			continue
		}
		if w.lies && w.IntN(10) == 0 {
			switch w.IntN(4) {
			case 0:
				continue
			case 1:
				seq += uint64(w.IntN(3))
			case 2:
				w.answers = append(w.answers, w.reply(seq, p))
			case 3:
				w.answers = append(w.answers, [][]byte{nil, []byte("x")})
			}
		}
		w.answers = append(w.answers, w.reply(seq, p))
	}
	if w.IntN(10) > 0 {
		end := [][]byte{nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil}
		if w.framing > 0 {
			end = slices.Insert(end, 1, []byte(nil))
		}
		w.answers = append(w.answers, end)
	}
}

func (w *publisherSim) reply(seq uint64, p []byte) [][]byte {
	f := w.frames(seq, p)
	switch w.framing {
	case 0:
		return [][]byte{nil, f[1], p}
	}
	return [][]byte{nil, f[0], f[1], p}
}

// do performs effects, and checks their contract.
func (w *publisherSim) do(effects []Effect) {
	for _, e := range effects {
		w.log = append(w.log, fmt.Sprintf("%v %d %d %v", e.Kind, e.Seq, e.From, e.Reason))
		switch e.Kind {
		case Apply:
			if w.garbles && w.IntN(100) == 0 {
				instead, again := w.m.ReportUnreadable(w.now, &e, nil)
				w.do(instead)
				if again {
					w.again++
					return
				}
				continue
			}
			var life int
			var seq uint64
			if _, err := fmt.Sscanf(string(e.Payload), "life %d batch %d", &life, &seq); err != nil {
				w.fail("%q is applied", e.Payload)
			}
			if !w.lies && seq != e.Seq {
				w.fail("batch %d is applied as %d", seq, e.Seq)
			}
			if !w.fresh && (e.Seq != w.lastSeq+1 || !w.lies && life != w.lastOf) {
				w.fail("batch %d of life %d is applied behind %d of life %d", e.Seq, life, w.lastSeq, w.lastOf)
			}
			w.fresh, w.lastSeq, w.lastOf = false, e.Seq, life
			w.applied++
		case Forget:
			w.fresh = true
			w.forgets[e.Reason]++
		case Ask:
			w.asked, w.attempt = true, e.Attempt
			w.answer(e.From)
		case StopAsking:
			w.asked, w.answers = false, nil
		}
	}
	if err := w.m.Check(); err != nil {
		w.fail("%v", err)
	}
}

func (w *publisherSim) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\n%s", append(args, strings.Join(w.log[max(0, len(w.log)-30):], "\n"))...)
}

// step performs a random action.
func (w *publisherSim) step() {
	switch k := w.IntN(1000); {
	case k < 3:
		w.restart()
	case k < 8:
		w.up = !w.up
		if w.up {
			w.do(w.m.Connected(w.now, nil))
		} else {
			w.do(w.m.Disconnected(w.now, nil))
		}
	case k < 10 && w.asked:
		w.do(w.m.ReplayFailed(w.now, w.attempt, nil))
	case k < 12:
		w.live([][]byte{[]byte("x")})
	case k < 600:
		w.publish()
	case k < 900 && len(w.answers) > 0 && w.now >= w.answerAt:
		f := w.answers[0]
		w.answers = w.answers[1:]
		w.log = append(w.log, fmt.Sprintf("replayed %q", f))
		w.do(w.m.HandleReplay(w.now, w.attempt, f, nil))
	case k < 905:
		w.do(w.m.HandleReplay(w.now, w.attempt-1, w.reply(3, w.payload()), nil)) // to an older Ask
	default:
		w.now = w.now.Add(time.Duration(w.IntN(300)) * time.Millisecond)
	}
	w.tick()
}

func (w *publisherSim) tick() {
	for range 100 {
		at, ok := w.m.Deadline()
		if !ok || at > w.now {
			return
		}
		w.do(w.m.Tick(w.now, nil))
	}
	w.fail("a deadline does not pass")
}

// settle lets a healthy publisher and its answers continue until nothing is pending.
func (w *publisherSim) settle() {
	w.lies, w.garbles = false, false
	if !w.up {
		w.up = true
		w.do(w.m.Connected(w.now, nil))
	}
	w.delayed = nil
	for range 400 {
		p := w.payload()
		f := w.frames(w.seq, p)
		w.seq++
		w.kept = append(w.kept, p)
		w.live(f)
		for len(w.answers) > 0 {
			f := w.answers[0]
			w.answers = w.answers[1:]
			w.do(w.m.HandleReplay(w.now, w.attempt, f, nil))
		}
		w.now = w.now.Add(500 * time.Millisecond)
		w.tick()
	}
	if h := w.m.Health(); h.Repairing || w.lastSeq != w.seq-1 || w.lastOf != w.life {
		w.fail("at the end batch %d of life %d was applied last, published was %d of %d: %+v", w.lastSeq, w.lastOf, w.seq-1, w.life, h)
	}
}

// TestMachineAppliesInOrder: whatever happens to the frames, the batches applied since the last Forget are
// one unbroken run of one epoch, and once the connection is healthy again the machine is up to date.
func TestMachineAppliesInOrder(t *testing.T) {
	applied, again, forgets, repaired, repeated := 0, 0, map[ForgetReason]int{}, uint64(0), uint64(0)
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 21))
		replay := ReplaySupport(min(1, rng.IntN(5)))
		cfg := MachineConfig{Replay: replay}
		if rng.IntN(3) == 0 {
			cfg.HeldFrames, cfg.HeldBytes = 5, 300
		}
		w := &publisherSim{Rand: rng, t: t, m: NewMachine(cfg), framing: rng.IntN(2), ids: rng.IntN(3) == 0, lies: rng.IntN(4) == 0, garbles: rng.IntN(3) == 0, most: 1 + rng.IntN(200), fresh: true, forgets: forgets, life: 1}
		if rng.IntN(2) == 0 {
			w.seq = uint64(rng.IntN(50)) // joined late
			for i := range w.seq {
				w.kept = append(w.kept, fmt.Appendf(nil, "life %6d batch %8d of some length", w.life, i))
			}
			w.kept = w.kept[max(0, len(w.kept)-w.most):]
		}
		w.up = true
		w.do(w.m.Connected(w.now, nil))
		for range 1500 {
			w.step()
		}
		w.settle()
		applied += w.applied
		again += w.again
		h := w.m.Health()
		repaired += h.Repaired
		repeated += h.Repeated
	}
	if applied < 10_000 || forgets[Restarted] < 100 || forgets[Unrepaired] < 100 || forgets[Garbled] < 100 || again < 100 || repaired < 100 || repeated < 1000 {
		t.Errorf("%d applied, %v forgotten, %d repaired, %d repeated, %d unreadable asked again: too little happened", applied, forgets, repaired, repeated, again)
	}
}
