package main

import (
	"context"
	"io"
	"time"

	"penstock/internal/replay"
)

// idealAfterWarmup returns the best possible cache hits for the requests after the warm-up, given a cache
// which the warm-up filled, and the total number of requests.
func (o *benchOptions) idealAfterWarmup(ctx context.Context, w replay.Workload, cfg replay.IdealConfig) (replay.Ideal, int, error) {
	all, whole, err := computeIdeal(ctx, w, cfg, 0, 0)
	if err != nil {
		return replay.Ideal{}, 0, err
	}
	if o.warmup == (warmup{}) {
		return all, whole.requests, nil
	}
	before, warm, err := computeIdeal(ctx, w, cfg, o.warmup.requests, o.warmup.window)
	if err != nil {
		return replay.Ideal{}, 0, err
	}
	rest := func(all, before replay.Share) replay.Share {
		if whole.tokens > warm.tokens {
			all.CachedShare = (all.CachedShare*float64(whole.tokens) - before.CachedShare*float64(warm.tokens)) / float64(whole.tokens-warm.tokens)
		}
		return all
	}
	all.Infinite, all.SameCapacity = rest(all.Infinite, before.Infinite), rest(all.SameCapacity, before.SameCapacity)
	return all, whole.requests, nil
}

// computeIdeal returns the ideal of a workload, or of its first requests, or of those before window; 0 means
// all.
func computeIdeal(ctx context.Context, w replay.Workload, cfg replay.IdealConfig, requests int, window time.Duration) (replay.Ideal, workloadSize, error) {
	source, err := w.Open()
	if err != nil {
		return replay.Ideal{}, workloadSize{}, err
	}
	defer source.Close()
	c := &countingSource{Source: source, maxRequests: requests, window: window}
	ideals, err := replay.Ideals(ctx, c, cfg)
	if err != nil {
		return replay.Ideal{}, workloadSize{}, err
	}
	return ideals[0], c.workloadSize, nil
}

// workloadSize is the part of a workload which was read.
type workloadSize struct {
	requests int
	tokens   int64 // of prompts
}

// countingSource counts what it reads of a source, up to its limits.
type countingSource struct {
	replay.Source
	maxRequests int           // requests; 0 is all
	window      time.Duration // 0 is all
	workloadSize
}

// Next implements replay.Source.
func (c *countingSource) Next(r *replay.Request) error {
	if c.maxRequests > 0 && c.requests == c.maxRequests {
		return io.EOF
	}
	if err := c.Source.Next(r); err != nil {
		return err
	}
	if c.window > 0 && r.At >= c.window {
		return io.EOF
	}
	c.requests++
	c.tokens += int64(replay.CountPromptTokens(r))
	return nil
}
