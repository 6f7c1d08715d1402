package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/core/route"
)

// TestExplanationPrint: the table has a column for each term that is not 0 everywhere.
func TestExplanationPrint(t *testing.T) {
	const plain = `{"decision":{"worker_id":2,"dp_rank":1,"overlap_blocks":3,"block_size":4,"mode":"kv","cost":3.5},
		"overlap_score_weight":1,"router_temperature":0,"queue_weight":1,"prompt_tokens":13,"prompt_blocks":3,
		"candidates":[{"worker_id":2,"dp_rank":1,"cache":"live","overlap_blocks":{"device":3},"prefill_tokens":2,"prefill_blocks":0.5,"decode_blocks":3,"cost":3.5,"probability":1}],
		"excluded":[{"worker_id":3,"dp_rank":0,"reason":"it drains"}]}`
	const full = `{"decision":null,"reason":"all are busy","overlap_score_weight":2,"router_temperature":0.5,"queue_weight":1.5,"near_cost":0.1,"session_worker":{"worker_id":1,"dp_rank":0},
		"candidates":[{"worker_id":1,"dp_rank":0,"cache":"resync","overlap_blocks":{"device":1,"host":2,"disk":3,"pool":4},"predicted_blocks":5,"cxl_accessible_scores":6,"moe_scores":7,
		"prefill_tokens":8,"queued_tokens":9,"prefill_blocks":10,"fetch_blocks":11,"decode_blocks":12,"active_requests":13,"others_requests":14,
		"affinity":70,"label_affinity":17,"expert_affinity":18,"session_affinity":19,"adapter_affinity":16,"cost":20,"probability":1}]}`
	for _, tt := range []struct {
		name, in string
		want     []string
		not      []string
	}{
		{
			"plain", plain,
			[]string{
				"worker 2 rank 1: holds 3 of the prompt's 3 full blocks (13 tokens, blocks of 4); mode kv, cost 3.50\n",
				"cost = 1 × (prefill + fetch) + decode − affinity, in blocks; the least wins (temperature 0)\n",
				"WORKER RANK DEVICE PREFILL TOKENS PREFILL DECODE REQUESTS AFFINITY COST CHANCE FEED\n",
				"2 1 3 2 0.50 3 0 0 3.50 100% live\n",
				"excluded: worker 3 rank 0: it drains\n",
			},
			[]string{"HOST", "session"},
		},
		{
			"full", full,
			[]string{
				"no worker: all are busy\n",
				"cost = 2 × (prefill + 0.5 × queued + fetch) + decode − affinity, in blocks; the least wins (temperature 0.5, costs within 0.1 count as equal)\n",
				"the session is at worker 1 rank 0\n",
				"WORKER RANK DEVICE HOST DISK POOL PREDICTED ATTACHABLE LABELLED PREFILL TOKENS QUEUED PREFILL FETCH DECODE REQUESTS OF OTHERS BY LABELS BY EXPERTS BY SESSION BY ADAPTER AFFINITY COST CHANCE FEED\n",
				"1 0 1 2 3 4 5 6 7 8 9 10.00 11.00 12 13 14 17.00 18.00 19.00 16.00 70.00 20.00 100% resync\n",
			},
			[]string{"would wait", "goes by neither"},
		},
		{
			"to a decode worker", strings.Replace(plain, `"excluded"`, `"prefill":{"worker_id":2,"dp_rank":1,"disagg_policy":"threshold","max_local_prefill_length":0,"max_prefill_queue_size":null},"excluded"`, 1),
			[]string{"worker 2 decides where the prompt is computed when it gets the request: disagg-policy threshold, max-local-prefill-length 0, max-prefill-queue-size as it has it\n"},
			nil,
		},
		{
			"in another mode, behind others", strings.Replace(strings.Replace(plain, `"mode":"kv"`, `"mode":"random"`, 1), `"overlap_score_weight"`, `"would_wait":{"waiting_requests":7},"overlap_score_weight"`, 1),
			[]string{"7 wait now\n", "mode random goes by neither costs nor caches; for comparison:\n"},
			nil,
		},
		{
			"with media", `{"decision":null,"reason":"none","text_only":"dims_unavailable","media":[` +
				`{"kind":"image","part":"messages[0].content[1]","key":"c8184a9458958a52","start":8,"tokens":25,"width":140,"height":280},` +
				`{"kind":"video","part":"v","key":"01","start":40,"tokens":2,"width":1,"height":2,"frames":3},{"kind":"audio","part":"a","key":"02","start":50,"tokens":4,"samples":16000},{"kind":"unknown","key":"03","start":60,"tokens":9}]}`,
			[]string{
				"only the text before what it shows counts: dims_unavailable\n",
				"shows: image of 140 by 280 pixels, key c8184a9458958a52, 25 tokens from 8 on (messages[0].content[1])\n",
				"shows: video of 3 frames of 1 by 2 pixels, key 01, 2 tokens from 40 on (v)\n",
				"shows: audio of 16000 samples, key 02, 4 tokens from 50 on (a)\n",
				"shows: an object, key 03, 9 tokens from 60 on\n",
			},
			nil,
		},
		{
			"no worker", `{"decision":null,"reason":"none","candidates":[],"excluded":[{"worker_id":3,"dp_rank":0,"reason":"it drains"}]}`,
			[]string{"no worker: none\n", "excluded: worker 3"},
			[]string{"WORKER"},
		},
	} {
		var e routeExplanation
		if err := json.Unmarshal([]byte(tt.in), &e); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := e.printText(&out, true); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder // with single spaces
		for line := range strings.Lines(out.String()) {
			got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		for _, want := range tt.want {
			if !strings.Contains(got.String(), want) {
				t.Errorf("%s: %q is missing in\n%s", tt.name, want, got.String())
			}
		}
		for _, not := range tt.not {
			if strings.Contains(got.String(), not) {
				t.Errorf("%s: %q is in\n%s", tt.name, not, got.String())
			}
		}
	}
}

// TestExplanationThroughRouters: the answer of each router process is shown, and one which fails is named.
func TestExplanationThroughRouters(t *testing.T) {
	var e routeExplanation
	if err := json.Unmarshal([]byte(`{"decision":{"worker_id":71},"candidates":[{"worker_id":71,"probability":0.5},{"worker_id":72,"probability":0.5}],
		"excluded":[{"worker_id":73,"reason":"draining"}],"behind":[
		{"router":71,"answer":{"decision":{"worker_id":3,"overlap_blocks":2,"block_size":16,"mode":"kv","cost":4.5},"prompt_tokens":70,"prompt_blocks":4,
			"candidates":[{"worker_id":3,"probability":1,"cache":"live"}],"excluded":[{"worker_id":4,"reason":"not ready"}]}},
		{"router":72,"error":"it does not answer"}]}`), &e); err != nil {
		t.Fatal(err)
	}
	var short, long bytes.Buffer
	if err := errors.Join(e.printText(&short, false), e.printText(&long, true)); err != nil {
		t.Fatal(err)
	}
	if want := "through router 71 (50%): worker 3 rank 0: holds 2 of the prompt's 4 full blocks (70 tokens, blocks of 16); mode kv, cost 4.50\n" +
		"through router 72 (50%): not known: it does not answer\n"; short.String() != want {
		t.Errorf("%q, want %q", short.String(), want)
	}
	for _, want := range []string{"FEED", "live", "excluded: worker 4 rank 0: not ready\n", "excluded: router 73: draining\n"} {
		if !strings.Contains(long.String(), want) {
			t.Errorf("%s\nlacks %q", long.String(), want)
		}
	}
}

// explainRow returns a candidate of the response of the router API.
func explainRow(t *testing.T, in string) *candidateRow {
	t.Helper()
	c := new(candidateRow)
	if err := json.Unmarshal([]byte(in), c); err != nil {
		t.Fatalf("%v in %s", err, in)
	}
	return c
}

// TestTermsAreColumns: the terms which route --explain prints sum to the cost that it prints. Each term of the core is
// set, so that one without a column is missing in the sum.
func TestTermsAreColumns(t *testing.T) {
	sum := func(c *candidateRow, columns []candidateColumn, isTerm func(name string) bool) (total float64) {
		for _, col := range columns {
			if isTerm(col.name) {
				v, err := strconv.ParseFloat(col.value(c), 64)
				if err != nil {
					t.Errorf("%s: %v", col.name, err)
				}
				total += v
			}
		}
		return total
	}

	var cost route.TimeCost
	terms := reflect.ValueOf(&cost).Elem()
	for i := range terms.NumField() {
		terms.Field(i).SetFloat(float64(int(1) << i))
	}
	c := &candidateRow{Time: &cost, Cost: cost.Sum()}
	others := []string{"WORKER", "RANK", "ROLE", "TTFT", "ITL", "MISSES", "COST", "CHANCE", "FEED"} // the rest is 0 but for terms
	if got := sum(c, timeColumns, func(name string) bool { return !slices.Contains(others, name) }); got != cost.Sum() {
		t.Errorf("mode time: the columns sum to %g, the cost is %g", got, cost.Sum())
	}

	var affinities []string
	total := 0
	for typ, i := reflect.TypeFor[route.Candidate](), 0; i < typ.NumField(); i++ {
		if kind, is := strings.CutSuffix(typ.Field(i).Name, "Affinity"); is && kind != "" {
			affinities = append(affinities, fmt.Sprintf("%q: %d", strings.ToLower(kind)+"_affinity", 1<<i))
			total += 1 << i
		}
	}
	c = explainRow(t, "{"+strings.Join(affinities, ",")+"}")
	if got := sum(c, blockColumns, func(name string) bool { return strings.HasPrefix(name, "BY ") }); got != float64(total) || total == 0 {
		t.Errorf("the columns of preferences sum to %g, want %d", got, total)
	}
}

// TestColumnsDocument: docs/router-api.md names the field which each column of route --explain shows, and --help names
// each column.
func TestColumnsDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/router-api.md")
	if err != nil {
		t.Fatal(err)
	}
	help := strings.Join(strings.Fields(newRouteCommand().Long), " ")
	rows := regexp.MustCompile("(?m)^\\| ([A-Z ]+) \\| (all|`time`|others) \\| `([a-z_.]+)`").FindAllStringSubmatch(string(text), -1)
	for mode, columns := range map[string][]candidateColumn{"`time`": timeColumns, "others": blockColumns} {
		fields := map[string]string{}
		for _, row := range rows {
			if row[2] == "all" || row[2] == mode {
				fields[row[1]] = row[3]
			}
		}
		for _, shown := range columns {
			field := fields[shown.name]
			if field == "" {
				t.Errorf("mode %s: the page does not say what %s shows", mode, shown.name)
				continue
			}
			delete(fields, shown.name)
			if !regexp.MustCompile(`\b` + shown.name + `\b`).MatchString(help) {
				t.Errorf("route --help does not name %s", shown.name)
			}
			value := map[string]string{"role": `"prefill"`, "cache": `"resync"`, "misses_targets": "true"}[field]
			member := fmt.Sprintf("%q: %s", strings.ReplaceAll(field, ".", `": {"`), cmp.Or(value, "7"))
			member = strings.ReplaceAll(member, `\"`, `"`) + strings.Repeat("}", strings.Count(field, "."))
			// Each column but that of the field is as it is without the field.
			without, with := explainRow(t, `{"time_ms": {}}`), explainRow(t, `{"time_ms": {}, `+member+"}")
			for _, col := range columns {
				if differs := col.value(without) != col.value(with); differs != (col.name == shown.name) {
					t.Errorf("mode %s, %s shows %s: %s is %s without it, %s with it", mode, shown.name, field, col.name, col.value(without), col.value(with))
				}
			}
		}
		for name := range fields {
			t.Errorf("mode %s: there is no column %s", mode, name)
		}
	}
}
