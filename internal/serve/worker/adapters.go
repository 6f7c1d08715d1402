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
// serves and the kinds of media that it is found to count in another way, and with nothing else.
type listed struct {
	changed chan struct{} // there is something to tell discovery; has room for one
	mu      struct {
		sync.Mutex
		card []byte // JSON
		// adapters are those of the card; ever are all that there were, whose requests may
		// still come.
		adapters   []string
		ever       map[string]bool
		miscounted []string // those of the card
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

// list sets the adapters of the card, and the kinds of media that are counted in another way. They are
// the engine's own.
func (w *Worker) list(adapters, miscounted []string) error {
	card := w.card
	card.Adapters, card.Miscounted = adapters, miscounted
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
	l.mu.card, l.mu.adapters, l.mu.miscounted = b, adapters, miscounted
	return nil
}

// live returns what of the card changes.
func (l *listed) live() (adapters, miscounted []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.adapters, l.mu.miscounted
}

// relist is what the engine tells of its adapters. A list that makes no card is left out.
func (w *Worker) relist(adapters []string) {
	w.relisting.Lock()
	defer w.relisting.Unlock()
	before, miscounted := w.listed.live()
	if slices.Equal(before, adapters) {
		return
	}
	if err := w.list(adapters, miscounted); err != nil {
		w.log.Error("the engine's adapters make no model card: those before stay listed", "adapters", len(adapters), "error", err)
		return
	}
	w.log.Info("the engine's adapters have changed", "adapters", len(adapters))
	w.listed.tell()
}

// recount is what was found out about the media that the engine counts in another way.
func (w *Worker) recount(kinds []string) {
	w.relisting.Lock()
	defer w.relisting.Unlock()
	adapters, before := w.listed.live()
	if slices.Equal(before, kinds) {
		return
	}
	if err := w.list(adapters, kinds); err != nil {
		w.log.Error("the kinds of media that the engine miscounts make no model card: those before stay listed", "kinds", kinds, "error", err)
		return
	}
	w.listed.tell()
}

// tell has discovery told of a change.
func (l *listed) tell() {
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
		w.throttle.Log(ctx, slog.LevelWarn, "cannot tell discovery of a change of the model card", "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}
