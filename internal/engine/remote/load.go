package remote

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/engine"
)

// The intervals of scrapes of an engine's metrics: while requests are in progress, and while there are none
// but other clients may have some.
const (
	scrapeBusy    = time.Second
	scrapeIdle    = 10 * time.Second
	scrapeTimeout = 5 * time.Second
)

// loadTracker tracks the load of an engine. The adapter's own requests are always up to date. The requests of
// others are the engine's count minus ours. Since the engine's count is older than ours, ours is its maximum
// since the scrape before the last, plus the requests broken off since then, which the engine notices late.
type loadTracker struct {
	blockSize, blocks int
	busy              chan struct{} // of capacity 1: a request has started

	mu struct {
		sync.Mutex
		own, peak, peakBefore int // choices in progress, and their maximum since the last scrapes
		probes                int // of own: probes of this adapter, which are not reported
		gone, goneBefore      int // choices broken off since the last scrapes
		prefill               int // prompt tokens of requests without a first token
		tokens                int // tokens of prompts and outputs in progress
		others, waiting       int
		usage                 float64
		preemptions           uint64
		loaded                []string // adapters in memory, if there are slots the last used one first
		slots                 int      // LoadGauges.AdapterSlots of the last scrape
		failures              int      // consecutive failed scrapes
		read                  bool
		said                  LoadGauges // the last scrape, without its adapters
		work                  uint64     // number of scrapes that differed from the one before
	}
}

func newLoadTracker(blockSize, blocks int) *loadTracker {
	return &loadTracker{blockSize: blockSize, blocks: blocks, busy: make(chan struct{}, 1)}
}

// requestLoad is one request's share of the load.
type requestLoad struct {
	choices, prompt, tokens int
	hasToken                bool // a token has arrived
	completed               bool // the engine has finished the request
}

// startRequest counts a request.
func (l *loadTracker) startRequest(a *attempt) *requestLoad {
	f := &requestLoad{choices: max(a.unfinished, 1), prompt: len(a.req.Prompt), tokens: len(a.req.Prompt)}
	if a.probe {
		f.prompt, f.tokens = 0, 0
	}
	l.mu.Lock()
	l.mu.own += f.choices
	l.mu.peak = max(l.mu.peak, l.mu.own)
	l.mu.prefill += f.prompt
	l.mu.tokens += f.tokens
	if name := a.req.Salt.LoRA; name != "" && l.mu.slots > 0 {
		l.useAdapterLocked(name)
	}
	l.mu.Unlock()
	select {
	case l.busy <- struct{}{}:
	default:
	}
	return f
}

// startProbe counts a probe of the adapter that the engine counts too, until the returned function is called.
// counted says that it is also counted by startRequest.
func (l *loadTracker) startProbe(counted bool) (end func()) {
	change := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.probes += n
		if counted {
			return
		}
		l.mu.own += n
		l.mu.peak = max(l.mu.peak, l.mu.own)
	}
	change(1)
	return func() { change(-1) }
}

// addOutput counts tokens of output.
func (l *loadTracker) addOutput(f *requestLoad, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.hasToken {
		f.hasToken = true
		l.mu.prefill -= f.prompt
	}
	f.tokens += n
	l.mu.tokens += n
}

// finishRequest removes a request from the counts.
func (l *loadTracker) finishRequest(f *requestLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.own -= f.choices
	if !f.completed {
		l.mu.gone += f.choices
	}
	l.mu.tokens -= f.tokens
	if !f.hasToken {
		l.mu.prefill -= f.prompt
	}
}

// The bounds of counts accepted from an engine, which may report any number: of requests, and of adapters in memory.
const (
	maxReported     = 1 << 24
	maxAdapterSlots = 1 << 10
)

// useAdapterLocked makes an adapter the last used one. The engine's memory loses the one which was not used for longest.
func (l *loadTracker) useAdapterLocked(name string) {
	at := slices.Index(l.mu.loaded, name)
	if at < 0 {
		at = len(l.mu.loaded)
		l.mu.loaded = append(l.mu.loaded, name)
	}
	copy(l.mu.loaded[1:at+1], l.mu.loaded[:at])
	l.mu.loaded[0] = name
	l.mu.loaded = l.mu.loaded[:min(len(l.mu.loaded), l.mu.slots)]
}

// recordScrape takes the gauges of a scrape.
func (l *loadTracker) recordScrape(g *LoadGauges) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.read, l.mu.failures = true, 0
	running, waiting := min(max(g.Running, 0), maxReported), min(max(g.Waiting, 0), maxReported)
	l.mu.others = max(0, running+waiting-max(l.mu.peak, l.mu.peakBefore)-l.mu.gone-l.mu.goneBefore)
	l.startPeriodLocked()
	l.mu.waiting, l.mu.usage, l.mu.preemptions = waiting, 0, g.Preemptions
	if g.Usage > 0 { // which is false for NaN
		l.mu.usage = min(g.Usage, 1)
	}
	if l.mu.slots = min(g.AdapterSlots, maxAdapterSlots); l.mu.slots > 0 {
		for _, name := range g.Adapters {
			l.useAdapterLocked(name)
		}
	} else {
		l.mu.loaded = append(l.mu.loaded[:0], g.Adapters...)
	}
	said := *g
	said.Adapters = nil
	if !said.sameWork(&l.mu.said) {
		l.mu.work++
	}
	l.mu.said = said
}

// sameWork reports whether two scrapes are equal in the engine's work.
func (g *LoadGauges) sameWork(o *LoadGauges) bool {
	return g.Running == o.Running && g.Waiting == o.Waiting && g.Usage == o.Usage && g.Preemptions == o.Preemptions && g.Tokens == o.Tokens
}

// fillHealth sets the engine's own figures, which are independent of the requests counted here.
func (l *loadTracker) fillHealth(s *engine.HealthReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Progress = l.mu.work
	if s.HasCounts = l.mu.read && l.mu.failures == 0; s.HasCounts {
		s.Running, s.Waiting, s.Preempted, s.CountsPartial = l.mu.said.Running, l.mu.said.Waiting, l.mu.said.Preemptions, l.mu.said.Partial
	}
}

// recordFailure records a failed scrape.
func (l *loadTracker) recordFailure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failures++
	l.mu.others, l.mu.waiting = 0, 0
	l.mu.loaded = l.mu.loaded[:0] // an engine which was started again has none in memory
	l.startPeriodLocked()
}

// startPeriodLocked starts the period until the next scrape.
func (l *loadTracker) startPeriodLocked() {
	l.mu.peakBefore, l.mu.peak = l.mu.peak, l.mu.own
	l.mu.goneBefore, l.mu.gone = l.mu.gone, 0
}

// currentLoad returns the load.
func (l *loadTracker) currentLoad() engine.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := max(l.mu.own-l.mu.probes, 0) + l.mu.others
	out := engine.Load{TotalBlocks: l.blocks, PrefillTokens: l.mu.prefill, Preemptions: l.mu.preemptions}
	if all == 0 {
		return out
	}
	out.Waiting = min(l.mu.waiting, all)
	out.Running = all - out.Waiting
	out.UsedBlocks = min(l.blocks, max(l.mu.tokens/max(l.blockSize, 1), int(l.mu.usage*float64(l.blocks))))
	return out
}

// hasRequests reports whether any request is in progress.
func (l *loadTracker) hasRequests() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.own-l.mu.probes+l.mu.others > 0
}

// loadedAdapters returns the adapters of known that are in the engine's memory.
func (l *loadTracker) loadedAdapters(known []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, name := range known {
		if slices.Contains(l.mu.loaded, name) {
			out = append(out, name)
		}
	}
	return out
}

// scrapeFailureLimit is the number of consecutive failed scrapes that triggers a warning.
const scrapeFailureLimit = 3

func (l *loadTracker) loadWarnings() []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failures < scrapeFailureLimit {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnNoMetrics, Detail: "the engine's metrics could not be read " + strconv.Itoa(l.mu.failures) + " times in a row: its load counts only the requests of this worker",
		Remedy: "see whether its metrics endpoint answers",
	}}
}

// watchLoad scrapes the engine's metrics, more often while requests are in progress.
func (b *Base) watchLoad(ctx context.Context) {
	if b.cfg.ScrapeLoad == nil {
		return
	}
	idle := time.NewTimer(0)
	defer idle.Stop()
	for {
		select {
		case <-idle.C:
		case <-b.load.busy:
			idle.Stop()
		case <-ctx.Done():
			return
		}
		if b.health.downError() == nil {
			b.scrapeLoad(ctx)
		}
		if backoff.SleepContext(ctx, scrapeBusy) != nil {
			return
		}
		wait := scrapeIdle
		if b.load.hasRequests() {
			wait = 0
		}
		idle.Reset(wait)
	}
}

func (b *Base) scrapeLoad(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var g LoadGauges
	answered := b.health.startProbe(probeLoad)
	err := b.cfg.ScrapeLoad(bounded, &g)
	answered()
	if ctx.Err() != nil {
		return
	}
	b.counters.scrapes.Add(1)
	if err != nil {
		b.counters.scrapeFailures.Add(1)
		b.load.recordFailure()
		b.health.noteCallError(ctx, err)
		return
	}
	b.load.recordScrape(&g)
}

func formatBase36(n uint64) string { return strconv.FormatUint(n, 36) }
