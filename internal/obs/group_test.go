package obs

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// page returns what is scraped of our own metrics.
func page(t *testing.T, m *Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	var out strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, Namespace+"_") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// shop is what the things of these tests have.
type shop struct {
	set   *InstrumentSet
	sold  *InstrumentVec[prometheus.Counter]
	open  *InstrumentVec[prometheus.Gauge]
	queue *InstrumentVec[prometheus.Observer]
}

func newShop(s *InstrumentSet) *shop {
	return &shop{
		set: s, sold: s.Counter("sold_total", "Things sold.", "what"), open: s.Gauge("open", "1 if open."),
		queue: s.Histogram("queue_seconds", "Time in the queue.", []float64{1, 2}),
	}
}

func (s *shop) sell(what string) { s.sold.WithLabelValues(what).Inc() }

func expect(t *testing.T, m *Metrics, what string, lines ...string) {
	t.Helper()
	if got, want := page(t, m), strings.Join(append(lines, ""), "\n"); got != want {
		t.Errorf("%s:\n%swant\n%s", what, got, want)
	}
}

// Lookup returns the instruments of a member, or the instruments of [Other] if there is no such
// member.
func (g *MetricGroup[S]) Lookup(name string) S {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.mu.things[name]; t != nil {
		return t.instruments
	}
	return g.other
}

// TestGroup: series are there as long as their thing is, and what comes late counts elsewhere.
func TestGroup(t *testing.T) {
	m := NewMetrics()
	g := NewGroup(m, "shop", 10_000, newShop)
	expect(t, m, "nothing")
	a, b := g.AddMember("a"), g.AddMember("b")
	a.sell("tea")
	a.open.WithLabelValues().Set(1)
	a.queue.WithLabelValues().Observe(1.5)
	b.sell("tea")
	g.Lookup("b").sell("tea")
	g.Lookup("unknown").sell("rice")
	expect(t, m, "two shops",
		`penstock_open{shop="a"} 1`,
		`penstock_queue_seconds_bucket{shop="a",le="1"} 0`, `penstock_queue_seconds_bucket{shop="a",le="2"} 1`, `penstock_queue_seconds_bucket{shop="a",le="+Inf"} 1`, `penstock_queue_seconds_sum{shop="a"} 1.5`, `penstock_queue_seconds_count{shop="a"} 1`,
		`penstock_sold_total{shop="a",what="tea"} 1`, `penstock_sold_total{shop="b",what="tea"} 2`, `penstock_sold_total{shop="other",what="rice"} 1`)
	g.AddMember("a")
	g.Remove("a") // once of two times
	g.Remove("b")
	g.Remove("b")
	a.sell("tea")
	b.sell("tea") // it was under way
	g.Remove("a")
	expect(t, m, "none", `penstock_sold_total{shop="other",what="rice"} 1`, `penstock_sold_total{shop="other",what="tea"} 1`)
	if again := g.AddMember("b"); again == b {
		t.Error("what left is there again")
	}
	g.AddMember(Other).sell("ink")
	g.Remove(Other)
	g.Lookup("b").sell("ink")
	expect(t, m, "one again", `penstock_sold_total{shop="b",what="ink"} 1`, `penstock_sold_total{shop="other",what="ink"} 1`, `penstock_sold_total{shop="other",what="rice"} 1`, `penstock_sold_total{shop="other",what="tea"} 1`)
}

// TestParts: a part has counters of its own, shares the rest with the whole, and goes with it.
func TestParts(t *testing.T) {
	m := NewMetrics()
	g := NewGroup(m, "shop", 10_000, newShop)
	whole := g.AddMember("whole")
	part := g.AddPart("part", whole.set)
	part.sell("tea")
	part.open.WithLabelValues().Set(1)
	expect(t, m, "a part", `penstock_open{shop="whole"} 1`, `penstock_sold_total{shop="part",what="tea"} 1`)
	g.Remove("part")
	part.sell("tea")
	expect(t, m, "no part", `penstock_open{shop="whole"} 1`, `penstock_sold_total{shop="whole",what="tea"} 1`)
	part = g.AddPart("part", whole.set)
	part.sell("rice")
	g.Remove("whole")
	part.sell("rice")
	expect(t, m, "no whole", `penstock_sold_total{shop="other",what="rice"} 1`)
}

// TestRetired: what is away keeps its series while there is room.
func TestRetired(t *testing.T) {
	m := NewMetrics()
	g := NewGroup(m, "shop", 200, newShop) // room for two counters
	a := g.AddMember("a")
	a.sell("tea")
	g.AddMember("b").sell("tea")
	g.Retire("a")
	a.sell("tea")
	expect(t, m, "one is away", `penstock_sold_total{shop="a",what="tea"} 2`, `penstock_sold_total{shop="b",what="tea"} 1`)
	if g.AddMember("a") != a {
		t.Error("what is back is another one")
	}
	g.AddMember("c").sell("tea")
	expect(t, m, "no room", `penstock_sold_total{shop="a",what="tea"} 2`, `penstock_sold_total{shop="b",what="tea"} 1`, `penstock_sold_total{shop="other",what="tea"} 1`)
	g.Retire("b")
	g.Retire("a")
	g.Lookup("c").sell("tea")
	expect(t, m, "the first that left", `penstock_sold_total{shop="a",what="tea"} 2`, `penstock_sold_total{shop="c",what="tea"} 1`, `penstock_sold_total{shop="other",what="tea"} 1`)
	g.Lookup("b").sell("tea")
	g.AddMember("b").sell("tea")
	expect(t, m, "it is back", `penstock_sold_total{shop="b",what="tea"} 1`, `penstock_sold_total{shop="c",what="tea"} 1`, `penstock_sold_total{shop="other",what="tea"} 2`)
	g.Retire("c")
	g.Remove("c")
	expect(t, m, "it will not be back", `penstock_sold_total{shop="b",what="tea"} 1`, `penstock_sold_total{shop="other",what="tea"} 2`)
}

// TestGroupIsBounded: however many things come, go and are used, what is scraped stays within the room, and
// when all have left nothing of them is there.
func TestGroupIsBounded(t *testing.T) {
	const room = 50_000
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := NewMetrics()
		g := NewGroup(m, "shop", room, newShop)
		wholes, parts := map[string]*shop{}, map[string]*shop{}
		for range 3000 {
			name := fmt.Sprintf("%d\"\n", r.IntN(300)) // its escapes count
			switch r.IntN(6) {
			case 0:
				if wholes[name] == nil {
					wholes[name] = g.AddMember(name)
				}
			case 1:
				if w := wholes[name]; w != nil && parts["of "+name] == nil {
					parts["of "+name] = g.AddPart("of "+name, w.set)
				}
			case 2:
				if r.IntN(2) == 0 && wholes[name] != nil {
					g.Retire(name)
					delete(wholes, name)
				}
			case 3:
				if parts["of "+name] != nil {
					g.Remove("of " + name)
				}
				delete(parts, "of "+name)
			default:
				g.Lookup(name).sell(fmt.Sprint(r.IntN(20)))
				g.Lookup("of " + name).sell("tea")
				g.Lookup(name).queue.WithLabelValues().Observe(1)
			}
		}
		text := page(t, m)
		if other := strings.Count(text, `shop="other"`) * 100; len(text) > room+other {
			t.Errorf("seed %d: %d bytes are scraped", seed, len(text))
		}
		for i := range 300 {
			g.Remove(fmt.Sprintf("%d\"\n", i))
			g.Remove(fmt.Sprintf("of %d\"\n", i))
		}
		for line := range strings.Lines(page(t, m)) {
			if !strings.Contains(line, `shop="other"`) {
				t.Fatalf("seed %d: it is left: %s", seed, line)
			}
		}
		if g.budget.used != 0 || g.budget.parts != 0 || len(g.budget.retired) != 0 {
			t.Errorf("seed %d: %+v", seed, g.budget)
		}
	}
}

// TestGroupTogether: instruments are used while their things leave. What is left in the end is of what is there.
func TestGroupTogether(t *testing.T) {
	m := NewMetrics()
	g := NewGroup(m, "shop", 10_000, newShop)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 500 {
				s := g.AddMember("a")
				s.sell(fmt.Sprint(i))
				g.Lookup("a").queue.WithLabelValues().Observe(1)
				g.Remove("a")
				s.sell("late")
			}
		})
	}
	all.Wait()
	if text := page(t, m); strings.Contains(text, `shop="a"`) {
		t.Errorf("series of what left are there:\n%s", text)
	}
}
