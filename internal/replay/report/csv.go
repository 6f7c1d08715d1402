package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"penstock/internal/replay"
)

// WriteCSV writes a header and a record for each row of r by RFC 4180: CRLF ends the lines. The fields are
// the ones of [replay.Row]; nested fields are named after both, such as ttft_ms_p50; error_kinds is
// "kind=count" joined by semicolons. Missing values are empty. A text which a spreadsheet would take for a
// formula gets an apostrophe before it.
func WriteCSV(w io.Writer, r *replay.Result) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	header := []string{"command", "version"}
	flattenFields(reflect.ValueOf(replay.Row{}), "", func(name, _ string) { header = append(header, name) })
	if err := out.Write(header); err != nil {
		return err
	}
	for i := range r.Rows {
		record := []string{escapeFormula(r.Command), escapeFormula(r.Version)}
		flattenFields(reflect.ValueOf(r.Rows[i]), "", func(_, value string) { record = append(record, value) })
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// flattenFields calls visit with every field of v by its JSON name. The fields of a nil pointer are visited
// as empty.
func flattenFields(v reflect.Value, name string, visit func(name, value string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			flattenFields(v.Elem(), name, visit)
			return
		}
		flattenFields(reflect.Zero(v.Type().Elem()), name, func(name, _ string) { visit(name, "") })
	case reflect.Struct:
		for i := range v.NumField() {
			tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name != "" {
				tag = name + "_" + tag
			}
			flattenFields(v.Field(i), tag, visit)
		}
	case reflect.Map:
		counts, _ := v.Interface().(map[string]int)
		var parts []string
		for _, k := range keysByCount(counts) {
			parts = append(parts, k+"="+strconv.Itoa(counts[k]))
		}
		visit(name, escapeFormula(strings.Join(parts, ";")))
	case reflect.String:
		visit(name, escapeFormula(v.String()))
	case reflect.Float64:
		visit(name, strconv.FormatFloat(v.Float(), 'f', -1, 64))
	default:
		visit(name, fmt.Sprint(v.Interface()))
	}
}

// keysByCount returns the keys of counts, the most frequent first, then by name.
func keysByCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

// escapeFormula prevents a spreadsheet from evaluating a text.
func escapeFormula(s string) string {
	if s != "" && strings.IndexByte("=+-@\t\r\n", s[0]) >= 0 || strings.HasPrefix(s, "＝") || strings.HasPrefix(s, "＋") ||
		strings.HasPrefix(s, "－") || strings.HasPrefix(s, "＠") {
		return "'" + s
	}
	return s
}
