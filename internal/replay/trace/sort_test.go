package trace

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/internal/replay"
)

// TestSort holds the sorter against a stable sort of the whole file, and that one
// with less memory either does the same or refuses.
func TestSort(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	sorted := map[int]int{}
	for range 50 {
		type row struct{ line, at int }
		var rows []row
		var written []int64
		var file strings.Builder
		for i := range 1 + rng.IntN(300) {
			at := max(0, i+rng.IntN(20)-10) / 2
			rows, written = append(rows, row{i + 1, at}), append(written, int64(at))
			fmt.Fprintf(&file, `{"timestamp": %d, "input_length": 700, "hash_ids": [%d, %d], "session_id": %d}`+"\n", at, i, at, i%7)
		}
		slices.SortStableFunc(rows, func(a, b row) int { return a.at - b.at })
		for _, limit := range []int{0, 1 << 10, 4 << 10, 16 << 10} {
			w, err := openText(file.String(), Options{Sort: true, SortBytes: limit})
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.Open()
			if err != nil {
				t.Fatal(err)
			}
			var r replay.Request
			var got []row
			for err == nil {
				if err = s.Next(&r); err != nil {
					break
				}
				got = append(got, row{r.Line, int(r.At.Milliseconds()) + rows[0].at})
				if i := int64(r.Line - 1); !slices.Equal(r.Blocks, []int64{i, written[i]}) || r.Session != fmt.Sprint(i%7) {
					t.Fatalf("line %d has another's content: %s", r.Line, show(&r))
				}
			}
			switch {
			case err == io.EOF && !slices.Equal(got, rows):
				t.Fatalf("within %d bytes: %v, want %v", limit, got, rows)
			case err != io.EOF && (limit == 0 || !strings.Contains(err.Error(), "farther than sorting")):
				t.Fatal(err)
			case err == io.EOF:
				sorted[limit]++
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if sorted[0] != 50 || sorted[16<<10] != 50 || sorted[1<<10] == 50 {
		t.Errorf("sorted, by the memory there was: %v", sorted)
	}
}
