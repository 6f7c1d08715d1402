package replay

import (
	"math"
	"os"
	"regexp"
	"testing"
)

// TestDocument: docs/replay.md has every kind of workload, with the defaults that it
// has.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/replay.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|.*\\| `([a-z0-9.=,]+)` \\|$").FindAllStringSubmatch(string(text), -1)
	all := generatorKinds()
	if len(rows) != len(all) {
		t.Fatalf("%d kinds are documented, and there are %d", len(rows), len(all))
	}
	for i, row := range rows {
		w, err := ParseGenerator(row[1]+":"+row[2], 0)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := *w.(*generator); got != all[i] {
			t.Errorf("%s is documented as %+v, and is %+v", row[1], got, all[i])
		}
	}
}

// FuzzParse: a text that is taken gives a workload whose requests are whole and in
// order.
func FuzzParse(f *testing.F) {
	for _, kind := range kindNames() {
		f.Add(kind, "trace:speedup=2")
	}
	f.Add("chat:think=0s,turns=1,vary=3,context=2000,prefix=0", "gamma:rate=1e-6,cv=10")
	f.Add("rag:docs=3,documents=3,zipf=5,rate=1e6", "uniform:rate=1e6")
	f.Add("images:new=0.3,before=9", "closed")
	f.Add("window:window=64,tokens=1,prefix=1,turns=1", "closed")
	f.Add("shared:arrival=gamma,cv=0.01,groups=2,prefix=1", "closed")
	f.Fuzz(func(t *testing.T, made, arrival string) {
		w, err := ParseGenerator(made, 1)
		if err != nil {
			return
		}
		g := *w.(*generator)
		if g.groups+g.documents+g.images > 5000 || g.prefix+g.document*max(g.docs, 1)+g.before+g.imageTokens*max(g.window, 1)+g.input+g.first+g.output > 20_000 {
			return // right, and too much for a fuzzer
		}
		s, err := g.Open()
		if err != nil {
			t.Fatal(err)
		}
		a, err := ParseArrival(arrival)
		if err != nil {
			a = Arrival{}
		}
		if again, err := ApplyArrival(s, a); err == nil {
			s = again
		}
		var r Request
		last := r.At
		for i := range min(g.requests, 50) {
			if err := s.Next(&r); err != nil {
				t.Fatal(err)
			}
			if a.Process != Closed && r.At < last || r.Delay < 0 || r.Index != i || r.Input < 1 || r.Output < 1 || r.Output > math.MaxInt32 {
				t.Fatalf("%s by %s: request %d after %v: %+v", made, arrival, i, last, r)
			}
			last = r.At
		}
	})
}
