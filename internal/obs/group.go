package obs

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Other is the label value under which things are counted that have no series of their own.
const Other = "other"

// Group is the metrics of things of one kind that come and go, such as models, adapters and workers. Each
// thing that is there has a [Set] of instruments, whose series carry its name in one label; they are deleted
// when it leaves. All series together take at most so many bytes of what is scraped: what has no room counts
// in the series of [Other], or of the thing that it is part of, so that sums stay true.
//
// A Group is safe for concurrent use.
type Group[S any] struct {
	build  func(*Set) S
	ledger *ledger
	other  S
	mu     struct {
		sync.Mutex
		things map[string]*thing[S]
	}
}

// thing is one that is there.
type thing[S any] struct {
	set    *Set
	is     S
	adders int
}

// NewGroup returns a group without things. Its series have the label given, and take at most room bytes.
// build creates the instruments of a thing.
func NewGroup[S any](m *Metrics, label string, room int, build func(*Set) S) *Group[S] {
	g := &Group[S]{build: build, ledger: &ledger{metrics: m, label: label, room: room, vecs: map[string]any{}}}
	g.ledger.other = &Set{ledger: g.ledger, name: Other}
	g.other = build(g.ledger.other)
	g.mu.things = map[string]*thing[S]{}
	return g
}

// Add says that a thing is there, and returns its instruments. A thing can be added several times, and is
// there until it was removed as often.
func (g *Group[S]) Add(name string) S { return g.add(name, nil) }

// AddPart is Add for a thing that is part of another one, whose set is whole: it has counters of its own as
// long as the parts take no more than half of the room, and shares the histograms and gauges of the whole.
func (g *Group[S]) AddPart(name string, whole *Set) S { return g.add(name, whole) }

func (g *Group[S]) add(name string, whole *Set) S {
	if name == Other {
		return g.other
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.mu.things[name]
	if t == nil || !g.ledger.restore(t.set) {
		t = &thing[S]{set: &Set{ledger: g.ledger, name: name, whole: whole}}
		t.is = g.build(t.set)
		g.ledger.attach(t.set)
		g.mu.things[name] = t
	}
	t.adders++
	return t.is
}

// Remove says that a thing that was added has left. Its series are deleted, and those of its parts; what
// still comes of it counts as what has no room does.
func (g *Group[S]) Remove(name string) {
	g.leave(name, func(t *thing[S]) {
		delete(g.mu.things, name)
		g.ledger.remove(t.set)
	})
}

// Retire says that a thing that was added is away, and may come back. Its series stay until there is no
// room for those of others, or it is removed.
func (g *Group[S]) Retire(name string) {
	g.leave(name, func(t *thing[S]) { g.ledger.retire(t.set) })
}

// leave does what the last who added a thing wants done.
func (g *Group[S]) leave(name string, last func(*thing[S])) {
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

// Of returns the instruments of a thing, those of [Other] if it is not there.
func (g *Group[S]) Of(name string) S {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.mu.things[name]; t != nil {
		return t.is
	}
	return g.other
}

// Set is where the instruments of one thing are created.
type Set struct {
	ledger *ledger
	name   string
	whole  *Set // nil if it is not part of one
	vecs   []named

	// Guarded by the ledger's mu.
	used  int // bytes of its series
	gone  bool
	parts []*Set
}

// named is an instrument by its name.
type named struct {
	name string
	vec  any // *Vec of something
}

// Name returns the value of the set's label.
func (s *Set) Name() string { return s.name }

// find returns the instrument of a name, nil if there is none.
func (s *Set) find(name string) any {
	for _, n := range s.vecs {
		if n.name == name {
			return n.vec
		}
	}
	return nil
}

// ledger counts what series take, and creates and deletes them.
type ledger struct {
	metrics *Metrics
	label   string
	room    int
	other   *Set
	mu      sync.RWMutex
	vecs    map[string]any // what is registered, by name
	used    int            // bytes of all series but those of Other
	parts   int            // of them those of sets that are part of another
	retired []*Set         // in the order in which they left
}

// chargeLocked reserves n bytes for a series, and reports whether there is room. The series of things that
// are away make room, the first that left first.
func (l *ledger) chargeLocked(s *Set, n int) bool {
	switch {
	case s.name == Other: // its label values are few
		return true
	case s.gone, s.whole != nil && l.parts+n > l.room/2:
		return false
	}
	for l.used+n > l.room {
		if len(l.retired) == 0 || l.retired[0] == s {
			return false
		}
		l.removeLocked(l.retired[0])
	}
	s.used += n
	l.used += n
	if s.whole != nil {
		l.parts += n
	}
	return true
}

// attach notes that a set is part of another one.
func (l *ledger) attach(s *Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.whole != nil {
		s.whole.parts = append(s.whole.parts, s)
	}
}

// retire has the series of a set make room where others need some.
func (l *ledger) retire(s *Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.gone && !slices.Contains(l.retired, s) {
		l.retired = append(l.retired, s)
	}
}

// restore ends that, and reports whether the series are still there.
func (l *ledger) restore(s *Set) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unretireLocked(s)
	return !s.gone
}

func (l *ledger) unretireLocked(s *Set) {
	l.retired = slices.DeleteFunc(l.retired, func(r *Set) bool { return r == s })
}

// remove deletes the series of a set and of its parts.
func (l *ledger) remove(s *Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(s)
}

func (l *ledger) removeLocked(s *Set) {
	l.unretireLocked(s)
	if s.gone {
		return
	}
	s.gone = true
	for _, part := range slices.Clone(s.parts) {
		l.removeLocked(part)
	}
	l.used -= s.used
	if s.whole != nil {
		l.parts -= s.used
		s.whole.parts = slices.DeleteFunc(s.whole.parts, func(p *Set) bool { return p == s })
	}
	for _, v := range l.vecs {
		v.(interface {
			DeletePartialMatch(prometheus.Labels) int
		}).DeletePartialMatch(prometheus.Labels{l.label: s.name})
	}
}

// Vec is a metric of one thing: an instrument for each combination of values of its labels.
type Vec[M any] struct {
	set      *Set
	overflow *Vec[M] // where that counts for which there is no room; nil in the set of Other
	create   func(values ...string) M
	lines    int // of a series in what is scraped
	width    int // bytes of such a line, but for the values of labels
	known    map[string]M
}

// WithLabelValues returns the instrument for values of the labels, which are few: none of them is an
// outsider's word.
func (v *Vec[M]) WithLabelValues(values ...string) M {
	key := strings.Join(values, "\xff")
	l := v.set.ledger
	l.mu.RLock()
	m, ok := v.known[key]
	gone := v.set.gone
	l.mu.RUnlock()
	if ok && !gone {
		return m
	}
	if m, ok := v.add(key, values); ok {
		return m
	}
	return v.overflow.WithLabelValues(values...)
}

// add returns a new instrument, if there is room for one.
func (v *Vec[M]) add(key string, values []string) (m M, ok bool) {
	l := v.set.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if m, ok = v.known[key]; ok && !v.set.gone { // in the meantime
		return m, true
	}
	n := v.width + 2*len(v.set.name) // a quote or a line break takes two
	for _, s := range values {
		n += len(s)
	}
	if !l.chargeLocked(v.set, n*v.lines) {
		return m, false
	}
	m = v.create(append([]string{v.set.name}, values...)...)
	v.known[key] = m
	return m, true
}

// Counter creates a counter named penstock_<name>, with the group's label and others.
func (s *Set) Counter(name, help string, labels ...string) *Vec[prometheus.Counter] {
	vec := registered(s.ledger, name, func() *prometheus.CounterVec {
		return s.ledger.metrics.Counter(name, help, append([]string{s.ledger.label}, labels...)...)
	})
	var overflow *Vec[prometheus.Counter]
	if s.whole != nil {
		overflow = s.whole.find(name).(*Vec[prometheus.Counter])
	}
	return newVec(s, name, overflow, vec.WithLabelValues, 1, labels)
}

// Gauge creates a gauge named penstock_<name>, with the group's label and others.
func (s *Set) Gauge(name, help string, labels ...string) *Vec[prometheus.Gauge] {
	if s.whole != nil {
		return s.whole.find(name).(*Vec[prometheus.Gauge])
	}
	vec := registered(s.ledger, name, func() *prometheus.GaugeVec {
		return s.ledger.metrics.Gauge(name, help, append([]string{s.ledger.label}, labels...)...)
	})
	return newVec[prometheus.Gauge](s, name, nil, vec.WithLabelValues, 1, labels)
}

// Histogram creates a histogram named penstock_<name>, with the group's label and others.
func (s *Set) Histogram(name, help string, buckets []float64, labels ...string) *Vec[prometheus.Observer] {
	if s.whole != nil {
		return s.whole.find(name).(*Vec[prometheus.Observer])
	}
	vec := registered(s.ledger, name, func() *prometheus.HistogramVec {
		return s.ledger.metrics.Histogram(name, help, buckets, append([]string{s.ledger.label}, labels...)...)
	})
	return newVec[prometheus.Observer](s, name, nil, vec.WithLabelValues, len(buckets)+3, labels)
}

// registered returns what is registered under a name, which create does once.
func registered[V any](l *ledger, name string, create func() V) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.vecs[name]; ok {
		return v.(V)
	}
	v := create()
	l.vecs[name] = v
	return v
}

// newVec returns a metric of a set. Without overflow, that of Other is.
func newVec[M any](s *Set, name string, overflow *Vec[M], create func(...string) M, lines int, labels []string) *Vec[M] {
	const values = len(`_bucket{le="0.0000",} 1.7976931348623157e+308`) // and the end of a line
	v := &Vec[M]{
		set: s, overflow: overflow, create: create, lines: lines, known: map[string]M{},
		width: len(Namespace) + 1 + len(name) + values + 1,
	}
	v.width += len(s.ledger.label) + len(`="",`)
	for _, label := range labels {
		v.width += len(label) + len(`="",`)
	}
	if overflow == nil && s.name != Other {
		v.overflow = s.ledger.other.find(name).(*Vec[M])
	}
	s.vecs = append(s.vecs, named{name, v})
	return v
}
