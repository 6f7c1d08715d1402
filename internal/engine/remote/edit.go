package remote

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// errBody says that a client's request is not an object.
var errBody = errors.New("the body is not a JSON object")

// errKey says that a member name of a client's request has an escape and might be read as another name.
var errKey = errors.New("the names of the body's members must be written without escapes")

// valueRange is where the value of a member of an object starts and ends.
type valueRange struct{ start, end int }

// editedBody is a client's request as sent to the engine.
type editedBody struct {
	body []byte
	// usage says that the stream was made to report its usage, which the client had not asked for.
	usage bool
	salt  string // cache_salt
	// namesMedia says that the engine is sent the keys of the media.
	namesMedia bool
	// parts are the parts of the client's request which show media, in order.
	parts []mediaPart
	// processes says that the request has arguments of its own for the processing of media.
	processes bool
}

// editOptions are the changes to a client's request.
type editOptions struct {
	model string
	usage string // the stream_options that report usage; "" is no change
	// names are the names of the request's media for the engine, in order; nil lets the engine choose.
	names []string
	// encodings replaces the client's member encodingsKey; nil leaves it.
	encodings []byte
}

// encodingsKey is the member of a request by which an engine finds the media that another one encoded.
const encodingsKey = "ec_transfer_params"

// bodyPatch replaces a part of a body.
type bodyPatch struct {
	from, to int
	with     []byte
}

// bodyEditor reads a client's request and records the changes in the order of the body.
type bodyEditor struct {
	c         strictjson.Cursor
	patches   []bodyPatch
	parts     []mediaPart // parts that show media
	transfers bool        // encodingsKey was there
	members   int         // of the object
}

// editRequestBody appends the object body to dst with the changes of w: the model's name, usage reports of
// streams, and names of media. All other bytes stay the same, except that names which the client gave to
// media are removed: a client that knew such a name could get the media which another client sent under it.
func editRequestBody(dst, body []byte, w *editOptions) (editedBody, error) {
	e := bodyEditor{c: strictjson.NewCursor(body)}
	out, name, options, asked, err := e.readMembers(w)
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
	if name.end > 0 {
		e.patches = append(e.patches, bodyPatch{name.start, name.end, quoted})
	} else {
		add("model", quoted)
	}
	switch {
	case !out.usage:
	case options.end > 0:
		e.patches = append(e.patches, bodyPatch{options.start, options.end, []byte(w.usage)})
	default:
		add("stream_options", []byte(w.usage))
	}
	if w.encodings != nil && !e.transfers {
		add(encodingsKey, w.encodings)
	}
	if len(front) > 0 {
		if e.members == 0 {
			front = front[:len(front)-1]
		}
		e.patches = append(e.patches, bodyPatch{open, open, front})
	}
	out.namesMedia, out.parts = e.patchNames(w.names), e.parts
	slices.SortStableFunc(e.patches, func(a, b bodyPatch) int { return a.from - b.from })
	out.body = applyPatches(dst, body, e.patches)
	return out, nil
}

// applyPatches appends body to dst with its patches, which are in order.
func applyPatches(dst, body []byte, patches []bodyPatch) []byte {
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
func (e *bodyEditor) readMembers(w *editOptions) (out editedBody, name, options valueRange, asked bool, err error) {
	c := &e.c
	if !c.NextIs('{') {
		return out, name, options, false, errBody
	}
	for c.Open('{'); c.More('}'); e.members++ {
		key, err := e.readKey()
		if err != nil {
			return out, name, options, false, err
		}
		c.NextIs(0)
		value := c.Pos()
		switch string(key) {
		case "model":
			c.Skip()
			name = valueRange{value, c.Pos()}
		case "cache_salt":
			if c.NextIs('"') {
				out.salt = c.ReadString()
			} else {
				c.Skip()
			}
		case "stream_options":
			asked = wantsUsage(c.Raw())
			options = valueRange{value, c.Pos()}
		case "messages", "input":
			err = e.readMessages()
		case "mm_hashes", "mm_content_hashes", "multi_modal_uuids":
			c.Skip()
			e.patches = append(e.patches, bodyPatch{value, c.Pos(), null})
		case encodingsKey:
			c.Skip()
			if w.encodings != nil {
				e.transfers = true
				e.patches = append(e.patches, bodyPatch{value, c.Pos(), w.encodings})
			}
		case "mm_processor_kwargs", "media_io_kwargs":
			out.processes = string(c.Raw()) != "null" || out.processes
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
func (e *bodyEditor) readKey() ([]byte, error) {
	key := e.c.Key()
	if bytes.IndexByte(key, '\\') >= 0 {
		return nil, errKey // it might be another spelling of a relevant name
	}
	return key, nil
}

// wantsUsage reports whether stream_options ask for usage (include_usage).
func wantsUsage(options []byte) bool {
	c := strictjson.NewCursor(options)
	wants := false
	if !c.NextIs('{') {
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

// AppendFieldName appends a comma and the name of a field, which needs no escapes.
func AppendFieldName(b []byte, name string) []byte {
	return append(append(append(b, ',', '"'), name...), '"', ':')
}

// AppendFloatField appends a field with a number, see [strictjson.AppendFloat].
func AppendFloatField(b []byte, name string, v float64) []byte {
	return strictjson.AppendFloat(AppendFieldName(b, name), v)
}

// AppendIntField appends a field with an integer.
func AppendIntField(b []byte, name string, v int64) []byte {
	return strconv.AppendInt(AppendFieldName(b, name), v, 10)
}

// AppendStops appends min_tokens, ignore_eos and stop_token_ids where they are set.
func AppendStops(b []byte, p *SubRequest) []byte {
	if p.MinTokens > 0 {
		b = AppendIntField(b, "min_tokens", int64(p.MinTokens))
	}
	if p.Request.Stop.IgnoreEOS {
		b = append(AppendFieldName(b, "ignore_eos"), "true"...)
	}
	if len(p.Request.Stop.Tokens) > 0 {
		b = strictjson.AppendTokens(AppendFieldName(b, "stop_token_ids"), p.Request.Stop.Tokens)
	}
	return b
}

// AppendBiasField appends the field logit_bias, an object with numbers by token ids.
func AppendBiasField(b []byte, bias []engine.TokenBias) []byte {
	b = append(AppendFieldName(b, "logit_bias"), '{')
	for i, t := range bias {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendUint(append(b, '"'), uint64(t.Token), 10), '"', ':')
		b = strictjson.AppendFloat(b, float64(t.Bias))
	}
	return append(b, '}')
}
