package batch

import (
	"context"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
)

// publishReport publishes what the loop did since the last report: first to the watchers, then to Load, then
// to the callers of Generate. So a caller that has the end of a request finds it gone from the load.
func (l *loop) publishReport() {
	events := l.sched.AppendEvents(nil)
	if l.cfg.SharedMemory != nil {
		events = append(events, l.cfg.SharedMemory.ExchangeEvents(events)...)
	}
	describe := l.watchers.NeedsDescription()
	events, contents, known := l.pool.appendMoves(events, describe)
	l.watchers.Publish(l.labelEvents(events))
	if describe && known {
		dump := l.sched.AppendDump(nil)
		if l.cfg.SharedMemory != nil {
			dump = append(dump, l.cfg.SharedMemory.DescribeShared()...)
		}
		l.watchers.SendDescription(l.labelEvents(append(dump, contents...)))
	}
	l.reportLoad()
	l.deliverResults()
}

func (l *loop) labelEvents(events []kv.Event) []kv.Event {
	if l.cfg.LabelEvents != nil && len(events) > 0 {
		l.cfg.LabelEvents(events)
	}
	return events
}

func (l *loop) reportLoad() {
	stats := l.sched.Stats()
	held := 0 // choices that wait for the first one of their request
	for _, r := range l.taken {
		for _, c := range r.open {
			if !c.scheduled {
				held++
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.sequences -= l.freed
	l.freed = 0
	l.mu.load.Running = stats.Running
	l.mu.load.Waiting = stats.Waiting + held
	l.mu.load.UsedBlocks = stats.UsedBlocks
	l.mu.load.CachedBlocks = stats.CachedBlocks
	l.mu.load.PrefillTokens = stats.PrefillTokens
	l.mu.load.Preemptions = stats.Preemptions
	l.mu.load.Encoding, l.mu.load.Active = stats.Encoding, stats.Active
	l.mu.load.Ready = stats.Running + stats.Waiting + held - stats.Encoding - stats.Active
}

// deliverResults puts tokens and ends into the outboxes.
func (l *loop) deliverResults() {
	for i := range l.results {
		r := &l.results[i]
		c := r.choice
		if r.err != nil || c.request.reuse == paged.Off {
			continue
		}
		cached, computed := 0, 0
		if !c.cachedDelivered {
			c.cachedDelivered, cached, computed = true, c.request.cached, c.computed
		}
		out, finish := c.request.out, r.finish
		if r.separateFinish {
			finish = engine.NotFinished
		}
		if c.request.req.Logprobs >= 0 {
			out.appendToken(c.index, r.token.Token, &r.token, cached, computed, finish)
		} else {
			out.appendToken(c.index, r.token.Token, nil, cached, computed, finish)
		}
		if r.separateFinish {
			out.finishChoice(c.index, r.finish)
		}
	}
	l.results = l.results[:0]
	for _, e := range l.ended {
		e.request.out.close(e.err)
		close(e.request.released)
	}
	clear(l.ended)
	l.ended = l.ended[:0]
}

// WatchKV reports the content of the cache to sink; see [engine.KVSource]. A watcher that lags by more than
// the length of a description of the whole cache is restarted. It returns nil when ctx ends, sink's error if
// sink fails, and an Unavailable error when the engine has stopped.
func (e *Engine) WatchKV(ctx context.Context, sink func([]kv.Event) error) error {
	return e.watchers.Watch(ctx, e.wakeLoop, stoppedError(), sink)
}
