package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/test/fleet"
)

// ownRequests are the scenarios which do not send the requests of the others.
var ownRequests = []string{"prefill", "leader", "full"}

const (
	// prefillWords is the length of a prompt with more than 1 MB of blocks to move. Sockets with a tap between them
	// do not take that much in advance, so a writer which stands still has not written all.
	prefillWords = 250
	// prefillTokens is the length of an answer.
	prefillTokens = 24
	// prefillSlots is how many jobs prefill workers of a fleet work on at once: two each.
	prefillSlots = 4
	// queueLease is how long a prefill worker has a job without a heartbeat.
	queueLease = 2 * time.Second
	// computePatience bounds what takes time beside waits: prefill and decode of a few requests on a busy machine.
	computePatience = 10 * time.Second
	// blockTokens are the tokens of a block.
	blockTokens = 16
	// tokenBytes are the bytes of a token in a block of engine tiny, and bulkChunkSize the bytes of a chunk of a transfer.
	tokenBytes    = 4096
	bulkChunkSize = 262_144
)

// prefillScenario is a fleet of two decode workers and two prefill workers. The prefill workers are in network
// namespaces, which make them other hosts: so blocks come over TCP, through a tap.
type prefillScenario struct {
	e       *testEnv
	r       *scenarioResult
	f       *fleet.Fleet
	tap     *bulkTap
	nets    []*netNamespace // of the prefill workers
	mix     []fleet.KnownRequest
	times   int                        // how often each case is tried
	chunks  int                        // of the blocks of the shortest prompt, the last one not counted
	wait    time.Duration              // prefill-wait
	quiet   map[int]footprint          // first quiet one of each process, by its id
	seen    map[int]map[string]float64 // where prompts were computed, as decode workers said last, by process
	cluster *natsCluster               // nil with a hub
	hubData string                     // of the hub
}

// prefillFleet says what differs between the scenarios.
type prefillFleet struct {
	hasCluster bool
	// memory is for how many of its requests a decode worker has memory; 0 is the engine's own.
	memory int
}

// startPrefill starts the fleet, after it has learned the answers of its requests from one worker. The caller ends it.
func (e *testEnv) startPrefill(ctx context.Context, r *scenarioResult, cfg prefillFleet) (s *prefillScenario, err error) {
	s = &prefillScenario{
		e: e, r: r, tap: newBulkTap(), wait: e.wait, times: cmp.Or(e.times, longOrShort(e, 50, 3)),
		quiet: map[int]footprint{}, seen: map[int]map[string]float64{},
	}
	defer func() {
		if err != nil {
			s.endPrefill()
		}
	}()
	for i := range 2 {
		ns, err := newNetNamespace(e.seed, i)
		if err != nil {
			return s, err
		}
		s.nets = append(s.nets, ns)
	}
	host := s.nets[0].host
	if s.mix, err = e.learnAnswers(ctx, fleet.LongRequests(min(14, 4+s.times), prefillTokens, prefillWords)); err != nil {
		return s, err
	}
	var prompts []int
	for _, k := range s.mix {
		prompts = append(prompts, k.Want.Prompt)
	}
	longest := slices.Max(prompts)
	s.chunks = (slices.Min(prompts) - blockTokens) * tokenBytes / bulkChunkSize
	e.logProgress("%d prompts have %d to %d tokens", len(prompts), slices.Min(prompts), longest)
	var args []string
	if cfg.memory > 0 {
		args = []string{"--kv-cache-blocks", fmt.Sprint(cfg.memory * (longest + 2*prefillTokens) / blockTokens)}
	}
	s.hubData = filepath.Join(e.dir, fmt.Sprintf("%02d-%s-hub", e.fleets, e.name))
	config := fleet.Config{
		Workers: 2, Prefillers: 2, Frontends: 1, HubHost: host, HubData: s.hubData,
		WorkerArgs: []string{"--prefill-wait", s.wait.String()},
	}
	if cfg.hasCluster {
		self, err := os.Executable()
		if err != nil {
			return s, err
		}
		if s.cluster, err = e.startNATSCluster(ctx, self, host); err != nil {
			return s, err
		}
		config.NATSURLs = s.cluster.urls
	}
	var failed []error
	config.Each = func(role *fleet.Role) {
		switch role.Kind {
		case "worker":
			failed = append(failed, s.placeDecoder(role, host, args))
		case "prefiller":
			ns := s.nets[role.ID%uint64(len(s.nets))]
			role.Prefix = []string{"ip", "netns", "exec", ns.name}
			role.RPC, role.HTTP = ns.inside+":7000", ns.inside+":7001"
		}
	}
	s.f, err = e.startFleet(ctx, config)
	if err = errors.Join(err, errors.Join(failed...)); err != nil {
		return s, err
	}
	if s.cluster != nil {
		if err := s.awaitReplicas(ctx); err != nil {
			return s, err
		}
	}
	return s, s.proveRemote(ctx, "at the start")
}

// placeDecoder has a decode worker told to others at an address of the host, where the tap stands in front of its
// memory.
func (s *prefillScenario) placeDecoder(role *fleet.Role, host string, args []string) error {
	_, port, err := net.SplitHostPort(role.RPC)
	if err != nil {
		return err
	}
	role.RPC = net.JoinHostPort(host, port)
	role.Advertise = role.RPC
	memory, err := s.e.ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return err
	}
	_, port, _ = net.SplitHostPort(memory)
	role.Args = slices.Concat(role.Args, []string{"--disagg-policy", "always", "--bulk-addr", memory}, args)
	return s.tap.listen(net.JoinHostPort(host, port), memory, role.ID)
}

// endPrefill stops everything.
func (s *prefillScenario) endPrefill() {
	s.tap.release()
	s.r.excused = "the engine does not answer" // which a worker that was paused may say of itself
	if s.f != nil {
		s.e.endFleet(s.f, s.r)
	}
	if s.cluster != nil {
		if err := s.cluster.stopAll(); err != nil {
			s.r.addProblem("the NATS servers at the end: %v", err)
		}
	}
	s.tap.closeAll()
	for _, ns := range s.nets {
		ns.removeNamespace()
	}
}

// prefillCase is one kind of disturbance.
type prefillCase struct {
	name string
	// bound is of the time to a first token, without the time for which the scenario itself holds the fleet up.
	bound time.Duration
	// strike sends requests and disturbs the fleet at a moment. It may set heal, which is called when all are answered.
	strike func(ctx context.Context, t *prefillTry) error
}

// prefillTry is one try of a case.
type prefillTry struct {
	number int // of those before which hit their moment
	loads  []*fleet.RunningLoad
	heal   func(context.Context) error
	// moment says what was seen at the moment of the disturbance; empty if it was missed.
	moment string
	// held is for how long the scenario held transfers back.
	held time.Duration
}

// startRequests sends n requests at once, none of whose prompts is cached anywhere.
func (s *prefillScenario) startRequests(ctx context.Context, t *prefillTry, n int) {
	load := s.e.newLoad(s.f.Frontends...) // the hub has none: it may be what dies
	load.Mix, load.Fresh, load.Limit = s.mix, 1, int64(n)
	t.loads = append(t.loads, load.StartClients(ctx, n))
}

// runCases runs the cases which the command line chooses.
func (s *prefillScenario) runCases(ctx context.Context, cases ...prefillCase) error {
	for _, c := range cases {
		if s.e.cases != "" && !slices.Contains(strings.Split(s.e.cases, ","), c.name) {
			continue
		}
		if err := s.runCase(ctx, &c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// triesPerHit bounds how often a moment may be missed.
const triesPerHit = 3

// runCase tries a case until its moment was hit as often as it is to be, and reports on it.
func (s *prefillScenario) runCase(ctx context.Context, c *prefillCase) error {
	var all fleet.OutcomeCounts
	var held, calm, first fleet.Durations
	before, err := s.countOutcomes(ctx)
	if err != nil {
		return err
	}
	hits, tries, moment := 0, 0, ""
	for ; hits < s.times && tries < triesPerHit*s.times; tries++ {
		t := &prefillTry{number: hits}
		tally, err := s.tryCase(ctx, c, t)
		all.MergeCounts(&tally)
		if err != nil {
			return fmt.Errorf("try %d: %w", tries+1, err)
		}
		held.Add(t.held)
		first.Add(max(tally.First.Max()-t.held, 0))
		took, err := fleet.WaitUntil(ctx, 200*time.Millisecond, quietPatience, s.checkQuiet)
		if err != nil {
			return fmt.Errorf("try %d, %s: %w", tries+1, t.moment, err)
		}
		calm.Add(took)
		if t.moment != "" {
			hits++
			moment = t.moment
		}
		s.e.logProgress("%s: %d of %d times, first token within %v: %s", c.name, hits, s.times, tally.First.Max().Round(time.Millisecond), cmp.Or(t.moment, "missed"))
	}
	after, err := s.countOutcomes(ctx)
	if err != nil {
		return err
	}
	s.r.requireFlawless(&all)
	s.r.addFigure(c.name+": times the moment was hit", float64(hits), "")
	s.r.addFigure(c.name+": times it was missed", float64(tries-hits), "")
	s.r.addNote("%s: the last moment: %s", c.name, moment)
	s.r.addFigure(c.name+": requests", float64(all.Sent), "")
	s.r.addFigure(c.name+": requests which moved to another decode worker", float64(all.Moved), "")
	for _, where := range slices.Sorted(maps.Keys(after)) {
		if n := after[where] - before[where]; n > 0 {
			s.r.addFigure(c.name+": prompts computed "+where, n, "")
		}
	}
	s.r.addTime(c.name+": time to the first token, p50", all.First.Percentile(50))
	s.r.addTime(c.name+": time to the first token, max", all.First.Max())
	s.r.addTime(c.name+": the same without what was held up, max", first.Max())
	s.r.addTime(c.name+": its bound", c.bound)
	s.r.addTime(c.name+": held up, max", held.Max())
	s.r.addTime(c.name+": to nothing left, max", calm.Max())
	s.e.logProgress("%s: hit %d of %d tries, %d requests, first token within %v (bound %v); %s", c.name, hits, tries, all.Sent, first.Max(), c.bound, moment)
	if first.Max() > c.bound {
		s.r.addProblem("%s: a first token came after %v, more than %v", c.name, first.Max(), c.bound)
	}
	if hits < s.times {
		s.r.addProblem("%s: the moment was hit %d times in %d tries, not %d", c.name, hits, tries, s.times)
	}
	return s.proveRemote(ctx, "after "+c.name)
}

// tryCase tries a case once, and returns the outcomes of its requests.
func (s *prefillScenario) tryCase(ctx context.Context, c *prefillCase, t *prefillTry) (all fleet.OutcomeCounts, err error) {
	err = c.strike(ctx, t)
	t.held = s.tap.release()
	for _, load := range t.loads {
		var tally fleet.OutcomeCounts
		if err != nil {
			tally = load.AbandonStreams()
		} else {
			tally, _ = load.WaitClients()
		}
		all.MergeCounts(&tally)
	}
	if t.heal != nil {
		err = errors.Join(err, t.heal(ctx))
	}
	return all, err
}

// proveRemote sends undisturbed requests, whose prompts must be computed by prefill workers.
func (s *prefillScenario) proveRemote(ctx context.Context, when string) error {
	const requests = 2
	before, err := s.countOutcomes(ctx)
	if err != nil {
		return err
	}
	var t prefillTry
	s.startRequests(ctx, &t, requests)
	tally, _ := t.loads[0].WaitClients()
	s.r.requireFlawless(&tally)
	after, err := s.countOutcomes(ctx)
	if err == nil && after[remotely]-before[remotely] != requests {
		s.r.addProblem("%s: of %d undisturbed prompts prefill workers computed %v: before %v, then %v", when, requests, after[remotely]-before[remotely], before, after)
	}
	return err
}

// remotely is where prefill workers compute a prompt.
const remotely = "by prefill workers"

// countOutcomes returns how many prompts were computed where, over all lives of the decode workers. What one has
// done since the last call before its death is not counted.
func (s *prefillScenario) countOutcomes(ctx context.Context) (map[string]float64, error) {
	for _, w := range s.f.Workers {
		m, err := fleet.ReadMetrics(ctx, w.URL())
		if err != nil {
			return nil, err
		}
		now := map[string]float64{remotely: m.SumOf("penstock_prefill_remote_total")}
		for _, sample := range m {
			if sample.Name == "penstock_prefill_local_total" {
				_, reason, _ := strings.Cut(sample.Labels, `reason="`)
				reason, _, _ = strings.Cut(reason, `"`)
				now["by the decode worker, "+reason] = sample.Value
			}
		}
		s.seen[w.PID()] = now
	}
	all := map[string]float64{}
	for _, counts := range s.seen {
		for where, n := range counts {
			all[where] += n
		}
	}
	return all, nil
}

// checkQuiet returns nil when nothing is left of any request or job, and no process has grown.
func (s *prefillScenario) checkQuiet(ctx context.Context) error {
	if err := checkIdle(ctx, s.f, s.f.ClientRoles()...); err != nil {
		return err
	}
	q, err := fleet.ReadPrefillQueue(ctx, s.f.NATS)
	if err != nil {
		return err
	}
	if len(q.Waiting)+q.Started > 0 {
		return fmt.Errorf("the prefill queue has %d waiting jobs and %d others", len(q.Waiting), q.Started)
	}
	now := map[int]footprint{}
	for _, role := range s.f.AllRoles() {
		m, err := fleet.ReadMetrics(ctx, role.URL())
		if err != nil {
			return err
		}
		took := footprint{goroutines: int(m.SumOf("go_goroutines"))}
		if took.descriptors, err = fleet.CountDescriptors(role.PID()); err != nil {
			return err
		}
		if was, there := s.quiet[role.PID()]; there {
			if err := took.checkGrowth(was); err != nil {
				return fmt.Errorf("%s: %w", role.Name(), err)
			}
			continue
		}
		now[role.PID()] = took
	}
	maps.Copy(s.quiet, now)
	return nil
}

// prefillerAt returns the prefill worker whose transfers come from an address.
func (s *prefillScenario) prefillerAt(addr string) (*fleet.Role, error) {
	for _, p := range s.f.Prefillers {
		if host, _, _ := net.SplitHostPort(p.RPC); host == addr {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no prefill worker is at %s", addr)
}

// awaitWaiting waits until n jobs wait in the queue for a prefill worker.
func (s *prefillScenario) awaitWaiting(ctx context.Context, n int) (q fleet.PrefillQueue, err error) {
	_, err = fleet.WaitUntil(ctx, 100*time.Millisecond, returnPatience, func(ctx context.Context) error {
		if q, err = fleet.ReadPrefillQueue(ctx, s.f.NATS); err != nil {
			return err
		}
		if len(q.Waiting) < n {
			return fmt.Errorf("%d jobs wait for a prefill worker, not %d", len(q.Waiting), n)
		}
		return nil
	})
	return q, err
}

// fillSlots sends requests until prefill workers have all the jobs which they take at once, all in a transfer which
// is held back, and further jobs wait in the queue.
func (s *prefillScenario) fillSlots(ctx context.Context, t *prefillTry, waiting int) (q fleet.PrefillQueue, err error) {
	s.tap.holdAt(tapPoint{frame: bulkChunk}, prefillSlots)
	s.startRequests(ctx, t, prefillSlots+waiting)
	if _, err := s.tap.awaitHeld(ctx, prefillSlots); err != nil {
		return q, err
	}
	return s.awaitWaiting(ctx, waiting)
}

// restart returns what restarts processes and waits until they are part of the fleet.
func (s *prefillScenario) restart(roles ...*fleet.Role) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, r := range roles {
			if err := r.Start(); err != nil {
				return err
			}
		}
		return s.f.WaitReady(ctx)
	}
}
