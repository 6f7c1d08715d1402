package node

import (
	"context"
	"log/slog"
	"time"

	"penstock/internal/engine"
)

// warnLook is how often an engine is asked what is wrong with it, for the log.
const warnLook = 2 * time.Second

// warningsOf returns what an engine says is wrong; nil if it says nothing.
func warningsOf(e engine.Engine) []engine.Warning {
	if src, ok := e.(engine.WarningSource); ok {
		return src.Warnings()
	}
	return nil
}

// watchWarnings logs each thing that is wrong with an engine once when it begins, and
// once when it is over, until ctx ends.
func watchWarnings(ctx context.Context, e engine.Engine, log *slog.Logger) {
	if _, ok := e.(engine.WarningSource); !ok {
		return
	}
	tick := time.NewTicker(warnLook)
	defer tick.Stop()
	said := warnings{}
	for {
		said.tell(warningsOf(e), log)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// warnings are those that are in the log, by code. A detail that changes is no news: it
// may have a number that counts.
type warnings map[string]bool

func (said warnings) tell(now []engine.Warning, log *slog.Logger) {
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
