package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
)

// unitValue is one figure and its unit.
type unitValue struct {
	unit  string
	value float64
}

// subjectRow is the figures of one subject in one measurement.
type subjectRow struct {
	setup, test, subject string
	metrics              []unitValue
}

// indexReport collects rows in the order of measurement.
type indexReport struct {
	rows  []subjectRow
	notes []string
}

func (r *indexReport) addRow(s *clusterSetup, test, subject string, metrics ...unitValue) {
	r.rows = append(r.rows, subjectRow{s.String(), test, subject, metrics})
}

func (r *indexReport) addNote(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// printTables prints a table for each measurement.
func (r *indexReport) printTables(out io.Writer) error {
	for _, n := range r.notes {
		fmt.Fprintln(out, n)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i, row := range r.rows {
		if i == 0 || row.setup != r.rows[i-1].setup || row.test != r.rows[i-1].test {
			if err := t.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(out, "\n%s: %s\n", row.setup, row.test)
			fmt.Fprint(t, "index\t")
			for _, m := range row.metrics {
				fmt.Fprintf(t, "%s\t", m.unit)
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintf(t, "%s\t", row.subject)
		for _, m := range row.metrics {
			fmt.Fprintf(t, "%s\t", formatShort(m.value))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// formatShort writes a figure with about four digits.
func formatShort(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	case v >= 100 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// benchmarkName is a row's name in the format of "go test -bench".
func (r subjectRow) benchmarkName() string {
	return fmt.Sprintf("%s/%s/index=%s-%d", r.test, r.setup, r.subject, runtime.GOMAXPROCS(0))
}

// printBenchLines prints the rows in the format of "go test -bench", for tools/benchjson.
func (r *indexReport) printBenchLines(out io.Writer) {
	fmt.Fprintln(out, "\npkg: penstock/bench/index")
	for _, row := range r.rows {
		var b strings.Builder
		fmt.Fprintf(&b, "Benchmark%s 1", row.benchmarkName())
		for _, m := range row.metrics {
			fmt.Fprintf(&b, " %.6g %s", m.value, m.unit)
		}
		fmt.Fprintln(out, b.String())
	}
}

// printJSON prints the rows as one document.
func (r *indexReport) printJSON(out io.Writer) error {
	type object struct {
		Name    string             `json:"name"`
		Metrics map[string]float64 `json:"metrics"`
	}
	doc := struct {
		Notes []string `json:"notes"`
		Rows  []object `json:"rows"`
	}{Notes: r.notes}
	for _, row := range r.rows {
		o := object{row.benchmarkName(), map[string]float64{}}
		for _, m := range row.metrics {
			o.Metrics[m.unit] = m.value
		}
		doc.Rows = append(doc.Rows, o)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", " ")
	return enc.Encode(doc)
}
