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
type tableColumn struct {
	name string
	use  columnUse
}

// columnUse says how a reader uses a column.
type columnUse uint8

const (
	requiredColumn columnUse = iota
	optionalColumn
	ignoredColumn // not needed for a request
)

// csvTable reads a CSV file by the column names in its first row. A row is one line: no supported format has
// line breaks within values.
type csvTable struct {
	lines         lineReader
	format        Format
	columns       []tableColumn
	ignoreUnknown bool

	positions []int // the position of each column in a row; -1 if it is missing
	width     int   // of the header; 0 before it was read
	values    []string

	parseRow func(r *replay.Request) error // parses the row in values
	skipped  int
}

func newCSVTable(from *bufio.Reader, format Format, columns []tableColumn, opts *Options) csvTable {
	return csvTable{lines: lineReader{from: from}, format: format, columns: columns, ignoreUnknown: opts.IgnoreUnknown}
}

// nextRow reads the next row of a request with a response.
func (t *csvTable) nextRow(r *replay.Request) error {
	for {
		if err := t.splitNext(); err != nil {
			return err
		}
		*r = replay.Request{Line: t.lines.number}
		if err := t.parseRow(r); err != nil {
			return err
		}
		if r.Input > 0 && r.Output > 0 {
			return nil
		}
		t.skipped++
	}
}

func (t *csvTable) failedRows() int { return t.skipped }

// splitNext reads the next row into values.
func (t *csvTable) splitNext() error {
	if t.width == 0 {
		if err := t.readHeader(); err != nil {
			return err
		}
	}
	line, err := t.lines.nextLine()
	if err != nil {
		return err
	}
	if t.values, err = splitRow(t.values[:0], string(line)); err != nil {
		return t.failAtLine(err)
	}
	if len(t.values) != t.width {
		return t.failAtLine(fmt.Errorf("has %d values where the header has %d columns", len(t.values), t.width))
	}
	return nil
}

func (t *csvTable) failAtLine(err error) error { return errorAtLine(t.lines.number, err) }

// readHeader reads the names of the columns.
func (t *csvTable) readHeader() error {
	line, err := t.lines.nextLine()
	if err == io.EOF {
		return errors.New("is empty")
	}
	if err != nil {
		return err
	}
	names, err := splitRow(nil, string(line))
	if err != nil {
		return t.failAtLine(err)
	}
	if err := t.locateColumns(names); err != nil {
		return t.failAtLine(err)
	}
	t.width = len(names)
	return nil
}

// locateColumns finds the columns among the names of the header.
func (t *csvTable) locateColumns(names []string) error {
	t.positions = make([]int, len(t.columns))
	known := make([]bool, len(names))
	var missing []string
	for i, c := range t.columns {
		t.positions[i] = indexOf(names, c.name)
		switch at := t.positions[i]; {
		case at < 0 && c.use == requiredColumn:
			missing = append(missing, c.name)
		case at >= 0 && indexOf(names[at+1:], c.name) >= 0:
			return fmt.Errorf("column '%s' is there twice", c.name)
		case at >= 0:
			known[at] = true
		}
	}
	if missing != nil {
		return fmt.Errorf("lacks %s, which the header of the format %s has", quoteNames(missing), t.format)
	}
	for i, name := range names {
		if !known[i] && !t.ignoreUnknown {
			return fmt.Errorf("column %d, '%s', is none of the format %s; remove it, or have unknown columns ignored", i+1, clipName(name), t.format)
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
func (t *csvTable) columnValue(column int) string {
	if t.positions[column] < 0 {
		return ""
	}
	return strings.TrimSpace(t.values[t.positions[column]])
}

// readCount reads a column as a count.
func (t *csvTable) readCount(column, limit int) (int, error) {
	n, err := parseCount(t.columnValue(column), limit)
	if err != nil {
		return 0, t.columnError(column, err)
	}
	return n, nil
}

// columnError adds the column to an error.
func (t *csvTable) columnError(column int, err error) error {
	return t.failAtLine(fmt.Errorf("column %d, '%s', %w", t.positions[column]+1, t.columns[column].name, err))
}

// splitRow appends the values of a line. A quoted value may have commas, and doubled quotation marks.
func splitRow(dst []string, line string) ([]string, error) {
	for {
		if strings.HasPrefix(line, `"`) {
			value, rest, err := parseQuoted(line[1:])
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
func parseQuoted(line string) (value, rest string, err error) {
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

// recentMap is a bounded map: it keeps the last recentKeys keys which were set, and at most twice as many.
type recentMap[V any] struct {
	young, old map[string]V
}

const recentKeys = 1 << 19

func (m *recentMap[V]) get(key string) (V, bool) {
	v, ok := m.young[key]
	if !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

func (m *recentMap[V]) set(key string, v V) {
	if len(m.young) >= recentKeys {
		m.old, m.young = m.young, nil
	}
	if m.young == nil {
		m.young = map[string]V{}
	}
	m.young[key] = v
}
