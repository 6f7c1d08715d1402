package obs

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Other is the label value for everything that has no series of its own.
const Other = "other"

// MetricGroup is the metrics of a changing set of members of one kind, such as models, adapters and
// workers. Each member has an [InstrumentSet], whose series carry the member's name in one label;
// they are deleted when the member is removed. All series together take a bounded number of bytes
// of scraped output. What does not fit is counted in the series of [Other], or of the member that
// it is part of, so that sums stay correct.
//
// A MetricGroup is safe for concurrent use.
type MetricGroup[S any] struct {
	build  func(*InstrumentSet) S
	budget *seriesBudget
	other  S
	mu     struct {
		sync.Mutex
		things map[string]*groupMember[S]
	}
}

// groupMember is a current member.
type groupMember[S any] struct {
	set         *InstrumentSet
	instruments S
	adders      int
}

// NewGroup returns an empty group. Its series have the given label, and take at most room bytes.
// build creates the instruments of a member.
func NewGroup[S any](m *Metrics, label string, room int, build func(*InstrumentSet) S) *MetricGroup[S] {
	g := &MetricGroup[S]{build: build, budget: &seriesBudget{metrics: m, label: label, room: room, vecs: map[string]any{}}}
	g.budget.other = &InstrumentSet{budget: g.budget, name: Other}
	g.other = build(g.budget.other)
	g.mu.things = map[string]*groupMember[S]{}
	return g
}

// AddMember adds a member and returns its instruments. A member can be added several times, and is
// removed when it was removed as often.
func (g *MetricGroup[S]) AddMember(name string) S { return g.addMember(name, nil) }

// AddPart is AddMember for a member that is part of another one, whose set is whole. It has its own
// counters as long as the parts take no more than half of the room, and shares the histograms and
// gauges of the whole.
func (g *MetricGroup[S]) AddPart(name string, whole *InstrumentSet) S {
	return g.addMember(name, whole)
}

func (g *MetricGroup[S]) addMember(name string, whole *InstrumentSet) S {
	if name == Other {
		return g.other
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.mu.things[name]
	if t == nil || !g.budget.restoreSet(t.set) {
		t = &groupMember[S]{set: &InstrumentSet{budget: g.budget, name: name, whole: whole}}
		t.instruments = g.build(t.set)
		g.budget.attachPart(t.set)
		g.mu.things[name] = t
	}
	t.adders++
	return t.instruments
}

// Remove removes a member. Its series and its parts' series are deleted. Values recorded later
// count in [Other].
func (g *MetricGroup[S]) Remove(name string) {
	g.releaseMember(name, func(t *groupMember[S]) {
		delete(g.mu.things, name)
		g.budget.removeSet(t.set)
	})
}

// Retire marks a member as absent, for the case that it returns. Its series stay until others need
// the room, or it is removed.
func (g *MetricGroup[S]) Retire(name string) {
	g.releaseMember(name, func(t *groupMember[S]) { g.budget.retireSet(t.set) })
}

// releaseMember calls last when the last adder of a member has released it.
func (g *MetricGroup[S]) releaseMember(name string, last func(*groupMember[S])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.mu.things[name]
	if t == nil {
		return
	}
	if t.adders = max(t.adders-1, 0); t.adders == 0 {
		last(t)
	}
}

// InstrumentSet creates the instruments of one member.
type InstrumentSet struct {
	budget *seriesBudget
	name   string
	whole  *InstrumentSet // nil if it is not part of another set
	vecs   []namedInstrument

	// Guarded by the budget's mu.
	used  int // bytes of its series
	gone  bool
	parts []*InstrumentSet
}

// namedInstrument is an instrument with its name.
type namedInstrument struct {
	name string
	vec  any // *InstrumentVec of some type
}

// Name returns the value of the set's label.
func (s *InstrumentSet) Name() string { return s.name }

// findInstrument returns the instrument with that name, nil if there is none.
func (s *InstrumentSet) findInstrument(name string) any {
	for _, n := range s.vecs {
		if n.name == name {
			return n.vec
		}
	}
	return nil
}

// seriesBudget accounts for the bytes of series, and creates and deletes them.
type seriesBudget struct {
	metrics *Metrics
	label   string
	room    int
	other   *InstrumentSet
	mu      sync.RWMutex
	vecs    map[string]any   // the registered metrics, by name
	used    int              // bytes of all series, without the series of Other
	parts   int              // the part of used in sets that are part of another
	retired []*InstrumentSet // in the order of retirement
}

// chargeLocked reserves n bytes for a series, and reports whether there is room. To make room it
// removes the series of retired members, oldest retirement first.
func (l *seriesBudget) chargeLocked(s *InstrumentSet, n int) bool {
	switch {
	case s.name == Other: // it has few label values
		return true
	case s.gone, s.whole != nil && l.parts+n > l.room/2:
		return false
	}
	for l.used+n > l.room {
		if len(l.retired) == 0 || l.retired[0] == s {
			return false
		}
		l.removeSetLocked(l.retired[0])
	}
	s.used += n
	l.used += n
	if s.whole != nil {
		l.parts += n
	}
	return true
}

// attachPart records that a set is part of another one.
func (l *seriesBudget) attachPart(s *InstrumentSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.whole != nil {
		s.whole.parts = append(s.whole.parts, s)
	}
}

// retireSet allows others to take the room of a set's series.
func (l *seriesBudget) retireSet(s *InstrumentSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.gone && !slices.Contains(l.retired, s) {
		l.retired = append(l.retired, s)
	}
}

// restoreSet undoes retireSet, and reports whether the series still exist.
func (l *seriesBudget) restoreSet(s *InstrumentSet) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unretireLocked(s)
	return !s.gone
}

func (l *seriesBudget) unretireLocked(s *InstrumentSet) {
	l.retired = slices.DeleteFunc(l.retired, func(r *InstrumentSet) bool { return r == s })
}

// removeSet deletes the series of a set and of its parts.
func (l *seriesBudget) removeSet(s *InstrumentSet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeSetLocked(s)
}

func (l *seriesBudget) removeSetLocked(s *InstrumentSet) {
	l.unretireLocked(s)
	if s.gone {
		return
	}
	s.gone = true
	for _, part := range slices.Clone(s.parts) {
		l.removeSetLocked(part)
	}
	l.used -= s.used
	if s.whole != nil {
		l.parts -= s.used
		s.whole.parts = slices.DeleteFunc(s.whole.parts, func(p *InstrumentSet) bool { return p == s })
	}
	for _, v := range l.vecs {
		v.(interface {
			DeletePartialMatch(prometheus.Labels) int
		}).DeletePartialMatch(prometheus.Labels{l.label: s.name})
	}
}

// InstrumentVec is a metric of one member: an instrument for each combination of label values.
type InstrumentVec[M any] struct {
	set         *InstrumentSet
	overflow    *InstrumentVec[M] // counts what has no room; nil in the set of Other
	create      func(values ...string) M
	lines       int // scraped lines per series
	width       int // bytes of such a line, without the label values
	instruments map[string]M
}

// WithLabelValues returns the instrument for the label values. There must be few combinations, and
// none may come from outside the process.
func (v *InstrumentVec[M]) WithLabelValues(values ...string) M {
	key := strings.Join(values, "\xff")
	l := v.set.budget
	l.mu.RLock()
	m, ok := v.instruments[key]
	gone := v.set.gone
	l.mu.RUnlock()
	if ok && !gone {
		return m
	}
	if m, ok := v.addSeries(key, values); ok {
		return m
	}
	return v.overflow.WithLabelValues(values...)
}

// addSeries returns a new instrument, if there is room for one.
func (v *InstrumentVec[M]) addSeries(key string, values []string) (m M, ok bool) {
	l := v.set.budget
	l.mu.Lock()
	defer l.mu.Unlock()
	if m, ok = v.instruments[key]; ok && !v.set.gone { // added in the meantime
		return m, true
	}
	n := v.width + 2*len(v.set.name) // escaping doubles a quote or a line break
	for _, s := range values {
		n += len(s)
	}
	if !l.chargeLocked(v.set, n*v.lines) {
		return m, false
	}
	m = v.create(append([]string{v.set.name}, values...)...)
	v.instruments[key] = m
	return m, true
}

// Counter creates a counter named penstock_<name>, with the group's label and the given ones.
func (s *InstrumentSet) Counter(name, help string, labels ...string) *InstrumentVec[prometheus.Counter] {
	vec := registerOnce(s.budget, name, func() *prometheus.CounterVec {
		return s.budget.metrics.Counter(name, help, append([]string{s.budget.label}, labels...)...)
	})
	var overflow *InstrumentVec[prometheus.Counter]
	if s.whole != nil {
		overflow = s.whole.findInstrument(name).(*InstrumentVec[prometheus.Counter])
	}
	return newVec(s, name, overflow, vec.WithLabelValues, 1, labels)
}

// Gauge creates a gauge named penstock_<name>, with the group's label and the given ones.
func (s *InstrumentSet) Gauge(name, help string, labels ...string) *InstrumentVec[prometheus.Gauge] {
	if s.whole != nil {
		return s.whole.findInstrument(name).(*InstrumentVec[prometheus.Gauge])
	}
	vec := registerOnce(s.budget, name, func() *prometheus.GaugeVec {
		return s.budget.metrics.Gauge(name, help, append([]string{s.budget.label}, labels...)...)
	})
	return newVec[prometheus.Gauge](s, name, nil, vec.WithLabelValues, 1, labels)
}

// Histogram creates a histogram named penstock_<name>, with the group's label and the given ones.
func (s *InstrumentSet) Histogram(name, help string, buckets []float64, labels ...string) *InstrumentVec[prometheus.Observer] {
	if s.whole != nil {
		return s.whole.findInstrument(name).(*InstrumentVec[prometheus.Observer])
	}
	vec := registerOnce(s.budget, name, func() *prometheus.HistogramVec {
		return s.budget.metrics.Histogram(name, help, buckets, append([]string{s.budget.label}, labels...)...)
	})
	return newVec[prometheus.Observer](s, name, nil, vec.WithLabelValues, len(buckets)+3, labels)
}

// registerOnce returns the metric registered under a name; it calls create the first time.
func registerOnce[V any](l *seriesBudget, name string, create func() V) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.vecs[name]; ok {
		return v.(V)
	}
	v := create()
	l.vecs[name] = v
	return v
}

// newVec returns a metric of a set. Without overflow, the metric of Other is the overflow.
func newVec[M any](s *InstrumentSet, name string, overflow *InstrumentVec[M], create func(...string) M, lines int, labels []string) *InstrumentVec[M] {
	const values = len(`_bucket{le="0.0000",} 1.7976931348623157e+308`) // including the newline
	v := &InstrumentVec[M]{
		set: s, overflow: overflow, create: create, lines: lines, instruments: map[string]M{},
		width: len(Namespace) + 1 + len(name) + values + 1,
	}
	v.width += len(s.budget.label) + len(`="",`)
	for _, label := range labels {
		v.width += len(label) + len(`="",`)
	}
	if overflow == nil && s.name != Other {
		v.overflow = s.budget.other.findInstrument(name).(*InstrumentVec[M])
	}
	s.vecs = append(s.vecs, namedInstrument{name, v})
	return v
}
