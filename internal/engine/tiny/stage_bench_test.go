package tiny

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock/core/media"
)

// BenchmarkStage copies rows from where an encoder wrote them to where the model reads them, and in turns with it the
// same bytes in a plain loop of copies. Of both it takes the first decile, which other work of the machine does not
// change; of-plain is the share of the plain loop's speed.
// stage is what is measured: it has the place of another function which copies rows.
func BenchmarkStage(b *testing.B) {
	const region = 64 << 20
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			const width = 256
			capacity := region
			s := newRowStore(&Config{EmbeddingCache: &capacity}, "benchmark", width)
			n := uint64(0)
			stage := func(rows []float32) {
				n++
				o := media.Object{Kind: media.Image}
				binary.LittleEndian.PutUint64(o.Key.Digest[:], n)
				key := s.keyOf(&o, "")
				kept := s.storeRows(&key, &o, rows, [3]int{})
				if !isSame(kept.rows, rows) {
					b.Fatal("the rows were not copied")
				}
				s.releaseRows(&kept)
			}
			// Both copy from sources which neither has read lately: a source in the cache of the processor is copied faster.
			sources := make([][]float32, max(2, region/size))
			for i := range sources {
				sources[i] = make([]float32, size/elementBytes)
				sources[i][0] = float32(i)
			}
			target := make([]float32, region/elementBytes)
			plain := func(i int, rows []float32) {
				at := i % (region / size) * len(rows)
				copy(target[at:at+len(rows)], rows)
			}
			for i, rows := range sources { // the first use of memory is not measured
				stage(rows)
				plain(i, rows)
			}
			var staged, copied []time.Duration
			for i := 0; b.Loop(); i++ {
				rows, others := sources[i%len(sources)], sources[(i+len(sources)/2)%len(sources)]
				began := time.Now()
				stage(rows)
				middle := time.Now()
				plain(i, others)
				staged, copied = append(staged, middle.Sub(began)), append(copied, time.Since(middle))
			}
			slices.Sort(staged)
			slices.Sort(copied)
			took := staged[len(staged)/10].Seconds()
			b.ReportMetric(copied[len(copied)/10].Seconds()/took, "of-plain")
			b.ReportMetric(float64(size)/took/1e9, "GB/s")
		})
	}
}

// isSame reports whether rows are a copy of others, by what is quick to see.
func isSame(got, want []float32) bool {
	return len(got) == len(want) && got[0] == want[0] && &got[0] != &want[0]
}
