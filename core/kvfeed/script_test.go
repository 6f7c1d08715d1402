package kvfeed

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts. Each command has a time after the start:
//
//	accept at=DURATION      one record per line: W EPOCH FIRST EVENTS, where EVENTS
//	                        are letters (C cleared, S stored, R removed) or -
//	expect at=DURATION      lines: W EPOCH
//	suspect at=DURATION     lines: W
//	disown at=DURATION      lines: W NEXT
//	compare at=DURATION     lines: W EPOCH NEXT[/ATTEMPTED] SAID, where SAID is a duration
//	due at=DURATION         gives up and asks
//	next at=DURATION
//	reload at=DURATION      goes on from a snapshot
//	forget                  lines: W
//	hold, release
//	health
//
// A worker is ID or ID.RANK.
func TestScripts(t *testing.T) {
	// The zero of time is arbitrary, and time may be negative.
	const start = kv.Mono(-1_000_000_000_000)
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		tr := mustTracker(t, Config{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var at time.Duration
			if d.HasArg("at") {
				var s string
				d.ScanArgs(t, "at", &s)
				var err error
				if at, err = time.ParseDuration(s); err != nil {
					d.Fatalf(t, "%v", err)
				}
			}
			out := runCommand(t, tr, d, start, start.Add(at))
			if err := tr.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

func runCommand(t *testing.T, tr *Tracker, d *datadriven.TestData, start, now kv.Mono) string {
	var out strings.Builder
	for line := range strings.Lines(d.Input) {
		line = strings.TrimSpace(line)
		f := strings.Fields(line)
		fmt.Fprintf(&out, "%s: ", line)
		switch w := parseWorker(t, f[0]); d.Cmd {
		case "accept":
			r := &Record{Worker: w, Epoch: parseUint(t, f[1]), First: parseUint(t, f[2]), Events: parseEvents(t, f[3])}
			fmt.Fprintln(&out, verdict(tr.AcceptRecord(now, r)))
		case "expect":
			fmt.Fprintln(&out, verdict(tr.ExpectWorker(now, w, parseUint(t, f[1]))))
		case "suspect":
			fmt.Fprintln(&out, verdict(tr.SuspectLoss(now, w)))
		case "disown":
			v := tr.RejectForeign(now, w, parseUint(t, f[1]))
			fmt.Fprintln(&out, verdict(v))
		case "compare":
			said, err := time.ParseDuration(f[3])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			next, attempted, _ := strings.Cut(f[2], "/")
			claim := PublishReport{Epoch: parseUint(t, f[1]), Next: parseUint(t, next), At: start.Add(said)}
			if attempted != "" {
				claim.Attempted = parseUint(t, attempted)
			}
			finding, v := tr.CompareReport(now, w, claim)
			fmt.Fprintln(&out, [...]string{"agrees", "end lost: " + verdict(v), "foreign: " + verdict(v)}[finding])
		case "forget":
			fmt.Fprintln(&out, tr.RemoveWorker(w))
		}
	}
	switch d.Cmd {
	case "due": // in the caller's order
		for _, w := range tr.GiveUpRepairs(now, nil) {
			fmt.Fprintf(&out, "%d.%d: drop\n", w.ID, w.Rank)
		}
		for _, q := range tr.DueRequests(now, nil) {
			fmt.Fprintf(&out, "%d.%d: %s\n", q.Worker.ID, q.Worker.Rank, request(q))
		}
		if out.Len() == 0 {
			out.WriteString("nothing\n")
		}
	case "hold":
		tr.HoldRequests()
	case "release":
		tr.ReleaseRequests()
	case "reload":
		loaded := mustTracker(t, tr.cfg)
		if err := loaded.LoadSnapshot(now, tr.AppendSnapshot(nil)); err != nil {
			d.Fatalf(t, "%v", err)
		}
		*tr = *loaded
	case "next":
		if at, ok := tr.Deadline(); ok {
			fmt.Fprintf(&out, "in %v\n", at.Sub(now))
		} else {
			fmt.Fprintln(&out, "never")
		}
	case "health":
		for _, h := range tr.AppendHealth(nil) {
			one, ok := tr.HealthOf(h.Worker)
			if !ok || one != h {
				d.Fatalf(t, "Health(%v) is %+v, AppendHealth says %+v", h.Worker, one, h)
			}
			fmt.Fprintf(&out, "%d.%d epoch=%d %s last=%d applied=%d gaps=%d repaired=%d described=%d duplicates=%d ignored=%d stale=%d resyncs=%d",
				h.Worker.ID, h.Worker.Rank, h.Epoch, h.State, h.LastSeq, h.Applied, h.Gaps, h.Repaired, h.Described, h.Duplicates, h.Ignored, h.Stale, h.Resyncs)
			if h.Missing > 0 {
				fmt.Fprintf(&out, " missing=%d", h.Missing)
			}
			if h.GivenUp > 0 {
				fmt.Fprintf(&out, " given-up=%d", h.GivenUp)
			}
			if h.Applied > 0 {
				fmt.Fprintf(&out, " at=%v", h.LastEvent.Sub(start))
			}
			if h.Lagging {
				fmt.Fprintf(&out, " behind=%v", h.Behind.Sub(start))
			}
			out.WriteString("\n")
		}
	}
	return out.String()
}

func verdict(v FeedVerdict) string {
	if v == (FeedVerdict{}) {
		return "nothing"
	}
	s := v.Outcome.String()
	if v.Outcome == 0 {
		s = "expected"
	}
	if v.Outcome == Apply {
		s += fmt.Sprintf(" skip=%d", v.Skip)
	}
	if v.Drop {
		s += " drop"
	}
	if v.Hide {
		s += " hide"
	}
	if v.Lost {
		s += " lost"
	}
	if v.Partial {
		s += " partial"
	}
	if v.Show {
		s += " show"
	}
	if v.Resync {
		s += " resync " + request(v.Request)
	}
	return s
}

func request(q ResyncRequest) string {
	if q.From == 0 {
		return "all"
	}
	return fmt.Sprintf("%d from %d", q.Epoch, q.From)
}

func mustTracker(t testing.TB, cfg Config) *Tracker {
	t.Helper()
	tr, err := NewTracker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func parseUint(t *testing.T, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parseWorker(t *testing.T, s string) kv.Worker {
	id, rank, ok := strings.Cut(s, ".")
	w := kv.Worker{ID: kv.WorkerID(parseUint(t, id))}
	if ok {
		w.Rank = uint32(parseUint(t, rank))
	}
	return w
}

func parseEvents(t *testing.T, s string) []kv.Event {
	if s == "-" {
		return nil
	}
	kinds := map[rune]kv.EventKind{'C': kv.Cleared, 'S': kv.Stored, 'R': kv.Removed}
	var out []kv.Event
	for _, c := range s {
		if kinds[c] == 0 {
			t.Fatalf("unknown event %q", c)
		}
		out = append(out, kv.Event{Kind: kinds[c]})
	}
	return out
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{
		{MinBackoff: -1},
		{MinBackoff: time.Minute},
		{MinBackoff: 2, MaxBackoff: 1},
		{MaxRequests: -1},
		{RepairTimeout: -1},
		{StuckAfter: -1},
	} {
		if _, err := NewTracker(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	cfg := Config{MinBackoff: -1, MaxBackoff: -2, MaxRequests: 1}
	if err := cfg.Validate(); strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not every problem is reported: %v", err)
	}
}

func TestNames(t *testing.T) {
	if Gap.String() != "gap" || Outcome(99).String() != "outcome?" || Live.String() != "live" || Resyncing.String() != "resync" || Repairing.String() != "repairing" {
		t.Error("a name changed")
	}
}

func TestAcceptAllocatesNothing(t *testing.T) {
	tr := mustTracker(t, Config{})
	r := &Record{Worker: kv.Worker{ID: 1}, First: 1, Events: []kv.Event{{Kind: kv.Cleared}, {Kind: kv.Stored}}}
	if allocs := testing.AllocsPerRun(100, func() {
		tr.AcceptRecord(0, r)
		r.First += 2
	}); allocs != 0 {
		t.Errorf("%v allocations per record, want 0", allocs)
	}
}
