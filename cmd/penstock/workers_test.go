package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestWorkersTellOfFeeds: the table says in a few words what is wrong with a feed and what
// became of its losses.
func TestWorkersTellOfFeeds(t *testing.T) {
	for feed, want := range map[string]string{
		`{"state":"none"}`:                              "none",
		`{"state":"live","last_seq":41}`:                "live, event 41",
		`{"state":"live","guessed":true,"last_seq":41}`: "live (guessed), event 41",
		`{"state":"live","last_seq":41,"gaps":3,"repaired":2,"described":1,"orphans":4}`: "live, event 41, 3 gaps (2 repaired, 1 described), 4 orphans",
		`{"state":"repairing","last_seq":41,"missing":7,"gaps":1}`:                       "repairing, event 41, 7 missing, 1 gaps (0 repaired, 0 described)",
		`{"state":"live","last_seq":41,"missing":2,"lagging":true,"lag_seconds":3.4}`:    "live, event 41, 2 missing, lagging for 3 s",
	} {
		var out bytes.Buffer
		if err := printWorkers(&out, []byte(`{"rows":[{"worker_id":7,"feed":`+feed+`}]}`)); err != nil {
			t.Fatal(err)
		}
		if line := strings.TrimSpace(strings.Split(out.String(), "\n")[1]); !strings.HasSuffix(line, "  "+want) {
			t.Errorf("%s: %q, want %q at the end", feed, line, want)
		}
	}
}

// TestWorkersWarn: what is wrong with an engine stands below the table, with what to do.
func TestWorkersWarn(t *testing.T) {
	var out bytes.Buffer
	if err := printWorkers(&out, []byte(`{"rows":[{"worker_id":7,"engine":"vllm","warnings":[{"code":"no_kv_events","detail":"none come","remedy":"give\u001b events="}]}]}`)); err != nil {
		t.Fatal(err)
	}
	if want := "\nworker 7 rank 0: no_kv_events: none come\n  -> give"; !strings.Contains(out.String(), want) || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q lacks %q, or has a control character", out.String(), want)
	}
}
