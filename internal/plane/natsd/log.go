package natsd

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLogger forwards the server's log and keeps its first fatal message, which is the only way to
// learn why the server did not start.
type logger struct {
	out  *slog.Logger
	hurt chan struct{} // signals that a stream accepts no more writes; capacity one
	mu   struct {
		sync.Mutex
		fatal string
	}
}

func newLogger(out *slog.Logger) *logger { return &logger{out: out, hurt: make(chan struct{}, 1)} }

func (l *logger) Noticef(format string, v ...any) {
	l.out.Debug("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *logger) Warnf(format string, v ...any) {
	l.out.Warn("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *logger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.out.Error("nats server", "text", text)
	if !strings.Contains(strings.ToLower(text), writeError) {
		return
	}
	select {
	case l.hurt <- struct{}{}:
	default: // already signaled
	}
}

// Fatalf does not end the process; that decision is left to the caller of Start.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.fatal == "" {
		l.mu.fatal = fmt.Sprintf(format, v...)
	}
}

// Debugf and Tracef are disabled in the server.
func (l *logger) Debugf(string, ...any) {}
func (l *logger) Tracef(string, ...any) {}

func (l *logger) fatalMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.fatal
}
