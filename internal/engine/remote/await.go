package remote

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/internal/backoff"
)

// The intervals of probes of an engine that is loading, and of log lines about it.
const (
	loadingPauseMin    = 100 * time.Millisecond
	loadingPauseMax    = 2 * time.Second
	loadingLogInterval = 15 * time.Second
)

// AwaitEngine calls ask until the engine answers: it repeats ask while this returns Unavailable or Overloaded
// errors, since engines that load their model refuse connections or answer 503. After spec.LoadTimeout, or
// when ctx ends, the error includes the last error of ask.
func AwaitEngine(ctx context.Context, spec *Spec, log *slog.Logger, ask func(context.Context) error) error {
	began, said := time.Now(), time.Now()
	for wait := loadingPauseMin; ; wait = min(2*wait, loadingPauseMax) {
		err := ask(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.CodeOf(err) != fault.Unavailable && fault.CodeOf(err) != fault.Overloaded:
			return err
		case time.Since(began) >= spec.LoadTimeout:
			return fault.New(fault.Unavailable, "the engine at %s has not begun to serve in %v: %w", spec.URL.Host, spec.LoadTimeout, err)
		}
		if time.Since(said) >= loadingLogInterval {
			said = time.Now()
			log.Info("waiting for the engine", "engine", spec.URL.Host, "for", time.Since(began).Round(time.Second), "error", err)
		}
		if perr := backoff.SleepContext(ctx, wait); perr != nil {
			return fmt.Errorf("%w (the engine: %w)", perr, err)
		}
	}
}
