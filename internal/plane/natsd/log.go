package natsd

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLogger forwards the server's log and keeps its first fatal message, which is the only way to
// learn why the server did not start.
type serverLogger struct {
	out         *slog.Logger
	writeFailed chan struct{} // signals that a stream accepts no more writes; capacity one
	mu          struct {
		sync.Mutex
		fatal string
	}
}

func newServerLogger(out *slog.Logger) *serverLogger {
	return &serverLogger{out: out, writeFailed: make(chan struct{}, 1)}
}

func (l *serverLogger) Noticef(format string, v ...any) {
	l.out.Debug("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *serverLogger) Warnf(format string, v ...any) {
	l.out.Warn("nats server", "text", fmt.Sprintf(format, v...))
}

func (l *serverLogger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.out.Error("nats server", "text", text)
	if !strings.Contains(strings.ToLower(text), writeErrorText) {
		return
	}
	select {
	case l.writeFailed <- struct{}{}:
	default: // already signaled
	}
}

// Fatalf does not end the process; that decision is left to the caller of Start.
func (l *serverLogger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.fatal == "" {
		l.mu.fatal = fmt.Sprintf(format, v...)
	}
}

// Debugf and Tracef are disabled in the server.
func (l *serverLogger) Debugf(string, ...any) {}
func (l *serverLogger) Tracef(string, ...any) {}

func (l *serverLogger) fatalMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.fatal
}
