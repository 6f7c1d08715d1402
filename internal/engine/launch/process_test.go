//go:build unix

package launch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// runProcess runs a text of a shell as an engine, and returns its lines. seen is called for each of them.
func runProcess(t *testing.T, ctx context.Context, script string, restarts int, seen func()) (p *EngineProcess, lines []string, err error) {
	p = NewProcess(ProcessConfig{
		Args: []string{"sh", "-c", script}, Dir: t.TempDir(), Restarts: restarts, StopTimeout: time.Minute,
		IsServing: func() bool { return true },
		WriteLine: func(line []byte) { lines = append(lines, string(line)); seen() },
		Log:       slog.New(slog.DiscardHandler),
	})
	p.MarkServed()
	err = p.Run(ctx) // its end comes after the last line
	return p, lines, err
}

// TestProcessRestarts: an engine which ends is started again, within the limit, and all of its output is read. A long line
// is divided.
func TestProcessRestarts(t *testing.T) {
	long := strings.Repeat("x", maxLine+1)
	_, lines, err := runProcess(t, t.Context(), "printf 'one\r\n'; echo "+long+" >&2; printf last; exit 3", 1, func() {})
	var ended *ExitError
	if !errors.As(err, &ended) || ended.Code != 3 {
		t.Errorf("%v", err)
	}
	once := []string{"one", long[:maxLine], "x", "last"}
	if want := slices.Concat(once, once); !slices.Equal(lines, want) {
		t.Errorf("%d lines: %.200q", len(lines), lines)
	}
}

// TestProcessStops: the end of the context stops the engine, whose code is kept.
func TestProcessStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	p, lines, err := runProcess(t, ctx, "echo up; exec sleep 3600", 0, stop)
	var ended *ExitError
	if err != nil || !errors.As(p.StopError(), &ended) || ended.Code != 128+15 || p.LastLine() != "up" || len(lines) != 1 {
		t.Errorf("%v, then %v; %q", err, p.StopError(), lines)
	}
	if _, _, err := runProcess(t, t.Context(), "exit 0", 0, func() {}); !errors.As(err, &ended) || ended.Code != 1 {
		t.Errorf("an engine which ends with 0 by itself: %v", err)
	}
}
