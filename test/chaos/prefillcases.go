package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/internal/config"
	"penstock/test/fleet"
)

// runPrefill disturbs a fleet with prefill workers in every stage of a handoff. Each answer is compared with the one
// of a single worker, and after each try nothing may be left of it.
//
// A try takes three to twenty seconds on a quiet machine, by its waits: 50 of each case take about an hour and a half.
func runPrefill(ctx context.Context, e *testEnv, r *scenarioResult) error {
	s, err := e.startPrefill(ctx, r, prefillFleet{})
	if err != nil {
		return err
	}
	defer s.endPrefill()
	// The connection of a dead worker ends at once: it is given up before one which stands still.
	died := s.wait/2 + computePatience
	return s.runCases(ctx,
		prefillCase{"queued", died, s.killQueued},
		prefillCase{"computing", died, s.killComputing},
		prefillCase{"writing", died, func(ctx context.Context, t *prefillTry) error {
			return s.killWriting(ctx, t, s.insideTransfer())
		}},
		prefillCase{"notifying", died, func(ctx context.Context, t *prefillTry) error {
			return s.killWriting(ctx, t, tapPoint{frame: bulkEnd})
		}},
		prefillCase{"decode", died, s.killDecode},
		prefillCase{"stopped", died, s.stopWriting},
		prefillCase{"queue", s.wait + computePatience, s.loseQueue},
		prefillCase{"numerics", s.wait + computePatience, s.addStranger},
	)
}

// killQueued kills a prefill worker, each second time both, while jobs wait in the queue.
func (s *prefillScenario) killQueued(ctx context.Context, t *prefillTry) error {
	q, err := s.fillSlots(ctx, t, 2)
	if err != nil {
		return err
	}
	victims := s.f.Prefillers[:1+t.number%2]
	for _, v := range victims {
		v.Kill()
	}
	after, err := fleet.ReadPrefillQueue(ctx, s.f.NATS)
	if err != nil {
		return err
	}
	for _, v := range victims {
		s.cutFrom(v)
	}
	if len(after.Waiting) >= len(q.Waiting) {
		t.moment = fmt.Sprintf("%d jobs waited before %d of 2 prefill workers died, and %d then", len(q.Waiting), len(victims), len(after.Waiting))
	}
	if len(victims) == 2 { // the jobs wait for the next ones
		return s.restart(victims...)(ctx)
	}
	t.heal = s.restart(victims...)
	return nil
}

// cutFrom ends the transfers of a prefill worker.
func (s *prefillScenario) cutFrom(p *fleet.Role) {
	s.tap.cutWhere(func(x *tapTransfer) bool { at, err := s.prefillerAt(x.from); return err == nil && at == p })
}

// killComputing kills a prefill worker which computes a prompt and has not begun to write its blocks.
func (s *prefillScenario) killComputing(ctx context.Context, t *prefillTry) error {
	s.tap.holdAt(tapPoint{}, 0)
	s.startRequests(ctx, t, 1)
	var victim *fleet.Role
	_, err := fleet.WaitUntil(ctx, 10*time.Millisecond, returnPatience, func(ctx context.Context) error {
		for _, p := range s.f.Prefillers {
			m, err := fleet.ReadMetrics(ctx, p.URL())
			if err != nil {
				return err
			}
			if m.SumOf("penstock_worker_load", `quantity="running"`) > 0 {
				victim = p
				return nil
			}
		}
		return errors.New("no prefill worker computes")
	})
	if err != nil {
		return err
	}
	victim.Kill()
	t.heal = s.restart(victim)
	if !slices.ContainsFunc(s.tap.list(), func(x tapTransfer) bool { at, _ := s.prefillerAt(x.from); return at == victim }) {
		t.moment = victim.Name() + " was computing and had begun no transfer"
	}
	return nil
}

// killWriting kills a prefill worker when its transfer has reached a point.
func (s *prefillScenario) killWriting(ctx context.Context, t *prefillTry, at tapPoint) error {
	x, victim, err := s.holdOne(ctx, t, at)
	if err != nil {
		return err
	}
	victim.Kill()
	t.heal = s.restart(victim)
	s.cutFrom(victim)
	t.moment = fmt.Sprintf("of %d bytes %d had passed, and no END", x.size, x.passed)
	return nil
}

// insideTransfer returns a point in the middle of every transfer.
func (s *prefillScenario) insideTransfer() tapPoint {
	return tapPoint{bulkChunk, int64(1+s.e.random.IntN(max(s.chunks-1, 1))) * bulkChunkSize}
}

// holdOne sends two requests and waits until a transfer of one of them is held back at a point.
func (s *prefillScenario) holdOne(ctx context.Context, t *prefillTry, at tapPoint) (tapTransfer, *fleet.Role, error) {
	s.tap.holdAt(at, 1)
	s.startRequests(ctx, t, 2)
	held, err := s.tap.awaitHeld(ctx, 1)
	if err != nil {
		return tapTransfer{}, nil, err
	}
	by, err := s.prefillerAt(held[0].from)
	return held[0], by, err
}

// killDecode kills a decode worker which waits for blocks, and each second time one whose job waits in the queue. Its
// requests go on at the other one.
func (s *prefillScenario) killDecode(ctx context.Context, t *prefillTry) error {
	var id uint64
	if t.number%2 == 0 {
		x, _, err := s.holdOne(ctx, t, s.insideTransfer())
		if err != nil {
			return err
		}
		id = x.to
		t.moment = fmt.Sprintf("worker %d had got %d bytes of %d", id, x.passed, x.size)
	} else {
		q, err := s.fillSlots(ctx, t, 2)
		if err != nil {
			return err
		}
		id = q.Waiting[0]
		t.moment = fmt.Sprintf("a job of worker %d waited in the queue", id)
	}
	at := slices.IndexFunc(s.f.Workers, func(w *fleet.Role) bool { return w.ID == id })
	if at < 0 {
		return fmt.Errorf("no decode worker is %d", id)
	}
	if _, err := s.countOutcomes(ctx); err != nil {
		return err
	}
	s.f.Workers[at].Kill()
	t.heal = s.restart(s.f.Workers[at])
	s.tap.cutWhere(func(x *tapTransfer) bool { return x.to == id })
	return nil
}

// stopWriting pauses a prefill worker in a write (SIGSTOP), and lets it go on (SIGCONT) after another worker has
// done its work and its lease of the job has passed, each second time that of its registration too.
func (s *prefillScenario) stopWriting(ctx context.Context, t *prefillTry) error {
	_, victim, err := s.holdOne(ctx, t, tapPoint{bulkChunk, bulkChunkSize})
	if err != nil {
		return err
	}
	if err := victim.Pause(); err != nil {
		return err
	}
	stopped := time.Now()
	lease := queueLease
	if t.number%2 == 1 {
		lease = fleet.Lease + queueLease
	}
	t.heal = func(ctx context.Context) error {
		err := sleepContext(ctx, time.Until(stopped.Add(lease+lease/4)))
		if err = errors.Join(err, victim.Resume()); err != nil {
			return err
		}
		return s.f.WaitReady(ctx)
	}
	s.tap.release()
	// What it had given to its socket still comes.
	x, err := s.awaitStill(ctx, victim)
	if err == nil && !x.ended {
		t.moment = fmt.Sprintf("it stood still when %d of %d bytes had passed, and went on after more than %v", x.passed, x.size, lease)
	}
	return err
}

// awaitStill waits until nothing more passes of the transfer of a writer, and returns it.
func (s *prefillScenario) awaitStill(ctx context.Context, writer *fleet.Role) (x tapTransfer, err error) {
	_, err = fleet.WaitUntil(ctx, 100*time.Millisecond, returnPatience, func(context.Context) error {
		last := x
		for _, now := range s.tap.list() {
			if at, _ := s.prefillerAt(now.from); at == writer {
				x = now
			}
		}
		if x.passed != last.passed || x.size == 0 {
			return fmt.Errorf("%d bytes have passed", x.passed)
		}
		return nil
	})
	return x, err
}

// loseQueue loses the queue, in turns: its stream is deleted while jobs wait in it; NATS is paused while requests
// come; NATS dies and loses its data while jobs wait.
func (s *prefillScenario) loseQueue(ctx context.Context, t *prefillTry) error {
	if t.number%3 == 1 {
		if err := s.f.Store.Pause(); err != nil {
			return err
		}
		t.heal = func(ctx context.Context) error {
			if err := s.f.Store.Resume(); err != nil {
				return err
			}
			return s.f.WaitReady(ctx)
		}
		t.moment = "NATS was paused from before the requests to their answers"
		s.startRequests(ctx, t, 2)
		return nil
	}
	q, err := s.fillSlots(ctx, t, 2)
	if err != nil {
		return err
	}
	if t.number%3 == 0 {
		t.moment = fmt.Sprintf("the stream was deleted with %d jobs which waited and %d others", len(q.Waiting), q.Started)
		return fleet.DeletePrefillQueue(ctx, s.f.NATS)
	}
	t.moment = fmt.Sprintf("NATS died with its data, %d jobs which waited and %d others among them", len(q.Waiting), q.Started)
	s.f.Store.Kill()
	if err := os.RemoveAll(s.hubData); err != nil {
		return err
	}
	t.heal = s.f.WaitReady
	return s.f.Store.Start()
}

// runPrefillLeader kills the NATS server which leads the stream of prefill jobs, of three, while jobs wait in it.
//
// A try takes ten to twenty seconds on a quiet machine: 50 take about a quarter of an hour.
func runPrefillLeader(ctx context.Context, e *testEnv, r *scenarioResult) error {
	s, err := e.startPrefill(ctx, r, prefillFleet{hasCluster: true})
	if err != nil {
		return err
	}
	defer s.endPrefill()
	return s.runCases(ctx, prefillCase{"leader", s.wait + computePatience, s.killLeader})
}

// awaitReplicas waits until all streams have three replicas which are current.
func (s *prefillScenario) awaitReplicas(ctx context.Context) error {
	_, err := fleet.WaitUntil(ctx, 200*time.Millisecond, clusterPatience, func(ctx context.Context) error {
		return fleet.ReplicateStreams(ctx, s.f.NATS, len(s.cluster.servers))
	})
	return err
}

// killLeader kills the server which leads the stream of jobs.
func (s *prefillScenario) killLeader(ctx context.Context, t *prefillTry) error {
	if err := s.awaitReplicas(ctx); err != nil {
		return err
	}
	q, err := s.fillSlots(ctx, t, 2)
	if err != nil {
		return err
	}
	leader := s.cluster.servers[q.Leader]
	if leader == nil {
		return fmt.Errorf("no server is called %q", q.Leader)
	}
	leader.Kill()
	t.moment = fmt.Sprintf("%s led the stream, and %d jobs waited", q.Leader, len(q.Waiting))
	t.heal = func(ctx context.Context) error {
		if err := leader.Start(); err != nil {
			return err
		}
		if err := s.awaitReplicas(ctx); err != nil {
			return err
		}
		return s.f.WaitReady(ctx)
	}
	return nil
}

const (
	// fullMemory is for how many requests a decode worker has memory, and fullRequests how many come at once, beside those
	// which prefill workers have.
	fullMemory   = 4
	fullRequests = 12
)

// runPrefillFull fills the memory of both decode workers with the blocks of requests which wait for prefill workers,
// and their queue.
//
// A try takes about twenty seconds on a quiet machine: 50 take about a quarter of an hour.
func runPrefillFull(ctx context.Context, e *testEnv, r *scenarioResult) error {
	s, err := e.startPrefill(ctx, r, prefillFleet{memory: fullMemory})
	if err != nil {
		return err
	}
	defer s.endPrefill()
	// Of all attempts at a prompt, as prefill-wait says, and the prompts before it.
	return s.runCases(ctx, prefillCase{"full", 6*s.wait + computePatience, s.fillMemory})
}

// fillMemory sends requests until memory and queue are full. The first ones must be answered before the last ones.
func (s *prefillScenario) fillMemory(ctx context.Context, t *prefillTry) error {
	s.tap.holdAt(tapPoint{frame: bulkChunk}, prefillSlots)
	s.startRequests(ctx, t, prefillSlots)
	if _, err := s.tap.awaitHeld(ctx, prefillSlots); err != nil {
		return err
	}
	fillers, err := fleet.FillPrefillQueue(ctx, s.f.NATS)
	if err != nil {
		return err
	}
	s.startRequests(ctx, t, fullRequests)
	moment := ""
	if _, err := fleet.WaitUntil(ctx, 20*time.Millisecond, returnPatience, func(ctx context.Context) error {
		moment = ""
		for _, w := range s.f.Workers {
			m, err := fleet.ReadMetrics(ctx, w.URL())
			if err != nil {
				return err
			}
			load := func(quantity string) float64 {
				return m.SumOf("penstock_worker_load", `quantity="`+quantity+`"`)
			}
			if load("waiting") == 0 {
				return fmt.Errorf("%s has memory for all its requests", w.Name())
			}
			moment += fmt.Sprintf("%s had %v of %v blocks in use and %v requests which waited for some; ", w.Name(), load("used_blocks"), load("total_blocks"), load("waiting"))
		}
		return nil
	}); err != nil {
		return err
	}
	t.moment = fmt.Sprintf("%sthe queue took %d messages and no more", moment, fillers)
	s.tap.release()
	first, _ := t.loads[0].WaitClients()
	if left, _ := t.loads[1].InFlight(); left == 0 {
		s.r.addProblem("full: the oldest requests were answered after all others, in %v", &first.Took)
	}
	return nil
}

// strangerID is the id of a prefill worker of another build.
const strangerID = 3100

// addStranger starts a prefill worker with other numerics beside the others, and each second time in their place.
// The fleet must refuse it, and it must say why.
func (s *prefillScenario) addStranger(ctx context.Context, t *prefillTry) error {
	bin, engine := s.e.otherBin, s.e.engine
	if bin == "" {
		bin, engine = s.e.bin, config.EngineSim
	}
	if t.number%2 == 1 {
		for _, p := range s.f.Prefillers {
			p.Kill()
		}
		t.heal = s.restart(s.f.Prefillers...)
	}
	ns, name := s.nets[0], fmt.Sprintf("stranger-%d", t.number)
	stranger := fleet.NewProcess(name, filepath.Join(s.e.dir, name+".log"), "ip", "netns", "exec", ns.name, bin, "worker", "--role", "prefill",
		"--http-addr", ns.inside+":7101", "--rpc-addr", ns.inside+":7100", "--worker-id", fmt.Sprint(strangerID), "--nats", s.f.NATS,
		"--engine", engine, "--served-model-name", fleet.Model, "--prefill-wait", s.wait.String())
	if err := stranger.Start(); err != nil {
		return err
	}
	defer stranger.Kill()
	s.startRequests(ctx, t, 2)
	if _, err := fleet.WaitUntil(ctx, 50*time.Millisecond, returnPatience, func(context.Context) error {
		if stranger.CheckDied() == nil {
			return errors.New("a prefill worker with other numerics was taken in")
		}
		return nil
	}); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(stranger.LogTail(2000)), "\n")
	if t.moment = lines[len(lines)-1]; !strings.Contains(t.moment, "numerics is ") {
		return fmt.Errorf("a prefill worker with other numerics says why it ended: %s", t.moment)
	}
	return nil
}
