package report

import (
	"fmt"
	"slices"

	"penstock/internal/replay"
)

// figureGrid is a table of figures, a line for each row of a result, for both terminal and page.
type figureGrid struct {
	Columns []gridColumn
	Lines   []gridLine
	// Several: rows have different clusters, so that "best" is within one cluster.
	Several bool
	Marked  bool // something is marked as the best
	Late    bool // something is marked as late
}

type gridColumn struct{ Head, Unit string }

type gridLine struct {
	Policy  string
	Workers string
	Late    bool
	First   bool // of its cluster
	Cells   []gridCell
}

type gridCell struct {
	Text string
	Best bool
}

// newFigureGrid lays out the figures of rows; a figure which no row has is left out.
func newFigureGrid(rows []replay.Row, figs []figure) *figureGrid {
	g := &figureGrid{}
	for i := range rows {
		r := &rows[i]
		workers := absentFigure
		if r.Workers > 0 {
			workers = formatInt(r.Workers)
		}
		first := i == 0 || !isSameCluster(&rows[i-1], r)
		g.Several = g.Several || first && i > 0
		g.Late = g.Late || r.Late
		g.Lines = append(g.Lines, gridLine{Policy: policyName(r), Workers: workers, Late: r.Late, First: first})
	}
	for _, f := range figs {
		if !slices.ContainsFunc(rows, func(r replay.Row) bool { _, ok := f.valueOf(&r); return ok }) {
			continue
		}
		s := chooseScale(f, rows)
		g.Columns = append(g.Columns, gridColumn{f.head, s.unit})
		for i := range rows {
			c := gridCell{Text: absentFigure}
			if v, ok := f.valueOf(&rows[i]); ok {
				c.Text = s.formatValue(v)
				c.Best = isBest(f, s, rows, i)
			}
			g.Marked = g.Marked || c.Best
			g.Lines[i].Cells = append(g.Lines[i].Cells, c)
		}
	}
	return g
}

// isSameCluster reports whether two rows have clusters of the same size, so that their figures compare the
// policies.
func isSameCluster(a, b *replay.Row) bool {
	return a.Workers == b.Workers && a.BlockSize == b.BlockSize && a.Blocks == b.Blocks && prefillWorkers(a) == prefillWorkers(b)
}

// prefillWorkers returns the number of prefill workers of a row's cluster.
func prefillWorkers(r *replay.Row) int {
	if r.Disagg == nil {
		return 0
	}
	return r.Disagg.PrefillWorkers
}

// policyName names the policy of a row's router and, with prefill workers, how it is decided where prompts are
// computed.
func policyName(r *replay.Row) string {
	switch d := r.Disagg; {
	case d == nil:
		return r.Policy
	case d.MaxLocalPrefillLength > 0 || d.MaxPrefillQueueSize > 0:
		return fmt.Sprintf("%s, %s %d/%d", r.Policy, d.Policy, d.MaxLocalPrefillLength, d.MaxPrefillQueueSize)
	default:
		return r.Policy + ", " + d.Policy
	}
}

// clusterSizeFigures returns the figures other than the number of workers by which the clusters of rows
// differ.
func clusterSizeFigures(rows []replay.Row) []figure {
	return slices.DeleteFunc(pickFigures("prefill_workers", "block_size", "blocks_per_worker", "encode_workers", "embedding_cache_mib"), func(f figure) bool {
		return !slices.ContainsFunc(rows, func(r replay.Row) bool {
			first, _ := f.valueOf(&rows[0])
			v, _ := f.valueOf(&r)
			return v != first
		})
	})
}

// isBest reports whether no other row of the same cluster has a better figure than rows[i], and at least one
// has a worse one, as displayed, since readers do not see the further digits. Rows of a late client do not
// take part.
func isBest(f figure, s numberScale, rows []replay.Row, i int) bool {
	mine, _ := f.valueOf(&rows[i])
	if f.better == neitherBetter || rows[i].Late {
		return false
	}
	worse := false
	for j := range rows {
		v, ok := f.valueOf(&rows[j])
		switch {
		case !ok || rows[j].Late || !isSameCluster(&rows[j], &rows[i]) || s.formatValue(v) == s.formatValue(mine):
		case f.better == lessBetter && v < mine || f.better == moreBetter && v > mine:
			return false
		default:
			worse = true
		}
	}
	return worse
}

// numberScale formats the figures of one column uniformly.
type numberScale struct {
	unit     string
	factor   float64
	decimals int // -1: three significant digits
}

func (s numberScale) formatValue(v float64) string {
	if v *= s.factor; s.decimals >= 0 {
		return formatGrouped(v, s.decimals)
	}
	return formatShort(v)
}

// chooseScale chooses seconds for times if none is below one second.
func chooseScale(f figure, rows []replay.Row) numberScale {
	switch f.unit {
	case unitCount:
		return numberScale{"", 1, 0}
	case unitRatio:
		return numberScale{"of mean", 1, 2}
	case unitShare:
		return numberScale{"%", 100, 1}
	case unitPerSecond:
		return numberScale{"per s", 1, -1}
	case unitSeconds:
		return numberScale{"s", 1, -1}
	}
	long := true
	for i := range rows {
		if v, ok := f.valueOf(&rows[i]); ok && v < 1000 {
			long = false
		}
	}
	if long {
		return numberScale{"s", 1e-3, -1}
	}
	return numberScale{"ms", 1, -1}
}
