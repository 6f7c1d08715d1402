package health

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts. Time starts at 0 and passes only with "advance" and "run". Commands:
//
//	set                        lines: ID EPOCH [doubt]
//	heard id=N epoch=N
//	failed id=N epoch=N
//	due [limit=N]              hands out pings
//	answered ping=N epoch=N    the ping of that number
//	missed ping=N
//	advance by=DURATION
//	run for=DURATION [dead=(ID,…)]
//	    answers each ping 10 ms after it is due, but those to the dead, which are
//	    missed after 1 s; prints when each went out
//
// Every command prints what it changed, and the state of the workers.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		m, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		s := &script{m: m, pings: map[uint64]Ping{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d) + s.state()
			if err := m.Check(s.now); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m     *Monitor
	now   kv.Mono
	known []kv.WorkerID
	pings map[uint64]Ping
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	var id, epoch, number uint64
	d.MaybeScanArgs(t, "id", &id)
	d.MaybeScanArgs(t, "epoch", &epoch)
	d.MaybeScanArgs(t, "ping", &number)
	switch d.Cmd {
	case "set":
		s.set(t, d)
	case "heard":
		s.m.RecordHeard(s.now, kv.WorkerID(id), epoch)
	case "expect":
		s.m.ExpectReports(s.now, kv.WorkerID(id))
	case "failed":
		return said("quarantine begins", s.m.RecordFailedCall(s.now, kv.WorkerID(id), epoch))
	case "due":
		limit := 100
		d.MaybeScanArgs(t, "limit", &limit)
		var out strings.Builder
		for _, p := range s.m.DuePings(s.now, nil, limit) {
			s.pings[p.Number] = p
			fmt.Fprintf(&out, "ping %d to worker %d of epoch %d\n", p.Number, p.ID, p.Epoch)
		}
		return out.String()
	case "answered":
		return said("quarantine ends", s.m.RecordAnswer(s.now, s.pings[number], epoch))
	case "missed":
		return said("quarantine begins", s.m.RecordMissed(s.now, s.pings[number]))
	case "advance":
		s.now = s.now.Add(duration(t, d, "by"))
	case "run":
		return s.live(t, d)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

func said(what string, so bool) string {
	if !so {
		return ""
	}
	return what + "\n"
}

func duration(t *testing.T, d *datadriven.TestData, arg string) time.Duration {
	var s string
	d.ScanArgs(t, arg, &s)
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func (s *script) set(t *testing.T, d *datadriven.TestData) {
	var set []Worker
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		var w Worker
		if _, err := fmt.Sscan(strings.Join(f[:2], " "), &w.ID, &w.Epoch); err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.Confirmed = len(f) < 3
		set = append(set, w)
		if !slices.Contains(s.known, w.ID) {
			s.known = append(s.known, w.ID)
		}
	}
	slices.Sort(s.known)
	s.m.SetWorkers(s.now, set)
}

// answer is the end of an outstanding ping.
type answer struct {
	at   kv.Mono
	ping Ping
	dead bool
}

// live lets time pass over workers, some of which answer.
func (s *script) live(t *testing.T, d *datadriven.TestData) string {
	var dead []string
	for _, a := range d.CmdArgs {
		if a.Key == "dead" {
			dead = a.Vals
		}
	}
	end := s.now.Add(duration(t, d, "for"))
	var out strings.Builder
	var answers []answer
	for {
		next, ok := s.m.Deadline()
		if len(answers) > 0 && (!ok || answers[0].at <= next) {
			a := answers[0]
			if a.at > end {
				break
			}
			answers, s.now = answers[1:], a.at
			if a.dead {
				s.m.RecordMissed(s.now, a.ping)
			} else {
				s.m.RecordAnswer(s.now, a.ping, a.ping.Epoch)
			}
			continue
		}
		if !ok || next > end {
			break
		}
		s.now = max(s.now, next)
		for _, p := range s.m.DuePings(s.now, nil, 100) {
			a := answer{s.now.Add(10 * time.Millisecond), p, slices.Contains(dead, fmt.Sprint(p.ID))}
			if a.dead {
				a.at = s.now.Add(time.Second)
			}
			fmt.Fprintf(&out, "%v: ping to %d\n", at(s.now), p.ID)
			answers = append(answers, a)
		}
		slices.SortStableFunc(answers, func(a, b answer) int { return int(a.at - b.at) })
	}
	s.now = end
	return out.String()
}

func at(m kv.Mono) time.Duration { return time.Duration(m).Round(time.Millisecond) }

func (s *script) state() string {
	out := fmt.Sprintf("at %v", at(s.now))
	for _, id := range s.known {
		st, ok := s.m.StatusOf(id)
		switch {
		case !ok:
			continue
		case st.Quarantined:
			out += fmt.Sprintf("; %d in quarantine for %v, %v", id, at(s.now)-at(st.Since), st.Cause)
		default:
			out += fmt.Sprintf("; %d answers", id)
		}
	}
	if next, ok := s.m.Deadline(); ok {
		out += fmt.Sprintf("; next ping in %v", at(next)-at(s.now))
	}
	return out + "\n"
}
