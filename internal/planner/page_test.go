package planner

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
)

// vllmPage is a page of a vLLM.
const vllmPage = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a",engine="0"} 3
vllm:num_requests_running{model_name="b",engine="0"} 9
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="a",engine="0"} 2
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{model_name="a",engine="0",le="+Inf"} 10
vllm:time_to_first_token_seconds_sum{model_name="a",engine="0"} 5
vllm:time_to_first_token_seconds_count{model_name="a",engine="0"} 10
# TYPE vllm:request_success_total counter
vllm:request_success_total{model_name="a",finished_reason="stop"} 6
vllm:request_success_total{model_name="a",finished_reason="length"} 2
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="a"} 800
vllm:prompt_tokens_total{model_name="b"} 1e9
`

func readPage(t *testing.T, text, model string, at time.Time) *pageReading {
	t.Helper()
	r, err := parsePage([]byte(text), model)
	if err != nil {
		t.Fatal(err)
	}
	r.at = at
	return r
}

// TestPageOfVLLM: counts are differences of two readings of one model, as if they were an interval apart; a counter which
// fell began anew.
func TestPageOfVLLM(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var m pageMeter
	if c := m.countInterval(readPage(t, vllmPage, "a", start), start, 30*time.Second); c.known || c.problem == "" {
		t.Errorf("the first reading: %+v", c)
	}
	text := strings.NewReplacer(`_sum{model_name="a",engine="0"} 5`, `_sum{model_name="a",engine="0"} 15`, `_count{model_name="a",engine="0"} 10`, `_count{model_name="a",engine="0"} 30`,
		`"stop"} 6`, `"stop"} 16`, `"length"} 2`, `"length"} 1`, `{model_name="a"} 800`, `{model_name="a"} 2000`).Replace(vllmPage)
	later := start.Add(time.Minute)
	c := m.countInterval(readPage(t, text, "a", later), later, 30*time.Second)
	want := pageCounts{known: true, advance: time.Minute}
	want.counted = later
	want.FirstTokens, want.FirstTokenSeconds, want.Ended, want.PromptTokens = 10, 5, 5.5, 600 // half of what a minute had
	want.Waiting[plan.Aggregated], want.Running[plan.Aggregated] = 2, 3
	if c != want {
		t.Errorf("counts %+v\nwant   %+v", c, want)
	}
	// An engine which runs requests gives tokens, so that its page changes.
	later = later.Add(time.Minute)
	if c := m.countInterval(readPage(t, text, "a", later), later, 30*time.Second); c.advance != 0 || !strings.Contains(c.problem, "frozen") {
		t.Errorf("the same page again: %+v", c)
	}
}

// TestFamilyComesBack: what a page counted in all its life is no interval, when a reading in between lacked it.
func TestFamilyComesBack(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	without, _, _ := strings.Cut(vllmPage, "# TYPE vllm:request_success_total")
	var m pageMeter
	for i, tt := range []struct {
		text string
		want bool
	}{{vllmPage, false}, {without, false}, {vllmPage, false}, {vllmPage + "\n", true}} {
		c := m.countInterval(readPage(t, tt.text, "a", at), at, time.Minute)
		if c.known != tt.want || c.Ended != 0 {
			t.Errorf("reading %d: %+v", i, c)
		}
		at = at.Add(time.Minute)
	}
}

// TestGapIsNoInterval: what came while metrics were missing or frozen is spread over that time, also what waits since then.
func TestGapIsNoInterval(t *testing.T) {
	for _, gap := range []string{"no answer", "frozen", "no table"} {
		s := newSources(SourceConfig{Server: "http://fleet"})
		start, last := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), ""
		for minute := range 9 {
			text := waitingPage(60 * minute)
			at := start.Add(time.Duration(minute) * time.Minute)
			r, body := reading{known: true}, fetched{data: []byte(text), at: at, received: at}
			if inGap := minute >= 3 && minute < 6; inGap {
				switch gap {
				case "no answer":
					body = fetched{err: errors.New(gap)}
				case "frozen":
					body.data = []byte(last)
				case "no table":
					r.known = false
				}
			} else {
				last = text
			}
			s.measurePages([]fetched{body}, time.Minute, &r)
			if minute == 2 || minute >= 6 {
				if r.traffic == nil || math.Abs(r.traffic.Arrivals-60) > 1e-6 {
					t.Errorf("%s, minute %d: %+v, %q, want 60 arrivals", gap, minute, r.traffic, r.problems)
				}
			}
		}
	}
}

// waitingPage returns a page after so many requests, each of 100 tokens, of which every third one waits.
func waitingPage(n int) string {
	return fmt.Sprintf(`penstock_frontend_inflight 1
penstock_router_queue_requests %d
# TYPE penstock_frontend_requests_total counter
penstock_frontend_requests_total{status="200"} %d
# TYPE penstock_frontend_prompt_tokens_total counter
penstock_frontend_prompt_tokens_total %d
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total %d
# TYPE penstock_frontend_time_to_first_token_seconds histogram
penstock_frontend_time_to_first_token_seconds_bucket{le="+Inf"} %d
penstock_frontend_time_to_first_token_seconds_sum %d
penstock_frontend_time_to_first_token_seconds_count %d
`, n/3, n*2/3, n*2/3*100, n, n*2/3, n, n*2/3)
}

// TestStalePage: an interval whose page is the one of a sample counts until then, and what comes after it, also what
// waits, counts for the time since. The samples after it do the same.
func TestStalePage(t *testing.T) {
	s := newSources(SourceConfig{Pages: []string{"http://fleet/metrics"}})
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	measure := func(sampling bool, made, read, length int, want float64, isStale bool) {
		t.Helper()
		body := fetched{data: []byte(waitingPage(made)), at: start.Add(time.Duration(made) * time.Second), received: start.Add(time.Duration(read) * time.Second)}
		measured, r := *s, reading{}
		measured.sampling = sampling
		if measured.measurePages([]fetched{body}, time.Duration(length)*time.Second, &r); !sampling {
			*s = measured
		}
		if r.frozen || r.traffic == nil || r.traffic.Stale != isStale || math.Abs(r.traffic.Arrivals-want) > 1e-6 {
			t.Errorf("a page of %d s which was read at %d s: %+v, %q, want %g arrivals, stale: %v", made, read, r.traffic, r.problems, want, isStale)
		}
	}
	s.measurePages([]fetched{{data: []byte(waitingPage(0)), at: start, received: start}}, time.Minute, &reading{})
	measure(false, 60, 60, 60, 40, false) // since when the others wait is not known
	measure(true, 90, 90, 30, 30, false)
	measure(true, 90, 100, 40, 40-10./3, true) // 20 of 30 do not wait, and 10 began to in less than that time
	measure(false, 90, 120, 60, 60-10, true)
	measure(true, 135, 135, 15, 15, false)  // a third of 45 s
	measure(false, 180, 180, 60, 60, false) // two thirds of 90 s
	measure(false, 240, 240, 60, 60, false)
	measure(true, 270, 270, 30, 30, false)
	measure(false, 270, 300, 60, 60-10, true)
	var r reading
	s.measurePages([]fetched{{data: []byte(waitingPage(270)), at: start.Add(270 * time.Second), received: start.Add(6 * time.Minute)}}, time.Minute, &r)
	if !r.frozen || len(r.problems) != 1 || !strings.Contains(r.problems[0], "frozen") {
		t.Errorf("the same page again: frozen %v, %q", r.frozen, r.problems)
	}
}

// TestManyLines: a page whose parsed form would take much more memory than its bytes is refused before.
func TestManyLines(t *testing.T) {
	text := "penstock_frontend_inflight 1\n" + strings.Repeat("a 1\n", maxLinesInPage)
	if _, err := parsePage([]byte(text), ""); err == nil || !strings.Contains(err.Error(), "lines") {
		t.Errorf("error %v", err)
	}
}

// TestPenstockPage: requests which fail by the server count as arrivals, refused ones do not, nor does the work of
// tokenizers.
func TestPenstockPage(t *testing.T) {
	r := readPage(t, `penstock_frontend_inflight 1
# TYPE penstock_frontend_requests_total counter
penstock_frontend_requests_total{model="m",endpoint="chat_completions",status="200"} 10
penstock_frontend_requests_total{model="m",endpoint="chat_completions",status="499"} 3
penstock_frontend_requests_total{model="m",endpoint="responses",status="503"} 4
penstock_frontend_requests_total{model="m",endpoint="messages",status="400"} 5
penstock_frontend_requests_total{model="m",endpoint="tokenize",status="200"} 6
`, "", time.Time{})
	sums := map[string]float64{}
	for key, v := range r.series {
		what, _, _ := strings.Cut(key, ",")
		sums[what] += v
	}
	if len(sums) != 2 || sums[countEnded] != 13 || sums[countFailed] != 4 {
		t.Errorf("counts %v", sums)
	}
}

// TestParseWorkers: ranks of a worker are one, workers behind a router stand in its place, and workers of other models
// and roles do not count.
func TestParseWorkers(t *testing.T) {
	const text = `{"rows":[
 {"worker_id":9,"role":"router","model":"m","state":"ready","behind":[{"worker_id":3,"role":"prefill","model":"m","state":"draining"}]},
 {"worker_id":1,"role":"decode","model":"m","state":"not_ready","cached_blocks":5,"load":{"reported":{"running":2,"waiting":1}}},
 {"worker_id":1,"dp_rank":1,"role":"decode","model":"m","state":"suspect","cached_blocks":6,"load":{"active_requests":4,"reported":null}},
 {"worker_id":2,"role":"decode","model":"other","state":"ready"},
 {"worker_id":4,"role":"decode","model":"m","state":"quarantined"}]}`
	workers, err := parseWorkers([]byte(text), "m")
	want := []FleetWorker{
		{ID: 3, Role: plan.Prefill, State: WorkerDraining},
		{ID: 1, Role: plan.Decode, State: WorkerReady, Running: 6, Waiting: 1, CachedBlocks: 11},
		{ID: 4, Role: plan.Decode, State: WorkerStarting},
	}
	if err != nil || len(workers) != 3 || workers[0] != want[0] || workers[1] != want[1] || workers[2] != want[2] {
		t.Errorf("%+v, %v", workers, err)
	}
	fleet := countFleet(workers, []plan.WorkerRole{plan.Prefill, plan.Decode})
	if fleet[0] != (plan.RoleFleet{Draining: 1}) || fleet[1] != (plan.RoleFleet{Ready: 1, Starting: 1}) {
		t.Errorf("fleet %+v", fleet)
	}
	if _, err := parseWorkers([]byte(`{"rows":[{"worker_id":9,"role":"router","behind_error":"gone"}]}`), ""); err == nil {
		t.Error("workers which are not known are none")
	}
}

func FuzzPage(f *testing.F) {
	f.Add([]byte(vllmPage))
	f.Add([]byte("penstock_frontend_inflight 1\npenstock_frontend_requests_total{status=\"200\"} NaN\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parsePage(text, "")
		if err != nil {
			return
		}
		start := time.Unix(1e9, 0)
		m := pageMeter{last: r, received: start}
		if c := m.countInterval(r, start.Add(time.Minute), time.Minute); !c.known {
			t.Errorf("a page after itself: %q", c.problem)
		} else if c.FirstTokens < 0 || c.Ended < 0 {
			t.Errorf("negative counts: %+v", c)
		}
	})
}

func FuzzWorkers(f *testing.F) {
	f.Add([]byte(`{"rows":[{"worker_id":1,"role":"decode","state":"ready","behind":[{"worker_id":2}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		workers, err := parseWorkers(text, "")
		if err != nil {
			return
		}
		seen := map[kv.WorkerID]bool{}
		for _, w := range workers {
			if seen[w.ID] || w.Running < 0 || w.CachedBlocks < 0 {
				t.Errorf("worker %+v", w)
			}
			seen[w.ID] = true
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":7,"roles":[{"role":"aggregated","ready":3}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ack, err := parseAck(text)
		if err != nil {
			return
		}
		for _, fleet := range ack.fleetOf([]plan.WorkerRole{plan.Aggregated, plan.Prefill, plan.Decode, plan.Encode}, 0) {
			if min(fleet.Ready, fleet.Starting, fleet.Draining, fleet.Refused) < 0 {
				t.Errorf("fleet %+v", fleet)
			}
		}
	})
}
