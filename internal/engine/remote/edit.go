package remote

import (
	"bytes"
	"errors"
	"slices"

	"penstock/internal/strictjson"
)

// errBody says that a client's request is not an object.
var errBody = errors.New("the body is not a JSON object")

// errKey says that a member name of a client's request has an escape and might be read as another name.
var errKey = errors.New("the names of the body's members must be written without escapes")

// valueRange is where the value of a member of an object starts and ends.
type member struct{ value, to int }

// editedBody is a client's request as sent to the engine.
type edited struct {
	body []byte
	// usage says that the stream was made to report its usage, which the client had not asked for.
	usage bool
	salt  string // cache_salt
	// namesMedia says that the engine is sent the keys of the media.
	told bool
}

// editOptions are the changes to a client's request.
type wishes struct {
	model string
	usage string // the stream_options that report usage; "" is no change
	// names are the names of the request's media for the engine, in order; nil lets the engine choose.
	names []string
}

// bodyPatch replaces a part of a body.
type patch struct {
	from, to int
	with     []byte
}

// bodyEditor reads a client's request and records the changes in the order of the body.
type editor struct {
	c       Cursor
	patches []patch
	places  []place // parts that show media
	members int     // of the object
}

// editRequestBody appends the object body to dst with the changes of w: the model's name, usage reports of
// streams, and names of media. All other bytes stay the same, except that names which the client gave to
// media are removed: a client that knew such a name could get the media which another client sent under it.
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

// applyPatches appends body to dst with its patches, which are in order.
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

// readMembers reads the members of the object.
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

// readKey reads the name of a member.
func (e *editor) key() ([]byte, error) {
	key := e.c.Key()
	if bytes.IndexByte(key, '\\') >= 0 {
		return nil, errKey // it might be another spelling of a relevant name
	}
	return key, nil
}

// wantsUsage reports whether stream_options ask for usage (include_usage).
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
