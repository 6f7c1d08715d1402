package trace

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"penstock/internal/replay"
	"penstock/internal/strictjson"
)

// newMooncakeDecoder reads rows of the Mooncake traces with the format's additional fields.
func newMooncake(from *bufio.Reader, opts *Options) *rows {
	d := newRows(from, Mooncake, opts)
	if d.blockSize == 0 {
		d.blockSize = mooncakeBlock
	}
	d.unit = time.Millisecond
	d.define, d.check = d.mooncakeField, d.checkMooncake
	return d
}

// readMooncakeField reads the value of one field.
func (d *rows) mooncakeField(key string) error {
	switch key {
	case "timestamp":
		d.row.time = true
		return d.time(&d.r.At, d.unit)
	case "delay":
		d.row.delay = true
		return d.time(&d.r.Delay, time.Millisecond)
	case "input_length", "text_input", "messages", "token_ids", "payload":
		if err := d.prompt(); err != nil {
			return err
		}
		return d.promptField(key)
	case "output_length":
		d.row.output = true
		return d.count(&d.r.Output, maxTokens)
	case "hash_ids":
		return d.hashes()
	case "block_size":
		if err := d.count(&d.row.blockSize, maxBlockSize); err != nil {
			return err
		}
		if d.row.blockSize == 0 {
			return d.about(errors.New("must be at least 1"))
		}
		return nil
	case "tools":
		return d.rawArray((*[]byte)(&d.r.Tools))
	case "extra":
		return d.rawObject((*[]byte)(&d.r.Extra))
	case "images", "audio", "audios", "video", "videos":
		return d.mediaField(key)
	}
	return d.routingField(key)
}

// readPromptField reads a field with the prompt's content.
func (d *rows) promptField(key string) error {
	r := d.r
	switch key {
	case "input_length":
		if err := d.count(&r.Input, maxTokens); err != nil {
			return err
		}
		if r.Input == 0 {
			return d.about(errors.New("must be at least 1"))
		}
	case "text_input":
		if err := d.json.Text(&r.Text); err != nil {
			return err
		}
		if r.Text == "" {
			return d.about(errors.New("must not be empty"))
		}
	case "messages":
		if err := d.rawArray((*[]byte)(&r.Messages)); err != nil {
			return err
		}
	case "payload":
		if err := d.rawObject((*[]byte)(&r.Payload)); err != nil {
			return err
		}
	case "token_ids":
		return d.tokenIDs()
	}
	return nil
}

func (d *rows) tokenIDs() error {
	array, err := d.array("an array of integers")
	if err != nil {
		return err
	}
	wrong := -1
	if d.tokens, wrong = appendIntegers(d.tokens, array, math.MaxUint32); wrong >= 0 {
		return fmt.Errorf("'token_ids[%d]' must be an integer between 0 and %d", wrong, uint32(math.MaxUint32))
	}
	if n := len(d.tokens); n == 0 || n > maxTokens {
		return d.about(fmt.Errorf("must have between 1 and %d ids, not %d", maxTokens, n))
	}
	d.r.Tokens = d.tokens
	return nil
}

// readRoutingField reads a field about the session, the times or the destination of a request.
func (d *rows) routingField(key string) error {
	r, row := d.r, &d.row
	switch key {
	case "session_id":
		return d.id(&r.Session)
	case "turn":
		return d.count(&row.turn, math.MaxInt32)
	case "id":
		return d.id(&row.id)
	case "parent":
		return d.id(&row.parent)
	case "priority":
		return d.json.Integer(&r.Priority, math.MinInt32, math.MaxInt32)
	case "model":
		if row.adapter {
			return d.json.Skip()
		}
		return d.name(&r.Model)
	case "lora":
		row.adapter = true
		return d.name(&r.Model)
	case "cache_salt":
		return d.name(&r.Salt)
	case "message_mode":
		var mode string
		if err := d.json.Text(&mode); err != nil {
			return err
		}
		if mode != "history" {
			return d.about(errors.New(`must be "history": each row is sent as it stands, with the whole conversation so far`))
		}
		return nil
	}
	return d.unknown()
}

// readRawArray keeps the text of a non-empty array.
func (d *rows) rawArray(dst *[]byte) (err error) {
	if *dst, err = d.array("an array of objects"); err != nil {
		return err
	}
	if n, err := elements(*dst); err != nil {
		return d.about(err)
	} else if n == 0 {
		return d.about(errors.New("must not be empty"))
	}
	return nil
}

// countObjects counts the elements of an array of objects.
func elements(array []byte) (n int, err error) {
	json, err := strictjson.NewReader(array)
	if err != nil {
		return 0, err
	}
	err = json.Array("an array", func(int) error {
		n++
		if json.Kind() != strictjson.ObjectKind {
			return errors.New("must be an array of objects")
		}
		return json.Skip()
	})
	return n, err
}

func (d *rows) rawObject(dst *[]byte) (err error) {
	*dst, err = d.object()
	return err
}

// checkMooncake checks the fields of a row against one another.
func (d *rows) checkMooncake() error {
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
		r.Input = replay.TextTokens(len(r.Text))
	case "messages":
		r.Input = replay.TextTokens(len(r.Tools)) + replay.TextTokens(len(r.Messages))
	case "token_ids":
		r.Input = len(r.Tokens)
	case "payload":
		r.Input = replay.TextTokens(len(r.Payload))
	}
	return nil
}

// mediaKindOf returns the kind of media in a field.
func kindOf(field string) string {
	switch field {
	case "images":
		return "image"
	case "audio", "audios":
		return "audio"
	}
	return "video"
}

// readMediaField reads a list of media: objects, or only their URLs.
func (d *rows) mediaField(field string) error {
	return d.json.Array("an array", func(int) error {
		if len(d.media) == maxMedia {
			return d.json.RefuseParent("makes more than %d images, videos and pieces of audio", maxMedia)
		}
		m := replay.Media{Kind: kindOf(field)}
		if d.json.Kind() == strictjson.StringKind {
			if err := d.json.Text(&m.URL); err != nil {
				return err
			}
		} else if err := d.mediaObject(&m); err != nil {
			return err
		}
		switch {
		case m.ID == "" && m.URL != "":
			m.ID = m.URL
		case m.ID == "":
			m.ID = onlyHere(d.lines.number, len(d.media))
		}
		d.media = append(d.media, m)
		return nil
	})
}

func (d *rows) mediaObject(m *replay.Media) error {
	const maxPixels = 1 << 20 // per side
	return d.json.Object(func(key string) error {
		switch key {
		case "uuid", "hash":
			if m.ID != "" {
				return d.about(errors.New("says again what 'uuid' or 'hash' said; keep one"))
			}
			return d.id(&m.ID)
		case "width":
			return d.count(&m.Width, maxPixels)
		case "height":
			return d.count(&m.Height, maxPixels)
		case "tokens":
			return d.count(&m.Tokens, maxTokens)
		case "url":
			return d.json.Text(&m.URL)
		}
		return d.unknown()
	})
}

// uniqueMediaID is the id of the i-th image of a row without ids; it equals no other.
func onlyHere(line, i int) string { return "line " + strconv.Itoa(line) + " no. " + strconv.Itoa(i+1) }
