package openai

import (
	"bytes"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const maxFormatName = 64 // bytes

// setFormat sets the format which the field being read requires of the text. Two fields with a format are
// refused, even if they agree.
func (d *requestDecoder) setFormat(kind api.FormatKind, schema []byte, param string) error {
	if have := d.Req.Format.Param; have != "" {
		return fault.InvalidParam(param, "'%s' and '%s' both say what the text must be: give one of them", have, param)
	}
	d.Req.Format = api.Format{Kind: kind, Schema: bytes.Clone(schema), Param: param}
	return nil
}

// readResponseFormat reads response_format.
func (d *requestDecoder) readResponseFormat() error {
	const param = "response_format"
	var kind string
	var schema []byte
	err := d.ReadObject(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "json_schema":
			if none, err := d.ReadNull(); none || err != nil {
				return err
			}
			return d.readNamedSchema(&schema)
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case kind != "json_schema" && schema != nil:
		return d.InvalidError("has a 'json_schema', which goes with a 'type' of json_schema")
	case kind == "text":
		return nil
	case kind == "json_object":
		return d.setFormat(api.FormatJSON, nil, param)
	case kind == "json_schema" && schema == nil:
		return d.InvalidError("needs 'json_schema'")
	case kind == "json_schema":
		return d.setFormat(api.FormatSchema, schema, param)
	}
	return d.InvalidError("needs a 'type' of text, json_object or json_schema")
}

// readNamedSchema reads response_format.json_schema.
func (d *requestDecoder) readNamedSchema(dst *[]byte) error {
	var named bool
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "name":
			named = true
			s, err := d.ReadString()
			if err == nil && !api.IsValidName(s, maxFormatName, "_-") {
				return d.InvalidError("must have 1 to %d of the characters a-z, A-Z, 0-9, '_' and '-'", maxFormatName)
			}
			return err
		case "description":
			return d.IgnoreString()
		case "schema":
			return d.readSchema(dst)
		case "strict":
			return d.IgnoreBool()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case !named:
		return d.InvalidError("needs a 'name'")
	case *dst == nil:
		return d.InvalidError("needs a 'schema'")
	}
	return nil
}

// readSchema reads a JSON schema: an object, or true, which matches any JSON. It refuses false, which matches
// nothing.
func (d *requestDecoder) readSchema(dst *[]byte) (err error) {
	*dst, err = d.CaptureRaw(func() error {
		switch d.Kind() {
		case strictjson.ObjectKind:
			return d.SkipValue()
		case strictjson.BoolKind:
			b, err := d.ReadBool()
			if err == nil && !b {
				return d.InvalidError("must not be false, which no text matches")
			}
			return err
		}
		return d.WrongTypeError("a JSON schema: an object or true")
	})
	return err
}

// readSchemaOrText reads a JSON schema, or a string which contains one.
func (d *requestDecoder) readSchemaOrText(dst *[]byte) error {
	if d.Kind() != strictjson.StringKind {
		return d.readSchema(dst)
	}
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	in := &requestDecoder{}
	if err := in.ReadBody([]byte(s), func() error { return in.readSchema(dst) }); err != nil {
		return d.InvalidError("must be a JSON schema: an object, or a string with one in it")
	}
	return nil
}

// readGuidedJSON reads guided_json.
func (d *requestDecoder) readGuidedJSON() error {
	var schema []byte
	if err := d.readSchemaOrText(&schema); err != nil {
		return err
	}
	return d.setFormat(api.FormatSchema, schema, "guided_json")
}

// readStructuredOutputs reads structured_outputs.
func (d *requestDecoder) readStructuredOutputs() error {
	var schema []byte
	var object bool
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "json":
			return d.readSchemaOrText(&schema)
		case "json_object":
			return d.ReadBoolInto(&object)
		case "disable_fallback", "disable_any_whitespace", "disable_additional_properties":
			return d.RequireFalse()
		case "regex", "choice", "grammar", "structural_tag", "whitespace_pattern":
			return d.RefuseUnsupported()
		}
		return d.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case object && schema != nil:
		return d.InvalidError("has both 'json' and 'json_object': give one of them")
	case object:
		return d.setFormat(api.FormatJSON, nil, "structured_outputs")
	case schema != nil:
		return d.setFormat(api.FormatSchema, schema, "structured_outputs")
	}
	return d.InvalidError("needs 'json' or 'json_object': leave it out for any text")
}
