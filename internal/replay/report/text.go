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
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/internal/replay"
)

// absentFigure replaces a missing figure.
const absentFigure = "–"

// sanitizeText returns s as one line which is safe to show in a terminal: white space becomes spaces, and
// unprintable characters (escape sequences, marks which change the direction of writing) are escaped. It
// keeps at most limit runes of s.
func sanitizeText(s string, limit int) string {
	var b strings.Builder
	n := 0
	for i := 0; i < len(s); n++ {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case n == limit:
			b.WriteString("…")
			return b.String()
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		case !unicode.IsPrint(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// The bounds of displayed texts, in runes.
const (
	nameLimit    = 48
	noteLimit    = 2000
	settingLimit = 500
)

// formatGrouped writes a number with the given decimals and a comma between the thousands.
func formatGrouped(v float64, decimals int) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, rest := s, ""
	if i := strings.IndexByte(s, '.'); i >= 0 {
		whole, rest = s[:i], s[i:]
	}
	var b strings.Builder
	if v < 0 && strings.Trim(s, "0.") != "" {
		b.WriteByte('-')
	}
	for i, c := range []byte(whole) {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteByte(c)
	}
	return b.String() + rest
}

// decimalsFor returns how many decimals leave v three significant digits, at most three.
func decimalsFor(v float64) int {
	switch v = math.Abs(v); {
	case v == 0 || v >= 99.95:
		return 0
	case v >= 9.995:
		return 1
	case v >= 0.9995:
		return 2
	}
	return 3
}

// formatShort writes v with three significant digits, more if it has more before the point.
func formatShort(v float64) string { return formatGrouped(v, decimalsFor(v)) }

func formatInt[N ~int | ~int64](n N) string { return formatGrouped(float64(n), 0) }

// formatPlural writes n things.
func formatPlural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatInt(n) + " " + many
}

// formatPercent writes a share.
func formatPercent(share float64) string { return formatGrouped(100*share, 1) + " %" }

// formatMilliseconds writes a time with its unit.
func formatMilliseconds(v float64) string {
	if math.Abs(v) >= 1000 {
		return formatShort(v/1000) + " s"
	}
	return formatShort(v) + " ms"
}

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
