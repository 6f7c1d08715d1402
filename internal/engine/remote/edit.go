package remote

import (
	"bytes"
	"errors"
	"slices"

	"penstock/internal/strictjson"
)

// errBody says that a client's request is no object.
var errBody = errors.New("the body is not a JSON object")

// errKey says that a name of a client's request could be read as another one.
var errKey = errors.New("the names of the body's members must be written without escapes")

// member is where the value of a member of an object begins and ends.
type member struct{ value, to int }

// edited is a client's request as the engine gets it.
type edited struct {
	body []byte
	// usage says that the stream was made to tell its usage, which the client had not asked for.
	usage bool
	salt  string // cache_salt
	// told says that the engine is told the keys of the media.
	told bool
}

// wishes are what is changed of a client's request.
type wishes struct {
	model string
	usage string // what makes a stream tell its usage; "" is nothing
	// names are what the engine is to call the media of the request, in their order; nil leaves that to the engine.
	names []string
}

// patch replaces a part of a body.
type patch struct {
	from, to int
	with     []byte
}

// editor reads a client's request and notes what is to be changed, in the order of the body.
type editor struct {
	c       Cursor
	patches []patch
	places  []place // of the media
	members int     // of the object
}

// edit appends to dst the object body as w wants it: the model's name, that streams tell their usage, and who its
// media are. All else stays byte by byte, but that names which the client itself gave to media never reach the
// engine: whoever knows one could have what another client showed under it.
func edit(dst, body []byte, w *wishes) (edited, error) {
	e := editor{c: NewCursor(body)}
	out, name, options, asked, err := e.read(w)
	if err != nil {
		return out, err
	}
	open := bytes.IndexByte(body, '{') + 1
	out.usage = w.usage != "" && !asked
	quoted := strictjson.AppendString(nil, w.model)
	var front []byte
	add := func(member string, value []byte) {
		front = append(append(append(append(front, '"'), member...), '"', ':'), value...)
		front = append(front, ',')
	}
	if name.to > 0 {
		e.patches = append(e.patches, patch{name.value, name.to, quoted})
	} else {
		add("model", quoted)
	}
	switch {
	case !out.usage:
	case options.to > 0:
		e.patches = append(e.patches, patch{options.value, options.to, []byte(w.usage)})
	default:
		add("stream_options", []byte(w.usage))
	}
	if len(front) > 0 {
		if e.members == 0 {
			front = front[:len(front)-1]
		}
		e.patches = append(e.patches, patch{open, open, front})
	}
	out.told = e.name(w.names)
	slices.SortStableFunc(e.patches, func(a, b patch) int { return a.from - b.from })
	out.body = apply(dst, body, e.patches)
	return out, nil
}

// apply appends body to dst with its patches, which are in order.
func apply(dst, body []byte, patches []patch) []byte {
	size, at := len(body), 0
	for _, p := range patches {
		size += len(p.with)
	}
	dst = slices.Grow(dst, size)
	for _, p := range patches {
		dst = append(append(dst, body[at:p.from]...), p.with...)
		at = p.to
	}
	return append(dst, body[at:]...)
}

// read goes through the members of the object.
func (e *editor) read(w *wishes) (out edited, name, options member, asked bool, err error) {
	c := &e.c
	if !c.Is('{') {
		return out, name, options, false, errBody
	}
	for c.Open('{'); c.More('}'); e.members++ {
		key, err := e.key()
		if err != nil {
			return out, name, options, false, err
		}
		c.Is(0)
		value := c.Pos()
		switch string(key) {
		case "model":
			c.Skip()
			name = member{value, c.Pos()}
		case "cache_salt":
			if c.Is('"') {
				out.salt = c.Text()
			} else {
				c.Skip()
			}
		case "stream_options":
			asked = wantsUsage(c.Raw())
			options = member{value, c.Pos()}
		case "messages", "input":
			err = e.messages()
		case "mm_hashes", "mm_content_hashes", "multi_modal_uuids":
			c.Skip()
			e.patches = append(e.patches, patch{value, c.Pos(), null})
		default:
			c.Skip()
		}
		if err != nil {
			return out, name, options, false, err
		}
	}
	if c.End() != nil {
		return out, name, options, false, errBody
	}
	return out, name, options, asked, nil
}

// key reads the name of a member.
func (e *editor) key() ([]byte, error) {
	key := e.c.Key()
	if bytes.IndexByte(key, '\\') >= 0 {
		return nil, errKey // it might be one of those that matter, in another spelling
	}
	return key, nil
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
