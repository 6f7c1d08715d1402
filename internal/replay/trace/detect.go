package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"penstock/internal/strictjson"
)

// detectFormat detects the format, if not given, from the file's first row.
func (w *Workload) detect() error {
	file, err := w.reader() // an unreadable file fails here
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

// fileHead describes the start of a file.
type head struct {
	first byte // first byte which is not space
	line  int
	// The keys of a first line which is a JSON object; err says why it is not one.
	keys map[string]bool
	err  error
	// columns are the names of a first line which is a table header.
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
		return h, nil // possibly all on one line
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

// bytePosition is a byte and its line.
type place struct {
	byte byte
	line int
}

// skipSpace skips space and returns the next byte without consuming it.
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

// matchFormat returns the first matching format, or an error with the mismatch of each.
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

// describeMismatch says why the file is not of a format; "" if it matches.
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

// describeMissing lists the missing names.
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
