package obs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
)

// ComponentKey is the attribute that says which part of the process logs; the
// level of a record follows from it.
const ComponentKey = "component"

// Format is how log records are written.
type Format string

// The formats, by the names that users know.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Levels is a least level for all components and others for some of them.
type Levels struct {
	base slog.Level
	of   map[string]slog.Level
}

// ParseLevels reads the form of --log-level: comma-separated levels, a bare one
// for everything and component=level for one component, as "info,router=debug".
// Levels are debug, info, warn and error; without a bare one the base is info.
// Every problem is reported, and that a component is not among those given.
func ParseLevels(s string, components []string) (Levels, error) {
	l := Levels{of: map[string]slog.Level{}}
	var errs []error
	bare := 0
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		component, name, named := strings.Cut(part, "=")
		if !named {
			component, name = "", part
			bare++
		}
		level, ok := levelNames[strings.ToLower(strings.TrimSpace(name))]
		component = strings.TrimSpace(component)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("log level %.100q: not one of debug, info, warn, error", name))
		case named && component == "":
			errs = append(errs, fmt.Errorf("log level %.100q: the component before = is missing", part))
		case named && !slices.Contains(components, component):
			errs = append(errs, fmt.Errorf("log level %.100q: there is no component %.100q; there are %s", part, component, strings.Join(components, ", ")))
		case named:
			l.of[component] = level
		default:
			l.base = level
		}
	}
	if bare > 1 {
		errs = append(errs, fmt.Errorf("log levels %.100q: %d levels for all components, give one", s, bare))
	}
	return l, errors.Join(errs...)
}

var levelNames = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// For returns the least level that component logs at.
func (l Levels) For(component string) slog.Level {
	if level, ok := l.of[component]; ok {
		return level
	}
	return l.base
}

// String returns the form that [ParseLevels] reads, components in order.
func (l Levels) String() string {
	parts := []string{strings.ToLower(l.base.String())}
	for component, level := range l.of {
		parts = append(parts, component+"="+strings.ToLower(level.String()))
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, ",")
}

// NewLogger returns a logger that writes records to w, one per line. A logger
// derived with [Component] has that component's level, all others the base one.
func NewLogger(w io.Writer, format Format, levels Levels) (*slog.Logger, error) {
	all := &slog.HandlerOptions{Level: slog.Level(math.MinInt)} // leveled decides
	var h slog.Handler
	switch format {
	case Text:
		h = slog.NewTextHandler(w, all)
	case JSON:
		h = slog.NewJSONHandler(w, all)
	default:
		return nil, fmt.Errorf("log format %.100q: not one of %s, %s", format, Text, JSON)
	}
	return slog.New(&leveled{Handler: h, levels: levels, least: levels.base}), nil
}

// Component returns log for one part of the process.
func Component(log *slog.Logger, name string) *slog.Logger {
	return log.With(slog.String(ComponentKey, name))
}

// leveled passes on the records that its component may log.
type leveled struct {
	slog.Handler
	levels  Levels
	least   slog.Level
	grouped bool // inside a group an attribute of our name is the group's affair
}

func (h *leveled) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

func (h *leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == ComponentKey && !h.grouped {
			out.least = h.levels.For(a.Value.String())
		}
	}
	return &out
}

func (h *leveled) WithGroup(name string) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithGroup(name)
	out.grouped = h.grouped || name != ""
	return &out
}
