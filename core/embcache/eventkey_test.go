package embcache

import (
	"encoding/hex"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestPlaceHash: two builds choose the same worker for rows.
func TestPlaceHash(t *testing.T) {
	key := RowKey{Salt: "salt", Kind: 2, Digest: kv.Digest{1, 2, 3, 4, 5, 6, 7, 8, 9}, Encoder: "e"}
	anonymous := RowKey{Salt: "salt", Kind: 2}
	if got := [3]uint64{key.PlaceHash(5), anonymous.PlaceHash(5), anonymous.PlaceHash(6)}; got != [3]uint64{14138437726944371859, 12369849210339759599, 978427399061574349} {
		t.Errorf("%d", got)
	}
}

// TestEventKey holds the vectors of docs/format/embedding-event.md.
func TestEventKey(t *testing.T) {
	var object kv.Digest
	for i := range object {
		object[i] = byte(i)
	}
	for _, c := range []struct{ encoder, salt, want string }{
		{"", "", "11c2ca4dff1ea9f757d85213c776ec05673f9f9ac43c4b009c734cb40468293b"},
		{"e", "", "3873bb9409466df1a9240c786893ca68cd5bea9bbc722db66e60340f6a1ded98"},
		{"", "e", "c167e78e14129c55bc9e7a7619518ddec85c4a52a575cccbfdff81cc29767ed7"},
		{"encoder", "salt", "ad397ae642e1a87ced360c494e7f5c926d7a5949123111ac47e03bca26fb3358"},
	} {
		got := EventKey(c.encoder, c.salt, object)
		if hex.EncodeToString(got[:]) != c.want {
			t.Errorf("encoder %q, salt %q: %x, want %s", c.encoder, c.salt, got, c.want)
		}
		k := RowKey{Salt: c.salt, Kind: 1, Digest: object, Encoder: c.encoder, Type: 2}
		if k.EventKey() != got {
			t.Errorf("encoder %q, salt %q: the row key has another one", c.encoder, c.salt)
		}
	}
	if EventKey("a", "bc", object) == EventKey("ab", "c", object) {
		t.Error("what belongs to the encoder and what to the salt cannot be told")
	}
	encoder, salt := strings.Repeat("e", 64), strings.Repeat("s", 64)
	if n := testing.AllocsPerRun(100, func() { EventKey(encoder, salt, object) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEventKey(b *testing.B) {
	encoder, salt := strings.Repeat("e", 32), strings.Repeat("s", 32)
	for b.Loop() {
		EventKey(encoder, salt, kv.Digest{})
	}
}
