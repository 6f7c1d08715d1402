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

// ComponentKey is the attribute which names the part of the process that logs. It determines the
// minimum level of a record.
const ComponentKey = "component"

// LogFormat is the encoding of log records.
type LogFormat string

// The formats, by the names that users know.
const (
	TextFormat LogFormat = "text"
	JSONFormat LogFormat = "json"
)

// Levels is a minimum level for all components, and different ones for some of them.
type Levels struct {
	base        slog.Level
	byComponent map[string]slog.Level
}

// ParseLevels parses the value of --log-level: comma-separated levels, a bare one for everything
// and component=level for one component, for example "info,router=debug". Levels are debug, info,
// warn and error; without a bare one the base is info. It reports all problems, including
// components which are not in components.
func ParseLevels(s string, components []string) (Levels, error) {
	l := Levels{byComponent: map[string]slog.Level{}}
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
		level, ok := levelByName[strings.ToLower(strings.TrimSpace(name))]
		component = strings.TrimSpace(component)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("log level %.100q: not one of debug, info, warn, error", name))
		case named && component == "":
			errs = append(errs, fmt.Errorf("log level %.100q: the component before = is missing", part))
		case named && !slices.Contains(components, component):
			errs = append(errs, fmt.Errorf("log level %.100q: there is no component %.100q; there are %s", part, component, strings.Join(components, ", ")))
		case named:
			l.byComponent[component] = level
		default:
			l.base = level
		}
	}
	if bare > 1 {
		errs = append(errs, fmt.Errorf("log levels %.100q: %d levels for all components, give one", s, bare))
	}
	return l, errors.Join(errs...)
}

var levelByName = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// LevelOf returns the minimum level of component.
func (l Levels) LevelOf(component string) slog.Level {
	if level, ok := l.byComponent[component]; ok {
		return level
	}
	return l.base
}

// String returns the form that [ParseLevels] parses, with the components sorted.
func (l Levels) String() string {
	parts := []string{strings.ToLower(l.base.String())}
	for component, level := range l.byComponent {
		parts = append(parts, component+"="+strings.ToLower(level.String()))
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, ",")
}

// NewLogger returns a logger which writes records to w, one per line. A logger derived with
// [Component] has that component's level; all others have the base level.
func NewLogger(w io.Writer, format LogFormat, levels Levels) (*slog.Logger, error) {
	all := &slog.HandlerOptions{Level: slog.Level(math.MinInt)} // leveledHandler filters
	var h slog.Handler
	switch format {
	case TextFormat:
		h = slog.NewTextHandler(w, all)
	case JSONFormat:
		h = slog.NewJSONHandler(w, all)
	default:
		return nil, fmt.Errorf("log format %.100q: not one of %s, %s", format, TextFormat, JSONFormat)
	}
	return slog.New(&leveledHandler{Handler: h, levels: levels, minLevel: levels.base}), nil
}

// Component returns log with the attribute for one component of the process.
func Component(log *slog.Logger, name string) *slog.Logger {
	return log.With(slog.String(ComponentKey, name))
}

// leveledHandler passes on the records which its component may log.
type leveledHandler struct {
	slog.Handler
	levels   Levels
	minLevel slog.Level
	grouped  bool // within a group, an attribute with our key belongs to the group
}

func (h *leveledHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.minLevel
}

func (h *leveledHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == ComponentKey && !h.grouped {
			out.minLevel = h.levels.LevelOf(a.Value.String())
		}
	}
	return &out
}

func (h *leveledHandler) WithGroup(name string) slog.Handler {
	out := *h
	out.Handler = h.Handler.WithGroup(name)
	out.grouped = h.grouped || name != ""
	return &out
}
