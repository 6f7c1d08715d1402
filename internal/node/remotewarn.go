package node

import (
	"context"
	"log/slog"
	"time"

	"penstock/internal/engine"
)

// warnLook is the interval at which an engine's warnings are read for the log.
const warnLook = 2 * time.Second

// watchWarnings logs each warning of an engine once when it appears, and once when it is resolved, until ctx
// ends.
func watchWarnings(ctx context.Context, e engine.Engine, log *slog.Logger) {
	if _, ok := e.(engine.WarningSource); !ok {
		return
	}
	tick := time.NewTicker(warnLook)
	defer tick.Stop()
	said := loggedWarnings{}
	for {
		said.logChanges(engine.WarningsOf(e), log)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loggedWarnings are the codes of the warnings in the log. A changed detail is not logged again: it may
// contain a counter.
type loggedWarnings map[string]bool

func (said loggedWarnings) logChanges(now []engine.Warning, log *slog.Logger) {
	have := map[string]bool{}
	for _, w := range now {
		if !said[w.Code] {
			log.Warn(w.Detail, "code", w.Code, "remedy", w.Remedy)
		}
		have[w.Code], said[w.Code] = true, true
	}
	for code := range said {
		if !have[code] {
			delete(said, code)
			log.Info("what was wrong with the engine is over", "code", code)
		}
	}
}
