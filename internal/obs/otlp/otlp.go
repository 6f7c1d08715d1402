// Package otlp sends traces to a collector by OTLP over HTTP.
//
// The OpenTelemetry SDK reads its own environment variables: the endpoint, headers,
// certificates and time limits of OTEL_EXPORTER_OTLP_*, the service's name and
// attributes of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, the sampler of
// OTEL_TRACES_SAMPLER and the queue of OTEL_BSP_*. They are the settings that
// operators know; Penstock has none of its own beside them.
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

// flushTimeout bounds how long Close waits for a collector to take the last spans.
const flushTimeout = 3 * time.Second

// Traces is the way of spans to the collector. Spans wait in a bounded queue, in the
// background: a collector that is slow or away costs spans and never a request.
type Traces struct {
	provider *sdktrace.TracerProvider
	exporter *exporter
}

// Open starts to send the spans of a service, under the name that is given unless
// the environment has another. The caller has found that the environment names an
// endpoint. It returns at once, whether the collector can be reached or not.
func Open(ctx context.Context, service string, log *slog.Logger) (*Traces, error) {
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
	e := &exporter{SpanExporter: out, throttle: obs.NewThrottle(log, time.Minute)}
	return &Traces{
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(e), sdktrace.WithResource(res)),
		exporter: e,
	}, nil
}

// Tracer returns what starts spans.
func (t *Traces) Tracer() *obs.Tracer { return obs.NewTracer(t.provider) }

// Close sends what is left, within a bound, and ends. What could not be sent is
// lost, which the log says and which is no error of the process.
func (t *Traces) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.exporter.complain(ctx, err)
	}
	t.exporter.throttle.Flush(ctx)
}

// exporter tells the log what the SDK would write to standard error, and not
// without end.
type exporter struct {
	sdktrace.SpanExporter
	throttle *obs.Throttle
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := e.SpanExporter.ExportSpans(ctx, spans); err != nil {
		e.complain(ctx, err)
	}
	return nil
}

func (e *exporter) complain(ctx context.Context, err error) {
	e.throttle.Log(context.WithoutCancel(ctx), slog.LevelWarn, "traces are lost: the collector does not take them", "error", err)
}
