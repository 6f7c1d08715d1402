// Package otlp sends traces to a collector by OTLP over HTTP.
//
// The OpenTelemetry SDK reads its own environment variables: the endpoint, headers, certificates
// and timeouts of OTEL_EXPORTER_OTLP_*, the service's name and attributes of OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES, the sampler of OTEL_TRACES_SAMPLER and the queue of OTEL_BSP_*.
// Operators know these settings, so Penstock adds none.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"penstock/internal/obs"
)

// flushTimeout bounds how long Close waits for a collector to accept the last spans.
const flushTimeout = 3 * time.Second

// TraceExporter sends spans to the collector. Spans wait in a bounded queue and are sent in the
// background: a slow or unreachable collector loses spans but never delays a request.
type TraceExporter struct {
	provider *sdktrace.TracerProvider
	exporter *loggingExporter
}

// Open starts to send the spans of a service, under the given name unless the environment sets
// another. The caller must have checked that the environment names an endpoint. Open returns at
// once, whether or not the collector can be reached.
func Open(ctx context.Context, service string, log *slog.Logger) (*TraceExporter, error) {
	out, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w; see OTEL_EXPORTER_OTLP_*", err)
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w; see OTEL_RESOURCE_ATTRIBUTES", err)
	}
	e := &loggingExporter{SpanExporter: out, throttle: obs.NewThrottle(log, time.Minute)}
	return &TraceExporter{
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(e), sdktrace.WithResource(res)),
		exporter: e,
	}, nil
}

// Tracer returns a tracer whose spans are exported.
func (t *TraceExporter) Tracer() *obs.Tracer { return obs.NewTracer(t.provider) }

// Close sends the remaining spans, for at most flushTimeout, and stops. Unsent spans are lost; that
// is logged but is no error of the process.
func (t *TraceExporter) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.exporter.logFailure(ctx, err)
	}
	t.exporter.throttle.Flush(ctx)
}

// loggingExporter logs, throttled, the errors which the SDK would write to standard error.
type loggingExporter struct {
	sdktrace.SpanExporter
	throttle *obs.Throttle
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.logFailure(ctx, err)
	}
	return nil
}

func (e *loggingExporter) logFailure(ctx context.Context, err error) {
	e.throttle.Log(context.WithoutCancel(ctx), slog.LevelWarn, "traces are lost: the collector does not take them", "error", err)
}
