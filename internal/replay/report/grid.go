package report

import (
	"slices"

	"penstock/internal/replay"
)

// figureGrid is a table of figures, a line for each row of a result, for both terminal and page.
type grid struct {
	Columns []column
	Lines   []line
	// Several: rows have different clusters, so that "best" is within one cluster.
	Several bool
	Marked  bool // something is marked as the best
	Late    bool // something is marked as late
}

type column struct{ Head, Unit string }

type line struct {
	Policy  string
	Workers string
	Late    bool
	First   bool // of its cluster
	Cells   []cell
}

type cell struct {
	Text string
	Best bool
}

// newFigureGrid lays out the figures of rows; a figure which no row has is left out.
func newGrid(rows []replay.Row, figs []figure) *grid {
	g := &grid{}
	for i := range rows {
		r := &rows[i]
		workers := absent
		if r.Workers > 0 {
			workers = whole(r.Workers)
		}
		first := i == 0 || !alike(&rows[i-1], r)
		g.Several = g.Several || first && i > 0
		g.Late = g.Late || r.Late
		g.Lines = append(g.Lines, line{Policy: r.Policy, Workers: workers, Late: r.Late, First: first})
	}
	for _, f := range figs {
		if !slices.ContainsFunc(rows, func(r replay.Row) bool { _, ok := f.of(&r); return ok }) {
			continue
		}
		s := scaleOf(f, rows)
		g.Columns = append(g.Columns, column{f.head, s.unit})
		for i := range rows {
			c := cell{Text: absent}
			if v, ok := f.of(&rows[i]); ok {
				c.Text = s.text(v)
				c.Best = best(f, s, rows, i)
			}
			g.Marked = g.Marked || c.Best
			g.Lines[i].Cells = append(g.Lines[i].Cells, c)
		}
	}
	return g
}

// isSameCluster reports whether two rows have clusters of the same size, so that their figures compare the
// policies.
func alike(a, b *replay.Row) bool {
	return a.Workers == b.Workers && a.BlockSize == b.BlockSize && a.Blocks == b.Blocks
}

// clusterSizeFigures returns the figures other than the number of workers by which the clusters of rows
// differ.
func sizes(rows []replay.Row) []figure {
	return slices.DeleteFunc(pick("block_size", "blocks_per_worker"), func(f figure) bool {
		return !slices.ContainsFunc(rows, func(r replay.Row) bool {
			first, _ := f.of(&rows[0])
			v, _ := f.of(&r)
			return v != first
		})
	})
}

// isBest reports whether no other row of the same cluster has a better figure than rows[i], and at least one
// has a worse one, as displayed, since readers do not see the further digits. Rows of a late client do not
// take part.
func best(f figure, s scale, rows []replay.Row, i int) bool {
	mine, _ := f.of(&rows[i])
	if f.better == neither || rows[i].Late {
		return false
	}
	worse := false
	for j := range rows {
		v, ok := f.of(&rows[j])
		switch {
		case !ok || rows[j].Late || !alike(&rows[j], &rows[i]) || s.text(v) == s.text(mine):
		case f.better == less && v < mine || f.better == more && v > mine:
			return false
		default:
			worse = true
		}
	}
	return worse
}

// numberScale formats the figures of one column uniformly.
type scale struct {
	unit     string
	factor   float64
	decimals int // -1: three significant digits
}

func (s scale) text(v float64) string {
	if v *= s.factor; s.decimals >= 0 {
		return grouped(v, s.decimals)
	}
	return short(v)
}

// chooseScale chooses seconds for times if none is below one second.
func scaleOf(f figure, rows []replay.Row) scale {
	switch f.unit {
	case number:
		return scale{"", 1, 0}
	case ratio:
		return scale{"of mean", 1, 2}
	case share:
		return scale{"%", 100, 1}
	case perSecond:
		return scale{"per s", 1, -1}
	case seconds:
		return scale{"s", 1, -1}
	}
	long := true
	for i := range rows {
		if v, ok := f.of(&rows[i]); ok && v < 1000 {
			long = false
		}
	}
	if long {
		return scale{"s", 1e-3, -1}
	}
	return scale{"ms", 1, -1}
}
