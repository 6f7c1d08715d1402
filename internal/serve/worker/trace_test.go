package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
)

// TestTraced: a call is a span, and so is a generation's time until its first token, however it ends.
func TestTraced(t *testing.T) {
	accepted := engine.AppendDelta(nil, &engine.Delta{Attempt: 1, Accepted: true})
	token := engine.AppendDelta(nil, &engine.Delta{Attempt: 1, Tokens: []kv.Token{7}, Cached: 5})
	gone := fault.New(fault.Unavailable, "gone")
	for _, tt := range []struct {
		name, method string
		frames       [][]byte
		err          error
		want         []string // the spans ended after each frame, and at the end
	}{
		{"a generation", engine.MethodGenerate, [][]byte{accepted, token, token}, nil, []string{"", "queue and prefill", "queue and prefill", "queue and prefill,worker generate"}},
		{"one that fails early", engine.MethodGenerate, [][]byte{accepted}, gone, []string{"", "queue and prefill!,worker generate!"}},
		{"one that fails late", engine.MethodGenerate, [][]byte{accepted, token}, gone, []string{"", "queue and prefill", "queue and prefill,worker generate!"}},
		{"one whose media are encoded first", engine.MethodGenerate, [][]byte{engine.ProgressFrame(), accepted, token}, nil, []string{"", "", "queue and prefill", "queue and prefill,worker generate"}},
		{"a frame that is none", engine.MethodGenerate, [][]byte{{0xff}}, nil, []string{"", "queue and prefill,worker generate"}},
		{"an embedding", engine.MethodEmbed, [][]byte{token}, nil, []string{"", "worker embed"}},
		{"a ping", engine.MethodPing, [][]byte{token}, nil, []string{"", ""}},
		{"a method made up", "a prompt", nil, gone, []string{"worker unknown!"}},
	} {
		seen := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
		var got []string
		ended := func() {
			var names []string
			for _, s := range seen.Ended() {
				name := s.Name()
				if s.Status().Description != "" {
					name += "!"
				}
				names = append(names, name)
			}
			got = append(got, strings.Join(names, ","))
		}
		sent := 0
		w := &Worker{cfg: Config{ID: 3}}
		serve := traceCalls(obs.NewTracer(provider), w, func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
			if method != tt.method {
				t.Errorf("%s: the method is %s", tt.name, method)
			}
			for _, f := range tt.frames {
				if err := send(f); err != nil {
					t.Error(err)
				}
				ended()
			}
			return tt.err
		})
		err := serve(t.Context(), tt.method, nil, func([]byte) error { sent++; return nil })
		ended()
		if !errors.Is(err, tt.err) || sent != len(tt.frames) || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %q, %d frames, %v, want %q", tt.name, got, sent, err, tt.want)
		}
	}
}

// TestTracedSplit: the span of the time until the first token says where the prompt was computed, and why.
func TestTracedSplit(t *testing.T) {
	frame := engine.AppendDelta(nil, &engine.Delta{Attempt: 1, Tokens: []kv.Token{7}, Split: &engine.SplitReport{
		Policy: disagg.ByThreshold, Remote: true, Rule: "the prefill is long", QueuedJobs: 1, LocalMs: 2.5, RemoteMs: 1.5, By: kv.Worker{ID: 9},
	}})
	seen := tracetest.NewSpanRecorder()
	serve := traceCalls(obs.NewTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))), &Worker{cfg: Config{ID: 3}},
		func(_ context.Context, _ string, _ []byte, send func([]byte) error) error { return send(frame) })
	if err := serve(t.Context(), engine.MethodGenerate, nil, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range seen.Ended()[0].Attributes() {
		got[string(a.Key)] = a.Value.String()
	}
	for key, want := range map[string]string{
		"penstock.disagg_policy": "threshold", "penstock.prefill_rule": "the prefill is long", "penstock.prefill_queued_jobs": "1",
		"penstock.prefill_local_ms": "2.5", "penstock.prefill_remote_ms": "1.5", "penstock.prefill_worker_id": "9",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if _, failed := got["penstock.prefill_failure"]; failed {
		t.Errorf("nothing failed: %v", got)
	}
}
