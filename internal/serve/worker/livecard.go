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

// liveCard is the worker's current card as registered. Only the adapters that the engine serves and its
// miscounted kinds of media change.
type liveCard struct {
	changed chan struct{} // discovery must be updated; has room for one
	mu      struct {
		sync.Mutex
		card []byte // JSON
		// adapters are the card's adapters. ever marks all adapters so far, because requests for
		// earlier ones may still arrive.
		adapters   []string
		ever       map[string]bool
		miscounted []string // of the card
	}
}

// maxEver bounds the adapters in ever beyond those on the card.
const maxEver = 4096

func newLiveCard() *liveCard {
	l := &liveCard{changed: make(chan struct{}, 1)}
	l.mu.ever = map[string]bool{}
	return l
}

// encodedCard returns the JSON of the card.
func (l *liveCard) encodedCard() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.card
}

// hasServed reports whether the engine serves an adapter, or did: the engine itself refuses requests
// for a removed one.
func (l *liveCard) hasServed(adapter string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.ever[adapter]
}

// setLists sets the adapters of the card, and the miscounted kinds of media. The slices belong to the
// engine.
func (w *Worker) setLists(adapters, miscounted []string) error {
	card := w.card
	card.Adapters, card.MiscountedMedia, card.Exchange = adapters, miscounted, w.stated.Load()
	b, err := engine.EncodeCard(card)
	if err != nil {
		return err
	}
	l := w.liveCard
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

// lists returns the parts of the card that change.
func (l *liveCard) lists() (adapters, miscounted []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.adapters, l.mu.miscounted
}

// updateAdapters takes the engine's current adapters. It ignores a list that makes no valid card.
func (w *Worker) updateAdapters(adapters []string) {
	w.updatingCard.Lock()
	defer w.updatingCard.Unlock()
	before, miscounted := w.liveCard.lists()
	if slices.Equal(before, adapters) {
		return
	}
	if err := w.setLists(adapters, miscounted); err != nil {
		w.log.Error("the engine's adapters make no model card: those before stay listed", "adapters", len(adapters), "error", err)
		return
	}
	w.log.Info("the engine's adapters have changed", "adapters", len(adapters))
	w.liveCard.notifyChanged()
}

// updateMiscounted takes the kinds of media that the engine counts differently.
func (w *Worker) updateMiscounted(kinds []string) {
	w.updatingCard.Lock()
	defer w.updatingCard.Unlock()
	adapters, before := w.liveCard.lists()
	if slices.Equal(before, kinds) {
		return
	}
	if err := w.setLists(adapters, kinds); err != nil {
		w.log.Error("the kinds of media that the engine miscounts make no model card: those before stay listed", "kinds", kinds, "error", err)
		return
	}
	w.liveCard.notifyChanged()
}

// notifyChanged wakes keepCardRegistered.
func (l *liveCard) notifyChanged() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// keepCardRegistered updates the card in discovery when it changes, until ctx ends. in is the
// registered instance.
func (w *Worker) keepCardRegistered(ctx context.Context, lease disco.Lease, in disco.Instance) {
	for wait := newBackoff(); ; {
		for bytes.Equal(in.Meta, w.liveCard.encodedCard()) {
			select {
			case <-w.liveCard.changed:
			case <-ctx.Done():
				return
			}
		}
		in.Meta = w.liveCard.encodedCard()
		err := lease.Update(ctx, in)
		switch {
		case ctx.Err() != nil, fault.CodeOf(err) == fault.Conflict: // another process owns the registration now
			return
		case err == nil:
			wait = newBackoff()
			continue
		case fault.CodeOf(err) == fault.Unavailable: // it is updated when the store is back
		default:
			in.Meta = nil // try again
		}
		w.throttle.Log(ctx, slog.LevelWarn, "cannot tell discovery of a change of the model card", "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// startingEngine is an engine that takes time to start, during which it does not answer.
type startingEngine interface {
	// Started is closed when the engine answers; nil means that it always does.
	Started() <-chan struct{}
}

// awaitStarted waits until the engine has started, and reports whether it has; it has not if ctx ended
// before.
func (w *Worker) awaitStarted(ctx context.Context) bool {
	s, ok := w.eng.(startingEngine)
	if !ok || s.Started() == nil {
		return true
	}
	select {
	case <-s.Started():
		return true
	case <-ctx.Done():
		return false
	}
}
