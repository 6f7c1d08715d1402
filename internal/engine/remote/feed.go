package remote

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/core/enginefeed"
	"penstock/core/kv"
	"penstock/core/shadow"
	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// EventFeedConfig says how an engine's published cache events are read.
type FeedConfig struct {
	// Events is the endpoint to subscribe to; if it names all interfaces, the engine dials us. Replay, if not
	// zero, is asked for missed events.
	Events, Replay zmtp.Endpoint
	// Snapshot, if not zero, is asked for the content of the cache after events were lost for good.
	Snapshot zmtp.Endpoint
	Table    enginefeed.Config
	Log      *slog.Logger
}

// NewEventFeed returns the source of an engine that publishes its cache events.
func EventFeed(cfg FeedConfig) (Source, error) {
	table, err := enginefeed.NewTable(cfg.Table)
	if err != nil {
		return nil, err
	}
	table.SetHistory(enginefeed.PartialHistory, nil)
	replay := enginefeed.NoReplay
	if !cfg.Replay.IsZero() {
		replay = enginefeed.HasReplay
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &feed{
		cfg: cfg, table: table, machine: enginefeed.NewMachine(enginefeed.MachineConfig{Replay: replay}), started: time.Now(),
		due: make(chan struct{}, 1),
	}, nil
}

// eventFeed follows an engine's published events. The tracker's lock guards its machine and table: the
// subscription, the replay and the timer pass their input to the machine, and perform its effects, with the
// lock held.
type feed struct {
	cfg     FeedConfig
	table   *enginefeed.Table
	machine *enginefeed.Machine
	started time.Time
	due     chan struct{} // of capacity 1: the machine's deadline may have changed

	decoder enginefeed.Decoder
	batch   enginefeed.Batch
	effects []enginefeed.Effect
	unread  uint64 // batches that could not be decoded
	bad     mishap // unreadable batches, for log and warning
	refused error  // why the last connection failed

	sight sight // unknown media in events

	confirming *confirmation // nil if no confirmation runs
	confirmed  uint64        // gaps after which the engine confirmed its content

	// Set by run.
	cache   *cache
	ctx     context.Context //nolint:containedctx // that of run, for the replays that it begins and waits for
	replays sync.WaitGroup
	give    context.CancelFunc // cancels the replay in progress; nil if none
}

func (f *feed) now() kv.Mono { return kv.Mono(time.Since(f.started)) }

func (f *feed) run(ctx context.Context, c *cache) {
	c.mu.Lock()
	f.cache, f.ctx = c, ctx
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { f.subscribe(ctx) })
	f.clock(ctx)
	wg.Wait()
	f.replays.Wait()
}

// slowestReconnect bounds the pause before an engine's publisher is dialed again. Events published before the
// subscription is established are lost unless they can be replayed, and their blocks appear again only when
// they are evicted and stored again.
const slowestReconnect = time.Second

// subscribeEvents passes messages to the machine until ctx ends.
func (f *feed) subscribe(ctx context.Context) {
	o := zmtp.Options{OnState: f.state, ReconnectMax: slowestReconnect}
	recv := func(frames [][]byte) error {
		if f.cache.heard != nil {
			f.cache.heard()
		}
		f.step(func(now kv.Mono, out []enginefeed.Effect) []enginefeed.Effect {
			return f.machine.Live(now, frames, out)
		})
		return nil
	}
	var err error
	if f.cfg.Events.Wildcard() {
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
		f.refused = err
		f.cache.mu.Unlock()
	}
}

// connectionChanged passes changes of the connection to the machine.
func (f *feed) state(s zmtp.State) {
	f.step(func(now kv.Mono, out []enginefeed.Effect) []enginefeed.Effect {
		switch s.Kind {
		case zmtp.Connected:
			f.refused = nil
			return f.machine.Connected(now, out)
		case zmtp.Lost:
			return f.machine.Disconnected(now, out)
		case zmtp.Refused:
			f.refused = s.Err
		}
		return out
	})
}

// runTimer ticks the machine at its deadlines.
func (f *feed) clock(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			f.step(f.machine.Tick)
		case <-f.due:
		case <-ctx.Done():
			return
		}
		timer.Reset(f.untilDue())
	}
}

func (f *feed) untilDue() time.Duration {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	at, ok := f.machine.Deadline()
	if due, settles := f.table.Due(); settles && (!ok || due < at) {
		at, ok = due, true
	}
	if !ok {
		return time.Hour
	}
	return max(0, at.Sub(f.now()))
}

// stepMachine passes an input to the machine and performs its effects.
func (f *feed) step(take func(now kv.Mono, out []enginefeed.Effect) []enginefeed.Effect) {
	f.cache.change(func(out []kv.Event) []kv.Event {
		f.effects = take(f.now(), f.effects[:0])
		for i := 0; i < len(f.effects); i++ {
			out = f.perform(i, out)
		}
		out = f.table.SetHistory(f.machine.History(), out)
		return f.table.Settle(f.now(), out)
	})
	f.wake()
}

// wakeTimer makes runTimer recompute its deadline.
func (f *feed) wake() {
	select {
	case f.due <- struct{}{}:
	default:
	}
}

// performLocked performs the i-th effect. It may replace the effects after it.
func (f *feed) perform(i int, out []kv.Event) []kv.Event {
	e := f.effects[i]
	switch e.Kind {
	case enginefeed.Apply:
		if c := f.confirming; c != nil && c.mark != "" {
			if c.hold(e.Payload) {
				return out
			}
			out = f.giveUp(c, out)
		}
		if err := f.decode(e.Payload); err != nil {
			f.unreadable(i, err)
			return out
		}
		return f.table.Apply(&f.batch, out)
	case enginefeed.Forget:
		if e.Reason == enginefeed.Unrepaired && f.confirm() {
			return out
		}
		f.cfg.Log.Info("what was known of the engine's cache is forgotten", "endpoint", f.cfg.Events.String(), "reason", e.Reason.String())
		if c := f.confirming; c != nil {
			out = f.giveUp(c, out)
		}
		return f.table.Clear(out)
	case enginefeed.Barrier:
		return f.marked(e.ID, out)
	case enginefeed.Ask:
		f.ask(e.From, e.Attempt)
	case enginefeed.StopAsking:
		f.stopAsking()
	}
	return out
}

func (f *feed) decode(payload []byte) error {
	err := f.decoder.Decode(payload, &f.batch)
	if err != nil {
		f.unread++
	}
	return err
}

// handleUnreadable lets the machine decide about the i-th effect, an unreadable batch.
func (f *feed) unreadable(i int, err error) {
	e := f.effects[i]
	instead, again := f.machine.Unreadable(f.now(), &e, nil)
	log := f.cfg.Log.With("endpoint", f.cfg.Events.String(), "seq", e.Seq, "error", err)
	if again {
		log.Debug("a batch of the engine's cache events cannot be read; it is asked for again")
		f.effects = append(f.effects[:i+1], instead...)
		return
	}
	if f.bad.happened() {
		log.Warn("a batch of the engine's cache events cannot be read; what was known of its cache is forgotten")
	}
	f.effects = slices.Insert(f.effects, i+1, instead...)
}

// startReplay starts a replay in a goroutine that run waits for.
func (f *feed) ask(from uint64, attempt uint32) {
	f.stopAsking()
	if f.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	f.give = cancel
	f.replays.Go(func() {
		defer cancel()
		err := f.replay(ctx, from, attempt)
		if ctx.Err() != nil {
			return
		}
		f.cfg.Log.Info("the engine does not repeat its cache events", "endpoint", f.cfg.Replay.String(), "from", from, "error", err)
		f.step(func(now kv.Mono, out []enginefeed.Effect) []enginefeed.Effect {
			return f.machine.ReplayFailed(now, attempt, out)
		})
	})
}

func (f *feed) stopAsking() {
	if f.give != nil {
		f.give()
		f.give = nil
	}
}

// receiveReplay asks for batches and passes them to the machine until ctx ends.
func (f *feed) replay(ctx context.Context, from uint64, attempt uint32) error {
	dealer, err := zmtp.DialDealer(ctx, f.cfg.Replay, zmtp.Options{})
	if err != nil {
		return err
	}
	defer dealer.Close()
	if err := dealer.Send(ctx, enginefeed.RequestReplay(from)...); err != nil {
		return err
	}
	for {
		frames, err := dealer.Recv(ctx)
		if err != nil {
			return err
		}
		f.step(func(now kv.Mono, out []enginefeed.Effect) []enginefeed.Effect {
			return f.machine.Replayed(now, attempt, frames, out)
		})
	}
}

func (f *feed) describe(out []kv.Event) []kv.Event { return f.table.Describe(out) }
func (f *feed) knows() bool                        { return false }

// startCall records in the table a prompt under a salt or of an adapter. It predicts hits only if the events
// carry salts and adapters.
func (f *feed) begin(p *Part, out []kv.Event) (guess int, events []kv.Event) {
	f.table.Shown(p.Request.Prompt, p.Request.Media, p.Request.Salt)
	f.table.Ended(uint64(p.ticket), enginefeed.Broken, f.now()) // of the previous call
	p.mark = f.table.Mark()
	p.ticket = shadow.Ticket(f.table.Sent(p.tokens(), p.Request.Media, p.Request.Salt))
	told := p.Request.Salt.LoRA == "" || f.table.Adapted(p.Request.Prompt)
	if p.Request.Salt.Namespace != "" {
		f.table.Salted(p.Request.Prompt)
		told = told && f.table.TellsSalts()
	}
	if !told {
		return noGuess, out
	}
	return 0, out
}

// The methods below record requests in the table: they reveal the blocks that the engine had before its
// events were followed.

func (f *feed) grew(p *Part, tokens []kv.Token, out []kv.Event) []kv.Event {
	f.table.Grew(uint64(p.ticket), tokens)
	return out
}

func (f *feed) reported(p *Part, cached int, out []kv.Event) []kv.Event {
	if cached == 0 && p.guess > 0 { // an adapter was reloaded, with no listing in between
		out = f.table.ForgetAdapter(p.Request.Salt.LoRA, p.mark, out)
	}
	return f.table.Reported(uint64(p.ticket), cached, out)
}

func (f *feed) end(p *Part, out []kv.Event) []kv.Event {
	if p.ticket == 0 {
		return out
	}
	end := enginefeed.Broken
	if p.over() {
		end = enginefeed.Served
	}
	f.table.Ended(uint64(p.ticket), end, f.now())
	f.wake()
	return f.table.Settle(f.now(), out)
}

// engineRestarted clears the known content of the cache if the connection to the events was lost too while
// the engine did not answer: it restarted, which otherwise shows only with its first batch, and until then
// requests would be routed to it for blocks that it no longer has.
func (f *feed) restarted(out []kv.Event) []kv.Event {
	if !f.machine.Adrift() {
		return out
	}
	f.effects = f.machine.EngineRestarted(f.now(), f.effects[:0])
	for i := 0; i < len(f.effects); i++ {
		out = f.perform(i, out)
	}
	return out
}

func (f *feed) stats(s *Stats) {
	h := f.machine.Health()
	s.Batches, s.Repeated, s.Gaps, s.Unrepaired, s.Restarts = h.Applied, h.Repeated, h.Gaps, h.Unrepaired, h.Restarts
	s.Unreadable, s.Connected = f.unread+h.Malformed, h.Connected
	st := f.table.Stats()
	s.Orphans, s.Waiting, s.Inferred = st.Orphans, st.Waiting, st.Inferred
}

// recentWindow is how long a warning about a single incident stays.
const recent = 5 * time.Minute

func (f *feed) warnings() []engine.Warning {
	var out []engine.Warning
	add := func(code, remedy, format string, args ...any) {
		out = append(out, engine.Warning{Code: code, Detail: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	h := f.machine.Health()
	if !h.Connected && time.Since(f.started) > graceOfEvents {
		add(engine.WarnNoEvents, "see whether its events are on and the endpoint is that of its settings (port + rank); without events= its cache is at least guessed",
			"the engine's cache events at %s are not reached: %v", f.cfg.Events, reason(f.refused))
	}
	if h.Unrepaired > f.confirmed && f.now().Sub(h.UnrepairedAt) < recent {
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
	if f.bad.lately() {
		add(engine.WarnEventsBad, "report this with the engine's version", "%d batches of cache events could not be read", f.bad.n)
	}
	if n := f.table.Saltless(); n > 0 {
		add(engine.WarnMispredict, "upgrade it: vLLM 0.17, SGLang 0.5.18 and later tell",
			"the engine's cache events do not tell of cache salts: salted prompts, and what begins as they do, are not routed by prefix (%d blocks so far)", n)
	}
	if n := f.table.Adapterless(); n > 0 {
		add(engine.WarnMispredict, "upgrade it: SGLang 0.5.22 and later tell",
			"the engine's cache events do not tell of LoRA adapters: an adapter's prompts, and what begins as they do, are not routed by prefix (%d blocks so far)", n)
	}
	out = append(out, f.sight.warnings(f.table.Stats())...)
	if err := f.table.Err(); err != nil {
		add(engine.WarnBlockSize, "give --engine the block size of its events with block-size=N, or a multiple of it", "%v", err)
	}
	return out
}

// connectGrace is how long the first connection to the events may take without a warning.
const graceOfEvents = 10 * time.Second

func reason(err error) any {
	if err == nil {
		return "nobody is connected"
	}
	return err
}
