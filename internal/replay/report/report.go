// Package report formats a [replay.Result] for people and programs: a table for a terminal, JSON, CSV, an
// HTML page with plots, and the comparison of two results.
//
// The contents of a result are untrusted: policy names are flags, error kinds may come from a server, a
// compared file from anyone. So each format escapes every text in its own way: the table writes no control
// characters, the CSV no formulas, the page only text. The same result gives the same bytes.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"penstock/internal/replay"
)

// WriteJSON writes r in one line, in the format of [Read]. Numbers without a JSON form (NaN, infinities) are
// an error.
func WriteJSON(w io.Writer, r *replay.Result) error {
	out := *r
	if out.Rows == nil {
		out.Rows = []replay.Row{} // rows is always an array
	}
	data, err := json.Marshal(&out)
	if err != nil {
		return fmt.Errorf("report json: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}
