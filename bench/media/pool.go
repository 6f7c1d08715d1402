package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"penstock/bench/child"
	"penstock/internal/replay"
)

// poolRow is one routing mode.
type poolRow struct {
	Routing     string   `json:"routing"`
	Requests    int      `json:"requests"`
	Errors      int      `json:"errors"`
	CachedShare float64  `json:"cached_share"`
	TTFTMean    float64  `json:"ttft_mean_ms"`
	TTFTP50     float64  `json:"ttft_p50_ms"`
	TTFTP99     float64  `json:"ttft_p99_ms"`
	Notes       []string `json:"notes,omitempty"`
}

// pictureSide is the side of an image: 256 tokens of the built-in model.
const pictureSide = 448

// encoderTimes are the times of the simulated encoder: 12 ms for one image, 40 for four.
const encoderTimes = "64:5,256:12,1024:40"

func (s *mediaSettings) describeWorkload() string {
	return fmt.Sprintf("%d workers (sim, %d blocks each, encoder %s), %d requests at %g/s, a picture of %d by %d of %d each, 64 tokens of text",
		s.workers, s.blocks, encoderTimes, s.requests, s.rate, pictureSide, pictureSide, s.pool)
}

// measurePool measures each routing mode.
func (s *mediaSettings) measurePool(ctx context.Context) (rows []poolRow, err error) {
	for _, way := range []struct {
		name string
		args []string
	}{
		{"kv", []string{"--router-mode", "kv"}},
		{"kv, weight 4", []string{"--router-mode", "kv", "--kv-overlap-score-weight", "4"}},
		{"round-robin", []string{"--router-mode", "round-robin"}},
	} {
		fmt.Fprintf(os.Stderr, "%s: %d requests\n", way.name, s.requests)
		r, err := s.runRouting(ctx, way.args)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
		r.Routing = way.name
		rows = append(rows, r)
	}
	return rows, nil
}

// runRouting starts Penstock and sends the workload.
func (s *mediaSettings) runRouting(ctx context.Context, args []string) (row poolRow, err error) {
	dir, err := os.MkdirTemp("", "penstock-media-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	up, err := child.StartProcess(ctx, os.Stderr, append([]string{
		s.bin, "up", "--engine", "sim", "--workers", strconv.Itoa(s.workers), "--kv-cache-blocks", strconv.Itoa(s.blocks),
		"--sim-encoder", encoderTimes, "--sim-encoders", "0", "--http-addr", "127.0.0.1:0", "--data-dir", dir, "--log-level", "warn", "--json",
	}, args...)...)
	if err != nil {
		return row, err
	}
	defer up.StopProcess()
	var said bytes.Buffer
	bench := exec.CommandContext(ctx, s.bin, "bench", "--url", up.URL, "--images", fmt.Sprintf("pool:size=%d,width=%d,height=%d", s.pool, pictureSide, pictureSide),
		"--generate", fmt.Sprintf("random:input=64,output=16,vary=0,requests=%d", s.requests), "--rate", strconv.FormatFloat(s.rate, 'g', -1, 64), "--prompt-seed", "1", "--json")
	bench.Stdout, bench.Stderr = &said, os.Stderr
	if err := bench.Run(); err != nil {
		return row, err
	}
	var result replay.Result
	if err := json.Unmarshal(said.Bytes(), &result); err != nil {
		return row, fmt.Errorf("read what bench says: %w", err)
	}
	if len(result.Rows) != 1 {
		return row, fmt.Errorf("bench says %d rows", len(result.Rows))
	}
	r := &result.Rows[0]
	return poolRow{
		Requests: r.Requests, Errors: r.Errors, CachedShare: r.CachedShare,
		TTFTMean: r.TTFT.Mean, TTFTP50: r.TTFT.P50, TTFTP99: r.TTFT.P99, Notes: result.Notes,
	}, nil
}
