package remote

import (
	"context"
	"log/slog"
	"time"

	"penstock/core/enginefeed"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/engine"
)

// The intervals of polls for cache events: while events come, and while none do.
const (
	pullBusy    = 50 * time.Millisecond
	pullIdle    = time.Second
	pullTimeout = 10 * time.Second
)

// maxPulled bounds the response to one poll, in bytes.
const maxPulled = 64 << 20

// PullConfig says how an engine is polled for its cache events.
type PullConfig struct {
	Client *Client
	Path   string
	// EngineBlock is the size of the engine's own blocks in tokens.
	EngineBlock int
	Table       enginefeed.Config
	Log         *slog.Logger
}

// PulledEvents is the source of an engine that returns its cache events since the last poll, once, to any
// client: there must be no other client that polls. Create it with [NewPulledEvents].
type Pulled struct {
	cfg     PullConfig
	table   *enginefeed.Table
	decoder enginefeed.PullDecoder
	batch   enginefeed.Batch

	// The tracker's lock guards the fields below and the table while run is active.
	batches   uint64
	bad, lost mishap // responses that cannot be read, or that report missing events
	sight     sight  // unknown media in events
	failing   error  // error of the last poll
}

// NewPulledEvents returns the source of an engine that is polled for its cache events.
func PulledEvents(cfg PullConfig) (*Pulled, error) {
	table, err := enginefeed.NewTable(cfg.Table)
	if err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Pulled{cfg: cfg, table: table, decoder: enginefeed.PullDecoder{BlockSize: cfg.EngineBlock}}, nil
}

// PollOnce polls once, before the source is used, and reports whether the engine returned any events.
func (p *Pulled) Try(ctx context.Context) (some bool, err error) {
	body, err := p.ask(ctx)
	if err != nil {
		return false, err
	}
	p.take(body, nil)
	return len(p.batch.Events) > 0, nil
}

func (p *Pulled) ask(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	return p.cfg.Client.Read(ctx, &Call{Path: p.cfg.Path, Body: []byte("{}")}, maxPulled)
}

// applyResponse applies a response.
func (p *Pulled) take(body []byte, out []kv.Event) []kv.Event {
	p.batch.Events = p.batch.Events[:0]
	lost, err := p.decoder.Decode(body, &p.batch)
	if err != nil {
		if p.bad.happened() {
			p.cfg.Log.Warn("the engine's cache events cannot be read; what was known of its cache is forgotten", "error", err)
		}
		return p.table.Clear(out)
	}
	if lost {
		if p.lost.happened() {
			p.cfg.Log.Warn("cache events of the engine are missing; what was known of its cache is forgotten")
		}
		out = p.table.Clear(out)
	}
	if len(p.batch.Events) > 0 {
		p.batches++
	}
	return p.table.Apply(&p.batch, out)
}

func (p *Pulled) run(ctx context.Context, c *cache) {
	for wait := pullBusy; ; {
		if backoff.Pause(ctx, wait) != nil {
			return
		}
		body, err := p.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		c.change(func(out []kv.Event) []kv.Event {
			if p.failing = err; err != nil {
				return out
			}
			return p.take(body, out)
		})
		if wait = min(2*wait, pullIdle); err == nil && len(p.batch.Events) > 0 {
			wait = pullBusy
		}
	}
}

func (p *Pulled) restarted(out []kv.Event) []kv.Event {
	p.decoder = enginefeed.PullDecoder{BlockSize: p.cfg.EngineBlock}
	return p.table.Clear(out)
}

func (p *Pulled) describe(out []kv.Event) []kv.Event                    { return p.table.Describe(out) }
func (p *Pulled) knows() bool                                           { return false }
func (p *Pulled) grew(_ *Part, _ []kv.Token, out []kv.Event) []kv.Event { return out }
func (p *Pulled) reported(_ *Part, _ int, out []kv.Event) []kv.Event    { return out }
func (p *Pulled) end(_ *Part, out []kv.Event) []kv.Event                { return out }

func (p *Pulled) begin(part *Part, out []kv.Event) (int, []kv.Event) {
	p.table.Shown(part.Request.Prompt, part.Request.Media, part.Request.Salt)
	return 0, out
}

func (p *Pulled) stats(s *Stats) {
	s.Batches, s.Unreadable, s.Unrepaired, s.Connected = p.batches, p.bad.n, p.lost.n, p.failing == nil
	s.Orphans = p.table.Stats().Orphans
}

func (p *Pulled) warnings() []engine.Warning {
	var out []engine.Warning
	if p.failing != nil {
		out = append(out, engine.Warning{
			Code: engine.WarnNoEvents, Detail: "the engine's cache events cannot be asked for: " + Clean(p.failing.Error()), Remedy: "see whether it runs",
		})
	}
	if p.lost.lately() {
		out = append(out, engine.Warning{
			Code: engine.WarnEventsLost, Detail: "cache events of the engine are missing: what was cached before is unknown",
			Remedy: "see that nobody else asks the engine for its cache events, and raise its event_buffer_max_size",
		})
	}
	if p.bad.lately() {
		out = append(out, engine.Warning{Code: engine.WarnEventsBad, Detail: "cache events of the engine could not be read", Remedy: "report this with the engine's version"})
	}
	out = append(out, p.sight.warnings(p.table.Stats())...)
	if err := p.table.Err(); err != nil {
		out = append(out, engine.Warning{Code: engine.WarnBlockSize, Detail: Clean(err.Error())})
	}
	return out
}
