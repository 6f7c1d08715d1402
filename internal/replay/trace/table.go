package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock/internal/replay"
)

// tableColumn is a column which a table can have.
type column struct {
	name string
	use  use
}

// columnUse says how a reader uses a column.
type use uint8

const (
	required use = iota
	optional
	ignored // not needed for a request
)

// csvTable reads a CSV file by the column names in its first row. A row is one line: no supported format has
// line breaks within values.
type table struct {
	lines         lines
	format        Format
	columns       []column
	ignoreUnknown bool

	at     []int // the position of each column in a row; -1 if it is missing
	width  int   // of the header; 0 before it was read
	values []string

	read    func(r *replay.Request) error // parses the row in values
	skipped int
}

func newTable(from *bufio.Reader, format Format, columns []column, opts *Options) table {
	return table{lines: lines{from: from}, format: format, columns: columns, ignoreUnknown: opts.IgnoreUnknown}
}

// nextRow reads the next row of a request with a response.
func (t *table) next(r *replay.Request) error {
	for {
		if err := t.split(); err != nil {
			return err
		}
		*r = replay.Request{Line: t.lines.number}
		if err := t.read(r); err != nil {
			return err
		}
		if r.Input > 0 && r.Output > 0 {
			return nil
		}
		t.skipped++
	}
}

func (t *table) failed() int { return t.skipped }

// splitNext reads the next row into values.
func (t *table) split() error {
	if t.width == 0 {
		if err := t.header(); err != nil {
			return err
		}
	}
	line, err := t.lines.next()
	if err != nil {
		return err
	}
	if t.values, err = splitRow(t.values[:0], string(line)); err != nil {
		return t.fail(err)
	}
	if len(t.values) != t.width {
		return t.fail(fmt.Errorf("has %d values where the header has %d columns", len(t.values), t.width))
	}
	return nil
}

func (t *table) fail(err error) error { return fail(t.lines.number, err) }

// readHeader reads the names of the columns.
func (t *table) header() error {
	line, err := t.lines.next()
	if err == io.EOF {
		return errors.New("is empty")
	}
	if err != nil {
		return err
	}
	names, err := splitRow(nil, string(line))
	if err != nil {
		return t.fail(err)
	}
	if err := t.place(names); err != nil {
		return t.fail(err)
	}
	t.width = len(names)
	return nil
}

// locateColumns finds the columns among the names of the header.
func (t *table) place(names []string) error {
	t.at = make([]int, len(t.columns))
	known := make([]bool, len(names))
	var missing []string
	for i, c := range t.columns {
		t.at[i] = indexOf(names, c.name)
		switch at := t.at[i]; {
		case at < 0 && c.use == required:
			missing = append(missing, c.name)
		case at >= 0 && indexOf(names[at+1:], c.name) >= 0:
			return fmt.Errorf("column '%s' is there twice", c.name)
		case at >= 0:
			known[at] = true
		}
	}
	if missing != nil {
		return fmt.Errorf("lacks %s, which the header of the format %s has", quote(missing), t.format)
	}
	for i, name := range names {
		if !known[i] && !t.ignoreUnknown {
			return fmt.Errorf("column %d, '%s', is none of the format %s; remove it, or have unknown columns ignored", i+1, clip(name), t.format)
		}
	}
	return nil
}

// indexOf finds a column by its name, ignoring case.
func indexOf(names []string, name string) int {
	for i, have := range names {
		if strings.EqualFold(strings.TrimSpace(have), name) {
			return i
		}
	}
	return -1
}

// columnValue returns the value of a column, an index of columns; "" if it is missing.
func (t *table) value(column int) string {
	if t.at[column] < 0 {
		return ""
	}
	return strings.TrimSpace(t.values[t.at[column]])
}

// readCount reads a column as a count.
func (t *table) count(column, limit int) (int, error) {
	n, err := parseCount(t.value(column), limit)
	if err != nil {
		return 0, t.wrong(column, err)
	}
	return n, nil
}

// columnError adds the column to an error.
func (t *table) wrong(column int, err error) error {
	return t.fail(fmt.Errorf("column %d, '%s', %w", t.at[column]+1, t.columns[column].name, err))
}

// splitRow appends the values of a line. A quoted value may have commas, and doubled quotation marks.
func splitRow(dst []string, line string) ([]string, error) {
	for {
		if strings.HasPrefix(line, `"`) {
			value, rest, err := quoted(line[1:])
			if err != nil {
				return nil, fmt.Errorf("value %d %w", len(dst)+1, err)
			}
			dst = append(dst, value)
			if rest == "" {
				return dst, nil
			}
			line = rest[1:]
			continue
		}
		comma := strings.IndexByte(line, ',')
		if comma < 0 {
			return append(dst, line), nil
		}
		dst, line = append(dst, line[:comma]), line[comma+1:]
	}
}

// parseQuoted reads a value after its opening quotation mark; rest starts with a comma or is empty.
func quoted(line string) (value, rest string, err error) {
	for from := 0; ; {
		mark := strings.IndexByte(line[from:], '"')
		if mark < 0 {
			return "", "", errors.New("has no closing quotation mark on its line")
		}
		end := from + mark
		switch rest := line[end+1:]; {
		case rest == "" || rest[0] == ',':
			return strings.ReplaceAll(line[:end], `""`, `"`), rest, nil
		case rest[0] == '"':
			from = end + 2
		default:
			return "", "", errors.New("goes on behind its closing quotation mark")
		}
	}
}
