package model

import (
	"fmt"
	"sort"
)

// Object is where a sequence shows something that was encoded.
type Object struct {
	// Start is the position of its first row; each row fills one token's place.
	Start int
	// Rows are [n, HiddenSize], from Encode or Hear.
	Rows []float32
	// Grid are the patches in time, height and width that Encode was given; zero of
	// what Hear gave.
	Grid [3]int
}

// Shown is what a sequence shows besides text. It is immutable, and may be given to
// the works of any sequences that show the same at the same positions.
//
// Rotary positions have three parts where the model's Config says so (MRope): in text
// they are equal and go up by one with each token; the rows of a picture have theirs by
// frame, row and column, from where the text before it ended, and text after it goes
// on one above the largest of them.
type Shown struct{ places []place }

// place is an object where it is shown.
type place struct {
	start, end int // positions in the sequence
	rows       []float32
	high, wide int // rows of the encoder; 0 of sounds
	at, next   int // rotary positions of the first row, and of the token after the last
}

// Show prepares objects, ascending and apart from each other. It keeps their rows.
func (m *Model) Show(objects []Object) (*Shown, error) {
	s, end := &Shown{}, 0
	at := 0 // rotary position of the token at end
	for _, o := range objects {
		n := len(o.Rows) / m.cfg.HiddenSize
		if n == 0 || len(o.Rows)%m.cfg.HiddenSize != 0 || o.Start < end || o.Start+n > m.cfg.MaxPositions {
			return nil, fmt.Errorf("model show: %d elements at position %d, after %d", len(o.Rows), o.Start, end)
		}
		p := place{start: o.Start, end: o.Start + n, rows: o.Rows, at: at + o.Start - end}
		p.next = p.at + n
		if o.Grid != [3]int{} {
			merge := max(1, m.cfg.Vision.Merge)
			p.high, p.wide = o.Grid[1]/merge, o.Grid[2]/merge
			if o.Grid[0]*p.high*p.wide != n {
				return nil, fmt.Errorf("model show: %d rows of a grid of %v patches", n, o.Grid)
			}
			p.next = p.at + max(o.Grid[0], p.high, p.wide)
		}
		s.places = append(s.places, p)
		end, at = p.end, p.next
	}
	return s, nil
}

// before returns how many objects begin at position or before it.
func (s *Shown) before(position int) int {
	if s == nil {
		return 0
	}
	return sort.Search(len(s.places), func(i int) bool { return s.places[i].start > position })
}

// fill sets what stands at r's position, of which the first begun objects are at or
// before, and returns how many are at or before the next one.
func (s *Shown) fill(r *row, begun, hidden int) int {
	p := int32(r.position)
	r.turns = [3]int32{p, p, p}
	if s == nil {
		return 0
	}
	if begun > 0 {
		o := &s.places[begun-1]
		if i := r.position - o.start; r.position < o.end {
			r.shown = part(o.rows, i, hidden)
			r.turns = o.turns(i)
		} else {
			p = int32(o.next + r.position - o.end)
			r.turns = [3]int32{p, p, p}
		}
	}
	if begun < len(s.places) && s.places[begun].start == r.position+1 {
		begun++
	}
	return begun
}

// turns returns the rotary positions of one of the rows.
func (o *place) turns(i int) [3]int32 {
	if o.wide == 0 {
		p := int32(o.at + i)
		return [3]int32{p, p, p}
	}
	return [3]int32{int32(o.at + i/(o.high*o.wide)), int32(o.at + i/o.wide%o.high), int32(o.at + i%o.wide)}
}
