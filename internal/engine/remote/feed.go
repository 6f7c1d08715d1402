package remote

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/core/cachemodel"
	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// EventFeedConfig says how an engine's published cache events are read.
type EventFeedConfig struct {
	// Events is the endpoint to subscribe to; if it names all interfaces, the engine dials us. Replay, if not
	// zero, is asked for missed events.
	Events, Replay zmtp.Endpoint
	// Snapshot, if not zero, is asked for the content of the cache after events were lost for good.
	Snapshot zmtp.Endpoint
	Table    engineevents.Config
	Log      *slog.Logger
}

// NewEventFeed returns the source of an engine that publishes its cache events.
func NewEventFeed(cfg EventFeedConfig) (CacheSource, error) {
	table, err := engineevents.NewTable(cfg.Table)
	if err != nil {
		return nil, err
	}
	table.SetHistory(engineevents.PartialHistory, nil)
	replay := engineevents.NoReplay
	if !cfg.Replay.IsZero() {
		replay = engineevents.HasReplay
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &eventFeed{
		cfg: cfg, table: table, machine: engineevents.NewMachine(engineevents.MachineConfig{Replay: replay}), started: time.Now(),
		deadlineChanged: make(chan struct{}, 1),
	}, nil
}

// eventFeed follows an engine's published events. The tracker's lock guards its machine and table: the
// subscription, the replay and the timer pass their input to the machine, and perform its effects, with the
// lock held.
type eventFeed struct {
	cfg             EventFeedConfig
	table           *engineevents.Table
	machine         *engineevents.Machine
	started         time.Time
	deadlineChanged chan struct{} // of capacity 1: the machine's deadline may have changed

	decoder        engineevents.Decoder
	batch          engineevents.Batch
	effects        []engineevents.Effect
	decodeFailures uint64    // batches that could not be decoded
	unreadable     incidents // unreadable batches, for log and warning
	connectErr     error     // why the last connection failed

	media unknownMedia // unknown media in events

	confirming *confirmation // nil if no confirmation runs
	confirmed  uint64        // gaps after which the engine confirmed its content

	// Set by run.
	cache        *cacheTracker
	ctx          context.Context //nolint:containedctx // that of run, for the replays that it begins and waits for
	replays      sync.WaitGroup
	cancelReplay context.CancelFunc // cancels the replay in progress; nil if none
}

func (f *eventFeed) monotonicNow() kv.Mono { return kv.Mono(time.Since(f.started)) }

func (f *eventFeed) run(ctx context.Context, c *cacheTracker) {
	c.mu.Lock()
	f.cache, f.ctx = c, ctx
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { f.subscribeEvents(ctx) })
	f.runTimer(ctx)
	wg.Wait()
	f.replays.Wait()
}

// slowestReconnect bounds the pause before an engine's publisher is dialed again. Events published before the
// subscription is established are lost unless they can be replayed, and their blocks appear again only when
// they are evicted and stored again.
const slowestReconnect = time.Second

// subscribeEvents passes messages to the machine until ctx ends.
func (f *eventFeed) subscribeEvents(ctx context.Context) {
	o := zmtp.Options{OnState: f.connectionChanged, ReconnectMax: slowestReconnect}
	recv := func(frames [][]byte) error {
		if f.cache.noteHeard != nil {
			f.cache.noteHeard()
		}
		f.stepMachine(func(now kv.Mono, out []engineevents.Effect) []engineevents.Effect {
			return f.machine.HandleLive(now, frames, out)
		})
		return nil
	}
	var err error
	if f.cfg.Events.IsWildcard() {
		ln, listenErr := zmtp.Listen(f.cfg.Events)
		if err = listenErr; err == nil {
			err = zmtp.SubscribeListen(ctx, ln, nil, o, recv)
		}
	} else {
		err = zmtp.Subscribe(ctx, f.cfg.Events, nil, o, recv)
	}
	if ctx.Err() == nil && err != nil {
		f.cfg.Log.Error("cannot follow the engine's cache events", "endpoint", f.cfg.Events.String(), "error", err)
		f.cache.mu.Lock()
		f.connectErr = err
		f.cache.mu.Unlock()
	}
}

// connectionChanged passes changes of the connection to the machine.
func (f *eventFeed) connectionChanged(s zmtp.ConnState) {
	f.stepMachine(func(now kv.Mono, out []engineevents.Effect) []engineevents.Effect {
		switch s.Kind {
		case zmtp.Connected:
			f.connectErr = nil
			return f.machine.Connected(now, out)
		case zmtp.Lost:
			return f.machine.Disconnected(now, out)
		case zmtp.Refused:
			f.connectErr = s.Err
		}
		return out
	})
}

// runTimer ticks the machine at its deadlines.
func (f *eventFeed) runTimer(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			f.stepMachine(f.machine.Tick)
		case <-f.deadlineChanged:
		case <-ctx.Done():
			return
		}
		timer.Reset(f.untilDue())
	}
}

func (f *eventFeed) untilDue() time.Duration {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	at, ok := f.machine.Deadline()
	if due, settles := f.table.NextResolve(); settles && (!ok || due < at) {
		at, ok = due, true
	}
	if !ok {
		return time.Hour
	}
	return max(0, at.Sub(f.monotonicNow()))
}

// stepMachine passes an input to the machine and performs its effects.
func (f *eventFeed) stepMachine(take func(now kv.Mono, out []engineevents.Effect) []engineevents.Effect) {
	f.cache.applyChange(func(out []kv.Event) []kv.Event {
		f.effects = take(f.monotonicNow(), f.effects[:0])
		for i := 0; i < len(f.effects); i++ {
			out = f.performLocked(i, out)
		}
		out = f.table.SetHistory(f.machine.History(), out)
		return f.table.ResolveHashes(f.monotonicNow(), out)
	})
	f.wakeTimer()
}

// wakeTimer makes runTimer recompute its deadline.
func (f *eventFeed) wakeTimer() {
	select {
	case f.deadlineChanged <- struct{}{}:
	default:
	}
}

// performLocked performs the i-th effect. It may replace the effects after it.
func (f *eventFeed) performLocked(i int, out []kv.Event) []kv.Event {
	e := f.effects[i]
	switch e.Kind {
	case engineevents.Apply:
		if c := f.confirming; c != nil && c.barrier != "" {
			if c.holdBatch(e.Payload) {
				return out
			}
			out = f.abandonLocked(c, out)
		}
		if err := f.decodeBatch(e.Payload); err != nil {
			f.handleUnreadable(i, err)
			return out
		}
		return f.table.Apply(&f.batch, out)
	case engineevents.Forget:
		if e.Reason == engineevents.Unrepaired && f.startConfirmation() {
			return out
		}
		f.cfg.Log.Info("what was known of the engine's cache is forgotten", "endpoint", f.cfg.Events.String(), "reason", e.Reason.String())
		if c := f.confirming; c != nil {
			out = f.abandonLocked(c, out)
		}
		if e.Reason == engineevents.Restarted {
			return f.table.ClearRestarted(out)
		}
		return f.table.Clear(out)
	case engineevents.Barrier:
		return f.noteBarrier(e.ID, out)
	case engineevents.Ask:
		f.startReplay(e.From, e.Attempt)
	case engineevents.StopAsking:
		f.stopReplay()
	}
	return out
}

func (f *eventFeed) decodeBatch(payload []byte) error {
	err := f.decoder.Decode(payload, &f.batch)
	if err != nil {
		f.decodeFailures++
	}
	return err
}

// handleUnreadable lets the machine decide about the i-th effect, an unreadable batch.
func (f *eventFeed) handleUnreadable(i int, err error) {
	e := f.effects[i]
	instead, again := f.machine.ReportUnreadable(f.monotonicNow(), &e, nil)
	log := f.cfg.Log.With("endpoint", f.cfg.Events.String(), "seq", e.Seq, "error", err)
	if again {
		log.Debug("a batch of the engine's cache events cannot be read; it is asked for again")
		f.effects = append(f.effects[:i+1], instead...)
		return
	}
	if f.unreadable.record() {
		log.Warn("a batch of the engine's cache events cannot be read; what was known of its cache is forgotten")
	}
	f.effects = slices.Insert(f.effects, i+1, instead...)
}

// startReplay starts a replay in a goroutine that run waits for.
func (f *eventFeed) startReplay(from uint64, attempt uint32) {
	f.stopReplay()
	if f.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	f.cancelReplay = cancel
	f.replays.Go(func() {
		defer cancel()
		err := f.receiveReplay(ctx, from, attempt)
		if ctx.Err() != nil {
			return
		}
		f.cfg.Log.Info("the engine does not repeat its cache events", "endpoint", f.cfg.Replay.String(), "from", from, "error", err)
		f.stepMachine(func(now kv.Mono, out []engineevents.Effect) []engineevents.Effect {
			return f.machine.ReplayFailed(now, attempt, out)
		})
	})
}

func (f *eventFeed) stopReplay() {
	if f.cancelReplay != nil {
		f.cancelReplay()
		f.cancelReplay = nil
	}
}

// receiveReplay asks for batches and passes them to the machine until ctx ends.
func (f *eventFeed) receiveReplay(ctx context.Context, from uint64, attempt uint32) error {
	dealer, err := zmtp.DialDealer(ctx, f.cfg.Replay, zmtp.Options{})
	if err != nil {
		return err
	}
	defer dealer.Close()
	if err := dealer.Send(ctx, engineevents.RequestReplay(from)...); err != nil {
		return err
	}
	for {
		frames, err := dealer.Recv(ctx)
		if err != nil {
			return err
		}
		f.stepMachine(func(now kv.Mono, out []engineevents.Effect) []engineevents.Effect {
			return f.machine.HandleReplay(now, attempt, frames, out)
		})
	}
}

func (f *eventFeed) appendContents(out []kv.Event) []kv.Event { return f.table.Describe(out) }
func (f *eventFeed) predictsHits() bool                       { return false }

// startCall records in the table a prompt under a salt or of an adapter. It predicts hits only if the events
// carry salts and adapters.
func (f *eventFeed) startCall(p *SubRequest, out []kv.Event) (guess int, events []kv.Event) {
	f.table.RecordMediaPrompt(p.Request.Prompt, p.Request.Media, p.Request.Salt)
	f.table.RecordEnd(uint64(p.ticket), engineevents.Broken, f.monotonicNow()) // of the previous call
	p.eventMark = f.table.ArrivalMark()
	p.ticket = cachemodel.Ticket(f.table.RecordSent(p.allTokens(), p.Request.Media, p.Request.Salt))
	told := p.Request.Salt.LoRA == "" || f.table.RecordAdapted(p.Request.Prompt)
	if p.Request.Salt.Namespace != "" {
		f.table.RecordSalted(p.Request.Prompt)
		told = told && f.table.ReportsSalts()
	}
	if !told {
		return noExpectation, out
	}
	return 0, out
}

// The methods below record requests in the table: they reveal the blocks that the engine had before its
// events were followed.

func (f *eventFeed) addOutput(p *SubRequest, tokens []kv.Token, out []kv.Event) []kv.Event {
	f.table.RecordGenerated(uint64(p.ticket), tokens)
	return out
}

func (f *eventFeed) recordReport(p *SubRequest, cached int, out []kv.Event) []kv.Event {
	if cached == 0 && p.expectedCached > 0 { // an adapter was reloaded, with no listing in between
		out = f.table.ForgetAdapter(p.Request.Salt.LoRA, p.eventMark, out)
	}
	return f.table.RecordCached(uint64(p.ticket), cached, out)
}

func (f *eventFeed) finishCall(p *SubRequest, out []kv.Event) []kv.Event {
	if p.ticket == 0 {
		return out
	}
	end := engineevents.Broken
	if p.isFinished() {
		end = engineevents.Served
	}
	f.table.RecordEnd(uint64(p.ticket), end, f.monotonicNow())
	f.wakeTimer()
	return f.table.ResolveHashes(f.monotonicNow(), out)
}

// engineRestarted clears the known content of the cache if the connection to the events was lost too while
// the engine did not answer: it restarted, which otherwise shows only with its first batch, and until then
// requests would be routed to it for blocks that it no longer has.
func (f *eventFeed) engineRestarted(out []kv.Event) []kv.Event {
	if !f.machine.IsUnconfirmed() {
		return out
	}
	f.effects = f.machine.EngineRestarted(f.monotonicNow(), f.effects[:0])
	for i := 0; i < len(f.effects); i++ {
		out = f.performLocked(i, out)
	}
	return out
}

func (f *eventFeed) fillStats(s *Stats) {
	h := f.machine.Health()
	s.Batches, s.Repeated, s.Gaps, s.Unrepaired, s.Restarts = h.Applied, h.Repeated, h.Gaps, h.Unrepaired, h.Restarts
	s.Unreadable, s.Connected = f.decodeFailures+h.Malformed, h.Connected
	st := f.table.Stats()
	s.Orphans, s.Waiting, s.Inferred = st.Orphans, st.Waiting, st.Inferred
}

// recentWindow is how long a warning about a single incident stays.
const recentWindow = 5 * time.Minute

func (f *eventFeed) sourceWarnings() []engine.Warning {
	var out []engine.Warning
	add := func(code, remedy, format string, args ...any) {
		out = append(out, engine.Warning{Code: code, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	h := f.machine.Health()
	if !h.Connected && time.Since(f.started) > connectGrace {
		add(engine.WarnNoEvents, "see whether its events are on and the endpoint is that of its settings (port + rank); without events= its cache is at least guessed",
			"the engine's cache events at %s are not reached: %v", f.cfg.Events, connectReason(f.connectErr))
	}
	if h.Unrepaired > f.confirmed && f.monotonicNow().Sub(h.UnrepairedAt) < recentWindow {
		add(engine.WarnEventsLost, "set replay= to the engine's replay endpoint; its buffer must reach back far enough",
			"%d times cache events were lost for good: what was cached before is unknown", h.Unrepaired)
	}
	switch st := f.table.Stats(); {
	case st.Waiting > 0:
		add(engine.WarnOrphans, "set replay= to the engine's replay endpoint, or restart the engine",
			"%d blocks wait: the engine stored them behind others that it cached before it was followed; %d blocks are inferred from requests", st.Waiting, st.Inferred)
	case h.Late && h.Unrepaired == 0 && !st.Known:
		add(engine.WarnEventsLost, "set replay= to the engine's replay endpoint, or restart the engine", "the engine's cache events were joined after their beginning: what it had cached before is unknown")
	}
	if f.unreadable.isRecent() {
		add(engine.WarnEventsBad, "report this with the engine's version", "%d batches of cache events could not be read", f.unreadable.n)
	}
	if n := f.table.SuppressedBySalt(); n > 0 {
		add(engine.WarnMispredict, "upgrade it: vLLM 0.17, SGLang 0.5.18 and later tell",
			"the engine's cache events do not tell of cache salts: salted prompts, and what begins as they do, are not routed by prefix (%d blocks so far)", n)
	}
	if n := f.table.SuppressedByAdapter(); n > 0 {
		add(engine.WarnMispredict, "upgrade it: SGLang 0.5.22 and later tell",
			"the engine's cache events do not tell of LoRA adapters: an adapter's prompts, and what begins as they do, are not routed by prefix (%d blocks so far)", n)
	}
	out = append(out, f.media.unknownMediaWarnings(f.table.Stats())...)
	if err := f.table.Err(); err != nil {
		add(engine.WarnBlockSize, "give --engine the block size of its events with block-size=N, or a multiple of it", "%v", err)
	}
	return out
}

// connectGrace is how long the first connection to the events may take without a warning.
const connectGrace = 10 * time.Second

func connectReason(err error) any {
	if err == nil {
		return "there is no connection"
	}
	return err
}
