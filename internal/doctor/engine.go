package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// eventListenTime is how long the doctor listens to an engine's events, and startCheckTime how much longer it
// waits for the results of what the adapter asks the engine.
const (
	eventListenTime = 2 * time.Second
	startCheckTime  = 20 * time.Second
)

// checkEngines checks the remote engines of the settings: whether each answers and matches the settings,
// where its tokenizer is, whether its events arrive, and what its adapter reports. The engine computes no
// more than the few tokens by which the adapter tests it.
func (d *examiner) checkEngines(ctx context.Context) {
	var wait sync.WaitGroup
	all := d.cfg.RemoteEngines()
	found := make([]findings, len(all))
	for i := range all {
		wait.Go(func() {
			one := examiner{cfg: d.cfg, log: d.log, openAdapter: d.openAdapter, timeout: d.timeout}
			one.checkEngine(ctx, &all[i])
			found[i] = one.findings
		})
	}
	wait.Wait()
	for _, f := range found {
		d.findings = append(d.findings, f...)
	}
}

// checkEngine checks one remote engine.
func (d *examiner) checkEngine(ctx context.Context, of *config.RemoteEngine) {
	check := "engine " + of.String()
	key, err := config.ReadSecret("api-key-file", of.APIKeyFile)
	if err != nil {
		d.reportFailure(check, "name a file that this user can read with api-key-file=FILE", "%v", err)
		return
	}
	a := engines.NewProber(of, key)
	found, err := a.Probe(ctx)
	var later *engines.NotReadyError
	switch {
	case errors.As(err, &later):
		d.reportFailure(check, "start it, or wait until it has loaded its model; is the address right, seen from this machine?", "it does not serve: %s", later.Reason)
		return
	case err != nil:
		d.reportFailure(check, "correct the value of --engine", "%v", err)
		return
	}
	version := a.Version(ctx)
	if version != "" {
		version = " " + version
	}
	d.reportOK(check, "%s%s serves %s", of.Kind, version, found.Model)
	ranks, err := engines.CountRanks(of, found)
	if err != nil {
		d.reportFailure(check, "correct the value of --engine as the message says", "%v", err)
		return
	}
	events := d.checkEndpoints(ctx, of, ranks)
	m, err := engines.ResolveModel(of, found, d.cfg)
	switch {
	case err != nil:
		d.reportFailure("tokenizer of "+of.String(), "correct what the message names, or "+engines.PassRemedy, "%v", err)
		return
	case m.Note != "":
		d.reportWarning("tokenizer of "+of.String(), m.Remedy, "%s", m.Note)
	default:
		d.reportOK("tokenizer of "+of.String(), "%s", m.From)
	}
	d.checkAdapter(ctx, of, key, &m, ranks, events)
}

// eventReach says whether an engine's events can be subscribed to.
type eventReach uint8

const (
	eventsReached eventReach = iota
	eventsUnreached
)

// checkEndpoints checks that the configured event addresses are publishing sockets, and that the configured
// replay and snapshot addresses are ROUTER sockets.
func (d *examiner) checkEndpoints(ctx context.Context, of *config.RemoteEngine, ranks int) eventReach {
	events := eventsReached
	for _, e := range []struct {
		name  string
		at    zmtp.Endpoint
		greet func(context.Context, zmtp.Endpoint) error
	}{{"events", of.Events, d.probePublisher}, {"replay", of.Replay, d.probeRouter}, {"snapshot", of.Snapshot, d.probeRouter}} {
		if e.at.IsZero() || e.at.IsWildcard() { // an engine that dials in needs no check
			continue
		}
		for rank := range ranks {
			at := e.at.RankEndpoint(rank)
			if err := e.greet(ctx, at); err != nil {
				d.reportFailure(e.name+" of "+of.String(), "start the engine with its events published there (docs/engines.md has the flag of each), and look at firewalls; of an engine in a container the port must be open too",
					"%s cannot be followed: %s", at, engines.DescribeError(err))
				if e.name == "events" {
					events = eventsUnreached
				}
			}
		}
	}
	return events
}

// probePublisher subscribes, and cancels as soon as the outcome is known.
func (d *examiner) probePublisher(ctx context.Context, at zmtp.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, 2*d.questionTimeout())
	defer cancel()
	var why error
	o := zmtp.Options{HandshakeTimeout: d.questionTimeout(), OnState: func(s zmtp.ConnState) {
		why = s.Err
		cancel()
	}}
	// It ends with the first state, or cannot start.
	if err := zmtp.Subscribe(ctx, at, nil, o, func([][]byte) error { return nil }); ctx.Err() == nil {
		return err
	}
	return why
}

// probeRouter connects, and sends no request.
func (d *examiner) probeRouter(ctx context.Context, at zmtp.Endpoint) error {
	dealer, err := zmtp.DialDealer(ctx, at, zmtp.Options{HandshakeTimeout: d.questionTimeout()})
	if err != nil {
		return err
	}
	return dealer.Close()
}

// checkAdapter opens the engine's adapter, and listens to it for a moment.
func (d *examiner) checkAdapter(ctx context.Context, of *config.RemoteEngine, key string, m *engines.RemoteModel, ranks int, events eventReach) {
	check := "adapter of " + of.String()
	if drainsEvents(of) {
		d.reportOK("events of "+of.String(), "they are taken from the engine as they are read, so that only the process that serves may read them: it says more")
		return
	}
	eng, err := d.openAdapter(ctx, of, 0, ranks, key, m, d.log)
	if err != nil {
		d.reportFailure(check, "correct the value of --engine as the message says", "%v", err)
		return
	}
	card := eng.Card()
	if card.Role == engine.RoleEncode {
		d.reportOK(check, "%s encodes %s for others, %d data-parallel ranks", card.Name, strings.Join(card.Media, ", "), ranks)
		ended, end := context.WithCancel(ctx)
		end()
		_ = eng.Run(ended) // it closes the adapter's connections
		return
	}
	size := fmt.Sprintf("blocks of %d tokens", card.BlockSize)
	if card.Blocks > 0 {
		size = fmt.Sprintf("%d %s", card.Blocks, size)
	}
	d.reportOK(check, "%s with %s, %d data-parallel ranks", card.Name, size, ranks)
	d.checkEvents(ctx, of, eng, m, events)
}

// drainsEvents reports whether reading an engine's events takes them from its other readers.
func drainsEvents(of *config.RemoteEngine) bool {
	return of.Kind == config.EngineTRTLLM && of.Events.IsZero()
}

// checkEvents runs the adapter for eventListenTime, and until its questions to the engine are answered.
func (d *examiner) checkEvents(ctx context.Context, of *config.RemoteEngine, eng engine.Engine, m *engines.RemoteModel, events eventReach) {
	ctx, cancel := context.WithTimeout(ctx, eventListenTime+startCheckTime)
	defer cancel()
	listened := time.NewTimer(eventListenTime)
	defer listened.Stop()
	var running sync.WaitGroup
	running.Go(func() { _ = eng.Run(ctx) }) // its error is among the warnings
	blocks := 0
	if src, ok := eng.(engine.KVSource); ok {
		running.Go(func() {
			_ = src.WatchKV(ctx, func(some []kv.Event) error { // it ends with ctx
				for i := range some {
					blocks += len(some[i].Blocks)
				}
				return nil
			})
		})
	}
	var warnings []engine.Warning
	note, err := engines.CheckTokenizer(ctx, eng, m, d.log)
	select {
	case <-listened.C:
	case <-ctx.Done():
	}
	if asks, ok := eng.(engine.StartChecker); ok {
		asks.AwaitStartChecks(ctx)
	}
	warnings = engine.WarningsOf(eng)
	cancel()
	running.Wait()
	switch {
	case err != nil:
		d.reportFailure("tokens of "+of.String(), "name the checkpoint that the engine serves with --model-path", "%v", err)
	case note != "":
		d.reportWarning("tokens of "+of.String(), "see docs/engines.md", "%s", note)
	}
	check := "events of " + of.String()
	counted, known := engines.StatsOf(eng)
	switch engines.EventsOf(eng) {
	case engines.EventsNo:
		d.reportWarning(check, "see docs/engines.md for what this engine can publish", "nothing is known of its cache but what routers predict")
	case engines.EventsGuessed:
		if of.Kind == config.EngineLlamaCpp {
			d.reportOK(check, "this engine has none: what its slots hold is guessed from what is sent there, and corrected by the cached tokens that it reports")
			break
		}
		d.reportWarning(check, "see docs/engines.md for the engine's flag, and give events=tcp://HOST:PORT", "none: what it caches is guessed from what is sent there, and corrected by the cached tokens that it reports")
	default:
		if events == eventsUnreached {
			break // already reported
		}
		if known && !counted.Connected {
			d.reportFailure(check, "see whether its events are on, and name with events=tcp://HOST:PORT where this machine reaches them", "no connection could carry them, after %v", eventListenTime)
			break
		}
		d.reportOK(check, "followed for %v: %d blocks were named; an idle engine has none to name", eventListenTime, blocks)
	}
	for _, w := range warnings {
		d.reportWarning(w.Code+" of "+of.String(), w.Remedy, "%s", w.Detail)
	}
}
