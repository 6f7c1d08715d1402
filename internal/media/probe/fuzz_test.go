package probe

import (
	"testing"

	"penstock/core/media"
)

// FuzzHeader: no file panics. Reading by ranges and in pieces gives the same result as the whole file,
// except that the orientation may be unknown.
func FuzzHeader(f *testing.F) {
	for _, b := range files(f) {
		f.Add(b[:min(len(b), 4096)], uint16(7), false)
		f.Add(b, uint16(1000), true)
	}
	f.Add(phone(3, 6, 4, 5), uint16(3), true)
	f.Fuzz(func(t *testing.T, b []byte, piece uint16, told bool) {
		whole, err := ReadHeader(b)
		if err == nil {
			sane(t, whole)
		}
		var inOne, inPieces Probe
		one := drive(t, &inOne, b, 1<<30, told)
		pieces := drive(t, &inPieces, b, int(piece)+1, told)
		if one.info != pieces.info || (one.err == nil) != (pieces.err == nil) {
			t.Fatalf("in one: %+v, in pieces %+v", one, pieces)
		}
		// A truncated sound has its claimed length while the file's length is unknown.
		if comparable := told || whole.Kind != media.Audio; comparable && one.err == nil && err == nil && one.info != whole {
			if one.info.Oriented && whole.Oriented {
				t.Fatalf("whole: %+v, by ranges %+v", whole, one)
			}
		}
		if one.err == nil {
			sane(t, one.info)
		}
		kept := 0
		for _, k := range inPieces.kept {
			kept += len(k.b)
		}
		if kept > keptHead+MaxRanges*maxPiece {
			t.Fatalf("%d bytes are kept", kept)
		}
	})
}

// sane checks that a result is consistent.
func sane(t *testing.T, i Info) {
	s := i.Size
	switch {
	case i.Oriented != (i.Orientation != 0) && i.Kind != media.Audio:
		t.Fatalf("%+v is oriented or is not", i)
	case i.Kind == media.Audio && (s.Samples < 1 || i.Rate < 1 || i.Channels < 1):
		t.Fatalf("%+v is no sound", i)
	case i.Kind == media.Image && (s.Width < 1 || s.Height < 1 || s.Width > MaxSide || s.Height > MaxSide || s.Width*s.Height > DefaultMaxPixels):
		t.Fatalf("%+v is no picture", i)
	}
}
