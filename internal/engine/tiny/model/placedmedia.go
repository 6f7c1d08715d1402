package model

import (
	"fmt"
	"sort"
)

// Object is an encoded media object in a sequence.
type Object struct {
	// Start is the position of its first row; each row replaces one token.
	Start int
	// Rows are [n, HiddenSize], from EncodeImage or EncodeAudio. They may be nil, with n in Count, if the K and V
	// of all of them are in the cache: then none is computed.
	Rows  []float32
	Count int
	// Grid is the number of patches in time, height and width given to EncodeImage; zero for a sound.
	Grid [3]int
}

// PlacedMedia holds the media objects of a sequence. It is immutable, and may be shared by the works of all
// sequences with the same objects at the same positions.
//
// Rotary positions have three parts if the model's Config has MRope: in text they are equal and go up by one
// with each token; the rows of a picture have theirs by frame, row and column, from where the text before it
// ended, and text after it continues one above the largest of them.
type PlacedMedia struct{ objects []placedObject }

// placedObject is an object at its positions.
type placedObject struct {
	start, end              int // positions in the sequence
	rows                    []float32
	gridRows, gridCols      int // rows of the encoder; 0 for sounds
	rotaryStart, rotaryNext int // rotary positions of the first row, and of the token after the last
}

// PlaceMedia prepares objects, ascending and without overlaps. It keeps their rows.
func (m *Model) PlaceMedia(objects []Object) (*PlacedMedia, error) {
	s, end := &PlacedMedia{}, 0
	at := 0 // rotary position of the token at end
	for _, o := range objects {
		n := len(o.Rows) / m.cfg.HiddenSize
		if o.Rows == nil {
			n = max(0, min(o.Count, m.cfg.MaxPositions))
		}
		if n == 0 || len(o.Rows)%m.cfg.HiddenSize != 0 || o.Start < end || o.Start+n > m.cfg.MaxPositions {
			return nil, fmt.Errorf("model show: %d elements at position %d, after %d", len(o.Rows), o.Start, end)
		}
		p := placedObject{start: o.Start, end: o.Start + n, rows: o.Rows, rotaryStart: at + o.Start - end}
		p.rotaryNext = p.rotaryStart + n
		if o.Grid != [3]int{} {
			merge := max(1, m.cfg.Vision.Merge)
			p.gridRows, p.gridCols = o.Grid[1]/merge, o.Grid[2]/merge
			if o.Grid[0]*p.gridRows*p.gridCols != n {
				return nil, fmt.Errorf("model show: %d rows of a grid of %v patches", n, o.Grid)
			}
			p.rotaryNext = p.rotaryStart + max(o.Grid[0], p.gridRows, p.gridCols)
		}
		s.objects = append(s.objects, p)
		end, at = p.end, p.rotaryNext
	}
	return s, nil
}

// countStarted returns how many objects start at position or before it.
func (s *PlacedMedia) countStarted(position int) int {
	if s == nil {
		return 0
	}
	return sort.Search(len(s.objects), func(i int) bool { return s.objects[i].start > position })
}

// fillRow sets the rotary positions of r, and its media row if it has one. begun is how many objects start at
// or before r's position; fillRow returns that number for the next position.
func (s *PlacedMedia) fillRow(r *tokenRow, begun, hidden int) int {
	p := int32(r.position)
	r.rotary = [3]int32{p, p, p}
	if s == nil {
		return 0
	}
	if begun > 0 {
		o := &s.objects[begun-1]
		if i := r.position - o.start; r.position < o.end {
			r.mediaRow = rowOf(o.rows, i, hidden)
			r.rotary = o.rotaryPositions(i)
		} else {
			p = int32(o.rotaryNext + r.position - o.end)
			r.rotary = [3]int32{p, p, p}
		}
	}
	if begun < len(s.objects) && s.objects[begun].start == r.position+1 {
		begun++
	}
	return begun
}

// rotaryPositions returns the rotary positions of one row of an object.
func (o *placedObject) rotaryPositions(i int) [3]int32 {
	if o.gridCols == 0 {
		p := int32(o.rotaryStart + i)
		return [3]int32{p, p, p}
	}
	return [3]int32{int32(o.rotaryStart + i/(o.gridRows*o.gridCols)), int32(o.rotaryStart + i/o.gridCols%o.gridRows), int32(o.rotaryStart + i%o.gridCols)}
}
