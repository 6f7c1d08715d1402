package obs

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// maxThrottled bounds the messages that one Throttle remembers. Messages should be constants, so a
// caller that exceeds it constructs them.
const maxThrottled = 256

// Throttle logs a message that may repeat indefinitely: the first at once, then at most one per
// interval, with the number of suppressed ones. It is safe for concurrent use.
type Throttle struct {
	log      *slog.Logger
	interval time.Duration

	mu struct {
		sync.Mutex
		said map[string]*repeatCount
	}
}

type repeatCount struct {
	level   slog.Level
	last    time.Time
	skipped uint64
}

// NewThrottle returns a Throttle which logs each message to log at most once per interval.
func NewThrottle(log *slog.Logger, every time.Duration) *Throttle {
	t := &Throttle{log: log, interval: every}
	t.mu.said = map[string]*repeatCount{}
	return t
}

// Log logs msg, a constant, unless the same message was logged less than an interval ago. The
// attribute "repeated" is the number of suppressed messages. Beyond the bound on messages it logs
// without throttling.
func (t *Throttle) Log(ctx context.Context, level slog.Level, msg string, args ...any) {
	if !t.log.Enabled(ctx, level) {
		return
	}
	skipped, say := t.countMessage(level, msg)
	if !say {
		return
	}
	if skipped > 0 {
		args = append(slices.Clip(args), slog.Uint64("repeated", skipped))
	}
	t.log.Log(ctx, level, msg, args...)
}

// Flush logs the suppressed count of each message; call it when the work ends.
func (t *Throttle) Flush(ctx context.Context) {
	t.mu.Lock()
	said := t.mu.said
	t.mu.said = map[string]*repeatCount{}
	t.mu.Unlock()

	var msgs []string
	for msg, r := range said {
		if r.skipped > 0 {
			msgs = append(msgs, msg)
		}
	}
	slices.Sort(msgs)
	for _, msg := range msgs {
		t.log.Log(ctx, said[msg].level, msg, slog.Uint64("repeated", said[msg].skipped))
	}
}

// countMessage counts msg and reports whether to log it now.
func (t *Throttle) countMessage(level slog.Level, msg string) (skipped uint64, say bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.mu.said[msg]
	switch {
	case r == nil && len(t.mu.said) == maxThrottled:
		return 0, true
	case r == nil:
		t.mu.said[msg] = &repeatCount{level: level, last: now}
		return 0, true
	case now.Sub(r.last) < t.interval:
		r.level = max(r.level, level)
		r.skipped++
		return 0, false
	}
	skipped = r.skipped
	*r = repeatCount{level: level, last: now}
	return skipped, true
}

// LineLogger returns a log.Logger which turns each line written to it into a record: the constant
// msg with the line as an attribute, so that different lines count as repetitions of one message.
// It is for packages that write lines instead of using slog, such as net/http, whose server writes
// one for every client which aborts a handshake.
func (t *Throttle) LineLogger(level slog.Level, msg string) *log.Logger {
	return log.New(lineWriter{t, level, msg}, "", 0)
}

type lineWriter struct {
	throttle *Throttle
	level    slog.Level
	msg      string
}

func (l lineWriter) Write(line []byte) (int, error) {
	l.throttle.Log(context.Background(), l.level, l.msg, "error", string(bytes.TrimSpace(line)))
	return len(line), nil
}
