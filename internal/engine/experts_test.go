package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseExperts(t *testing.T) {
	got, err := ParseExperts("3:8,1-2:4-5@0.5,1:9,1:4")
	if err != nil {
		t.Fatal(err)
	}
	want := []HostedExperts{
		{Layer: 1, Experts: []uint32{4, 5, 9}, Shares: []float64{1, 0.5, 1}},
		{Layer: 2, Experts: []uint32{4, 5}, Shares: []float64{0.5, 0.5}},
		{Layer: 3, Experts: []uint32{8}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("experts (-want +got)\n%s", diff)
	}
	for _, bad := range []string{",", "1", "1:", ":1", "2-1:1", "1:1@", "1:1@2", "1:1@NaN", "1:-1", "1:65536", "0-400:0-400", "1:1:1", " 1:1"} {
		if got, err := ParseExperts(bad); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
	if got, err := ParseExperts(""); got != nil || err != nil {
		t.Errorf("nothing is read as %v, %v", got, err)
	}
}

// FuzzParseExperts checks that everything it accepts makes a valid card.
func FuzzParseExperts(f *testing.F) {
	f.Add("0-60:0-31,0-60:64@0.5")
	f.Add("1:1,1:1@0")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseExperts(s)
		if err == nil && checkExperts(got) != nil {
			t.Fatalf("%q is read as %v: %v", s, got, checkExperts(got))
		}
	})
}

func TestCardsWithBadExperts(t *testing.T) {
	for _, bad := range [][]HostedExperts{
		{{Layer: 2}, {Layer: 1}},
		{{Layer: 1}, {Layer: 1}},
		{{Layer: 1, Experts: []uint32{2, 2}}},
		{{Layer: 1, Experts: []uint32{2}, Shares: []float64{1, 1}}},
		{{Layer: 1, Experts: []uint32{2}, Shares: []float64{1.5}}},
	} {
		c := Card{Name: "m", BlockSize: 16, Ranks: 1, ContextLength: 10, VocabSize: 10, Experts: bad}
		if c.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}
