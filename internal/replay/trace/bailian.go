package trace

import (
	"bufio"
	"fmt"
	"math"
	"time"
)

// newBailianDecoder reads the rows of the Bailian traces.
func newBailian(from *bufio.Reader, opts *Options) *rows {
	d := newRows(from, Bailian, opts)
	if d.blockSize == 0 {
		d.blockSize = bailianBlock
	}
	d.unit = time.Second
	d.define, d.check = d.bailianField, d.checkBailian
	return d
}

func (d *rows) bailianField(key string) error {
	r, row := d.r, &d.row
	switch key {
	case "chat_id":
		return d.id(&row.id)
	case "parent_chat_id":
		return d.parentChat()
	case "timestamp":
		row.time = true
		return d.time(&r.At, d.unit)
	case "input_length":
		return d.promptLength()
	case "output_length":
		row.output = true
		return d.count(&r.Output, maxTokens)
	case "type":
		return d.json.Skip()
	case "turn":
		return d.count(&row.turn, math.MaxInt32)
	case "hash_ids":
		return d.hashes()
	}
	return d.unknown()
}

func (d *rows) promptLength() error {
	if err := d.prompt(); err != nil {
		return err
	}
	return d.promptField("input_length")
}

// readParentChat reads the id of the previous chat; -1 and null are none.
func (d *rows) parentChat() error {
	if null, err := d.json.Null(); null || err != nil {
		return err
	}
	if err := d.id(&d.row.parent); err != nil {
		return err
	}
	if d.row.parent == "-1" {
		d.row.parent = ""
	}
	return nil
}

func (d *rows) checkBailian() error {
	row := &d.row
	var missing []string
	for _, f := range []struct {
		name  string
		there bool
	}{
		{"chat_id", row.id != ""},
		{"timestamp", row.time},
		{"input_length", row.content != ""},
		{"output_length", row.output},
		{"hash_ids", row.hashes},
	} {
		if !f.there {
			missing = append(missing, f.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("lacks %s", quote(missing))
	}
	return nil
}
