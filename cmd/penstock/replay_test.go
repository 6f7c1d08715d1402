package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/simcluster"
)

// canceler cancels a context at the first write.
type canceler struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (c *canceler) Write(p []byte) (int, error) {
	c.cancel()
	return c.Buffer.Write(p)
}

// TestReplayInterrupted: an interrupt between two runs ends the command, and leaves neither a partial result
// nor temporary files.
func TestReplayInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stderr := &canceler{cancel: cancel} // the line of the first run
	var stdout bytes.Buffer
	cmd := newRootCommand()
	cmd.SetOut(&stdout)
	cmd.SetErr(stderr)
	cmd.SetArgs([]string{"replay", "--generate", "random:requests=50", "--jobs", "1", "--csv", dir + "/rows.csv", "--report", dir + "/page.html"})
	err := cmd.ExecuteContext(ctx)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("it ends with %v", err)
	}
	if n := strings.Count(stderr.String(), "\n"); n != 1 || stdout.Len() > 0 {
		t.Errorf("%d runs were told of, and a result of %d bytes", n, stdout.Len())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestInParallel(t *testing.T) {
	for _, most := range []int{1, 3, 100, math.MaxInt} {
		var running, peak, done atomic.Int64
		job := func(context.Context) error {
			n := running.Add(1)
			for old := peak.Load(); n > old && !peak.CompareAndSwap(old, n); old = peak.Load() {
			}
			done.Add(1)
			running.Add(-1)
			return nil
		}
		jobs := make([]func(context.Context) error, 50)
		for i := range jobs {
			jobs[i] = job
		}
		if err := runParallel(context.Background(), most, jobs); err != nil || done.Load() != 50 || peak.Load() > int64(most) {
			t.Errorf("%d at a time: %v, %d done, %d at once", most, err, done.Load(), peak.Load())
		}

		want := errors.New("broken")
		var after atomic.Int64
		jobs = []func(context.Context) error{
			func(ctx context.Context) error { return want },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		}
		if most == 1 {
			jobs = append(jobs, func(context.Context) error { after.Add(1); return nil })
		}
		if err := runParallel(context.Background(), most, jobs); !errors.Is(err, want) || after.Load() != 0 {
			t.Errorf("%d at a time: ends with %v, %d jobs after it", most, err, after.Load())
		}
	}
}

func TestAffordable(t *testing.T) {
	// 64 workers of 65536 blocks of 16 tokens are 0.94 GB when they are full.
	s := &scenarios{runs: make([]scenario, 10)}
	s.runs[3].cluster = simcluster.Config{Workers: 64, Blocks: 65536, BlockSize: 16}
	for _, c := range []struct {
		processors int
		memory     uint64
		want       int
	}{
		{4, 0, 4},
		{4, 64 << 30, 4},
		{4, 4 << 30, 2},
		{4, 1 << 30, 1},
		{64, 1 << 40, 10},
	} {
		if got := s.affordableJobs(c.processors, c.memory); got != c.want {
			t.Errorf("%d processors and %d bytes: %d at a time, want %d", c.processors, c.memory, got, c.want)
		}
	}
}

func TestReplayProgress(t *testing.T) {
	for _, c := range []struct {
		done, total int
		want        string
	}{
		{0, 100, "[........................]   0 %"},
		{50, 100, "[############............]  50 %  10s left"},
		{100, 100, "[########################] 100 %"},
		{120, 100, "[########################] 100 %"},
		{0, 0, "[........................]   0 %"},
	} {
		p := replayProgress{total: c.total}
		p.done.Store(int64(c.done))
		if got := p.formatLine(10 * time.Second); got != c.want {
			t.Errorf("%d of %d: %q, want %q", c.done, c.total, got, c.want)
		}
	}
}
