package migrate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/fault"
	"penstock/core/kv"
)

// TestScripts runs the golden scripts. Time starts at 0 with each task and passes as the steps require, and
// with "advance". Commands:
//
//	new [limit=N] [attempts=N] [wait=D] [first-wait=D] [pinned]
//	lives                  lines: WORKER EPOCH, of registered workers
//	next
//	news                   then next
//	advance by=D
//	no-worker [code=CODE]
//	failed worker=N [epoch=N] [tokens=N] [code=CODE] [words=TEXT]
//	    goes on with "next" behind a pause
//	alone for=D
//	    waits, asks and is told that there is no worker, until it is given up
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{m: New(Config{}, 1), lives: map[kv.WorkerID]uint64{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			if err := s.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m     *Planner
	now   kv.Mono
	lives map[kv.WorkerID]uint64
}

func (s *script) life(id kv.WorkerID) (uint64, bool) {
	epoch, known := s.lives[id]
	return epoch, known
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		c := Config{MaxWait: duration(t, d, "wait"), FirstWait: duration(t, d, "first-wait"), Pinned: d.HasArg("pinned")}
		d.MaybeScanArgs(t, "limit", &c.MaxFailures)
		d.MaybeScanArgs(t, "attempts", &c.MaxAttempts)
		s.m, s.now = New(c, 1), 0
		return s.step(s.m.Next(s.now, s.life))
	case "lives":
		clear(s.lives)
		for line := range strings.Lines(d.Input) {
			var id kv.WorkerID
			var epoch uint64
			if _, err := fmt.Sscan(line, &id, &epoch); err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.lives[id] = epoch
		}
		return ""
	case "next":
		return s.step(s.m.Next(s.now, s.life))
	case "news":
		s.m.WorkersChanged()
		return s.step(s.m.Next(s.now, s.life))
	case "advance":
		s.now = s.now.Add(duration(t, d, "by"))
		return ""
	case "no-worker":
		return s.step(s.m.HandleNoWorker(s.now, code(t, d)))
	case "failed":
		f := Failure{Code: code(t, d)}
		d.ScanArgs(t, "worker", &f.Worker)
		d.MaybeScanArgs(t, "epoch", &f.Epoch)
		d.MaybeScanArgs(t, "tokens", &f.Tokens)
		d.MaybeScanArgs(t, "words", &f.Message)
		return s.step(s.m.HandleFailure(s.now, f))
	case "alone":
		return s.alone(t, d)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

// step prints a step, and executes it as far as possible.
func (s *script) step(step Step) string {
	out := fmt.Sprintf("%v: %v\n", time.Duration(s.now), step)
	if step.Action == Pause {
		s.now = s.now.Add(step.Wait)
		out += s.step(s.m.Next(s.now, s.life))
	}
	return out
}

// alone simulates a router without workers.
func (s *script) alone(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	end := s.now.Add(duration(t, d, "for"))
	for {
		step := s.m.HandleNoWorker(s.now, code(t, d))
		out.WriteString(s.step(step))
		switch {
		case step.Action == GiveUp || s.now >= end:
			return out.String()
		case step.Action == Await:
			s.now = s.now.Add(step.Wait)
			s.m.Next(s.now, s.life)
		}
	}
}

func duration(t *testing.T, d *datadriven.TestData, arg string) time.Duration {
	var s string
	if d.MaybeScanArgs(t, arg, &s); s == "" {
		return 0
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

// code returns the code argument; the default is unavailable.
func code(t *testing.T, d *datadriven.TestData) fault.Code {
	name := fault.Unavailable.String()
	d.MaybeScanArgs(t, "code", &name)
	all := []fault.Code{fault.Internal, fault.NotFound, fault.Limited, fault.Overloaded, fault.Unavailable, fault.Deadline, fault.Draining, fault.Ineligible, fault.EngineError, fault.MediaFailed, fault.TransferFailed, fault.PoolLost}
	at := slices.IndexFunc(all, func(c fault.Code) bool { return c.String() == name })
	if at < 0 {
		d.Fatalf(t, "unknown code %s", name)
	}
	return all[at]
}
