package remote

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"penstock/core/engineevents"
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
	Table       engineevents.Config
	Log         *slog.Logger
}

// NewPulledEvents is the source of an engine that returns its cache events since the last poll, once, to any
// client: there must be no other client that polls. Create it with [NewPulledEvents].
type PulledEvents struct {
	cfg     PullConfig
	table   *engineevents.Table
	decoder engineevents.PullDecoder
	batch   engineevents.Batch

	// The tracker's lock guards the fields below and the table while run is active.
	batches          uint64
	unreadable, lost incidents    // responses that cannot be read, or that report missing events
	media            unknownMedia // unknown media in events
	pollErr          error        // error of the last poll
}

// NewPulledEvents returns the source of an engine that is polled for its cache events.
func NewPulledEvents(cfg PullConfig) (*PulledEvents, error) {
	table, err := engineevents.NewTable(cfg.Table)
	if err != nil {
		return nil, err
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &PulledEvents{cfg: cfg, table: table, decoder: engineevents.PullDecoder{BlockSize: cfg.EngineBlock}}, nil
}

// PollOnce polls once, before the source is used, and reports whether the engine returned any events.
func (p *PulledEvents) PollOnce(ctx context.Context) (some bool, err error) {
	body, err := p.fetchEvents(ctx)
	if err != nil {
		return false, err
	}
	p.applyResponse(body, nil)
	return len(p.batch.Events) > 0, nil
}

func (p *PulledEvents) fetchEvents(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	return p.cfg.Client.ReadBody(ctx, &Call{Path: p.cfg.Path, Body: []byte("{}")}, maxPulled)
}

// applyResponse applies a response.
func (p *PulledEvents) applyResponse(body []byte, out []kv.Event) []kv.Event {
	p.batch.Events = p.batch.Events[:0]
	lost, err := p.decoder.Decode(body, &p.batch)
	if err != nil {
		if p.unreadable.record() {
			p.cfg.Log.Warn("the engine's cache events cannot be read; what was known of its cache is forgotten", "error", err)
		}
		return p.table.Clear(out)
	}
	if lost {
		if p.lost.record() {
			p.cfg.Log.Warn("cache events of the engine are missing; what was known of its cache is forgotten")
		}
		out = p.table.Clear(out)
	}
	if len(p.batch.Events) > 0 {
		p.batches++
	}
	return p.table.Apply(&p.batch, out)
}

func (p *PulledEvents) run(ctx context.Context, c *cacheTracker) {
	for wait := pullBusy; ; {
		if backoff.SleepContext(ctx, wait) != nil {
			return
		}
		body, err := p.fetchEvents(ctx)
		if ctx.Err() != nil {
			return
		}
		c.applyChange(func(out []kv.Event) []kv.Event {
			if p.pollErr = err; err != nil {
				return out
			}
			return p.applyResponse(body, out)
		})
		if wait = min(2*wait, pullIdle); err == nil && len(p.batch.Events) > 0 {
			wait = pullBusy
		}
	}
}

func (p *PulledEvents) engineRestarted(out []kv.Event) []kv.Event {
	p.decoder = engineevents.PullDecoder{BlockSize: p.cfg.EngineBlock}
	return p.table.Clear(out)
}

func (p *PulledEvents) appendContents(out []kv.Event) []kv.Event { return p.table.Describe(out) }

func (p *PulledEvents) predictsHits() bool { return false }

func (p *PulledEvents) addOutput(_ *SubRequest, _ []kv.Token, out []kv.Event) []kv.Event { return out }

func (p *PulledEvents) recordReport(_ *SubRequest, _ int, out []kv.Event) []kv.Event { return out }

func (p *PulledEvents) finishCall(_ *SubRequest, out []kv.Event) []kv.Event { return out }

func (p *PulledEvents) startCall(part *SubRequest, out []kv.Event) (int, []kv.Event) {
	p.table.RecordMediaPrompt(part.Request.Prompt, part.Request.Media, part.Request.Salt)
	return 0, out
}

func (p *PulledEvents) fillStats(s *Stats) {
	s.Batches, s.Unreadable, s.Unrepaired, s.Connected = p.batches, p.unreadable.n, p.lost.n, p.pollErr == nil
	s.Orphans = p.table.Stats().Orphans
}

func (p *PulledEvents) sourceWarnings() []engine.Warning {
	var out []engine.Warning
	if p.pollErr != nil {
		out = append(out, engine.Warning{
			Code: engine.WarnNoEvents, Detail: "the engine's cache events cannot be asked for: " + SanitizeMessage(p.pollErr.Error()), Remedy: "see whether it runs",
		})
	}
	if p.lost.isRecent() {
		out = append(out, engine.Warning{
			Code: engine.WarnEventsLost, Detail: "cache events of the engine are missing: what was cached before is unknown",
			Remedy: "see that no other process asks the engine for its cache events, and raise its event_buffer_max_size",
		})
	}
	if p.unreadable.isRecent() {
		out = append(out, engine.Warning{Code: engine.WarnEventsBad, Detail: "cache events of the engine could not be read", Remedy: "report this with the engine's version"})
	}
	out = append(out, p.media.unknownMediaWarnings(p.table.Stats())...)
	if err := p.table.Err(); err != nil {
		out = append(out, engine.Warning{Code: engine.WarnBlockSize, Detail: SanitizeMessage(err.Error())})
	}
	return out
}
