package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/config"
	"penstock/test/fleet"
)

const (
	// mediaClients are the clients of the scenario.
	mediaClients = 6
	// mediaBound bounds the time to a first token while encode workers die, hang or starve: of the two which are asked
	// for an object each may take the time to be found silent, the worker then encodes itself, behind others.
	mediaBound = 60 * time.Second
)

// mediaScenario is a fleet of workers with encode workers which are disturbed while they encode.
type mediaScenario struct {
	e   *testEnv
	r   *scenarioResult
	f   *fleet.Fleet
	mix []fleet.KnownRequest
}

// mediaPhase is one kind of disturbance. strike disturbs while clients are served, and heals the fleet again.
type mediaPhase struct {
	name      string
	times     int
	encodes   bool // needs an encode worker with an object
	strike    func(ctx context.Context, load *fleet.RunningLoad, victim *fleet.Role) error
	selfCoded bool // workers must encode themselves meanwhile
}

// runMedia disturbs encode workers and workers among requests with pictures, videos and texts, half of them with salts
// of their own, so that their media are encoded anew. All must have the right answer.
func runMedia(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	if e.engine == config.EngineSim {
		return skippedError{"the simulated engine has no encode workers"}
	}
	s := &mediaScenario{e: e, r: r, f: f}
	mix, err := fleet.MediaRequests(8, mixTokens)
	if err != nil {
		return err
	}
	if s.mix, err = fleet.LearnAnswers(ctx, e.client, f.Frontends[0].URL(), mix); err != nil {
		return err
	}
	s.mix = append(s.mix, e.mix[:8]...)
	length := longOrShort(e, 30*time.Second, 4*time.Second)
	for _, p := range []mediaPhase{
		{"undisturbed", longOrShort(e, 3, 1), false, func(ctx context.Context, _ *fleet.RunningLoad, _ *fleet.Role) error {
			return sleepContext(ctx, 2*time.Second)
		}, false},
		{"an encode worker dies", longOrShort(e, 40, 3), true, s.killEncoder, false},
		{"all encode workers die", longOrShort(e, 5, 1), true, s.killEncoders, true},
		{"an encode worker is paused", longOrShort(e, 3, 1), true, func(ctx context.Context, _ *fleet.RunningLoad, victim *fleet.Role) error {
			return pauseRoles(ctx, length, victim)
		}, false},
		{"all encode workers are paused", longOrShort(e, 2, 1), true, func(ctx context.Context, _ *fleet.RunningLoad, _ *fleet.Role) error {
			return pauseRoles(ctx, 2*length, s.f.Encoders...)
		}, true},
		{"all encode workers starve", longOrShort(e, 3, 1), true, func(ctx context.Context, _ *fleet.RunningLoad, _ *fleet.Role) error {
			return starveRoles(ctx, length, s.f.Encoders...)
		}, false},
		{"a worker dies", longOrShort(e, 20, 2), false, s.killWorker, false},
	} {
		if err := s.disturb(ctx, &p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	own, err := s.countEncoded(ctx, f.Workers)
	if err != nil {
		return err
	}
	all, err := s.countEncoded(ctx, f.Encoders)
	r.addFigure("objects encoded by workers, since their last starts", own, "")
	r.addFigure("objects encoded by encode workers, since their last starts", all, "")
	return err
}

// disturb runs a phase, and checks that nothing of it is left.
func (s *mediaScenario) disturb(ctx context.Context, p *mediaPhase) error {
	load := s.e.newLoad(s.f.ClientRoles()...)
	load.Mix = s.mix
	running := load.StartClients(ctx, mediaClients)
	var err error
	before, hit := 0.0, 0.0
	if before, err = s.countEncoded(ctx, s.f.Workers); err == nil {
		for n := 0; n < p.times && err == nil; n++ {
			victim, calls := s.f.Encoders[n%len(s.f.Encoders)], 0.0
			if p.encodes {
				calls, err = s.awaitEncoding(ctx, victim)
				hit += calls
			}
			if err == nil {
				err = p.strike(ctx, running, victim)
			}
		}
	}
	tally, _ := running.FinishLoad()
	s.r.requireFlawless(&tally)
	s.r.addDurations(p.name+": time to the first token", &tally.First)
	if p.encodes {
		s.r.addFigure(p.name+": objects which were being encoded at that moment", hit, "")
	}
	s.e.logProgress("%s: %d requests, first token after %v", p.name, tally.Sent, &tally.First)
	if tally.First.Max() > mediaBound {
		s.r.addProblem("%s: a first token came after %v, more than %v", p.name, tally.First.Max(), mediaBound)
	}
	if err != nil {
		return err
	}
	if p.selfCoded {
		after, err := s.countEncoded(ctx, s.f.Workers)
		if err != nil {
			return err
		}
		s.r.addFigure(p.name+": objects which workers encoded themselves", after-before, "")
		if after == before {
			s.r.addProblem("%s: no worker has encoded anything itself", p.name)
		}
	}
	_, err = fleet.WaitUntil(ctx, 10*time.Millisecond, returnPatience, func(ctx context.Context) error { return checkIdle(ctx, s.f, s.f.ClientRoles()...) })
	return err
}

// awaitEncoding waits until an encode worker is encoding, and returns for how many calls.
func (s *mediaScenario) awaitEncoding(ctx context.Context, encoder *fleet.Role) (calls float64, err error) {
	_, err = fleet.WaitUntil(ctx, time.Millisecond, returnPatience, func(ctx context.Context) error {
		m, err := fleet.ReadMetrics(ctx, encoder.URL())
		if calls = m.SumOf("penstock_worker_inflight"); err == nil && calls == 0 {
			err = fmt.Errorf("%s encodes nothing", encoder.Name())
		}
		return err
	})
	return calls, err
}

// countEncoded returns how many objects some processes have encoded.
func (s *mediaScenario) countEncoded(ctx context.Context, roles []*fleet.Role) (n float64, err error) {
	for _, w := range roles {
		m, readErr := fleet.ReadMetrics(ctx, w.URL())
		n, err = n+m.SumOf("penstock_encode_jobs_total", `outcome="ok"`), errors.Join(err, readErr)
	}
	return n, err
}

// killEncoder kills an encode worker, and restarts it.
func (s *mediaScenario) killEncoder(ctx context.Context, _ *fleet.RunningLoad, victim *fleet.Role) error {
	victim.Kill()
	if err := victim.Start(); err != nil {
		return err
	}
	return s.f.WaitReady(ctx)
}

// killEncoders kills all encode workers, and restarts them when a worker has encoded something itself.
func (s *mediaScenario) killEncoders(ctx context.Context, _ *fleet.RunningLoad, _ *fleet.Role) error {
	before, err := s.countEncoded(ctx, s.f.Workers)
	if err != nil {
		return err
	}
	for _, e := range s.f.Encoders {
		e.Kill()
	}
	_, err = fleet.WaitUntil(ctx, 10*time.Millisecond, returnPatience, func(ctx context.Context) error {
		n, err := s.countEncoded(ctx, s.f.Workers)
		if err == nil && n == before {
			err = errors.New("no worker has encoded anything itself")
		}
		return err
	})
	for _, e := range s.f.Encoders {
		err = errors.Join(err, e.Start())
	}
	if err != nil {
		return err
	}
	return s.f.WaitReady(ctx)
}

// killWorker kills a worker which has accepted requests, and restarts it.
func (s *mediaScenario) killWorker(ctx context.Context, load *fleet.RunningLoad, _ *fleet.Role) error {
	victim := s.f.Workers[s.e.random.IntN(len(s.f.Workers))]
	if _, err := fleet.WaitUntil(ctx, time.Millisecond, returnPatience, func(context.Context) error {
		if load.AcceptedBy(victim.ID) == 0 {
			return fmt.Errorf("%s has no request", victim.Name())
		}
		return nil
	}); err != nil {
		return err
	}
	load.MarkWorkerDead(victim.ID, time.Now())
	victim.Kill()
	if err := victim.Start(); err != nil {
		return err
	}
	return s.f.WaitReady(ctx)
}

// pauseRoles pauses processes.
func pauseRoles(ctx context.Context, length time.Duration, roles ...*fleet.Role) error {
	var err error
	for _, r := range roles {
		err = errors.Join(err, r.Pause())
	}
	err = errors.Join(err, sleepContext(ctx, length))
	for _, r := range roles {
		err = errors.Join(err, r.Resume())
	}
	return err
}

// The times for which a starved process runs, and does not: a twentieth of its share.
const (
	starvedRuns, starvedWaits = 10 * time.Millisecond, 190 * time.Millisecond
)

// starveRoles lets processes run for a twentieth of the time.
func starveRoles(ctx context.Context, length time.Duration, roles ...*fleet.Role) error {
	ends := time.Now().Add(length)
	errs := make([]error, len(roles))
	var all sync.WaitGroup
	for i, r := range roles {
		all.Go(func() {
			for errs[i] == nil && time.Now().Before(ends) {
				if errs[i] = pauseRoles(ctx, starvedWaits, r); errs[i] == nil {
					errs[i] = sleepContext(ctx, starvedRuns)
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
