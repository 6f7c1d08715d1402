package remote

import (
	"bytes"
	"errors"

	"penstock/internal/strictjson"
)

// errBody says that a client's request is no object.
var errBody = errors.New("the body is not a JSON object")

// errKey says that a name of a client's request could be read as another one.
var errKey = errors.New("the names of the body's members must be written without escapes")

// edited is a client's request as the engine gets it.
type edited struct {
	body []byte
	// usage says that the stream was made to tell its usage, which the client had not asked for.
	usage bool
	salt  string // cache_salt
}

// member is the place of a member of an object: of its key and value.
type member struct{ from, value, to int }

// edit appends to dst the object body with the model's name replaced and, for a stream of the APIs that
// tell their usage only when asked to, the wish for it. All else stays byte by byte.
func edit(dst, body []byte, model string, askUsage string) (edited, error) {
	var e edited
	var name, options member
	var asked bool
	c := NewCursor(body)
	if !c.Is('{') {
		return e, errBody
	}
	open, members := 0, 0
	for c.Open('{'); c.More('}'); members++ {
		if members == 0 {
			open = bytes.IndexByte(body, '{') + 1
		}
		c.Is('"')
		from := c.Pos()
		key := c.Key()
		if bytes.IndexByte(key, '\\') >= 0 {
			return e, errKey // it might be one of those below, in another spelling
		}
		c.Is(0)
		value := c.Pos()
		switch string(key) {
		case "model":
			c.Skip()
			name = member{from, value, c.Pos()}
		case "cache_salt":
			if c.Is('"') {
				e.salt = c.Text()
			} else {
				c.Skip()
			}
		case "stream_options":
			asked = wantsUsage(c.Raw())
			options = member{from, value, c.Pos()}
		default:
			c.Skip()
		}
	}
	if c.End() != nil {
		return e, errBody
	}
	e.usage = askUsage != "" && !asked
	at := 0
	put := func(m member, value []byte) {
		dst = append(dst, body[at:m.value]...)
		dst = append(dst, value...)
		at = m.to
	}
	quoted := strictjson.AppendString(nil, model)
	wish := []byte(askUsage)
	switch first := name.to > 0; {
	case first && e.usage && options.to > 0 && options.from < name.from:
		put(options, wish)
		put(name, quoted)
	default:
		if first {
			put(name, quoted)
		}
		if e.usage && options.to > 0 {
			put(options, wish)
		}
	}
	// What is missing goes to the front.
	var front []byte
	if name.to == 0 {
		front = append(append(front, `"model":`...), quoted...)
	}
	if e.usage && options.to == 0 {
		if len(front) > 0 {
			front = append(front, ',')
		}
		front = append(append(front, `"stream_options":`...), wish...)
	}
	dst = append(dst, body[at:]...)
	if len(front) > 0 {
		if members > 0 {
			front = append(front, ',')
		} else {
			open = bytes.IndexByte(body, '{') + 1
		}
		dst = append(dst[:open], append(front, dst[open:]...)...)
	}
	e.body = dst
	return e, nil
}

// wantsUsage reports whether stream_options have include_usage.
func wantsUsage(options []byte) bool {
	c := NewCursor(options)
	wants := false
	if !c.Is('{') {
		return false
	}
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "include_usage" {
			wants = string(c.Raw()) == "true"
		} else {
			c.Skip()
		}
	}
	return wants && c.End() == nil
}
