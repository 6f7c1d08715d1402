package node

import (
	"context"
	"log/slog"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/obs/otlp"
)

// openTraces opens the exporter of spans to a collector; nil if the environment disables it.
func openTraces(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (*otlp.TraceExporter, error) {
	log = obs.Component(log, "traces")
	on, trouble := cfg.TracesEnabled()
	if trouble != "" {
		log.Warn("traces are wanted and there are none", "reason", trouble)
	}
	if !on {
		return nil, nil
	}
	return otlp.Open(context.WithoutCancel(ctx), "penstock-"+string(cfg.Command), log)
}
