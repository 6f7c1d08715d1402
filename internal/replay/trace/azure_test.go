package trace

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestMoments holds the reading of times against that of package time, with the day
// remembered from the time before or not.
func TestMoments(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	zones := []*time.Location{time.UTC, time.FixedZone("", 2*3600), time.FixedZone("", -(9*3600 + 1800))}
	layouts := []string{
		"2006-01-02 15:04:05", "2006-01-02 15:04:05.0000000", "2006-01-02 15:04:05.999999999",
		"2006-01-02 15:04:05.000000-07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05.000Z07:00",
	}
	var m timestampParser
	begin := time.Date(1971, 1, 2, 0, 0, 0, 0, time.UTC)
	at := begin
	for i := range 20_000 {
		if i%4 == 0 { // else on the same day, as often as not
			at = begin.Add(time.Duration(rng.Int64N(int64(98 * 365 * 24 * time.Hour))))
		}
		at = at.Add(time.Duration(rng.Int64N(int64(6 * time.Hour))))
		layout := layouts[rng.IntN(len(layouts))]
		text := at.In(zones[rng.IntN(len(zones))]).Format(layout)
		parsed, err := time.Parse(layout, text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.parseTimestamp(text)
		if err != nil || int64(got) != parsed.UnixNano() {
			t.Fatalf("%s: %d, %v; want %d", text, got, err, parsed.UnixNano())
		}
	}
}
