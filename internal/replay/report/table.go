package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"penstock/internal/replay"
)

// WriteTable writes r for a terminal: notes first, then a line for each row, with a star at the best of the
// same size, then ideals, objectives and errors by kind.
func WriteTable(w io.Writer, r *replay.Result) error {
	out := bufio.NewWriter(w)
	for _, note := range r.Notes {
		fmt.Fprintf(out, "! %s\n", sanitizeText(note, noteLimit))
	}
	if len(r.Notes) > 0 {
		fmt.Fprintln(out)
	}
	if len(r.Rows) == 0 {
		fmt.Fprintln(out, "no runs")
		return out.Flush()
	}
	g := newFigureGrid(r.Rows, summaryFigures(r.Rows))
	writeGrid(out, g)
	writeLegend(out, g)
	for _, s := range tableRemarks(r) {
		fmt.Fprintln(out, s)
	}
	return out.Flush()
}

// summaryFigures are the figures of the first table.
func summaryFigures(rows []replay.Row) []figure {
	return append(clusterSizeFigures(rows), pickFigures("requests", "errors", "ttft_mean", "ttft_p50", "ttft_p99", "ttft_error_p99", "itl_mean", "itl_p99", "e2e_mean", "e2e_p99",
		"cached_share", "share_of_ideal", "prefill_remote_share", "prefill_wait_mean", "kv_moved_mib", "encoder_runs", "embedding_hit_share", "imbalance", "output_tokens_per_s", "goodput_share")...)
}

// writeGrid aligns names to the left and figures to the right. Each figure has room for its star after it, so
// that the digits align.
func writeGrid(w io.Writer, g *figureGrid) {
	table := [][]string{{"POLICY", "WORKERS "}, {"", ""}}
	for _, c := range g.Columns {
		table[0] = append(table[0], strings.ToUpper(c.Head)+" ")
		table[1] = append(table[1], c.Unit+" ")
	}
	for _, l := range g.Lines {
		name := sanitizeText(l.Policy, nameLimit)
		if l.Late {
			name += " !"
		}
		if g.Several && l.First && len(table) > 2 {
			table = append(table, nil)
		}
		fields := []string{name, l.Workers + " "}
		for _, c := range l.Cells {
			mark := " "
			if c.Best {
				mark = "*"
			}
			fields = append(fields, c.Text+mark)
		}
		table = append(table, fields)
	}
	widths := make([]int, len(table[0]))
	for _, fields := range table {
		for i, f := range fields {
			widths[i] = max(widths[i], utf8.RuneCountInString(f))
		}
	}
	for _, fields := range table {
		var b strings.Builder
		for i, f := range fields {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(f))
			if i == 0 {
				b.WriteString(f + pad)
				continue
			}
			b.WriteString(" " + pad + f)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

func writeLegend(w io.Writer, g *figureGrid) {
	fmt.Fprintln(w)
	switch {
	case g.Marked && g.Several:
		fmt.Fprintln(w, "* the best of this size")
	case g.Marked:
		fmt.Fprintln(w, "* the best")
	}
	if g.Late {
		fmt.Fprintln(w, "! the client was late: it sent requests later than they were due, so these figures are not to be trusted")
	}
}

// tableRemarks are the sentences below a table: the references of the figures, and what went wrong.
func tableRemarks(r *replay.Result) []string {
	var said []string
	for _, i := range resultIdeals(r) {
		what := "The best a cache could do"
		if i.Workers > 0 {
			what += " for " + formatPlural(i.Workers, "worker", "workers")
		}
		if i.BlockSize > 0 && i.Blocks > 0 {
			what += fmt.Sprintf(" of %s of %s", formatPlural(i.Blocks, "block", "blocks"), formatPlural(i.BlockSize, "token", "tokens"))
		}
		said = append(said, fmt.Sprintf("%s: %s of the prompt tokens cached in one shared cache of that size (\"ideal\"), %s in an unbounded one.",
			what, formatEstimate(i.SameCapacity), formatEstimate(i.Infinite)))
	}
	var last *replay.SLO
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Goodput != nil && (last == nil || *last != row.Goodput.SLO) {
			last = &row.Goodput.SLO
			said = append(said, "Goodput: the share of requests with "+describeSLO(*last)+".")
		}
	}
	names := rowNames(r.Rows)
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Errors > 0 {
			said = append(said, fmt.Sprintf("%s: %s of %s failed%s. Times and tokens are those of whole answers.",
				names[i], formatInt(row.Errors), formatPlural(row.Requests, "request", "requests"), formatErrorKinds(row.ErrorKinds)))
		}
	}
	return said
}

// resultIdeals returns the ideals of all numbers of workers, each once.
func resultIdeals(r *replay.Result) []replay.Ideal {
	if len(r.Ideals) > 0 {
		return r.Ideals
	}
	if r.Ideal != nil {
		return []replay.Ideal{*r.Ideal}
	}
	var found []replay.Ideal
	for i := range r.Rows {
		if ideal := r.Rows[i].Ideal; ideal != nil && (len(found) == 0 || found[len(found)-1] != *ideal) {
			found = append(found, *ideal)
		}
	}
	return found
}

// describeSLO describes an SLO in words.
func describeSLO(s replay.SLO) string {
	var parts []string
	for _, b := range []struct {
		what  string
		bound float64
	}{{"TTFT", s.TTFT}, {"mean ITL", s.ITL}, {"E2E", s.E2E}} {
		if b.bound > 0 {
			parts = append(parts, b.what+" up to "+formatMilliseconds(b.bound))
		}
	}
	if len(parts) == 0 {
		return "a whole answer"
	}
	return strings.Join(parts, ", ")
}

// formatEstimate writes the share of an ideal.
func formatEstimate(s replay.Share) string {
	if s.Estimated {
		return "about " + formatPercent(s.CachedShare)
	}
	return formatPercent(s.CachedShare)
}

// rowNames name rows in sentences: by policy, number of workers, and the sizes in which they differ.
func rowNames(rows []replay.Row) []string {
	differ := clusterSizeFigures(rows)
	names := make([]string, len(rows))
	for i := range rows {
		names[i] = sanitizeText(policyName(&rows[i]), nameLimit)
		if size := sizeName(&rows[i], differ); size != "" {
			names[i] += ", " + size
		}
	}
	return names
}

// sizeName describes the cluster size of a row; "" if unknown.
func sizeName(r *replay.Row, differ []figure) string {
	var parts []string
	if r.Workers > 0 {
		parts = append(parts, formatPlural(r.Workers, "worker", "workers"))
	}
	for _, f := range differ {
		switch v, ok := f.valueOf(r); {
		case ok && f.name == "block_size":
			parts = append(parts, "blocks of "+formatGrouped(v, 0))
		case ok && f.name == "prefill_workers":
			parts = append(parts, formatPlural(int(v), "prefill worker", "prefill workers"))
		case ok:
			parts = append(parts, formatGrouped(v, 0)+" blocks")
		}
	}
	return strings.Join(parts, ", ")
}

// formatErrorKinds lists errors by kind, the most frequent first.
func formatErrorKinds(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	var parts []string
	for _, k := range keysByCount(counts) {
		parts = append(parts, sanitizeText(k, nameLimit)+" "+formatInt(counts[k]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
