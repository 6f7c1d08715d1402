package replica

import "slices"

// seqRanges are ranges of numbers, ascending, with a gap between any two.
type seqRanges []seqRange

// seqRange is the numbers from first to last.
type seqRange struct{ first, last uint64 }

func (s seqRanges) contains(n uint64) bool {
	for _, o := range s {
		if n <= o.last {
			return n >= o.first
		}
	}
	return false
}

// hasRoom reports whether there is room for a range.
func (s seqRanges) hasRoom(first, last uint64) bool {
	if len(s) < maxRanges {
		return true
	}
	return slices.ContainsFunc(s, func(o seqRange) bool { return first <= o.last+1 && o.first <= last+1 })
}

// addRange adds a range, and merges it with the ranges which it touches.
func (s *seqRanges) addRange(first, last uint64) {
	at := 0
	for at < len(*s) && (*s)[at].last+1 < first {
		at++
	}
	end := at
	for end < len(*s) && (*s)[end].first <= last+1 {
		first, last = min(first, (*s)[end].first), max(last, (*s)[end].last)
		end++
	}
	*s = slices.Replace(*s, at, end, seqRange{first, last})
}
