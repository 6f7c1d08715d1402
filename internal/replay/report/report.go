// Package report makes what people and programs read of a [replay.Result]: a table
// for a terminal, JSON, CSV, a page of HTML with figures, and the comparison of
// two results.
//
// What a result holds comes from outside: names of policies are flags, kinds of
// errors may be a server's, a file given to compare is anybody's. So each form
// escapes every text in its own way: the table writes no control characters, the CSV
// no formulas, the page nothing but text. The same result gives the same bytes.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"penstock/internal/replay"
)

// JSON writes r in one line, as [Read] reads it. Numbers that JSON has no way to
// write (NaN, infinities) are an error.
func JSON(w io.Writer, r *replay.Result) error {
	out := *r
	if out.Rows == nil {
		out.Rows = []replay.Row{} // rows are an array, even without any
	}
	data, err := json.Marshal(&out)
	if err != nil {
		return fmt.Errorf("report json: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}
