package worker

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// listed is the card as others see it now: it changes with the adapters that the engine
// serves, and with nothing else.
type listed struct {
	changed chan struct{} // there is something to tell discovery; has room for one
	mu      struct {
		sync.Mutex
		card []byte // JSON
		// adapters are those of the card; ever are all that there were, whose requests may
		// still come.
		adapters []string
		ever     map[string]bool
	}
}

// maxEver bounds the adapters that are remembered beyond those that the card lists.
const maxEver = 4096

func newListed() *listed {
	l := &listed{changed: make(chan struct{}, 1)}
	l.mu.ever = map[string]bool{}
	return l
}

// json returns the JSON of the card.
func (l *listed) json() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.card
}

// has reports whether the engine serves an adapter, or did: it says itself that it has it no
// longer.
func (l *listed) has(adapter string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.ever[adapter]
}

// list sets the adapters of the card. They are the engine's own.
func (w *Worker) list(adapters []string) error {
	card := w.card
	card.Adapters = adapters
	b, err := engine.EncodeCard(card)
	if err != nil {
		return err
	}
	l := w.listed
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.ever) > maxEver {
		clear(l.mu.ever)
	}
	for _, a := range adapters {
		l.mu.ever[a] = true
	}
	l.mu.card, l.mu.adapters = b, adapters
	return nil
}

// relist is what the engine tells of its adapters. A list that makes no card is left out.
func (w *Worker) relist(adapters []string) {
	l := w.listed
	l.mu.Lock()
	same := slices.Equal(l.mu.adapters, adapters)
	l.mu.Unlock()
	if same {
		return
	}
	if err := w.list(adapters); err != nil {
		w.log.Error("the engine's adapters make no model card: those before stay listed", "adapters", len(adapters), "error", err)
		return
	}
	w.log.Info("the engine's adapters have changed", "adapters", len(adapters))
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// keepListed has discovery show the card as it is, until ctx ends. in is what was
// registered.
func (w *Worker) keepListed(ctx context.Context, lease disco.Lease, in disco.Instance) {
	for wait := newBackoff(); ; {
		for bytes.Equal(in.Meta, w.listed.json()) {
			select {
			case <-w.listed.changed:
			case <-ctx.Done():
				return
			}
		}
		in.Meta = w.listed.json()
		err := lease.Update(ctx, in)
		switch {
		case ctx.Err() != nil, fault.Of(err) == fault.Conflict: // it is another's now, whom others see
			return
		case err == nil:
			wait = newBackoff()
			continue
		case fault.Of(err) == fault.Unavailable: // it is made when the store is back
		default:
			in.Meta = nil // once more
		}
		w.throttle.Log(ctx, slog.LevelWarn, "cannot tell discovery of the engine's adapters", "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}
