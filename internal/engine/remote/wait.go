package remote

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// The times between two questions to an engine that is loading, and between two lines in
// the log about it.
const (
	loadingLeast = 100 * time.Millisecond
	loadingMost  = 2 * time.Second
	loadingSay   = 15 * time.Second
)

// Await asks until the engine answers: ask is repeated while it returns Unavailable errors, as
// engines that load their model refuse connections or answer 503. After spec.Patience, or when ctx
// ends, its last error says why.
func Await(ctx context.Context, spec *Spec, log *slog.Logger, ask func(context.Context) error) error {
	began, said := time.Now(), time.Now()
	for wait := loadingLeast; ; wait = min(2*wait, loadingMost) {
		err := ask(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.Of(err) != fault.Unavailable && fault.Of(err) != fault.Overloaded:
			return err
		case time.Since(began) >= spec.Patience:
			return fault.New(fault.Unavailable, "the engine at %s has not begun to serve in %v: %w", spec.URL.Host, spec.Patience, err)
		}
		if time.Since(said) >= loadingSay {
			said = time.Now()
			log.Info("waiting for the engine", "engine", spec.URL.Host, "for", time.Since(began).Round(time.Second), "error", err)
		}
		if perr := backoff.Pause(ctx, wait); perr != nil {
			return fmt.Errorf("%w (the engine: %w)", perr, err)
		}
	}
}
