package activeseq

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/fault"
	"penstock/core/kv"
)

// chain returns the SeqHash of every prefix of a path such as a/b/c, whose names are single letters.
func chain(path string) []kv.SeqHash {
	var out []kv.SeqHash
	var seq kv.SeqHash
	for i, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(name[0]))
		out = append(out, seq)
	}
	return out
}

func mustNew(t testing.TB, cfg Config) *ReservationTable {
	t.Helper()
	table, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestScripts runs the golden scripts. Blocks have 4 tokens by default. Commands:
//
//	new [block-size=N] [ttl=DURATION]
//	reserve id=ID[.ATTEMPT] w=W [chain=PATH] [tokens=N] [overlap=N] [expect=N] [lasts=DURATION] [at=DURATION]
//	project w=W [chain=PATH] [tokens=N] [overlap=N]
//	prefilled id=ID, free id=ID, grow id=ID n=N, renew id=ID at=DURATION
//	drop w=W
//	expire at=DURATION, advance at=DURATION
//
// The default of tokens is the tokens of the chain. Each command prints the nonzero loads of workers 1 to 3.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		table := mustNew(t, Config{BlockSize: 4})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				cfg := Config{BlockSize: 4}
				d.MaybeScanArgs(t, "block-size", &cfg.BlockSize)
				cfg.TTL = duration(t, d, "ttl")
				table = mustNew(t, cfg)
				return ""
			}
			out := runCommand(t, table, d)
			if err := table.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out + loads(table)
		})
	})
}

func runCommand(t *testing.T, table *ReservationTable, d *datadriven.TestData) string {
	now := kv.Mono(duration(t, d, "at"))
	key := AttemptKey{Attempt: 1}
	if d.HasArg("id") {
		var id string
		d.ScanArgs(t, "id", &id)
		if n, _ := fmt.Sscanf(id, "%1s.%d", &key.ID, &key.Attempt); n == 0 {
			d.Fatalf(t, "bad id %q", id)
		}
	}
	var w kv.Worker
	d.MaybeScanArgs(t, "w", &w.ID)
	switch d.Cmd {
	case "reserve":
		if err := table.Reserve(now, key, w, demand(t, table, d)); err != nil {
			return fmt.Sprintf("%s: %v\n", fault.CodeOf(err), err)
		}
		return ""
	case "project":
		now, then := table.ProjectLoad(w, demand(t, table, d))
		return fmt.Sprintf("now  %+v\nthen %+v\n", now, then)
	case "prefilled":
		return fmt.Sprintln(table.MarkPrefilled(key))
	case "free":
		return fmt.Sprintln(table.Free(key))
	case "renew":
		return fmt.Sprintln(table.RenewReservation(now, key))
	case "grow":
		var n int
		d.ScanArgs(t, "n", &n)
		return fmt.Sprintln(table.AddOutput(key, n))
	case "drop":
		return fmt.Sprintln(table.DropWorker(w))
	case "advance":
		table.AdvanceTime(now)
		return ""
	case "expire":
		return fmt.Sprintf("%d, in all %d\n", table.ExpireOld(now), table.ExpiredCount())
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func demand(t *testing.T, table *ReservationTable, d *datadriven.TestData) Demand {
	var path string
	d.MaybeScanArgs(t, "chain", &path)
	dm := Demand{Chain: chain(path)}
	dm.PromptTokens = len(dm.Chain) * table.BlockSize()
	d.MaybeScanArgs(t, "tokens", &dm.PromptTokens)
	d.MaybeScanArgs(t, "overlap", &dm.OverlapBlocks)
	d.MaybeScanArgs(t, "expect", &dm.ExpectedOutput)
	dm.ExpectedPrefill = duration(t, d, "lasts")
	return dm
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

func loads(table *ReservationTable) string {
	var out strings.Builder
	for id := range kv.WorkerID(4) {
		if l := table.LoadOf(kv.Worker{ID: id}); l != (Load{}) {
			fmt.Fprintf(&out, "%d: requests=%d prefill=%d blocks=%d output=%d\n", id, l.Requests, l.PrefillTokens, l.Blocks, l.OutputTokens)
		}
	}
	if out.Len() == 0 {
		return "idle\n"
	}
	return out.String()
}
