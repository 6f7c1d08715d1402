package xfer

// ByteRun is a piece of a memory: for example the bytes of one KV block in a cache.
type ByteRun struct{ Offset, Length int }

// MergeRuns merges each run with its successor where they are contiguous, in place, and drops empty
// ones. The order of the bytes stays.
func MergeRuns(runs []ByteRun) []ByteRun {
	out := runs[:0]
	for _, r := range runs {
		switch last := len(out) - 1; {
		case r.Length == 0:
		case last >= 0 && out[last].Offset+out[last].Length == r.Offset:
			out[last].Length += r.Length
		default:
			out = append(out, r)
		}
	}
	return out
}

// SliceRuns returns the pieces of memory which runs name, contiguous ones as one.
func SliceRuns(memory []byte, runs []ByteRun) [][]byte {
	out := make([][]byte, 0, len(runs))
	for _, r := range runs {
		out = append(out, memory[r.Offset:r.Offset+r.Length])
	}
	return mergeAdjoining(out)
}

// mergeAdjoining returns the non-empty slices, merging each with its successor where both are
// pieces of one memory and the first may be extended that far. It leaves slices alone.
func mergeAdjoining(slices [][]byte) [][]byte {
	out := make([][]byte, 0, len(slices))
	for _, s := range slices {
		if len(s) == 0 {
			continue
		}
		if last := len(out) - 1; last >= 0 && adjoins(out[last], s) {
			out[last] = out[last][:len(out[last])+len(s)]
			continue
		}
		out = append(out, s)
	}
	return out
}

// adjoins reports whether b begins where a ends and a's capacity covers b. Neither is empty.
func adjoins(a, b []byte) bool {
	return cap(a)-len(a) >= len(b) && &a[:len(a)+1][len(a)] == &b[0]
}

// scatter walks over slices as over one row of bytes.
type scatter struct {
	slices [][]byte // the rest; the first may have been cut
	left   int64    // bytes in them
}

func newScatter(slices [][]byte) scatter {
	s := scatter{slices: mergeAdjoining(slices)}
	for _, b := range s.slices {
		s.left += int64(len(b))
	}
	return s
}

// next returns the next at most n bytes that are contiguous, and passes them. n must not exceed
// left.
func (s *scatter) next(n int) []byte {
	first := s.slices[0]
	if n < len(first) {
		s.slices[0] = first[n:]
	} else {
		n = len(first)
		s.slices = s.slices[1:]
	}
	s.left -= int64(n)
	return first[:n:n]
}
