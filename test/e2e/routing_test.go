package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/internal/config"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
)

// The tests of this file route requests to two worker processes with simulated engines,
// in blocks of 16 tokens and ten times as fast as their model of time unless they say otherwise.
const (
	routedBlock    = 16
	routedRequests = 100
)

// simulate launches workers with simulated engines.
func simulate(t *testing.T, n int, settings ...string) (workers []*process) {
	t.Helper()
	settings = append([]string{"engine=sim", "sim-speedup=10", "kv-cache-block-size=16"}, settings...)
	for range n {
		workers = append(workers, launch(t, config.Worker, settings...))
	}
	return workers
}

// routes waits until a frontend serves the simulated model and its router, which hears of
// them apart, knows so many workers too.
func (p *process) routes(workers int) {
	p.t.Helper()
	p.serves(simulated, workers)
	p.eventually(fmt.Sprintf("%d workers are ready", workers), func() bool {
		ready := 0
		for _, w := range p.workers() {
			if w.State == "ready" {
				ready++
			}
		}
		return ready == workers
	})
}

// ids returns n token ids, which differ from those of every other seed.
func ids(seed uint64, n int) []int {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]int, n)
	for i := range out {
		out[i] = 300 + rng.IntN(1400)
	}
	return out
}

// asking is a request for an answer of so many tokens, exactly, to a prompt of token ids.
func asking(prompt []int, tokens int) map[string]any {
	return map[string]any{"model": simulated, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0}
}

// flood sends requests of 100 tokens at once, each to one of the frontends in turn, and
// returns how many each worker served.
func flood(t *testing.T, n int, seed uint64, frontends ...*process) map[string]int {
	t.Helper()
	var mu sync.Mutex
	served := map[string]int{}
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			a, err := frontends[i%len(frontends)].stream(t.Context(), "/v1/completions", asking(ids(seed+uint64(i), 100), 20))
			if err != nil || a.status != http.StatusOK || a.output != 20 || a.prompt != 100 || a.finish != "length" {
				t.Errorf("request %d: %+v, %v", i, a, err)
			}
			mu.Lock()
			defer mu.Unlock()
			served[a.worker]++
		})
	}
	clients.Wait()
	return served
}

// TestRouterOverPlanes: a hundred requests at once, over each request plane: each gets its
// tokens, both workers get some, and nothing is left.
func TestRouterOverPlanes(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{"tcp", "nats"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-seed=1")
			simulate(t, 2, "nats="+f.started.NATS, "request-plane="+plane)
			f.routes(2)
			served := flood(t, routedRequests, 1, f)
			if len(served) != 2 {
				t.Errorf("%d requests went to %v", routedRequests, served)
			}
			for worker, n := range served {
				if n < routedRequests/4 {
					t.Errorf("%d of %d requests went to worker %s", n, routedRequests, worker)
				}
			}
			f.idle()
		})
	}
}

// TestRoutersInTurn: two frontends, each with a router of its own, send requests in turn to
// the same workers, which they find through NATS or through files.
func TestRoutersInTurn(t *testing.T) {
	t.Parallel()
	for _, discovery := range []string{"nats", "file"} {
		t.Run(discovery, func(t *testing.T) {
			t.Parallel()
			var common []string
			var first *process
			if discovery == "nats" {
				first = launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
				common = []string{"nats=" + first.started.NATS}
			} else {
				common = []string{"discovery=file", "discovery-dir=" + t.TempDir()}
				first = launch(t, config.Frontend, common...)
			}
			second := launch(t, config.Frontend, common...)
			simulate(t, 2, common...)
			first.routes(2)
			second.routes(2)
			if served := flood(t, routedRequests, 2, first, second); len(served) != 2 {
				t.Errorf("%d requests went to %v", routedRequests, served)
			}
			first.idle()
			second.idle()
		})
	}
}

// small are settings of workers with 64 blocks of 4 tokens, of whose answers a token takes half
// a second.
var small = []string{"kv-cache-block-size=4", "kv-cache-blocks=64", "sim-speedup=1", "sim-prefill=1", "sim-decode=500"}

// TestOverloadIsExact: of 50 requests at once, each of ten blocks, as many are let in as it
// takes to have both workers above a fifth of their 64 blocks, which is two each. All others
// are refused at once, with when to come again, and when those are gone there is room.
func TestOverloadIsExact(t *testing.T) {
	t.Parallel()
	for name, threshold := range map[string]func(f *process){
		"setting":  func(*process) {},
		"endpoint": func(f *process) { f.threshold(0.2) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := []string{"nats-listen=127.0.0.1:0"}
			if name == "setting" {
				settings = append(settings, "busy-threshold=0.2")
			}
			f := launch(t, config.Frontend, settings...)
			simulate(t, 2, append(small, "nats="+f.started.NATS)...)
			f.routes(2)
			threshold(f)
			f.overload(50, 4)
			f.idle()
			if a := f.complete("/v1/completions", asking(ids(99, 40), 1)); a.status != http.StatusOK || a.output != 1 {
				t.Errorf("afterwards: %+v", a)
			}
			f.idle()
		})
	}
}

// threshold sets the share of active blocks above which workers are busy.
func (p *process) threshold(share float64) {
	p.t.Helper()
	resp, data := p.do(http.MethodPost, "/busy_threshold", map[string]any{"model": simulated, "active_decode_blocks_threshold": share})
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(data), fmt.Sprintf(`"active_decode_blocks_threshold":%g,`, share)) {
		p.t.Errorf("setting the threshold: %s %s", resp.Status, data)
	}
	for _, path := range []string{"/busy_threshold", "/busy_threshold?model=" + simulated} {
		if resp, data := p.do(http.MethodGet, path, nil); resp.StatusCode != http.StatusOK || !strings.Contains(string(data), fmt.Sprintf(`"active_decode_blocks_threshold":%g,`, share)) {
			p.t.Errorf("%s: %s %s", path, resp.Status, data)
		}
	}
	if resp, _ := p.do(http.MethodGet, "/busy_threshold?model=nothing", nil); resp.StatusCode != http.StatusNotFound {
		p.t.Errorf("the threshold of a model that is not served: %s", resp.Status)
	}
}

// overload sends n requests of ten blocks at once and checks that all but the given number
// are refused while those run; then their clients go.
func (p *process) overload(n, admitted int) {
	t := p.t
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	refused := make(chan answer, n)
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			a, err := p.stream(ctx, "/v1/completions", asking(ids(uint64(1000+i), 40), 100))
			if a.status == http.StatusServiceUnavailable {
				refused <- a
			} else if err == nil {
				t.Errorf("an answer was over: %+v", a)
			}
		})
	}
	p.eventually("all but the admitted requests are refused", func() bool { return len(refused) >= n-admitted })
	for range n - admitted {
		if a := <-refused; !strings.Contains(a.err, "all 2 workers are busy") {
			t.Errorf("a refusal: %+v", a)
		}
	}
	running, blocks := 0, 0
	for _, w := range p.workers() {
		running += w.Load.ActiveRequests
		blocks += w.Load.ActiveBlocks
	}
	if running != admitted || blocks != 10*admitted {
		t.Errorf("%d requests with %d blocks were let in, want %d with ten each", running, blocks, admitted)
	}
	resp, data := p.do(http.MethodPost, "/v1/completions", asking(ids(98, 40), 20))
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(data), "all 2 workers are busy") {
		t.Errorf("one more: %s, Retry-After %q: %s", resp.Status, resp.Header.Get("Retry-After"), data)
	}
	leave()
	clients.Wait()
	if len(refused) != 0 {
		t.Errorf("%d more were refused", len(refused))
	}
}

// TestOverridesOfOneRequest: the router's own way to a worker takes all of the override, none
// and part of it, and gives as many tokens as were asked for.
func TestOverridesOfOneRequest(t *testing.T) {
	t.Parallel()
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-temperature=0")
	simulate(t, 2, "nats="+f.started.NATS)
	f.routes(2)
	for name, tt := range map[string]struct {
		override map[string]any
		tokens   int
	}{
		"all":  {map[string]any{"overlap_score_weight": 2.0, "router_temperature": 0.5, "router_mode": "kv"}, 20},
		"none": {nil, 10},
		"part": {map[string]any{"router_temperature": 0.5}, 5},
	} {
		body := map[string]any{
			"model": simulated, "token_ids": ids(5, 50), "sampling_options": map[string]any{"temperature": 0},
			"stop_conditions": map[string]any{"max_tokens": tt.tokens, "ignore_eos": true},
		}
		question := map[string]any{"model": simulated, "token_ids": ids(5, 50)}
		if tt.override != nil {
			body["router_config_override"], question["router_config_override"] = tt.override, tt.override
		}
		resp, data := f.do(http.MethodPost, "/v1/router/generate", body)
		got := 0
		for line := range strings.Lines(string(data)) {
			var ev struct {
				Tokens []int `json:"token_ids"`
			}
			if chunk, ok := strings.CutPrefix(line, "data: {"); ok {
				if err := json.Unmarshal([]byte("{"+chunk), &ev); err != nil {
					t.Fatal(err)
				}
				got += len(ev.Tokens)
			}
		}
		if resp.StatusCode != http.StatusOK || got != tt.tokens {
			t.Errorf("%s: %s, %d tokens, want %d: %s", name, resp.Status, got, tt.tokens, data)
		}
		resp, data = f.do(http.MethodPost, "/v1/router/best_worker", question)
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(data), `"block_size":16`) {
			t.Errorf("%s, best_worker: %s %s", name, resp.Status, data)
		}
	}
	f.idle()
}

// dump is what a process's router knows of caches, a line for each block, sorted.
func (p *process) dump() []string {
	p.t.Helper()
	resp, data := p.do(http.MethodGet, "/v1/router/index/dump", nil)
	if resp.StatusCode != http.StatusOK {
		p.t.Fatalf("dump: %s %s", resp.Status, data)
	}
	lines := strings.Fields(string(data))
	slices.Sort(lines)
	return lines
}

// cached is how many blocks the workers say that they have.
func (p *process) cached() (n int) {
	for _, w := range p.workers() {
		if w.Load.Reported != nil {
			n += w.Load.Reported.CachedBlocks
		}
	}
	return n
}

// same waits until the routers know what the workers have, all of it, the same, and no
// less than so many blocks.
func same(t *testing.T, least int, processes ...*process) {
	t.Helper()
	last := processes[len(processes)-1]
	last.eventually("the indexes are equal, and are what the workers have", func() bool {
		want := processes[0].dump()
		for _, p := range processes {
			if len(want) != p.cached() || !slices.Equal(want, p.dump()) {
				return false
			}
		}
		return len(want) >= least
	})
}

// TestIndexersSync: 25 requests through one router, which leaves snapshots, then a second
// router begins, and 25 through that one: both know the same. So they do after their NATS
// server was away while requests went on, and after it came back with requests.
func TestIndexersSync(t *testing.T) {
	t.Parallel()
	cfg := natsd.Config{DataDir: t.TempDir(), Listen: fixturetest.ReserveAddr(t)} // which it has the next time too
	server, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	nats := "nats=" + server.URL()
	settings := []string{nats, "router-snapshot-threshold=20"}
	first := launch(t, config.Frontend, settings...)
	simulate(t, 2, nats)
	first.routes(2)
	flood(t, 25, 100, first)
	first.eventually("a snapshot", func() bool { return first.counts(`penstock_router_snapshots_total{outcome="written"}`) })

	second := launch(t, config.Frontend, settings...)
	second.routes(2)
	second.eventually("the snapshot is read", func() bool { return second.counts(`penstock_router_snapshots_total{outcome="restored"}`) })
	flood(t, 25, 200, second)
	const blocks = (100 + 20 - 1) / routedBlock // of a request, if it shares none
	same(t, 50*blocks, first, second)

	// Requests travel over TCP: they go on while no router hears of their blocks.
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	flood(t, 20, 300, first, second)
	if server, err = natsd.Start(cfg); err != nil {
		t.Fatal(err)
	}
	same(t, 70*blocks, first, second)
	flood(t, 20, 400, first, second)
	same(t, 90*blocks, first, second)
}

// counts says whether a metric is there and not zero.
func (p *process) counts(metric string) bool {
	_, page := p.do(http.MethodGet, "/metrics", nil)
	_, after, ok := strings.Cut(string(page), metric+" ")
	return ok && !strings.HasPrefix(after, "0\n")
}

// TestQueryInstance: a question where a request would go gets the worker and the tokens
// and nothing that an answer has; a request with both goes there.
func TestQueryInstance(t *testing.T) {
	t.Parallel()
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	simulate(t, 2, "nats="+f.started.NATS)
	f.routes(2)
	for path, body := range map[string]map[string]any{
		"/v1/chat/completions": chatOf(simulated, longPrompt(1), 10),
		"/v1/completions":      {"model": simulated, "prompt": longPrompt(1), "max_tokens": 10},
	} {
		body["stream"] = true
		body["nvext"] = map[string]any{"annotations": []string{"query_instance_id"}}
		resp, data := f.do(http.MethodPost, path, body)
		var worker uint64
		var tokens []int
		rest := string(data)
		for _, event := range []struct {
			name string
			into any
		}{{"worker_instance_id", new(string)}, {"token_data", &tokens}} {
			head := "event: " + event.name + "\n: "
			after, ok := strings.CutPrefix(rest, head)
			value, next, _ := strings.Cut(after, "\n\n")
			if !ok || json.Unmarshal([]byte(value), event.into) != nil {
				t.Fatalf("%s: %s: no event %s at %q", path, resp.Status, event.name, rest)
			}
			if s, ok := event.into.(*string); ok {
				fmt.Sscan(*s, &worker)
			}
			rest = next
		}
		if rest != "data: [DONE]\n\n" || resp.StatusCode != http.StatusOK || len(tokens) < 300 || worker == 0 {
			t.Errorf("%s: %s, worker %d, %d tokens, and then %q", path, resp.Status, worker, len(tokens), rest)
		}
		body["nvext"] = map[string]any{"backend_instance_id": worker, "token_data": tokens}
		if a, err := f.stream(t.Context(), path, body); err != nil || a.worker != fmt.Sprint(worker) || a.prompt != len(tokens) || a.output == 0 {
			t.Errorf("%s, with the answer: %+v, %v", path, a, err)
		}
	}
	f.idle()
}

// picked is the nvext of an answer to query_instance_id.
type picked struct {
	Worker struct {
		Prefill uint64 `json:"prefill_worker_id"`
		Decode  uint64 `json:"decode_worker_id"`
	} `json:"worker_id"`
	Tokens []int `json:"token_ids"`
}

// TestQueryInstanceOfDynamo: "query_instance_id:", as Dynamo 1.x and its endpoint picker write it, is answered
// in nvext, of a stream's one chunk or of the whole answer, and generates nothing; what was picked serves
// the request. So it is where routers are between, of which one is picked then.
func TestQueryInstanceOfDynamo(t *testing.T) {
	t.Parallel()
	for name, routers := range map[string]int{"workers": 0, "routers": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := []string{"nats-listen=127.0.0.1:0"}
			if routers > 0 {
				settings = append(settings, "component=router", "router-mode=round-robin")
			}
			f := launch(t, config.Frontend, settings...)
			nats := "nats=" + f.started.NATS
			simulate(t, 2, nats)
			for range routers {
				launch(t, config.Router, nats, "http-addr=127.0.0.1:0")
			}
			f.routes(2)
			for path, body := range map[string]map[string]any{
				"/v1/chat/completions": chatOf(simulated, longPrompt(1), 10),
				"/v1/completions":      {"model": simulated, "prompt": longPrompt(1), "max_tokens": 10},
				"/v1/responses":        {"model": simulated, "input": longPrompt(1), "max_output_tokens": 20},
			} {
				for _, stream := range []bool{false, true} {
					body["stream"] = stream
					body["nvext"] = map[string]any{"annotations": []string{"query_instance_id:"}}
					f.pick(path, body)
				}
				p := f.pick(path, body)
				body["nvext"] = map[string]any{"backend_instance_id": p.Worker.Decode, "token_data": p.Tokens, "annotations": []string{"token_ids", "request_id:"}}
				resp, data := f.do(http.MethodPost, path, body, "x-request-id", "two")
				want := fmt.Sprintf("event: request_id\n: \"two\"\n\nevent: token_ids\n: \"%s\"\n\n", strings.ReplaceAll(fmt.Sprint(p.Tokens), " ", ","))
				if path == "/v1/responses" {
					want = `"request_id":"two","token_ids":[`
				}
				if worker := resp.Header.Get("x-penstock-worker"); resp.StatusCode != http.StatusOK || worker != fmt.Sprint(p.Worker.Decode) || !strings.Contains(string(data), want) {
					t.Errorf("%s at %d: %s at %s, without %.100q: %s", path, p.Worker.Decode, resp.Status, worker, want, data)
				}
			}
			f.idle()
		})
	}
}

// pick sends a request with query_instance_id and checks that its answer has nothing but nvext.
func (p *process) pick(path string, body map[string]any) (ext picked) {
	p.t.Helper()
	resp, data := p.do(http.MethodPost, path, body)
	at := strings.Index(string(data), `"nvext":`)
	if resp.StatusCode != http.StatusOK || at < 0 || json.NewDecoder(strings.NewReader(string(data[at+len(`"nvext":`):]))).Decode(&ext) != nil {
		p.t.Fatalf("%s: %s: %s", path, resp.Status, data)
	}
	if ext.Worker.Decode == 0 || ext.Worker.Prefill != ext.Worker.Decode || len(ext.Tokens) < 300 {
		p.t.Errorf("%s: %+v", path, ext)
	}
	for _, generated := range []string{`"choices":[{`, `"type":"message"`, `"attempts"`} {
		if strings.Contains(string(data), generated) {
			p.t.Errorf("%s: something was generated: %s", path, data)
		}
	}
	return ext
}

// TestPrefixesThatGrow: prompts of which each begins with the one before go to one worker,
// and only what is new is computed: whichever of two routers sends them, if these follow cache
// events, and by what it sent itself if a router does not.
func TestPrefixesThatGrow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		routers  int
		settings []string
	}{
		"events":    {2, nil},
		"no events": {1, []string{"no-kv-events=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frontends := []*process{launch(t, config.Frontend, append(tt.settings, "nats-listen=127.0.0.1:0")...)}
			nats := "nats=" + frontends[0].started.NATS
			for len(frontends) < tt.routers {
				frontends = append(frontends, launch(t, config.Frontend, append(tt.settings, nats)...))
			}
			simulate(t, 2, nats)
			for _, f := range frontends {
				f.routes(2)
			}
			for family := range uint64(4) {
				growing(t, ids(50+family, 5*64), frontends)
			}
		})
	}
}

// growing sends the beginnings of a prompt, 64 tokens more each, to frontends in turn.
func growing(t *testing.T, whole []int, frontends []*process) {
	t.Helper()
	worker, seen := "", 0
	for length := 64; length <= len(whole); length += 64 {
		a := frontends[length/64%len(frontends)].complete("/v1/completions", asking(whole[:length], 1))
		if a.status != http.StatusOK || worker != "" && a.worker != worker {
			t.Errorf("%d tokens: %+v, want worker %s", length, a, worker)
		}
		if a.cached != seen || a.overlap != fmt.Sprint(seen/routedBlock) {
			t.Errorf("%d tokens: %+v, want %d cached", length, a, seen)
		}
		worker, seen = a.worker, length
		for _, f := range frontends {
			f.knows(whole[:length], worker)
			f.idle() // and that nothing is active there, whichever router sent it
		}
	}
}

// knows waits until a process's router knows that a worker has all blocks of a prompt.
func (p *process) knows(prompt []int, worker string) {
	p.t.Helper()
	p.eventually("the prompt is known to be at worker "+worker, func() bool {
		resp, data := p.do(http.MethodPost, "/v1/router/explain", map[string]any{"model": simulated, "token_ids": prompt})
		var e struct {
			Candidates []candidate `json:"candidates"`
		}
		if err := json.Unmarshal(data, &e); err != nil || resp.StatusCode != http.StatusOK {
			p.t.Fatalf("explain: %s %v: %s", resp.Status, err, data)
		}
		for _, c := range e.Candidates {
			if fmt.Sprint(c.WorkerID) == worker {
				return c.Overlap.Device == len(prompt)/routedBlock
			}
		}
		return false
	})
}

// TestSessionStays: requests of one session go to one worker although their prompts have
// nothing in common and another worker has less to do: with a hard session whichever of two
// routers sends them. One that says it is the last ends that.
func TestSessionStays(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"soft", "hard"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			first := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-session-affinity="+mode)
			nats := "nats=" + first.started.NATS
			frontends := []*process{first}
			if mode == "hard" {
				frontends = append(frontends, launch(t, config.Frontend, nats, "router-session-affinity="+mode))
			}
			simulate(t, 4, nats)
			for _, f := range frontends {
				f.routes(4)
			}
			workers := map[string]bool{}
			for session := range 6 {
				worker := ""
				for turn := range 5 {
					f := frontends[turn%len(frontends)]
					id := fmt.Sprintf("session-%d-turn-%d", session, turn)
					a := f.complete("/v1/completions", asking(ids(uint64(1000+10*session+turn), 100), 2), "x-session-id", fmt.Sprint("session ", session), "x-request-id", id)
					if a.status != http.StatusOK || worker != "" && a.worker != worker {
						_, decisions := f.do(http.MethodGet, "/v1/router/decisions?request_id="+id, nil)
						t.Errorf("session %d, turn %d: %+v, want worker %s\ndecisions %s\nworkers %+v", session, turn, a, worker, decisions, f.workers())
					}
					worker = a.worker
				}
				workers[worker] = true
			}
			if len(workers) < 2 {
				t.Errorf("six sessions are all at %v", workers)
			}
		})
	}
}
