package engine

import (
	"testing"

	"penstock/core/fault"
	"penstock/core/media"
)

// TestCheckImport: blocks are taken only if they are read as the engine's own, have all tokens, and are whole.
func TestCheckImport(t *testing.T) {
	own := KVLayout{BlockSize: 16, BlockBytes: 16 * 8, Type: media.Float32, Order: "o", Numerics: "n"}
	larger := KVLayout{BlockSize: 64, BlockBytes: 64 * 8, Type: media.Float32, Order: "o", Numerics: "n"}
	for _, test := range []struct {
		name       string
		change     func(*BlockData)
		start, end int
		want       string
	}{
		{"all", nil, 0, 192, ""},
		{"some", nil, 80, 112, ""},
		{"not the last", nil, 0, 208, "invalid_request"},
		{"not the first", func(b *BlockData) { b.First = 1 }, 48, 112, "invalid_request"},
		{"a part of a block", func(b *BlockData) { b.Bytes = b.Bytes[1:] }, 0, 64, "invalid_request"},
		{"another order", func(b *BlockData) { b.Layout.Order = "p" }, 0, 192, "conflict"},
		{"no order", func(b *BlockData) { b.Layout.Order = "" }, 0, 192, "invalid_request"},
		{"another type", func(b *BlockData) { b.Layout.Type = media.BFloat16 }, 0, 192, "conflict"},
		{"other numerics", func(b *BlockData) { b.Layout.Numerics = "m" }, 0, 192, "conflict"},
		{"larger tokens", func(b *BlockData) { b.Layout.BlockBytes *= 3 }, 0, 64, "conflict"},
		{"odd blocks", func(b *BlockData) { b.Layout.BlockSize, b.Layout.BlockBytes = 24, 24*8 }, 0, 192, "conflict"},
		{"uneven tokens", func(b *BlockData) { b.Layout.BlockBytes++ }, 0, 64, "invalid_request"},
		{"no blocks", func(b *BlockData) { b.Layout.BlockSize = 0 }, 0, 192, "invalid_request"},
	} {
		b := BlockData{Layout: larger, Bytes: make([]byte, 3*64*8)}
		if test.change != nil {
			test.change(&b)
		}
		got := ""
		err := own.CheckImport(&b, test.start, test.end)
		if err != nil {
			got = fault.CodeOf(err).String()
		}
		if got != test.want {
			t.Errorf("%s: %q (%v), want %q", test.name, got, err, test.want)
		}
	}
}

// FuzzCheckImport: whatever another process says of its blocks, the taken ones have the tokens.
func FuzzCheckImport(f *testing.F) {
	f.Add(64, 512, 0, uint16(1536), 0, 192)
	f.Add(16, 128, 3, uint16(128), 48, 64)
	f.Fuzz(func(t *testing.T, size, bytes, first int, n uint16, start, end int) {
		own := KVLayout{BlockSize: 16, BlockBytes: 16 * 8, Type: media.Float32, Order: "o", Numerics: "n"}
		if start < 0 || start > end || end > 1<<20 { // the receiver's own
			return
		}
		b := BlockData{Layout: KVLayout{BlockSize: size, BlockBytes: bytes, Type: media.Float32, Order: "o", Numerics: "n"}, First: first, Bytes: make([]byte, n)}
		if own.CheckImport(&b, start, end) == nil && (bytes != size*8 || start < first*size || end > first*size+len(b.Bytes)/8) {
			t.Errorf("blocks of %d tokens and %d bytes from %d on, %d bytes, are taken for the tokens %d to %d", size, bytes, first, n, start, end)
		}
	})
}

// TestBlockRange: a block belongs to a range if one of its tokens does.
func TestBlockRange(t *testing.T) {
	l := KVLayout{BlockSize: 64}
	for _, test := range [][4]int{{0, 64, 0, 1}, {0, 65, 0, 2}, {16, 64, 0, 1}, {64, 80, 1, 2}, {63, 65, 0, 2}} {
		if first, last := l.BlockRange(test[0], test[1]); first != test[2] || last != test[3] {
			t.Errorf("tokens %d to %d are in the blocks %d to %d, want %d to %d", test[0], test[1], first, last, test[2], test[3])
		}
	}
}
