package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock/internal/strictjson"
)

// detect finds out the format, if it is not given, from the file's first row.
func (w *Workload) detect() error {
	file, err := w.reader() // which is where a file that cannot be read is found out
	if err != nil {
		return err
	}
	if w.format = w.opts.Format; w.format == "" {
		var h *head
		if h, err = readHead(file.Reader); err == nil {
			w.format, err = h.format()
		}
	}
	return errors.Join(err, file.Close())
}

// head is what the beginning of a file shows.
type head struct {
	first byte // that is not space
	line  int
	// Of a first line that is a JSON object, its keys; err says why it is none.
	keys map[string]bool
	err  error
	// columns are those of a first line that is the header of a table.
	columns []string
}

func readHead(from *bufio.Reader) (*head, error) {
	first, err := skipSpace(from)
	if err == io.EOF {
		return nil, errors.New("is empty")
	}
	if err != nil {
		return nil, err
	}
	h := &head{first: first.byte, line: first.line}
	if h.first == '[' {
		return h, nil // which may be all on one line
	}
	l := lines{from: from, number: first.line - 1}
	line, err := l.next()
	if err != nil {
		return nil, err
	}
	if h.first == '{' {
		h.keys, h.err = keysOf(line)
		return h, nil
	}
	h.columns, h.err = splitRow(nil, string(line))
	return h, nil
}

// place is a byte and the line that it is on.
type place struct {
	byte byte
	line int
}

// skipSpace steps over space and returns what is behind it, which is still to be
// read.
func skipSpace(from *bufio.Reader) (place, error) {
	line := 1
	for {
		c, err := from.ReadByte()
		switch {
		case err != nil:
			return place{}, err
		case c == '\n':
			line++
		case !isSpace(c):
			return place{c, line}, from.UnreadByte()
		}
	}
}

func keysOf(line []byte) (map[string]bool, error) {
	keys := map[string]bool{}
	json, err := strictjson.NewReader(line)
	if err == nil {
		err = json.Object(func(key string) error {
			keys[key] = true
			return json.Skip()
		})
	}
	if err == nil {
		err = json.End()
	}
	if err != nil {
		return nil, jsonError("the row", err)
	}
	return keys, nil
}

// format returns the first format that fits, or for each why it does not.
func (h *head) format() (Format, error) {
	var reasons []string
	for _, f := range Formats() {
		reason := h.against(f)
		if reason == "" {
			return f, nil
		}
		reasons = append(reasons, string(f)+": "+reason)
	}
	return "", fmt.Errorf("line %d fits no format (%s)", h.line, strings.Join(reasons, "; "))
}

// against returns what speaks against a format; "" if nothing does.
func (h *head) against(f Format) string {
	switch f {
	case Azure:
		return h.againstTable(azureColumns())
	case BurstGPT:
		return h.againstTable(burstColumns())
	case ShareGPT:
		if h.first == '[' || h.keys["conversations"] {
			return ""
		}
		return "no array of conversations"
	}
	switch {
	case h.first != '{':
		return "no JSON object"
	case h.err != nil:
		return h.err.Error()
	case f == Bailian:
		return lacking([]string{"chat_id", "parent_chat_id", "input_length"}, func(name string) bool { return h.keys[name] })
	case h.keys["chat_id"]:
		return "has 'chat_id'"
	}
	prompts := []string{"input_length", "text_input", "messages", "token_ids", "payload"}
	for _, name := range prompts {
		if h.keys[name] {
			return ""
		}
	}
	return "has none of " + quote(prompts)
}

func (h *head) againstTable(spec []column) string {
	if h.columns == nil {
		return "no CSV header"
	}
	var needed []string
	for _, c := range spec {
		if c.use == required {
			needed = append(needed, c.name)
		}
	}
	return lacking(needed, func(name string) bool { return indexOf(h.columns, name) >= 0 })
}

// lacking says which of the names are not there.
func lacking(names []string, there func(string) bool) string {
	var missing []string
	for _, name := range names {
		if !there(name) {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return ""
	}
	return "lacks " + quote(missing)
}
