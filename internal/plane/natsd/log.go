package natsd

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// logger passes the server's log on and remembers its first fatal message,
// which is the only way in which the server tells why it did not start.
type logger struct {
	out  *slog.Logger
	hurt chan struct{} // has room for one note that a stream takes no writes any more
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
	default: // it is known
	}
}

// Fatalf does not end the process: that is Start's caller's decision.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.fatal == "" {
		l.mu.fatal = fmt.Sprintf(format, v...)
	}
}

// Debugf and Tracef are switched off in the server.
func (l *logger) Debugf(string, ...any) {}
func (l *logger) Tracef(string, ...any) {}

func (l *logger) fatalMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.fatal
}
