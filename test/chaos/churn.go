package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/test/fleet"
)

// quietPatience bounds the time for all resources to return to the baseline without requests.
const quietPatience = 60 * time.Second

// pageBound bounds the size of /metrics of a process, in bytes.
const pageBound = 1_000_000

// runChurn runs clients which do everything wrong, loads and unloads adapters, kills workers and stops the
// NATS server, round after round, beside clients which check their responses. In the pause after each round
// the surviving processes must have kept nothing.
func runChurn(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	c := &churnScenario{e: e, r: r, fleet: f, before: map[*fleet.Role]footprint{}, acts: map[string]int{}, wrong: map[string]int{}}
	if err := c.startAdapters(ctx); err != nil {
		return errors.Join(err, c.stopAdapters())
	}
	var err error
	rounds := longOrShort(e, 12, 2)
	for round := range rounds {
		if err = c.runRound(ctx, round); err != nil {
			err = fmt.Errorf("round %d: %w", round, err)
			break
		}
	}
	c.reportFigures()
	return errors.Join(err, c.stopAdapters())
}

// churnScenario is the state of that scenario.
type churnScenario struct {
	e         *testEnv
	r         *scenarioResult
	fleet     *fleet.Fleet
	engine    *fleet.Process // has the adapters
	worker    *fleet.Role    // the worker of that engine
	engineURL string         // URL of the engine
	before    map[*fleet.Role]footprint
	largest   footprint
	quiet     fleet.Durations
	kills     int
	cuts      int
	loaded    int
	mu        sync.Mutex
	acts      map[string]int // what clients did, by name
	wrong     map[string]int // violations of servers
}

// reportFigures reports the counts.
func (c *churnScenario) reportFigures() {
	for _, what := range slices.Sorted(maps.Keys(c.wrong)) {
		c.r.addProblem("%d times %s", c.wrong[what], what)
	}
	total := 0
	for _, n := range c.acts {
		total += n
	}
	c.r.addFigure("actions of ill-behaved clients", float64(total), "")
	c.r.addFigure("workers killed", float64(c.kills), "")
	c.r.addFigure("NATS server stopped", float64(c.cuts), "")
	c.r.addFigure("adapters loaded and unloaded", float64(c.loaded), "")
	c.r.addDurations("end of a round to the baseline", &c.quiet)
	c.r.addFigure("largest page of metrics in a round", float64(c.largest.bytes), "bytes")
	c.r.addFigure("most series in a quiet moment", float64(c.largest.series), "")
	c.r.addFigure("most goroutines in a quiet moment", float64(c.largest.goroutines), "")
	c.r.addFigure("most descriptors in a quiet moment", float64(c.largest.descriptors), "")
}

// runRound disturbs everything for a while, and checks that nothing is left over.
func (c *churnScenario) runRound(ctx context.Context, number int) error {
	load := c.e.newLoad(c.fleet.Frontends...).StartClients(ctx, 3)
	defer load.AbandonStreams()
	bad := c.startMisbehaving(ctx, longOrShort(c.e, 24, 12))
	err := c.disturbFleet(ctx, number)
	bad()
	tally, _ := load.FinishLoad()
	c.r.requireFlawless(&tally)
	if err != nil {
		return err
	}
	took, err := fleet.WaitUntil(ctx, 100*time.Millisecond, quietPatience, c.atBaseline)
	c.quiet.Add(took)
	c.e.logProgress("round %d: quiet after %v", number, took.Round(time.Millisecond))
	return err
}

// disturbFleet does the disturbances of a round: it loads, uses and unloads adapters, kills and restarts a
// worker, and stops the NATS server for a while. The first round has none of them and sets the baseline.
func (c *churnScenario) disturbFleet(ctx context.Context, round int) error {
	if round == 0 {
		for _, door := range c.fleet.Frontends {
			if err := c.useAdapter(ctx, door, adapterModel); err != nil {
				return err
			}
		}
		return sleepContext(ctx, 3*time.Second)
	}
	names := c.adapterNames(round)
	if round > 1 { // the engine started with the adapters of that round
		if err := c.loadAdapters(ctx, names); err != nil {
			return err
		}
	}
	if err := c.awaitListed(ctx, len(names)); err != nil {
		return err
	}
	for _, name := range names {
		if err := c.useAdapter(ctx, c.fleet.Frontends[c.e.random.IntN(len(c.fleet.Frontends))], name); err != nil {
			return err
		}
	}
	for _, door := range c.fleet.Frontends {
		if _, _, err := c.readMetrics(ctx, door); err != nil {
			return err
		}
	}
	c.loaded += len(names)
	if err := c.unloadAdapters(ctx, names); err != nil {
		return err
	}
	for range longOrShort(c.e, 3, 1) {
		if err := c.killWorker(ctx); err != nil {
			return err
		}
	}
	if err := c.cutNATS(ctx); err != nil {
		return err
	}
	return c.awaitListed(ctx, 0)
}

// killWorker kills a worker at a random time, and waits until its successor is part of the fleet.
func (c *churnScenario) killWorker(ctx context.Context) error {
	if err := sleepContext(ctx, time.Duration(c.e.random.IntN(500))*time.Millisecond); err != nil {
		return err
	}
	victim := c.fleet.Workers[c.e.random.IntN(len(c.fleet.Workers))]
	victim.Kill()
	c.kills++
	delete(c.before, victim) // a restarted process gets a new baseline
	if err := sleepContext(ctx, time.Duration(c.e.random.IntN(500))*time.Millisecond); err != nil {
		return err
	}
	if err := victim.Start(); err != nil {
		return err
	}
	return c.fleet.WaitReady(ctx)
}

// cutNATS pauses the process with the NATS server for less than a lease.
func (c *churnScenario) cutNATS(ctx context.Context) error {
	if err := c.fleet.Store.Pause(); err != nil {
		return err
	}
	c.cuts++
	err := sleepContext(ctx, longOrShort(c.e, 5*time.Second, 2*time.Second))
	return errors.Join(err, c.fleet.Store.Resume())
}

// footprint is the resource use of a process.
type footprint struct{ goroutines, descriptors, series, bytes int }

// slack is the allowed difference between two pauses: connections kept for the next call, and histograms used
// for the first time.
var slack = footprint{goroutines: 16, descriptors: 12, series: 24}

// closedLabels matches the labels with a closed set of values: their series appear when a value is first
// seen, and the counting code bounds them.
var closedLabels = regexp.MustCompile(`(^|,)(status|reason|outcome|kind|code|op|stage)="`)

// atBaseline returns nil when no request is served, and resource use does not exceed that of the first pause.
func (c *churnScenario) atBaseline(ctx context.Context) error {
	doors := c.fleet.ClientRoles()
	if err := checkIdle(ctx, c.fleet, doors...); err != nil {
		return err
	}
	now := map[*fleet.Role]footprint{}
	for _, p := range append(c.fleet.AllRoles(), c.worker) {
		took, err := c.measureFootprint(ctx, p)
		if err != nil {
			return err
		}
		now[p] = took
	}
	for p, took := range now { // in any order
		if was, there := c.before[p]; there {
			if err := took.checkGrowth(was); err != nil {
				return fmt.Errorf("%s: %w", p.Name(), err)
			}
		}
	}
	for p, took := range now {
		if _, there := c.before[p]; !there {
			c.before[p] = took
		}
		c.largest.goroutines = max(c.largest.goroutines, took.goroutines)
		c.largest.descriptors = max(c.largest.descriptors, took.descriptors)
		c.largest.series = max(c.largest.series, took.series)
	}
	return nil
}

// checkGrowth returns an error if resource use has grown.
func (p footprint) checkGrowth(was footprint) error {
	for _, q := range []struct {
		name            string
		now, was, slack int
	}{
		{"goroutines", p.goroutines, was.goroutines, slack.goroutines},
		{"descriptors", p.descriptors, was.descriptors, slack.descriptors},
		{"series", p.series, was.series, slack.series},
	} {
		if q.now > q.was+q.slack {
			return fmt.Errorf("%d %s, in the first quiet moment %d", q.now, q.name, q.was)
		}
	}
	return nil
}

// measureFootprint returns the resource use of a process, and an error if a gauge still counts something.
func (c *churnScenario) measureFootprint(ctx context.Context, p *fleet.Role) (took footprint, err error) {
	m, size, err := c.readMetrics(ctx, p)
	if err != nil {
		return took, err
	}
	for _, gauge := range []string{
		"penstock_frontend_inflight", "penstock_frontend_waiting", "penstock_router_queue_requests", "penstock_router_queue_tokens",
		"penstock_router_quarantined_workers", "penstock_router_replica_requests", "penstock_media_lent_segments", "penstock_worker_inflight",
	} {
		if n := m.SumOf(gauge); n != 0 {
			return took, fmt.Errorf("%s: %s is %v", p.Name(), gauge, n)
		}
	}
	for _, s := range m {
		if strings.HasPrefix(s.Name, "penstock_") && !closedLabels.MatchString(s.Labels) {
			took.series++
		}
		if strings.Contains(s.Labels, adapterPrefix) {
			return took, fmt.Errorf("%s: %s{%s} is of an adapter that has gone", p.Name(), s.Name, s.Labels)
		}
	}
	took.goroutines, took.bytes = int(m.SumOf("go_goroutines")), size
	took.descriptors, err = fleet.CountDescriptors(p.PID())
	return took, err
}

// readMetrics returns the metrics of a process, and their size in bytes.
func (c *churnScenario) readMetrics(ctx context.Context, p *fleet.Role) (fleet.Metrics, int, error) {
	m, size, err := fleet.ReadMetricsSized(ctx, p.URL())
	c.largest.bytes = max(c.largest.bytes, size)
	if size > pageBound {
		c.r.addProblem("%s has %d bytes at /metrics", p.Name(), size)
	}
	return m, size, err
}

// adapterModel is the model with adapters.
const adapterModel = "adapted"

// adapterPrefix is the prefix of adapter names in labels.
const adapterPrefix = "adapter-"

// adapterNames returns the adapter names of a round.
func (c *churnScenario) adapterNames(round int) []string {
	var names []string
	for i := range longOrShort(c.e, 150, 25) {
		names = append(names, fmt.Sprintf("%s%02d-%03d-%s", adapterPrefix, round, i, strings.Repeat("x", 40)))
	}
	return names
}

// startAdapters starts an engine with the adapters of the first round which has some, and its worker.
func (c *churnScenario) startAdapters(ctx context.Context) (err error) {
	addrs := make([]string, 3)
	for i := range addrs {
		if addrs[i], err = c.e.ports.ReserveAddr("127.0.0.1"); err != nil {
			return err
		}
	}
	dir := filepath.Join(c.e.dir, fmt.Sprintf("%02d-%s", c.e.fleets, c.e.name))
	c.engineURL = "http://" + addrs[0]
	args := []string{c.e.bin, "sim", "--dialect", "vllm", "--http-addr", addrs[0], "--served-model-name", adapterModel, "--sim-speedup", "20", "--export-model", filepath.Join(dir, "model")}
	for _, name := range c.adapterNames(1) {
		args = append(args, "--lora", name)
	}
	c.engine = fleet.NewProcess("engine", filepath.Join(dir, "engine.log"), args...)
	if err := c.engine.Start(); err != nil {
		return err
	}
	c.worker = &fleet.Role{Kind: "worker", ID: 50, HTTP: addrs[1], RPC: addrs[2], NATS: c.fleet.NATS}
	c.worker.Process = fleet.NewProcess("worker-50", filepath.Join(dir, "worker-50.log"), c.e.bin, "worker", "--http-addr", addrs[1], "--rpc-addr", addrs[2],
		"--worker-id", "50", "--nats", c.fleet.NATS, "--engine", "vllm="+c.engineURL)
	if err := c.worker.Start(); err != nil {
		return err
	}
	for _, door := range c.fleet.ClientRoles() {
		if _, err := fleet.WaitUntil(ctx, 20*time.Millisecond, returnPatience, func(ctx context.Context) error { return c.fleet.CheckSees(ctx, door, c.worker) }); err != nil {
			return err
		}
	}
	return nil
}

// stopAdapters stops the processes of startAdapters.
func (c *churnScenario) stopAdapters() error {
	var errs []error
	for _, p := range []*fleet.Process{c.workerProcess(), c.engine} {
		if p == nil {
			continue
		}
		errs = append(errs, p.CheckDied(), p.Stop(returnPatience))
		for _, line := range p.LogAlarms() {
			c.r.addProblem("it needs an explanation: %s", line)
		}
	}
	return errors.Join(errs...)
}

func (c *churnScenario) workerProcess() *fleet.Process {
	if c.worker == nil {
		return nil
	}
	return c.worker.Process
}

// loadAdapters loads adapters into the engine.
func (c *churnScenario) loadAdapters(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := c.postEngine(ctx, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, "/"+name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *churnScenario) unloadAdapters(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := c.postEngine(ctx, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name":%q}`, name)); err != nil {
			return err
		}
	}
	return nil
}

// postEngine posts to the engine.
func (c *churnScenario) postEngine(ctx context.Context, path, body string) error {
	status, text, err := postJSON(ctx, c.engineURL+path, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the engine answers %s with %d %.200s", path, status, text)
	}
	return err
}

// awaitListed waits until the frontends list n adapters as models.
func (c *churnScenario) awaitListed(ctx context.Context, n int) error {
	for _, door := range c.fleet.ClientRoles() {
		if _, err := fleet.WaitUntil(ctx, 50*time.Millisecond, returnPatience, func(ctx context.Context) error {
			status, text, err := getPage(ctx, door.URL()+"/v1/models")
			if have := strings.Count(text, `"id":"`+adapterPrefix); err == nil && (status != http.StatusOK || have != n) {
				err = fmt.Errorf("%s lists %d adapters, want %d", door.Name(), have, n)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// useAdapter sends each kind of request for an adapter, or its model.
func (c *churnScenario) useAdapter(ctx context.Context, door *fleet.Role, name string) error {
	for path, body := range map[string]string{
		"/v1/completions":      `{"model":%q,"prompt":"hi","max_tokens":2}`,
		"/v1/chat/completions": `{"model":%q,"messages":[{"role":"user","content":"hi"}],"max_tokens":2}`,
	} {
		status, text, err := postJSON(ctx, door.URL()+path, fmt.Sprintf(body, name))
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			c.r.addProblem("%s for %s is answered with %d %.300s", path, name, status, text)
		}
	}
	return nil
}

// postJSON sends JSON and returns the response.
func postJSON(ctx context.Context, url, body string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	return doRequest(req)
}

// getPage gets a page.
func getPage(ctx context.Context, url string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	return doRequest(req)
}

func doRequest(req *http.Request) (status int, text string, err error) {
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}
