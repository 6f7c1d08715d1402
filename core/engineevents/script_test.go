package engineevents

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts of the machine. "machine [replay] [held=N]" creates one, "health"
// prints its health, and the lines of "do" are
//
//	connect, disconnect, restart       restart: the engine is known to have restarted
//	live N TEXT [life=X] [epoch=X] [barrier=X]
//	                                   a TEXT which starts with "bad" cannot be read
//	again N TEXT                       an answer to the last question; TEXT "-" is an empty batch
//	old N TEXT                         an answer to the question before
//	end, fail
//	wait DURATION                      advances the clock, and keeps every deadline
//
// After each line come the machine's effects.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "machine":
				cfg := MachineConfig{}
				if d.HasArg("replay") {
					cfg.Replay = HasReplay
				}
				d.MaybeScanArgs(t, "held", &cfg.HeldFrames)
				s = script{m: NewMachine(cfg), now: -1_000_000_000_000}
				return ""
			case "health":
				h := s.m.Health()
				return fmt.Sprintf("connected=%v repairing=%v late=%v seq=%d applied=%d repeated=%d duplicates=%d gaps=%d repaired=%d unrepaired=%d restarts=%d malformed=%d held=%d\n",
					h.Connected, h.Repairing, h.Late, h.Seq, h.Applied, h.Repeated, h.Duplicates, h.Gaps, h.Repaired, h.Unrepaired, h.Restarts, h.Malformed, h.Held)
			case "do":
				var out strings.Builder
				for line := range strings.Lines(d.Input) {
					line = strings.TrimSpace(line)
					fmt.Fprintf(&out, "%s:%s\n", line, s.line(t, strings.Fields(line)))
				}
				return out.String()
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

type script struct {
	m       *Machine
	now     kv.Mono
	attempt uint32
}

func (s *script) line(t *testing.T, f []string) string {
	if f[0] == "wait" {
		return s.wait(t, f[1])
	}
	var out []Effect
	switch f[0] {
	case "connect":
		out = s.m.Connected(s.now, nil)
	case "disconnect":
		out = s.m.Disconnected(s.now, nil)
	case "live":
		out = s.m.HandleLive(s.now, scriptFrames(t, f[1:]), nil)
	case "again":
		out = s.m.HandleReplay(s.now, s.attempt, append([][]byte{nil}, scriptFrames(t, f[1:])...), nil)
	case "old":
		out = s.m.HandleReplay(s.now, s.attempt-1, append([][]byte{nil}, scriptFrames(t, f[1:])...), nil)
	case "end":
		out = s.m.HandleReplay(s.now, s.attempt, [][]byte{nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil}, nil)
	case "fail":
		out = s.m.ReplayFailed(s.now, s.attempt, nil)
	default:
		t.Fatalf("unknown line %q", f)
	}
	return s.print(t, out)
}

// wait keeps every deadline up to the given time.
func (s *script) wait(t *testing.T, text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	begin, end, out := s.now, s.now.Add(d), ""
	for {
		at, ok := s.m.Deadline()
		if !ok || at > end {
			s.now = end
			return out
		}
		s.now = max(s.now, at)
		if said := s.print(t, s.m.Tick(s.now, nil)); said != "" {
			out += fmt.Sprintf("\n  after %v%s", s.now.Sub(begin), said)
		}
	}
}

func (s *script) print(t *testing.T, effects []Effect) string {
	var out strings.Builder
	for i, e := range effects {
		switch e.Kind {
		case Apply:
			text := strings.TrimSpace(string(e.Payload))
			if !strings.HasPrefix(text, "bad") {
				fmt.Fprintf(&out, " apply(%d %s)", e.Seq, text)
				continue
			}
			instead, again := s.m.ReportUnreadable(s.now, &e, nil)
			fmt.Fprintf(&out, " unreadable(%d)%s", e.Seq, s.print(t, instead))
			if again {
				fmt.Fprintf(&out, " void(%d)", len(effects[i+1:]))
				return out.String()
			}
		case Forget:
			fmt.Fprintf(&out, " forget(%v)", e.Reason)
		case Ask:
			s.attempt = e.Attempt
			fmt.Fprintf(&out, " ask(%d)", e.From)
		case Barrier:
			fmt.Fprintf(&out, " barrier(%d %s)", e.Seq, e.ID)
		default:
			fmt.Fprintf(&out, " %v", e.Kind)
		}
	}
	if err := s.m.Check(); err != nil {
		t.Error(err)
	}
	return out.String()
}

// scriptFrames returns the frames of a batch. The text is padded to the length of a batch with events; "~"
// is a batch without.
func scriptFrames(t *testing.T, f []string) [][]byte {
	var n uint64
	if _, err := fmt.Sscan(f[0], &n); err != nil {
		t.Fatal(err)
	}
	topic, number := "kv@pod", binary.BigEndian.AppendUint64(nil, n)
	for _, opt := range f[2:] {
		switch name, value, _ := strings.Cut(opt, "="); name {
		case "life":
			number = append(number, fmt.Sprintf("%-16s", value)...)
		case "epoch":
			topic += "\x00" + epochPrefix + value
		case "barrier":
			topic += "\x00" + barrierPrefix + value
		default:
			t.Fatalf("unknown option %q", opt)
		}
	}
	payload := []byte(fmt.Sprintf("%-24s", f[1]))
	if f[1] == "~" {
		payload = []byte("~")
	}
	return [][]byte{[]byte(topic), number, payload}
}
