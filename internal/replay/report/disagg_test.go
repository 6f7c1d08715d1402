package report

import (
	"strings"
	"testing"

	"penstock/internal/replay"
)

// TestDisaggRows: the table names how it was decided where prompts were computed, and compares the rows of one fleet
// only.
func TestDisaggRows(t *testing.T) {
	row := func(u *replay.DisaggUse) replay.Row {
		return replay.Row{Policy: "time", Workers: 6, Requests: 10, Disagg: u}
	}
	r := replay.Result{Command: "replay", Rows: []replay.Row{
		row(nil),
		row(&replay.DisaggUse{PrefillWorkers: 2, Policy: "threshold", MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2, Remote: 1, Local: 3, BytesMoved: 5 << 20}),
		row(&replay.DisaggUse{PrefillWorkers: 2, Policy: "never", Local: 4}),
	}}
	var b strings.Builder
	if err := WriteTable(&b, &r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"time ", "time, threshold 1000/2", "time, never", "PREFILL WORKERS", "REMOTE", "25.0", "MIB MOVED"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, b.String())
		}
	}
	if isSameCluster(&r.Rows[0], &r.Rows[1]) || !isSameCluster(&r.Rows[1], &r.Rows[2]) {
		t.Error("clusters differ by their prefill workers")
	}
	if got := rowNames(r.Rows)[1]; got != "time, threshold 1000/2, 6 workers, 2 prefill workers" {
		t.Error(got)
	}
}
