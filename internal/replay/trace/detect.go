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
func (w *Workload) detectFormat() error {
	file, err := w.openText() // an unreadable file fails here
	if err != nil {
		return err
	}
	if w.format = w.opts.Format; w.format == "" {
		var h *fileHead
		if h, err = readFileHead(file.Reader); err == nil {
			w.format, err = h.matchFormat()
		}
	}
	return errors.Join(err, file.Close())
}

// fileHead describes the start of a file.
type fileHead struct {
	first byte // first byte which is not space
	line  int
	// The keys of a first line which is a JSON object; err says why it is not one.
	keys map[string]bool
	err  error
	// columns are the names of a first line which is a table header.
	columns []string
}

func readFileHead(from *bufio.Reader) (*fileHead, error) {
	first, err := skipSpace(from)
	if err == io.EOF {
		return nil, errors.New("is empty")
	}
	if err != nil {
		return nil, err
	}
	h := &fileHead{first: first.byte, line: first.line}
	if h.first == '[' {
		return h, nil // possibly all on one line
	}
	l := lineReader{from: from, number: first.line - 1}
	line, err := l.nextLine()
	if err != nil {
		return nil, err
	}
	if h.first == '{' {
		h.keys, h.err = objectKeys(line)
		return h, nil
	}
	h.columns, h.err = splitRow(nil, string(line))
	return h, nil
}

// bytePosition is a byte and its line.
type bytePosition struct {
	byte byte
	line int
}

// skipSpace skips space and returns the next byte without consuming it.
func skipSpace(from *bufio.Reader) (bytePosition, error) {
	line := 1
	for {
		c, err := from.ReadByte()
		switch {
		case err != nil:
			return bytePosition{}, err
		case c == '\n':
			line++
		case !isSpace(c):
			return bytePosition{c, line}, from.UnreadByte()
		}
	}
}

func objectKeys(line []byte) (map[string]bool, error) {
	keys := map[string]bool{}
	json, err := strictjson.NewReader(line)
	if err == nil {
		err = json.ReadObject(func(key string) error {
			keys[key] = true
			return json.SkipValue()
		})
	}
	if err == nil {
		err = json.CheckEnd()
	}
	if err != nil {
		return nil, jsonError("the row", err)
	}
	return keys, nil
}

// matchFormat returns the first matching format, or an error with the mismatch of each.
func (h *fileHead) matchFormat() (Format, error) {
	var reasons []string
	for _, f := range Formats() {
		reason := h.describeMismatch(f)
		if reason == "" {
			return f, nil
		}
		reasons = append(reasons, string(f)+": "+reason)
	}
	return "", fmt.Errorf("line %d fits no format (%s)", h.line, strings.Join(reasons, "; "))
}

// describeMismatch says why the file is not of a format; "" if it matches.
func (h *fileHead) describeMismatch(f Format) string {
	switch f {
	case Azure:
		return h.describeTableMismatch(azureColumns())
	case BurstGPT:
		return h.describeTableMismatch(burstColumns())
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
		return describeMissing([]string{"chat_id", "parent_chat_id", "input_length"}, func(name string) bool { return h.keys[name] })
	case h.keys["chat_id"]:
		return "has 'chat_id'"
	}
	prompts := []string{"input_length", "text_input", "messages", "token_ids", "payload"}
	for _, name := range prompts {
		if h.keys[name] {
			return ""
		}
	}
	return "has none of " + quoteNames(prompts)
}

func (h *fileHead) describeTableMismatch(spec []tableColumn) string {
	if h.columns == nil {
		return "no CSV header"
	}
	var needed []string
	for _, c := range spec {
		if c.use == requiredColumn {
			needed = append(needed, c.name)
		}
	}
	return describeMissing(needed, func(name string) bool { return indexOf(h.columns, name) >= 0 })
}

// describeMissing lists the missing names.
func describeMissing(names []string, there func(string) bool) string {
	var missing []string
	for _, name := range names {
		if !there(name) {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return ""
	}
	return "lacks " + quoteNames(missing)
}
