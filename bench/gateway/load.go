package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/bench/child"
	"penstock/internal/replay"
	"penstock/internal/replay/load"
)

// runFigures are the measurements of one run.
type runFigures struct {
	Name     string  `json:"name"`
	Streams  int     `json:"streams"`
	Requests float64 `json:"requests_per_s"`
	Tokens   float64 `json:"tokens_per_s"`
	// CPU is the gateway's processor time per request, in microseconds; 0 without a gateway.
	CPU float64 `json:"cpu_us_per_request"`
	// First and Whole are the times to the first and the last token, in milliseconds.
	First quantiles `json:"first_ms"`
	Whole quantiles `json:"whole_ms"`
}

type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// sampleCounter keeps the needed data of the counted samples: those sent after warm.
type sampleCounter struct {
	warm         time.Duration
	count        int
	tokens       int64
	ended        time.Duration
	first, whole []time.Duration
	errors       map[string]int
}

func (t *sampleCounter) RecordSample(s *replay.Sample) {
	if s.Error != "" {
		if t.errors == nil {
			t.errors = map[string]int{}
		}
		t.errors[s.Error]++
		return
	}
	if s.Done < t.warm {
		return
	}
	t.count++
	t.tokens += int64(s.Output)
	t.ended = max(t.ended, s.Done)
	t.first = append(t.first, s.First-s.Sent)
	t.whole = append(t.whole, s.Done-s.Sent)
}

func (t *sampleCounter) RecordGap(time.Duration, int) {}

func newQuantiles(d []time.Duration) quantiles {
	slices.Sort(d)
	at := func(q float64) float64 {
		if len(d) == 0 {
			return 0
		}
		return float64(d[min(len(d)-1, int(q*float64(len(d))))].Microseconds()) / 1000
	}
	return quantiles{at(0.5), at(0.99)}
}

// runLoad sends requests of source to url, streams at once, for the window, and returns the figures, with the
// CPU time of the gateway's process, if there is one. The first part of the window is not counted.
func runLoad(ctx context.Context, name, url string, gateway *child.Process, streams int, window time.Duration, source replay.Source) (runFigures, error) {
	warm := window / 5
	t := &sampleCounter{warm: warm}
	var before, after time.Duration
	var err error
	read := make(chan error, 1)
	if gateway != nil {
		ticker := time.AfterFunc(warm, func() {
			var e error
			before, e = gateway.CPUTime()
			read <- e
		})
		defer ticker.Stop()
	}
	sum, err := load.Run(ctx, load.Config{
		Endpoint: load.Endpoint{URL: url}, Model: "bench", Form: load.RequestForm{Prompt: load.TextPrompt},
		Concurrency: streams, Duration: window, Ahead: max(16, min(256, streams)),
	}, source, t)
	if err != nil {
		return runFigures{}, err
	}
	if sum.Interrupted {
		return runFigures{}, ctx.Err()
	}
	if len(t.errors) > 0 || t.count == 0 {
		return runFigures{}, fmt.Errorf("%s: %d answers, and errors %v", name, t.count, t.errors)
	}
	if gateway != nil {
		if err := <-read; err != nil {
			return runFigures{}, err
		}
		if after, err = gateway.CPUTime(); err != nil {
			return runFigures{}, err
		}
	}
	took := (t.ended - warm).Seconds()
	return runFigures{
		Name: name, Streams: streams,
		Requests: float64(t.count) / took, Tokens: float64(t.tokens) / took,
		CPU:   float64((after - before).Microseconds()) / float64(t.count),
		First: newQuantiles(t.first), Whole: newQuantiles(t.whole),
	}, nil
}
