package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"math"
	"time"
)

// newBailianDecoder reads the rows of the Bailian traces.
func newBailianDecoder(from *bufio.Reader, opts *Options) *jsonRowDecoder {
	d := newJSONRowDecoder(from, Bailian, opts)
	d.blockSize = cmp.Or(d.blockSize, bailianBlock)
	d.unit = time.Second
	d.readField, d.checkRow = d.readBailianField, d.checkBailian
	return d
}

func (d *jsonRowDecoder) readBailianField(key string) error {
	r, row := d.r, &d.row
	switch key {
	case "chat_id":
		return d.readID(&row.id)
	case "parent_chat_id":
		return d.readParentChat()
	case "timestamp":
		row.time = true
		return d.readTime(&r.At, d.unit)
	case "input_length":
		return d.readPromptLength()
	case "output_length":
		row.output = true
		return d.readCount(&r.Output, maxTokens)
	case "type":
		return d.json.SkipValue()
	case "turn":
		return d.readCount(&row.turn, math.MaxInt32)
	case "hash_ids":
		return d.readBlockNames()
	}
	return d.skipUnknown()
}

func (d *jsonRowDecoder) readPromptLength() error {
	if err := d.setPromptField(); err != nil {
		return err
	}
	return d.readPromptField("input_length")
}

// readParentChat reads the id of the previous chat; -1 and null are none.
func (d *jsonRowDecoder) readParentChat() error {
	if null, err := d.json.ReadNull(); null || err != nil {
		return err
	}
	if err := d.readID(&d.row.parent); err != nil {
		return err
	}
	if d.row.parent == "-1" {
		d.row.parent = ""
	}
	return nil
}

func (d *jsonRowDecoder) checkBailian() error {
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
		return fmt.Errorf("lacks %s", quoteNames(missing))
	}
	return nil
}
