package disagg

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts: the specification of the machines by example. Time starts at 0 and passes with
// "wait". Commands, each with an event:
//
//	handoff start tokens=N [first=REF] [attempts=N]           blocks of 16 tokens, all limits as in testHandoff
//	handoff prefix (local | remote) [to=WORKER [pinned]]
//	handoff reserved held=N | reclaim | cancel
//	handoff pull ref=REF by=WORKER
//	handoff progress | notify | transfer-failed | queue-failed ref=REF
//	handoff prefill-failed ref=REF by=WORKER [why=incompatible]
//	job start ref=REF [budget=D] [owner=(unknown | restarted | other-build)]
//	job prompt [budget=D] | refused | computed | written | failed
//	legs start [order=both] [first=REF] [attempts=N]          of 1000 tokens
//	legs prefix (local | remote)
//	legs placed ref=REF by=WORKER [within=D]
//	legs prefill-failed ref=REF by=WORKER
//	legs prefilled ref=REF by=WORKER [gave=(handoff | answer)] [lease=D]
//	legs no-worker | first-token | decode-failed ref=REF | cancel
//	wait for=D                                                then Tick of every machine
//
// A REF is an attempt of epoch 7, or EPOCH.ATTEMPT. A WORKER is one in its epoch 1, or WORKER/EPOCH. Each event prints its
// effects, and then the state and the time until the deadline of its machine. A handoff which has ended prints why its
// attempts were given up, and what they lost. Check runs after each.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		p := &playedScript{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return p.runCommand(t, d)
		})
	})
}

// playedScript has the machines which a script has started last.
type playedScript struct {
	now     kv.Mono
	handoff *Handoff
	job     *PrefillJob
	legs    *Legs
}

// scriptMachine is what all machines have.
type scriptMachine interface {
	Tick(now kv.Mono, out []HandoffEffect) []HandoffEffect
	Deadline() (kv.Mono, bool)
	Check() error
}

func (p *playedScript) runCommand(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "wait" {
		p.now = p.now.Add(scriptTime(t, d, "for"))
		var text strings.Builder
		if p.handoff != nil {
			text.WriteString(p.show(t, d, "handoff", p.handoff, p.handoff.Tick(p.now, nil)))
		}
		if p.job != nil {
			text.WriteString(p.show(t, d, "job", p.job, p.job.Tick(p.now, nil)))
		}
		if p.legs != nil {
			text.WriteString(p.show(t, d, "legs", p.legs, p.legs.Tick(p.now, nil)))
		}
		return text.String()
	}
	event := d.CmdArgs[0].Key
	switch d.Cmd {
	case "handoff":
		out := p.stepHandoff(t, d, event)
		return p.show(t, d, "handoff", p.handoff, out)
	case "job":
		out := p.stepJob(t, d, event)
		return p.show(t, d, "job", p.job, out)
	case "legs":
		out := p.stepLegs(t, d, event)
		return p.show(t, d, "legs", p.legs, out)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

// show prints effects, and the state after them.
func (p *playedScript) show(t *testing.T, d *datadriven.TestData, name string, m scriptMachine, out []HandoffEffect) string {
	if err := m.Check(); err != nil {
		d.Fatalf(t, "%v", err)
	}
	var text strings.Builder
	for _, e := range out {
		fmt.Fprintln(&text, e)
	}
	var state fmt.Stringer
	switch m := m.(type) {
	case *Handoff:
		state = m.State()
	case *PrefillJob:
		state = m.State()
	case *Legs:
		state = m.State()
	}
	fmt.Fprintf(&text, "-- %s: %v", name, state)
	if at, ok := m.Deadline(); ok {
		fmt.Fprintf(&text, ", %v left", at.Sub(p.now))
	}
	if h, ok := m.(*Handoff); ok && h.State().IsEnd() && (len(h.GivenUp()) > 0 || h.Lost() > 0) {
		for i, why := range h.GivenUp() {
			fmt.Fprintf(&text, "; attempt %d gave up: %v", i+1, why)
		}
		fmt.Fprintf(&text, "; %v lost", h.Lost())
	}
	return text.String() + "\n"
}

func (p *playedScript) stepHandoff(t *testing.T, d *datadriven.TestData, event string) (out []HandoffEffect) {
	h := p.handoff
	switch event {
	case "start":
		cfg := testHandoff()
		d.MaybeScanArgs(t, "attempts", &cfg.MaxAttempts)
		req := HandoffRequest{First: scriptRef(t, d, "first"), BlockSize: 16}
		d.ScanArgs(t, "tokens", &req.Tokens)
		p.handoff, out = StartHandoff(p.now, cfg, req, nil)
	case "prefix":
		decision := Decision{Remote: d.HasArg("remote"), Pinned: d.HasArg("pinned")}
		if d.HasArg("to") {
			decision.To = scriptWorker(t, d, "to")
		}
		out = h.HandlePrefix(p.now, &decision, nil)
	case "reserved":
		var held int
		d.ScanArgs(t, "held", &held)
		out = h.HandleReserved(p.now, held, nil)
	case "reclaim":
		out = h.ReclaimBlocks(nil)
	case "cancel":
		out = h.CancelHandoff(nil)
	case "pull":
		out = h.HandlePull(p.now, scriptRef(t, d, "ref"), scriptWorker(t, d, "by"), nil)
	case "progress":
		h.HandleProgress(p.now, scriptRef(t, d, "ref"))
	case "notify":
		out = h.HandleNotify(scriptRef(t, d, "ref"), nil)
	case "transfer-failed":
		out = h.HandleTransferFailed(p.now, scriptRef(t, d, "ref"), nil)
	case "queue-failed":
		out = h.HandleQueueFailed(p.now, scriptRef(t, d, "ref"), nil)
	case "prefill-failed":
		why := PrefillFailed
		if d.HasArg("why") {
			why = Incompatible
		}
		out = h.HandlePrefillFailed(p.now, scriptRef(t, d, "ref"), scriptWorker(t, d, "by"), why, nil)
	default:
		d.Fatalf(t, "unknown event %s", event)
	}
	return out
}

func (p *playedScript) stepJob(t *testing.T, d *datadriven.TestData, event string) (out []HandoffEffect) {
	j := p.job
	switch event {
	case "start":
		offer := JobOffer{Ref: scriptRef(t, d, "ref"), Start: 32, End: 96, Budget: scriptTime(t, d, "budget")}
		owner := testMetadata(offer.Ref.Epoch)
		var is string
		d.MaybeScanArgs(t, "owner", &is)
		switch is {
		case "unknown":
			owner = nil
		case "restarted":
			owner.Epoch++
		case "other-build":
			owner.Numerics = "another"
		}
		p.job, out = StartJob(p.now, testJob(), offer, testMetadata(1), owner, nil)
	case "prompt":
		out = j.HandlePrompt(p.now, scriptTime(t, d, "budget"), nil)
	case "refused":
		out = j.HandleRefused(nil)
	case "computed":
		out = j.HandleComputed(nil)
	case "written":
		out = j.HandleWritten(nil)
	case "failed":
		out = j.HandleFailed(nil)
	case "stop":
		out = j.HandleStop(nil)
	default:
		d.Fatalf(t, "unknown event %s", event)
	}
	return out
}

func (p *playedScript) stepLegs(t *testing.T, d *datadriven.TestData, event string) (out []HandoffEffect) {
	l := p.legs
	switch event {
	case "start":
		cfg := testLegs(PrefillFirst)
		if d.HasArg("order") {
			cfg.Order = BothAtOnce
		}
		d.MaybeScanArgs(t, "attempts", &cfg.MaxAttempts)
		p.legs, out = StartLegs(p.now, cfg, scriptRef(t, d, "first"), 1000, nil)
	case "prefix":
		out = l.HandlePrefix(p.now, &Decision{Remote: d.HasArg("remote")}, nil)
	case "placed":
		var within time.Duration
		if d.HasArg("within") {
			within = scriptTime(t, d, "within")
		}
		out = l.HandlePrefillPlaced(p.now, scriptRef(t, d, "ref"), scriptWorker(t, d, "by"), within, nil)
	case "no-worker":
		out = l.HandleNoPrefillWorker(scriptRef(t, d, "ref"), nil)
	case "prefilled":
		gave := map[string]LegResult{"": GaveNothing, "handoff": GaveHandoff, "answer": GaveAnswer}
		var name string
		d.MaybeScanArgs(t, "gave", &name)
		out = l.HandlePrefilled(p.now, scriptRef(t, d, "ref"), scriptWorker(t, d, "by"), gave[name], scriptTime(t, d, "lease"), nil)
	case "prefill-failed":
		out = l.HandlePrefillFailed(p.now, scriptRef(t, d, "ref"), scriptWorker(t, d, "by"), nil)
	case "first-token":
		out = l.HandleFirstToken(scriptRef(t, d, "ref"), nil)
	case "decode-failed":
		out = l.HandleDecodeFailed(p.now, scriptRef(t, d, "ref"), nil)
	case "cancel":
		out = l.CancelLegs(nil)
	default:
		d.Fatalf(t, "unknown event %s", event)
	}
	return out
}

// scriptRef returns a reference; without one 7.1.
func scriptRef(t *testing.T, d *datadriven.TestData, arg string) AttemptRef {
	ref, text := AttemptRef{7, 1}, ""
	if d.MaybeScanArgs(t, arg, &text); text == "" {
		return ref
	}
	if _, err := fmt.Sscanf(text, "%d.%d", &ref.Epoch, &ref.Attempt); err == nil {
		return ref
	}
	ref.Epoch = 7
	if _, err := fmt.Sscan(text, &ref.Attempt); err != nil {
		d.Fatalf(t, "%v", err)
	}
	return ref
}

func scriptWorker(t *testing.T, d *datadriven.TestData, arg string) Incarnation {
	w, text := Incarnation{Epoch: 1}, ""
	d.ScanArgs(t, arg, &text)
	if n, _ := fmt.Sscanf(text, "%d/%d", &w.Worker.ID, &w.Epoch); n == 0 {
		d.Fatalf(t, "%q is no worker", text)
	}
	return w
}

func scriptTime(t *testing.T, d *datadriven.TestData, arg string) time.Duration {
	var text string
	if d.MaybeScanArgs(t, arg, &text); text == "" {
		return 0
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

// testHandoff, testJob and testLegs are the limits of the tests.
func testHandoff() HandoffConfig {
	return HandoffConfig{MaxAttempts: 3, LocalWait: 100 * time.Millisecond, QueueWait: time.Second, AddressedWait: 300 * time.Millisecond, Silence: 500 * time.Millisecond, Budget: 10 * time.Second}
}

func testJob() JobConfig {
	return JobConfig{ClaimWait: 200 * time.Millisecond, Heartbeat: 150 * time.Millisecond, Budget: 20 * time.Second}
}

func testLegs(order LegOrder) LegsConfig {
	return LegsConfig{Order: order, MaxAttempts: 2, LocalWait: 100 * time.Millisecond, PrefillWait: 5 * time.Second, FirstTokenWait: 3 * time.Second, Budget: 8 * time.Second}
}

// testMetadata is that of one build on one host.
func testMetadata(epoch uint64) *Metadata {
	return &Metadata{
		Epoch: epoch, Transports: []TransportAddress{{"shm", "host-a", "socket"}, {"tcp", "", "10.0.0.1:7000"}},
		BlockSize: 16, TokenBytes: 4096, Layout: "layer-head-token", Type: "bfloat16", Numerics: "n1",
	}
}
