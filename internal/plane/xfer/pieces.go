package xfer

import "math/bits"

const (
	// pieceUnit is the unit in which a shared region is divided between small transfers.
	pieceUnit = 16 << 10
	// regionUnits is how many a region has. A bit set has one bit for each.
	regionUnits = regionSize / pieceUnit
)

var _ [64]struct{} = [regionUnits]struct{}{}

// piece is a part of a region: count units from at.
type piece struct{ at, count int }

// unitsOf returns how many units hold size bytes.
func unitsOf(size int) int { return (size + pieceUnit - 1) / pieceUnit }

func (p piece) mask() uint64 { return (1<<p.count - 1) << p.at }

// findPiece returns the first count adjoining units of free: the units used last are the likeliest
// to be in a cache. False if there are none.
func findPiece(free uint64, count int) (piece, bool) {
	run := free // a bit is set if n units from there are free
	for n := 1; n < count && run != 0; {
		step := min(n, count-n)
		run &= run >> step
		n += step
	}
	if run == 0 {
		return piece{}, false
	}
	return piece{bits.TrailingZeros64(run), count}, true
}
