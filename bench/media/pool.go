package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"penstock/internal/replay"
)

// poolRow is one way of routing.
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

// side is that of a picture: 256 tokens of the built-in model.
const side = 448

// encoder is how long the simulated encoder takes: 12 ms for a picture, 40 for four.
const encoder = "64:5,256:12,1024:40"

// readyWithin is how long Penstock may take to start.
const readyWithin = 30 * time.Second

func (s *settings) workload() string {
	return fmt.Sprintf("%d workers (sim, %d blocks each, encoder %s), %d requests at %g/s, a picture of %d by %d of %d each, 64 tokens of text",
		s.workers, s.blocks, encoder, s.requests, s.rate, side, side, s.pool)
}

// pooled measures each way of routing.
func (s *settings) pooled(ctx context.Context) (rows []poolRow, err error) {
	for _, way := range []struct {
		name string
		args []string
	}{
		{"kv", []string{"--router-mode", "kv"}},
		{"kv, weight 4", []string{"--router-mode", "kv", "--kv-overlap-score-weight", "4"}},
		{"round-robin", []string{"--router-mode", "round-robin"}},
	} {
		fmt.Fprintf(os.Stderr, "%s: %d requests\n", way.name, s.requests)
		r, err := s.route(ctx, way.args)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
		r.Routing = way.name
		rows = append(rows, r)
	}
	return rows, nil
}

// route starts Penstock and sends the workload.
func (s *settings) route(ctx context.Context, args []string) (row poolRow, err error) {
	dir, err := os.MkdirTemp("", "penstock-media-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	addr, err := freeAddr()
	if err != nil {
		return row, err
	}
	up := exec.CommandContext(ctx, s.bin, append([]string{
		"up", "--engine", "sim", "--workers", strconv.Itoa(s.workers), "--kv-cache-blocks", strconv.Itoa(s.blocks),
		"--sim-encoder", encoder, "--http-addr", addr, "--data-dir", dir, "--log-level", "warn",
	}, args...)...)
	up.Stderr = os.Stderr
	if err := up.Start(); err != nil {
		return row, err
	}
	defer func() {
		_ = up.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = up.Wait()                          // likewise
	}()
	url := "http://" + addr
	if err := ready(ctx, url); err != nil {
		return row, err
	}
	var said bytes.Buffer
	bench := exec.CommandContext(ctx, s.bin, "bench", "--url", url, "--images", fmt.Sprintf("pool:size=%d,width=%d,height=%d", s.pool, side, side),
		"--generate", fmt.Sprintf("random:input=64,output=16,vary=0,requests=%d", s.requests), "--rate", strconv.FormatFloat(s.rate, 'g', -1, 64), "--prompt-seed", "1", "--json")
	bench.Stdout, bench.Stderr = &said, os.Stderr
	if err := bench.Run(); err != nil {
		return row, err
	}
	var result replay.Result
	if err := json.Unmarshal(said.Bytes(), &result); err != nil || len(result.Rows) != 1 {
		return row, fmt.Errorf("read what bench says: %d rows, %w", len(result.Rows), err)
	}
	r := &result.Rows[0]
	return poolRow{
		Requests: r.Requests, Errors: r.Errors, CachedShare: r.CachedShare,
		TTFTMean: r.TTFT.Mean, TTFTP50: r.TTFT.P50, TTFTP99: r.TTFT.P99, Notes: result.Notes,
	}, nil
}

// freeAddr returns an address of this machine at which nobody listens now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// ready waits until the server answers.
func ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close() // nothing of it is read
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready: %w", url, ctx.Err())
		case <-time.After(50 * time.Millisecond): // nothing says when it is
		}
	}
}
