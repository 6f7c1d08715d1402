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
func (d *decoder) setFormat(kind api.FormatKind, schema []byte, param string) error {
	if have := d.req.Format.Param; have != "" {
		return fault.Param(param, "'%s' and '%s' both say what the text must be: give one of them", have, param)
	}
	d.req.Format = api.Format{Kind: kind, Schema: bytes.Clone(schema), Param: param}
	return nil
}

// readResponseFormat reads response_format.
func (d *decoder) responseFormat() error {
	const param = "response_format"
	var kind string
	var schema []byte
	err := d.Object(func(key string) error {
		switch key {
		case "type":
			return d.Text(&kind)
		case "json_schema":
			if none, err := d.Null(); none || err != nil {
				return err
			}
			return d.namedSchema(&schema)
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case kind != "json_schema" && schema != nil:
		return d.Refuse("has a 'json_schema', which goes with a 'type' of json_schema")
	case kind == "text":
		return nil
	case kind == "json_object":
		return d.setFormat(api.FormatJSON, nil, param)
	case kind == "json_schema" && schema == nil:
		return d.Refuse("needs 'json_schema'")
	case kind == "json_schema":
		return d.setFormat(api.FormatSchema, schema, param)
	}
	return d.Refuse("needs a 'type' of text, json_object or json_schema")
}

// readNamedSchema reads response_format.json_schema.
func (d *decoder) namedSchema(dst *[]byte) error {
	var named bool
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "name":
			named = true
			s, err := d.String()
			if err == nil && !api.IsName(s, maxFormatName, "_-") {
				return d.Refuse("must have 1 to %d of the characters a-z, A-Z, 0-9, '_' and '-'", maxFormatName)
			}
			return err
		case "description":
			_, err := d.String()
			return err
		case "schema":
			return d.schema(dst)
		case "strict":
			return d.either()
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case !named:
		return d.Refuse("needs a 'name'")
	case *dst == nil:
		return d.Refuse("needs a 'schema'")
	}
	return nil
}

// readSchema reads a JSON schema: an object, or true, which matches any JSON. It refuses false, which matches
// nothing.
func (d *decoder) schema(dst *[]byte) (err error) {
	*dst, err = d.Capture(func() error {
		switch d.Kind() {
		case strictjson.ObjectKind:
			return d.Skip()
		case strictjson.BoolKind:
			b, err := d.Bool()
			if err == nil && !b {
				return d.Refuse("must not be false, which no text matches")
			}
			return err
		}
		return d.Expected("a JSON schema: an object or true")
	})
	return err
}

// readSchemaOrText reads a JSON schema, or a string which contains one.
func (d *decoder) schemaOrText(dst *[]byte) error {
	if d.Kind() != strictjson.StringKind {
		return d.schema(dst)
	}
	s, err := d.String()
	if err != nil {
		return err
	}
	r, err := strictjson.NewReader([]byte(s))
	if err != nil {
		return err
	}
	in := &decoder{Reader: r}
	if err = in.schema(dst); err == nil {
		err = r.End()
	}
	if err != nil {
		return d.Refuse("must be a JSON schema: an object, or a string with one in it")
	}
	return nil
}

// readGuidedJSON reads guided_json.
func (d *decoder) guidedJSON() error {
	var schema []byte
	if err := d.schemaOrText(&schema); err != nil {
		return err
	}
	return d.setFormat(api.FormatSchema, schema, "guided_json")
}

// readStructuredOutputs reads structured_outputs.
func (d *decoder) structuredOutputs() error {
	var schema []byte
	var object bool
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "json":
			return d.schemaOrText(&schema)
		case "json_object":
			return d.Flag(&object)
		case "disable_fallback", "disable_any_whitespace", "disable_additional_properties":
			return d.only(false)
		case "regex", "choice", "grammar", "structural_tag", "whitespace_pattern":
			return d.notSupported()
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case object && schema != nil:
		return d.Refuse("has both 'json' and 'json_object': give one of them")
	case object:
		return d.setFormat(api.FormatJSON, nil, "structured_outputs")
	case schema != nil:
		return d.setFormat(api.FormatSchema, schema, "structured_outputs")
	}
	return d.Refuse("needs 'json' or 'json_object': leave it out for any text")
}
