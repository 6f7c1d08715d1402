package stall

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts. Time begins at 1 h with each machine and passes with "advance" and
// "run". Commands:
//
//	new [limit=D] [idle=D] [patience=D]
//	learn [gap=D | first=D [computed=N]] [n=N]
//	limits [prompt=N]
//	signs [calls=N] [prompt=N] [running=N] [waiting=N] [tells=BOOL] [remote=BOOL]
//	    changes what is said from now on
//	does [token] [work] [heard] [asked] [idle] [preempted]
//	    what happens now; "heard" ends a question to the engine, "asked" begins one
//	advance by=D
//	look
//	timeout                    of a question that is asked now
//	answered [took=D] | failed
//	unanswered [after=D] [heard]   the question was asked now, and D (3s) pass; the adapter had an answer meanwhile
//	stalled since=D [begun] [encoding] [prompt=N]   since so long ago
//	run for=D [tokens=D] [works=D] [hears=D] [asks=(answered|failed|unanswered)]
//	    looks every second, with a token, a change of the account, and an answer to the adapter at these
//	    intervals; prints what comes of it
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = &script{m: New(Config{Limit: duration(t, d, "limit", 0), Idle: duration(t, d, "idle", 0), Patience: duration(t, d, "patience", 0)}), now: kv.Mono(time.Hour)}
				s.signs.LastToken, s.signs.LastHeard = s.now, s.now
				s.m.Observe(s.now, s.signs)
				return ""
			}
			out := s.do(t, d)
			if err := s.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m     *Detector
	now   kv.Mono
	signs Signs
}

func (s *script) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "learn":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		computed := 0
		d.MaybeScanArgs(t, "computed", &computed)
		for range n {
			if d.HasArg("gap") {
				s.m.RecordGap(duration(t, d, "gap", 0), 1)
			} else {
				s.m.RecordFirst(duration(t, d, "first", 0), computed)
			}
		}
		return ""
	case "limits":
		prompt := 0
		d.MaybeScanArgs(t, "prompt", &prompt)
		return fmt.Sprintf("between tokens %v, before the first of %d %v\n", s.m.GapLimit(), prompt, s.m.FirstLimit(prompt))
	case "signs":
		d.MaybeScanArgs(t, "calls", &s.signs.Calls)
		d.MaybeScanArgs(t, "prompt", &s.signs.Prompt)
		d.MaybeScanArgs(t, "running", &s.signs.Running)
		d.MaybeScanArgs(t, "waiting", &s.signs.Waiting)
		d.MaybeScanArgs(t, "tells", &s.signs.HasQueue)
		d.MaybeScanArgs(t, "remote", &s.signs.Remote)
		return ""
	case "does":
		s.does(d)
		return ""
	case "advance":
		s.now = s.now.Add(duration(t, d, "by", 0))
		return ""
	case "look":
		return s.said(s.m.Observe(s.now, s.signs))
	case "timeout":
		return fmt.Sprintln(s.m.ProbeTimeout(s.now))
	case "answered", "failed", "unanswered":
		if d.HasArg("took") {
			s.m.RecordProbe(duration(t, d, "took", 0))
		}
		return s.end(d.Cmd, duration(t, d, "after", 3*time.Second), d.HasArg("heard"))
	case "stalled":
		st := StreamState{Since: s.now.Add(-duration(t, d, "since", 0)), Started: d.HasArg("begun"), Encoding: d.HasArg("encoding"), HasMedia: d.HasArg("media")}
		d.MaybeScanArgs(t, "prompt", &st.Prompt)
		return fmt.Sprintln(s.m.IsStalled(s.now, st))
	case "run":
		return s.live(t, d)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (s *script) does(d *datadriven.TestData) {
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "token":
			s.signs.LastToken, s.signs.LastHeard = s.now, s.now
		case "work":
			s.signs.Work++
		case "heard":
			s.signs.LastHeard, s.signs.AskedSince = s.now, 0
		case "asked":
			s.signs.AskedSince = s.now
		case "preempted":
			s.signs.Preempted++
		}
	}
}

func (s *script) said(ask bool) string {
	out := "-"
	if ask {
		out = "ask"
	}
	if s.m.IsBroken() {
		out += ", broken"
	}
	return out + "\n"
}

// end ends a probe which is sent now.
func (s *script) end(how string, after time.Duration, heard bool) string {
	asked := s.now
	switch how {
	case "answered":
		s.signs.LastToken, s.signs.LastHeard = s.now, s.now
		s.m.RecordAnswer(asked)
	case "failed":
		s.m.RecordError()
	default:
		s.now = s.now.Add(after)
		if heard {
			s.signs.LastHeard = s.now
		}
		s.m.RecordUnanswered(s.now, asked, s.signs)
	}
	return s.said(false)
}

func (s *script) live(t *testing.T, d *datadriven.TestData) string {
	began, end := s.now, s.now.Add(duration(t, d, "for", 0))
	tokens, works, hears := duration(t, d, "tokens", 0), duration(t, d, "works", 0), duration(t, d, "hears", 0)
	how := "answered"
	d.MaybeScanArgs(t, "asks", &how)
	var out strings.Builder
	due := func(every time.Duration) bool { return every > 0 && s.now.Sub(began)%every == 0 }
	for s.now < end {
		s.now = s.now.Add(time.Second)
		if due(tokens) {
			s.signs.LastToken, s.signs.LastHeard = s.now, s.now
		}
		if due(works) {
			s.signs.Work++
		}
		if due(hears) {
			s.signs.LastHeard, s.signs.AskedSince = s.now, 0
		} else if s.signs.Remote && hears == 0 && s.now.Sub(s.signs.AskedSince) > 5*time.Second { // the last one is given up
			s.signs.AskedSince = s.now
		}
		was := s.m.IsBroken()
		if s.m.Observe(s.now, s.signs) {
			fmt.Fprintf(&out, "%v: asked, %s", s.now.Sub(began), how)
			out.WriteString(strings.TrimPrefix(s.end(how, 3*time.Second, false), "-"))
		} else if was != s.m.IsBroken() {
			fmt.Fprintf(&out, "%v: %s", s.now.Sub(began), s.said(false))
		}
	}
	return out.String()
}

func duration(t *testing.T, d *datadriven.TestData, arg string, otherwise time.Duration) time.Duration {
	var s string
	if d.MaybeScanArgs(t, arg, &s); s == "" {
		return otherwise
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
