package encode

import (
	"fmt"
	"testing"

	"penstock/core/media"
)

// BenchmarkSubmit measures the submit of a request beside 500 others, whose objects run or wait for an encoder.
func BenchmarkSubmit(b *testing.B) {
	for _, objects := range []int{1, 3} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			cfg := testConfig()
			cfg.CPUBudget, cfg.MaxObjects = 16_000_000_000, 8192
			m, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			var out []Action
			for id := range EncoderID(4) {
				if out, err = m.AddEncoder(0, id, EncoderLimits{}, out[:0]); err != nil {
					b.Fatal(err)
				}
			}
			sub := submissionOf(rowsOf(media.Image, 1, 1, 1)[:objects], Usage{})
			for range 500 {
				if _, out, err = m.SubmitRequest(0, sub, out[:0]); err != nil {
					b.Fatal(err)
				}
			}
			var ids []RequestID
			b.ReportAllocs()
			for b.Loop() {
				if len(ids) == 256 {
					b.StopTimer()
					for _, id := range ids {
						out, _ = m.CancelRequest(0, id, out[:0])
					}
					ids = ids[:0]
					b.StartTimer()
				}
				var id RequestID
				if id, out, err = m.SubmitRequest(0, sub, out[:0]); err != nil {
					b.Fatal(err)
				}
				ids = append(ids, id)
			}
		})
	}
}

// BenchmarkLife measures all events of a request with three objects, beside none.
func BenchmarkLife(b *testing.B) {
	m, err := New(testConfig())
	if err != nil {
		b.Fatal(err)
	}
	out, _ := m.AddEncoder(0, 0, EncoderLimits{}, nil)
	sub := submissionOf(rowsOf(media.Image, 1, 1, 1), Usage{})
	results := []Result{{Tokens: 1, Bytes: 1}, {Tokens: 1, Bytes: 1}, {Tokens: 1, Bytes: 1}}
	b.ReportAllocs()
	for b.Loop() {
		id, all, err := m.SubmitRequest(0, sub, out[:0])
		if err != nil {
			b.Fatal(err)
		}
		out, _ = m.FinishRun(0, all[0].Run, results, all)
		out, _ = m.StageRequest(0, id, out)
		out, _ = m.MarkCopied(0, id, out)
		out, _ = m.MarkMerged(0, id, out)
		out, err = m.MarkPrefilled(0, id, out)
		if err != nil || out[len(out)-1].Ending != Completed {
			b.Fatal(out, err)
		}
	}
}
