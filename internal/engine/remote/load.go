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

// The times between two readings of an engine's metrics: while requests are in progress, and
// while there are none, when others' may be.
const (
	scrapeBusy    = time.Second
	scrapeIdle    = 10 * time.Second
	scrapeTimeout = 5 * time.Second
)

// load keeps account of what an engine is doing. The adapter's own requests are known at every
// moment. Those of others are what the engine counts beyond them; since its count is older than
// ours, ours is taken at its highest since the reading before the last, and with all that were
// broken off since: it takes the engine a while to notice.
type load struct {
	blockSize, blocks int
	busy              chan struct{} // of capacity 1: a request has begun

	mu struct {
		sync.Mutex
		own, peak, peakBefore int // choices in progress, and the most since the last readings
		probes                int // of own: questions of this adapter, of which nobody is told
		gone, goneBefore      int // choices broken off since the last readings
		prefill               int // prompt tokens of requests without a token yet
		tokens                int // of prompt and output in progress
		others, waiting       int
		usage                 float64
		preemptions           uint64
		loaded                []string // adapters
		failures              int      // readings in a row
		read                  bool
		said                  Gauges // the last reading, without its adapters
		work                  uint64 // readings that were not the one before
	}
}

func newLoad(blockSize, blocks int) *load {
	return &load{blockSize: blockSize, blocks: blocks, busy: make(chan struct{}, 1)}
}

// flight is a request's part in the account.
type flight struct {
	choices, prompt, tokens int
	begun                   bool // a token has come
	whole                   bool // the engine has nothing of it any more
}

// begin counts a request.
func (l *load) begin(a *attempt) *flight {
	f := &flight{choices: max(a.open, 1), prompt: len(a.req.Prompt), tokens: len(a.req.Prompt)}
	if a.probe {
		f.prompt, f.tokens = 0, 0
	}
	l.mu.Lock()
	l.mu.own += f.choices
	l.mu.peak = max(l.mu.peak, l.mu.own)
	l.mu.prefill += f.prompt
	l.mu.tokens += f.tokens
	l.mu.Unlock()
	select {
	case l.busy <- struct{}{}:
	default:
	}
	return f
}

// probe counts a question of the adapter that the engine counts too, until the function that it returns is called. counted
// says that it is begun as a request besides.
func (l *load) probe(counted bool) (end func()) {
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

// grew counts tokens of output.
func (l *load) grew(f *flight, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.begun {
		f.begun = true
		l.mu.prefill -= f.prompt
	}
	f.tokens += n
	l.mu.tokens += n
}

// end takes a request out of the account.
func (l *load) end(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.own -= f.choices
	if !f.whole {
		l.mu.gone += f.choices
	}
	l.mu.tokens -= f.tokens
	if !f.begun {
		l.mu.prefill -= f.prompt
	}
}

// mostRequests is the most that an engine is believed to have: what it says may be any number.
const mostRequests = 1 << 24

// take enters a reading of the engine's metrics.
func (l *load) take(g *Gauges) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.read, l.mu.failures = true, 0
	running, waiting := min(max(g.Running, 0), mostRequests), min(max(g.Waiting, 0), mostRequests)
	l.mu.others = max(0, running+waiting-max(l.mu.peak, l.mu.peakBefore)-l.mu.gone-l.mu.goneBefore)
	l.turn()
	l.mu.waiting, l.mu.usage, l.mu.preemptions = waiting, 0, g.Preemptions
	if g.Usage > 0 { // and a number
		l.mu.usage = min(g.Usage, 1)
	}
	l.mu.loaded = append(l.mu.loaded[:0], g.Adapters...)
	said := *g
	said.Adapters = nil
	if !said.same(&l.mu.said) {
		l.mu.work++
	}
	l.mu.said = said
}

// same reports whether two readings say the same of the engine's work.
func (g *Gauges) same(o *Gauges) bool {
	return g.Running == o.Running && g.Waiting == o.Waiting && g.Usage == o.Usage && g.Preemptions == o.Preemptions && g.Tokens == o.Tokens
}

// signs enters the engine's own account: nothing of the requests that are counted here.
func (l *load) signs(s *engine.Signs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Work = l.mu.work
	if s.Tells = l.mu.read && l.mu.failures == 0; s.Tells {
		s.Running, s.Waiting, s.Preempted, s.Partial = l.mu.said.Running, l.mu.said.Waiting, l.mu.said.Preemptions, l.mu.said.Partial
	}
}

// missed notes that a reading failed.
func (l *load) missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failures++
	l.mu.others, l.mu.waiting = 0, 0
	l.turn()
}

// turn begins the time to the next reading.
func (l *load) turn() {
	l.mu.peakBefore, l.mu.peak = l.mu.peak, l.mu.own
	l.mu.goneBefore, l.mu.gone = l.mu.gone, 0
}

// now is the load.
func (l *load) now() engine.Load {
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

// active reports whether anything is in progress.
func (l *load) active() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.own-l.mu.probes+l.mu.others > 0
}

// adapters returns those of known that are in the engine's memory.
func (l *load) adapters(known []string) []string {
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

// missable is how many readings may fail in a row before somebody should know.
const missable = 3

func (l *load) warnings() []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failures < missable {
		return nil
	}
	return []engine.Warning{{
		Code: engine.WarnNoMetrics, Detail: "the engine's metrics could not be read " + strconv.Itoa(l.mu.failures) + " times in a row: its load counts only the requests of this worker",
		Remedy: "see whether its metrics endpoint answers",
	}}
}

// watchLoad reads the engine's metrics as often as they are of use.
func (b *Base) watchLoad(ctx context.Context) {
	if b.cfg.Scrape == nil {
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
		if b.health.down() == nil {
			b.scrape(ctx)
		}
		if backoff.Pause(ctx, scrapeBusy) != nil {
			return
		}
		wait := scrapeIdle
		if b.load.active() {
			wait = 0
		}
		idle.Reset(wait)
	}
}

func (b *Base) scrape(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var g Gauges
	answered := b.health.ask(itsLoad)
	err := b.cfg.Scrape(bounded, &g)
	answered()
	if ctx.Err() != nil {
		return
	}
	b.stats.scrapes.Add(1)
	if err != nil {
		b.stats.scrapeFailures.Add(1)
		b.load.missed()
		b.health.note(ctx, err)
		return
	}
	b.load.take(&g)
}

func itoa(n uint64) string { return strconv.FormatUint(n, 36) }
