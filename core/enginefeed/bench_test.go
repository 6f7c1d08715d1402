package enginefeed

import (
	"testing"

	"penstock/core/kv"
)

// BenchmarkDecode reports what it costs to read a store of 32 blocks of 16 tokens.
func BenchmarkDecode(b *testing.B) {
	for name, payload := range map[string][]byte{"array": storeOf(1, 0, 32, 16, false), "map": storeOf(1, 0, 32, 16, true)} {
		b.Run(name, func(b *testing.B) {
			var d Decoder
			var batch Batch
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(payload, &batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var sinkEvents []kv.Event
