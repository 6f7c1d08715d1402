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

// text reads one field of text.
func (d *decoder) text(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "verbosity":
		return d.verbosity()
	case "format":
		return d.format()
	}
	return d.UnsupportedError()
}

// verbosity reads a hint how long the answer should be, which the answer repeats.
func (d *decoder) verbosity() error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	switch s {
	case "low", "medium", "high":
		d.req.echo.verbosity = s
		return nil
	}
	return d.InvalidError("must be one of low, medium and high")
}

// format reads what the text of the answer must be.
func (d *decoder) format() error {
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
	if err := d.ReadObject(func(key string) error { return d.formatField(f, key) }); err != nil {
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

func (d *decoder) formatField(f *format, key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
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
		return d.raw(&f.schema)
	case "description":
		return d.optional(&f.description)
	case "strict":
		f.strict = new(bool)
		return d.ReadBoolInto(f.strict)
	}
	return d.UnsupportedError()
}

// raw reads an object and keeps a copy without the space between tokens, which in
// an event would end it.
func (d *decoder) raw(dst *[]byte) error {
	if d.Kind() != strictjson.ObjectKind {
		return d.WrongTypeError("an object")
	}
	text, err := d.ReadRaw()
	if err != nil {
		return err
	}
	*dst = compact(text)
	return nil
}

// compact copies valid JSON without the space between tokens.
func compact(text []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(text))
	// The only error is that of a text that is not JSON, and a Reader has read it.
	_ = json.Compact(&b, text)
	return b.Bytes()
}

// metadata reads an object of strings, which the answer repeats.
func (d *decoder) metadata() error {
	e := &d.req.echo
	n := 0
	err := d.ReadObject(func(key string) error {
		value, err := d.ReadString()
		if err != nil {
			return err
		}
		switch n++; {
		case n > maxMetadata:
			return d.ParentInvalidError("must have at most %d keys", maxMetadata)
		case longer(key, maxMetadataKey):
			return d.ParentInvalidError("must have keys of at most %d characters", maxMetadataKey)
		case longer(value, maxMetadataValue):
			return d.InvalidError("must have at most %d characters", maxMetadataValue)
		case n > 1:
			e.metadata = append(e.metadata, ',')
		}
		e.metadata = strictjson.AppendString(e.metadata, key)
		e.metadata = append(e.metadata, ':')
		e.metadata = strictjson.AppendString(e.metadata, value)
		return nil
	})
	return err
}

// longer reports whether s has more than so many characters.
func longer(s string, most int) bool {
	return len(s) > most && utf8.RuneCountInString(s) > most
}
