package embcache

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"penstock/core/kv"
)

var aRecord = TierRecord{
	Key: kv.Digest(bytes.Repeat([]byte{0x11}, 32)), Type: 1, Until: 1 << 60,
	Shape: Shape{Layers: 1, Rows: 2, Width: 3, Grid: [3]int{1, 2, 4}},
}

// TestRecordBytes holds a record against the bytes of docs/format/embedding-record.md, which were written by hand, the
// digest by another program.
func TestRecordBytes(t *testing.T) {
	want := "50534552" + "01" + "01" + "0000" + // magic, version, type
		"1111111111111111111111111111111111111111111111111111111111111111" +
		"0000000000000010" + "01000000" + "02000000" + "03000000" + "01000000" + "02000000" + "04000000" +
		"0400000000000000" + "00000000000000000000000000000000" +
		"3bcf5ecadcad4e223c0da9f904d0851dbc84ce81cbfe2c4f57393e79e3b93648" +
		"61626364"
	got := AppendRecord([]byte("before"), &aRecord, []byte("abcd"))[len("before"):]
	if s := hex.EncodeToString(got); s != want {
		t.Errorf("%s, want %s", s, want)
	}
}

// TestRecordDamage: a record is read as it was written, and is an error with any bit changed, cut at any place, or with
// something after it.
func TestRecordDamage(t *testing.T) {
	whole := AppendRecord(nil, &aRecord, []byte("the elements"))
	r, elements, err := DecodeRecord(whole)
	if err != nil || r != aRecord || string(elements) != "the elements" {
		t.Fatalf("%+v, %q, %v", r, elements, err)
	}
	for i := range whole {
		if _, _, err := DecodeRecord(whole[:i]); err == nil {
			t.Errorf("the first %d bytes are a record", i)
		}
		for bit := range 8 {
			b := slices.Clone(whole)
			b[i] ^= 1 << bit
			if _, _, err := DecodeRecord(b); err == nil {
				t.Errorf("byte %d with bit %d changed is a record", i, bit)
			}
		}
	}
	if _, _, err := DecodeRecord(append(whole, 0)); err == nil {
		t.Error("a record with a further byte is one")
	}
	if r, elements, err := DecodeRecord(AppendRecord(nil, &TierRecord{}, nil)); err != nil || r != (TierRecord{}) || len(elements) > 0 {
		t.Errorf("an empty record: %+v, %q, %v", r, elements, err)
	}
}

// FuzzRecord: any bytes are a record or an error, and a record is written as it was read.
func FuzzRecord(f *testing.F) {
	f.Add(AppendRecord(nil, &aRecord, []byte("abcd")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, elements, err := DecodeRecord(b)
		if err != nil {
			return
		}
		again, same, err := DecodeRecord(AppendRecord(nil, &r, elements))
		if err != nil || again != r || !bytes.Equal(same, elements) {
			t.Errorf("%+v of %d bytes is %+v of %d, %v", r, len(elements), again, len(same), err)
		}
	})
}
