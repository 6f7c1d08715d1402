package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"penstock/internal/replay"
	"penstock/internal/strictjson"
)

// newMooncakeDecoder reads rows of the Mooncake traces with the format's additional fields.
func newMooncakeDecoder(from *bufio.Reader, opts *Options) *jsonRowDecoder {
	d := newJSONRowDecoder(from, Mooncake, opts)
	d.blockSize = cmp.Or(d.blockSize, mooncakeBlock)
	d.unit = time.Millisecond
	d.readField, d.checkRow = d.readMooncakeField, d.checkMooncake
	return d
}

// readMooncakeField reads the value of one field.
func (d *jsonRowDecoder) readMooncakeField(key string) error {
	switch key {
	case "timestamp":
		d.row.time = true
		return d.readTime(&d.r.At, d.unit)
	case "delay":
		d.row.delay = true
		return d.readTime(&d.r.Delay, time.Millisecond)
	case "input_length", "text_input", "messages", "token_ids", "payload":
		if err := d.setPromptField(); err != nil {
			return err
		}
		return d.readPromptField(key)
	case "output_length":
		d.row.output = true
		return d.readCount(&d.r.Output, maxTokens)
	case "hash_ids":
		return d.readBlockNames()
	case "block_size":
		if err := d.readCount(&d.row.blockSize, maxBlockSize); err != nil {
			return err
		}
		if d.row.blockSize == 0 {
			return d.fieldError(errors.New("must be at least 1"))
		}
		return nil
	case "tools":
		return d.readRawArray((*[]byte)(&d.r.Tools))
	case "extra":
		return d.readRawObject((*[]byte)(&d.r.Extra))
	case "images", "audio", "audios", "video", "videos":
		return d.readMediaField(key)
	}
	return d.readRoutingField(key)
}

// readPromptField reads a field with the prompt's content.
func (d *jsonRowDecoder) readPromptField(key string) error {
	r := d.r
	switch key {
	case "input_length":
		if err := d.readCount(&r.Input, maxTokens); err != nil {
			return err
		}
		if r.Input == 0 {
			return d.fieldError(errors.New("must be at least 1"))
		}
	case "text_input":
		if err := d.json.ReadStringInto(&r.Text); err != nil {
			return err
		}
		if r.Text == "" {
			return d.fieldError(errors.New("must not be empty"))
		}
	case "messages":
		if err := d.readRawArray((*[]byte)(&r.Messages)); err != nil {
			return err
		}
	case "payload":
		if err := d.readRawObject((*[]byte)(&r.Payload)); err != nil {
			return err
		}
	case "token_ids":
		return d.readTokenIDs()
	}
	return nil
}

func (d *jsonRowDecoder) readTokenIDs() error {
	array, err := d.readArray("an array of integers")
	if err != nil {
		return err
	}
	wrong := -1
	if d.tokens, wrong = appendIntegers(d.tokens, array, math.MaxUint32); wrong >= 0 {
		return fmt.Errorf("'token_ids[%d]' must be an integer between 0 and %d", wrong, uint32(math.MaxUint32))
	}
	if n := len(d.tokens); n == 0 || n > maxTokens {
		return d.fieldError(fmt.Errorf("must have between 1 and %d ids, not %d", maxTokens, n))
	}
	d.r.Tokens = d.tokens
	return nil
}

// readRoutingField reads a field about the session, the times or the destination of a request.
func (d *jsonRowDecoder) readRoutingField(key string) error {
	r, row := d.r, &d.row
	switch key {
	case "session_id":
		return d.readID(&r.Session)
	case "turn":
		return d.readCount(&row.turn, math.MaxInt32)
	case "id":
		return d.readID(&row.id)
	case "parent":
		return d.readID(&row.parent)
	case "priority":
		return d.json.ReadIntegerInto(&r.Priority, math.MinInt32, math.MaxInt32)
	case "model":
		if row.adapter {
			return d.json.SkipValue()
		}
		return d.readName(&r.Model)
	case "lora":
		row.adapter = true
		return d.readName(&r.Model)
	case "cache_salt":
		return d.readName(&r.Salt)
	case "message_mode":
		var mode string
		if err := d.json.ReadStringInto(&mode); err != nil {
			return err
		}
		if mode != "history" {
			return d.fieldError(errors.New(`must be "history": each row is sent as it stands, with the whole conversation so far`))
		}
		return nil
	}
	return d.skipUnknown()
}

// readRawArray keeps the text of a non-empty array.
func (d *jsonRowDecoder) readRawArray(dst *[]byte) (err error) {
	if *dst, err = d.readArray("an array of objects"); err != nil {
		return err
	}
	if n, err := countObjects(*dst); err != nil {
		return d.fieldError(err)
	} else if n == 0 {
		return d.fieldError(errors.New("must not be empty"))
	}
	return nil
}

// countObjects counts the elements of an array of objects.
func countObjects(array []byte) (n int, err error) {
	json, err := strictjson.NewReader(array)
	if err != nil {
		return 0, err
	}
	err = json.ReadArray("an array", func(int) error {
		n++
		if json.Kind() != strictjson.ObjectKind {
			return errors.New("must be an array of objects")
		}
		return json.SkipValue()
	})
	return n, err
}

func (d *jsonRowDecoder) readRawObject(dst *[]byte) (err error) {
	*dst, err = d.readObject()
	return err
}

// checkMooncake checks the fields of a row against one another.
func (d *jsonRowDecoder) checkMooncake() error {
	r, row := d.r, &d.row
	switch {
	case row.content == "":
		return errors.New("says nothing of the prompt: needs one of 'input_length', 'text_input', 'messages', 'token_ids', 'payload'")
	case row.hashes && row.content != "input_length":
		return fmt.Errorf("'hash_ids' needs 'input_length', not '%s'", row.content)
	case r.Tools != nil && r.Messages == nil:
		return errors.New("'tools' needs 'messages'")
	case row.time && row.delay:
		return errors.New("'timestamp' and 'delay' both say when the request is sent; keep one")
	case row.delay && r.Session == "" && row.parent == "":
		return errors.New("'delay' needs 'session_id' or 'parent': it is the time since the answer before")
	}
	switch row.content {
	case "text_input":
		r.Input = replay.CountTextTokens(len(r.Text))
	case "messages":
		r.Input = replay.CountTextTokens(len(r.Tools)) + replay.CountTextTokens(len(r.Messages))
	case "token_ids":
		r.Input = len(r.Tokens)
	case "payload":
		r.Input = replay.CountTextTokens(len(r.Payload))
	}
	return nil
}

// mediaKindOf returns the kind of media in a field.
func mediaKindOf(field string) string {
	switch field {
	case "images":
		return "image"
	case "audio", "audios":
		return "audio"
	}
	return "video"
}

// readMediaField reads a list of media: objects, or only their URLs.
func (d *jsonRowDecoder) readMediaField(field string) error {
	return d.json.ReadArray("an array", func(int) error {
		if len(d.media) == maxMedia {
			return d.json.ParentInvalidError("makes more than %d images, videos and pieces of audio", maxMedia)
		}
		m := replay.Media{Kind: mediaKindOf(field)}
		if d.json.Kind() == strictjson.StringKind {
			if err := d.json.ReadStringInto(&m.URL); err != nil {
				return err
			}
		} else if err := d.readMediaObject(&m); err != nil {
			return err
		}
		switch {
		case m.ID == "" && m.URL != "":
			m.ID = m.URL
		case m.ID == "":
			m.ID = uniqueMediaID(d.lines.number, len(d.media))
		}
		d.media = append(d.media, m)
		return nil
	})
}

func (d *jsonRowDecoder) readMediaObject(m *replay.Media) error {
	const maxPixels = 1 << 20 // per side
	return d.json.ReadObject(func(key string) error {
		switch key {
		case "uuid", "hash":
			if m.ID != "" {
				return d.fieldError(errors.New("says again what 'uuid' or 'hash' said; keep one"))
			}
			return d.readID(&m.ID)
		case "width":
			return d.readCount(&m.Width, maxPixels)
		case "height":
			return d.readCount(&m.Height, maxPixels)
		case "tokens":
			return d.readCount(&m.Tokens, maxTokens)
		case "url":
			return d.json.ReadStringInto(&m.URL)
		}
		return d.skipUnknown()
	})
}

// uniqueMediaID is the id of the i-th image of a row without ids; it equals no other.
func uniqueMediaID(line, i int) string {
	return "line " + strconv.Itoa(line) + " no. " + strconv.Itoa(i+1)
}
