package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/internal/config"
)

// series returns the series of a metric whose labels contain all of some texts: their values by their labels.
func (s *server) series(metric string, labels ...string) map[string]int {
	s.t.Helper()
	_, data := s.do(http.MethodGet, "/metrics", nil)
	all := make(map[string]int)
next:
	for line := range strings.Lines(string(data)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, rest, _ := strings.Cut(series, "{")
		if name != metric {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		all[rest] = int(v)
	}
	return all
}

// sum returns the sum of such series.
func (s *server) sum(metric string, labels ...string) (total int) {
	s.t.Helper()
	for _, v := range s.series(metric, labels...) {
		total += v
	}
	return total
}

// longRequests are greedy requests of several lengths, of which no two begin alike.
func longRequests(seed int) (requests []map[string]any) {
	for i, repeat := range []int{1, 2, 1} {
		prompt := fmt.Sprintf("Story %d of %d. ", i, seed) + strings.Repeat(longPrompt(100*seed+i), repeat)
		r := chat(prompt, 8)
		r["ignore_eos"] = true
		requests = append(requests, r)
	}
	return requests
}

const blockTokens = 16

// decodeMetrics are what decode workers count: their requests by where the prompts were computed, tokens, bytes of
// blocks, and what they encoded. locals are the local ones by the labels of their series.
type decodeMetrics struct {
	remote, computed, received, encoded int
	locals                              map[string]int
}

func (s *server) decodeMetrics(workers ...string) (all decodeMetrics) {
	s.t.Helper()
	all.locals = make(map[string]int)
	for _, of := range workers {
		all.remote += s.sum("penstock_prefill_remote_total", of)
		maps.Copy(all.locals, s.series("penstock_prefill_local_total", of))
		all.computed += s.sum("penstock_worker_computed_prompt_tokens_total", of)
		all.received += s.sum("penstock_prefill_bytes_total", of, `side="received"`)
	}
	all.encoded = s.sum("penstock_encode_jobs_total", `outcome="ok"`)
	return all
}

// expectRemote checks that requests have the answers of alone, and that prefill workers compute their prompts: the
// decode workers, of which read tells, compute at most a block of each.
func (s *server) expectRemote(alone *server, read func() decodeMetrics, seed int, requests func(seed int) []map[string]any) {
	s.t.Helper()
	want, before := alone.askAll(requests(seed)), read()
	expectTexts(s.t, "with a prefill worker", want, s.askAll(requests(seed)))
	n, after := len(want), read()
	if computed := after.computed - before.computed; after.remote-before.remote != n || computed < n || computed > n*blockTokens {
		s.t.Errorf("the decode workers said %+v, and after %d requests %+v", before, n, after)
	}
	if after.received == before.received || after.encoded != before.encoded {
		s.t.Errorf("the decode workers received nothing or encoded something: %+v, and then %+v", before, after)
	}
}

// patient has a prompt wait for a prefill worker as long as the busiest machine may need.
const patient = "prefill-wait=10m"

// TestPrefillInOneProcess: up with prefill workers gives the answers of one worker, and they compute the prompts: a
// decode worker computes at most a block of each.
func TestPrefillInOneProcess(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"tiny", "sim"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := start(t, "engine="+engine, "workers=2", "prefill-workers=1", "disagg-policy=always", patient)
			read := func() decodeMetrics { return s.decodeMetrics(`worker="1"`, `worker="2"`) }
			s.expectRemote(start(t, "engine="+engine, "workers=1"), read, 1, func(seed int) []map[string]any {
				requests := longRequests(seed)
				for _, r := range requests {
					r["model"] = "penstock-" + engine
				}
				return requests
			})
			// The prefill worker counts a prompt at the end of its job, which the decode worker does not wait for.
			s.eventually("all that was received has been sent", func() bool {
				return s.sum("penstock_prefill_bytes_total", `worker="3"`, `side="sent"`) >= read().received
			})
			if n := s.sum("penstock_worker_computed_prompt_tokens_total", `worker="3"`); n < 600 {
				t.Errorf("the prefill worker computed %d tokens", n)
			}
		})
	}
}

// TestPrefillGoesToTheHolder: a prompt which a prefill worker has computed for one decode worker goes to the same prefill
// worker when another decode worker gets it. A request can name the other one.
func TestPrefillGoesToTheHolder(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=2", "prefill-workers=2", "disagg-policy=always", patient)
	holders := []string{`worker="3"`, `worker="4"`}
	sum := func(metric, side string, of ...string) (n int) {
		for _, w := range of {
			n += s.sum(metric, w, side)
		}
		return n
	}
	// computed waits until the prefill workers have counted what the decode workers have received.
	computed := func() (n [2]int) {
		const bytes = "penstock_prefill_bytes_total"
		s.eventually("the prefill workers have counted their jobs", func() bool {
			return sum(bytes, `side="sent"`, holders...) >= sum(bytes, `side="received"`, `worker="1"`, `worker="2"`)
		})
		for i, of := range holders {
			n[i] = s.sum("penstock_worker_computed_prompt_tokens_total", of)
		}
		return n
	}
	ask := func(prompt, decode string, header ...string) {
		t.Helper()
		r := chat(prompt, 2)
		r["model"], r["ignore_eos"] = "penstock-sim", true
		if a := s.complete("/v1/chat/completions", r, append(header, "x-worker-instance-id", decode)...); a.status != http.StatusOK {
			t.Fatalf("%d: %s", a.status, a.err)
		}
	}
	cached := func() (blocks int) {
		for _, w := range s.workers() {
			if w.WorkerID >= 3 {
				blocks += w.CachedBlocks
			}
		}
		return blocks
	}
	for i := range 4 {
		prompt := fmt.Sprintf("Story %d. ", i) + longPrompt(100+i)
		before, held := computed(), cached()
		ask(prompt, "1")
		first := computed()
		tokens := first[0] + first[1] - before[0] - before[1]
		s.eventually("the router knows the blocks", func() bool { return cached()-held >= tokens/blockTokens })
		ask(prompt, "2")
		second := computed()
		if again := second[0] + second[1] - first[0] - first[1]; tokens < 10*blockTokens || again > blockTokens {
			t.Errorf("prompt %d: prefill workers computed %d tokens, and %d more when it came again", i, tokens, again)
		}
	}
	// Its name wins over what it holds.
	prompt := "Another story. " + longPrompt(200)
	before := computed()
	ask(prompt, "1", "x-prefill-instance-id", "3")
	ask(prompt, "2", "x-prefill-instance-id", "4")
	if after := computed(); min(after[0]-before[0], after[1]-before[1]) < 10*blockTokens {
		t.Errorf("the prefill workers which requests named had computed %v tokens, and then %v", before, after)
	}
	local := s.sum("penstock_prefill_local_total", `reason="the_named_prefill_worker_is_not_known"`)
	ask("One more story. "+longPrompt(300), "1", "x-prefill-instance-id", "77")
	if n := s.sum("penstock_prefill_local_total", `reason="the_named_prefill_worker_is_not_known"`); n != local+1 {
		t.Errorf("%d prompts were computed locally when a request named a prefill worker which there is not", n-local)
	}
}

// TestPrefillProcesses: workers which are processes of their own exchange blocks, with NATS and its queue and without,
// also of a prompt with a picture. Prefill workers leave and join: without one a decode worker computes prompts itself.
func TestPrefillProcesses(t *testing.T) {
	t.Parallel()
	// The picture is not in the last block, which the decode worker computes itself.
	pictures := func(seed int) []map[string]any {
		return []map[string]any{showing(8, shown("image", dataURI("image/png", pngOf(t, picture(uint64(seed), 84, 112)))), said(longPrompt(seed)))}
	}
	for i, discovery := range []string{"nats", "file"} {
		t.Run(discovery, func(t *testing.T) {
			t.Parallel()
			alone := start(t, "workers=1")
			var f *process
			settings := []string{"http-addr=127.0.0.1:0", patient}
			if discovery == "nats" {
				f = launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
				settings = append(settings, "nats="+f.started.NATS)
			} else {
				dir := []string{"discovery=file", "discovery-dir=" + t.TempDir()}
				f = launch(t, config.Frontend, dir...)
				settings = append(settings, dir...)
			}
			decode := launch(t, config.Worker, append(settings, "role=decode", "disagg-policy=always")...)
			prefill := launch(t, config.Worker, append(settings, "role=prefill")...)
			f.serves("penstock-tiny", 1)
			decode.knowsPrefillers(1)
			read := func() decodeMetrics { return decode.decodeMetrics("") }
			seed := 100 * (i + 1)
			f.expectRemote(alone, read, seed, longRequests)
			f.expectRemote(alone, read, seed+10, pictures)

			if err := prefill.stop(); err != nil {
				t.Error(err)
			}
			decode.knowsPrefillers(0)
			want := alone.askAll(longRequests(seed + 20))
			expectTexts(t, "without a prefill worker", want, f.askAll(longRequests(seed+20)))
			if n := decode.sum("penstock_prefill_local_total", `reason="there_are_no_prefill_workers"`); n < len(want) {
				t.Errorf("without prefill workers %d prompts were computed locally", n)
			}

			launch(t, config.Worker, append(settings, "role=prefill")...)
			decode.knowsPrefillers(1)
			f.expectRemote(alone, read, seed+30, longRequests)
		})
	}
}

// knowsPrefillers waits until a decode worker knows so many prefill workers.
func (s *server) knowsPrefillers(n int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d prefill workers", n), func() bool { return s.sum("penstock_prefill_workers") == n })
}

// decidedPrefill is what is read of where a prompt was computed.
type decidedPrefill struct {
	Policy   string `json:"disagg_policy"`
	Rule     string
	Remote   bool
	Tokens   int
	WorkerID uint64 `json:"prefill_worker_id"`
}

// decidedPrefills is what a router knows of a request, and what the router processes behind it know.
type decidedPrefills struct {
	Attempts []struct{ Prefill *decidedPrefill }
	Behind   answers[decidedPrefills]
}

// prefillOf sends a prompt which no worker has seen, with an override, and returns what its decode worker decided, as
// the frontend tells and, if one is behind it, a router process.
func (p *process) prefillOf(seed int, override map[string]any) decidedPrefill {
	p.t.Helper()
	request, id := chat(fmt.Sprintf("Story %d. ", seed)+longPrompt(seed), 3), fmt.Sprint("prefill-", seed)
	if override != nil {
		request["nvext"] = map[string]any{"router_config_override": override}
	}
	if resp, data := p.do(http.MethodPost, "/v1/chat/completions", request, "x-request-id", id); resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s", id, data)
	}
	var known decidedPrefills
	p.get("/v1/router/decisions?request_id="+id, &known)
	if len(known.Attempts) != 1 || known.Attempts[0].Prefill == nil {
		p.t.Fatalf("%s: nothing is known of its prefill: %+v", id, known)
	}
	got := *known.Attempts[0].Prefill
	for _, b := range known.Behind {
		if a := b.Answer.Attempts; len(a) != 1 || a[0].Prefill == nil || *a[0].Prefill != got {
			p.t.Errorf("%s: the frontend knows %+v, and the router process %+v, %s", id, got, b.Answer, b.Error)
		}
	}
	return got
}

// TestPrefillSettings: what a request asks for goes before what a frontend was told at run time, that before the
// frontend's settings, those before a router process's, and those before the decode worker's. What was decided is known
// at the frontend.
func TestPrefillSettings(t *testing.T) {
	t.Parallel()
	dir := []string{"discovery=file", "discovery-dir=" + t.TempDir(), "http-addr=127.0.0.1:0", patient}
	with := func(more ...string) []string { return append(slices.Clone(dir), more...) }
	frontends := map[string]*process{
		"one without settings": launch(t, config.Frontend, dir...),
		"one with always":      launch(t, config.Frontend, with("disagg-policy=always")...),
		"one before a router":  launch(t, config.Frontend, with("component=router")...),
		"the router":           launch(t, config.Router, with("disagg-policy=always")...),
	}
	decode := launch(t, config.Worker, with("role=decode", "worker-id=7", "disagg-policy=never")...)
	launch(t, config.Worker, with("role=prefill", "worker-id=9")...)
	for name, f := range frontends {
		if name != "the router" {
			f.serves("penstock-tiny", 1)
		}
	}
	decode.knowsPrefillers(1)
	type m = map[string]any
	const never, always, short = "the policy is never", "the policy is always", "the prefill is short"
	for i, c := range []struct {
		tell     string // the frontend, or the router, which is told something at run time
		told     m
		asks     string
		override m
		policy   string
		rule     string
	}{
		{asks: "one without settings", policy: "never", rule: never},
		{asks: "one without settings", override: m{"max_local_prefill_length": 1e6}, policy: "threshold", rule: short},
		{asks: "one with always", policy: "always", rule: always},
		{asks: "one with always", override: m{"disagg_policy": "never"}, policy: "never", rule: never},
		{tell: "one with always", told: m{"max_local_prefill_length": 1e6}, asks: "one with always", policy: "threshold", rule: short},
		{asks: "one with always", override: m{"disagg_policy": "always"}, policy: "always", rule: always},
		{tell: "one with always", told: m{"reset": true}, asks: "one with always", policy: "always", rule: always},
		{asks: "one before a router", policy: "always", rule: always},
		{tell: "the router", told: m{"disagg_policy": "never"}, asks: "one before a router", policy: "never", rule: never},
		{tell: "one before a router", told: m{"disagg_policy": "always"}, asks: "one before a router", policy: "always", rule: always},
		{asks: "one before a router", override: m{"disagg_policy": "never"}, policy: "never", rule: never},
	} {
		if c.tell != "" {
			c.told["model"] = "penstock-tiny"
			if resp, data := frontends[c.tell].do(http.MethodPost, "/v1/router/disagg", c.told); resp.StatusCode != http.StatusOK {
				t.Fatalf("%d: %s", i, data)
			}
		}
		got := frontends[c.asks].prefillOf(500+i, c.override)
		remote := c.rule == always
		if got.Policy != c.policy || got.Rule != c.rule || got.Remote != remote || (got.WorkerID == 9) != remote || got.Tokens < 100 {
			t.Errorf("%d: %s with %v: %+v", i, c.asks, c.override, got)
		}
	}
	_, data := frontends["one with always"].do(http.MethodPost, "/v1/router/explain", m{"model": "penstock-tiny", "prompt": "a"})
	if want := `"prefill":{"worker_id":7,"dp_rank":0,"disagg_policy":"always","max_local_prefill_length":null,"max_prefill_queue_size":null}`; !strings.Contains(string(data), want) {
		t.Errorf("%s does not have %s", data, want)
	}
	if n := decode.sum("penstock_prefill_remote_total", `reason="the_policy_is_always"`); n != 5 {
		t.Errorf("%d prompts were computed remotely", n)
	}
}
