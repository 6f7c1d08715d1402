package responses

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxSchemaName = 64 // bytes

	maxMetadata      = 16  // pairs
	maxMetadataKey   = 64  // characters, as OpenAI bounds them
	maxMetadataValue = 512 // characters
)

// format is text.format.
type format struct {
	kind        api.FormatKind
	name        string
	description *string
	schema      []byte // without the space between tokens
	strict      *bool
}

// textTable has the members of text.
var textTable = api.NewTable([]itemRow{
	{Name: "verbosity", Read: func(d *itemsDecoder) (err error) { // a hint for the length of the answer, which repeats it
		d.req.echo.verbosity, err = d.ReadWord("low", "medium", "high")
		return err
	}},
	{Name: "format", Read: (*itemsDecoder).readFormat},
})

// readFormat reads the required format of the text of the answer.
func (d *itemsDecoder) readFormat() error {
	kind, err := d.PeekType()
	if err != nil {
		return err
	}
	f := &d.req.echo.format
	switch kind {
	case "text":
		f.kind = api.FormatText
	case "json_object":
		f.kind = api.FormatJSON
	case "json_schema":
		f.kind = api.FormatSchema
	default:
		return d.InvalidError("needs a 'type' of text, json_object or json_schema")
	}
	if err := d.ReadMembers(func(key string) error { return d.readFormatField(f, key) }); err != nil {
		return err
	}
	if f.kind == api.FormatText {
		return nil
	}
	if f.kind == api.FormatSchema {
		switch {
		case f.name == "":
			return d.InvalidError("needs a 'name'")
		case f.schema == nil:
			return d.InvalidError("needs a 'schema'")
		}
	}
	d.req.Format = api.Format{Kind: f.kind, Schema: f.schema, Param: d.ParamPath()}
	return nil
}

func (d *itemsDecoder) readFormatField(f *format, key string) error {
	if key == "type" {
		return d.SkipValue()
	}
	if f.kind != api.FormatSchema {
		return d.UnsupportedError()
	}
	switch key {
	case "name":
		if err := d.ReadStringInto(&f.name); err != nil {
			return err
		}
		if !api.IsValidName(f.name, maxSchemaName, "_-") {
			return d.InvalidError("must be 1 to %d letters, digits, underscores or dashes", maxSchemaName)
		}
		return nil
	case "schema":
		return d.readCompactObject(&f.schema)
	case "description":
		return d.ReadOptional(&f.description)
	case "strict":
		f.strict = new(bool)
		return d.ReadBoolInto(f.strict)
	}
	return d.UnsupportedError()
}

// readCompactObject reads an object and keeps a copy without the space between tokens: a newline would end an
// event.
func (d *itemsDecoder) readCompactObject(dst *[]byte) error {
	text, err := d.ReadRawObject()
	if err == nil {
		*dst = compact(text)
	}
	return err
}

// compact copies valid JSON without the space between tokens.
func compact(text []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(text))
	// An error would mean that text is not JSON, and a Reader has validated it.
	_ = json.Compact(&b, text)
	return b.Bytes()
}

// readMetadata reads an object of strings, which the answer repeats.
func (d *itemsDecoder) readMetadata() error {
	e := &d.req.echo
	n := 0
	return d.ReadObject(func(key string) error {
		value, err := d.ReadString()
		if err != nil {
			return err
		}
		switch n++; {
		case n > maxMetadata:
			return d.ParentInvalidError("must have at most %d keys", maxMetadata)
		case exceeds(key, maxMetadataKey):
			return d.ParentInvalidError("must have keys of at most %d characters", maxMetadataKey)
		case exceeds(value, maxMetadataValue):
			return d.InvalidError("must have at most %d characters", maxMetadataValue)
		case n > 1:
			e.metadata = append(e.metadata, ',')
		}
		e.metadata = strictjson.AppendString(e.metadata, key)
		e.metadata = append(e.metadata, ':')
		e.metadata = strictjson.AppendString(e.metadata, value)
		return nil
	})
}

// exceeds reports whether s has more than most characters.
func exceeds(s string, most int) bool {
	return len(s) > most && utf8.RuneCountInString(s) > most
}
