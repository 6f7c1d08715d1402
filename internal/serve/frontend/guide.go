package frontend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// guideOf returns the schema that the answers to the request must match; nil if they are free. If no
// engine of the model supports structured output, the error names the field that asked for it.
func (p *typedRequest) guideOf() (*engine.OutputSchema, error) {
	q, param := p.req, p.guideParam()
	var schema []byte
	switch {
	case q.ToolChoice.RequiresCall():
		schema = callsSchema(q)
	case q.Format.Kind == api.FormatText:
		return nil, nil
	case q.ToolChoice.Mode == api.ToolAuto && len(q.Tools) > 0:
		return nil, fault.InvalidParam(param, "'%s' with tools that the model may call or not is not supported: set 'tool_choice' to none, or leave one of the two out", param)
	case q.Format.Kind == api.FormatJSON:
		schema = []byte(`{"type":"object"}`)
	default:
		schema = q.Format.Schema
	}
	switch {
	case !p.model.HasWorker(func(c *engine.Card) bool { return c.StructuredOutput }):
		return nil, fault.InvalidParam(param, "the engine of the model '%s' cannot keep to a schema, which '%s' asks for: leave it out", p.model.Card.Name, param)
	case len(schema) > engine.MaxSchema:
		return nil, fault.InvalidParam(param, "'%s' makes a schema of %d bytes; the limit is %d", param, len(schema), engine.MaxSchema)
	}
	return &engine.OutputSchema{Schema: schema}, nil
}

// guideParam is the field that asked for the guide.
func (p *typedRequest) guideParam() string {
	if p.req.ToolChoice.RequiresCall() {
		return "tool_choice"
	}
	return p.req.Format.Param
}

// clientGuideError translates an engine's refusal of the guide: engines have one name for it, whichever
// client field it was made from.
func (g *generationTask) clientGuideError(err error) error {
	f := api.AsFault(err)
	if g.Request.OutputSchema == nil || f.Param != engine.SchemaParam || f.Param == g.guideParam {
		return err
	}
	told := *f
	told.Param = g.guideParam
	return &told
}

// callsSchema is the schema of an answer that consists only of calls: an object of name and arguments,
// or an array of such objects if there may be several.
func callsSchema(q *api.Request) []byte {
	tools := q.Tools
	if q.ToolChoice.Mode == api.ToolNamed {
		i := slices.IndexFunc(tools, func(t api.Tool) bool { return t.Name == q.ToolChoice.Name })
		tools = tools[i : i+1]
	}
	several := q.ToolChoice.Mode == api.ToolRequired && !q.OneCall
	root := "#"
	if several {
		root = "#/items"
	}
	var calls []string
	for i, t := range tools {
		at := root
		if len(tools) > 1 {
			at += "/anyOf/" + strconv.Itoa(i)
		}
		arguments := `{"type":"object"}`
		if len(t.Parameters) > 0 {
			arguments = string(rebaseRefs(requireObject(t.Parameters), at+"/properties/arguments"))
		}
		name := strictjson.AppendString(nil, t.Name)
		calls = append(calls, fmt.Sprintf(`{"type":"object","properties":{"name":{"const":%s},"arguments":%s},"required":["name","arguments"],"additionalProperties":false}`, name, arguments))
	}
	schema := calls[0]
	if len(calls) > 1 {
		schema = `{"anyOf":[` + strings.Join(calls, ",") + `]}`
	}
	if several {
		schema = `{"type":"array","minItems":1,"items":` + schema + `}`
	}
	return []byte(schema)
}

// requireObject returns a schema of a function's arguments with type object if it gives no type:
// arguments are objects, but {} allows anything.
func requireObject(schema []byte) []byte {
	var keys map[string]json.RawMessage
	if json.Unmarshal(schema, &keys) != nil {
		return schema
	}
	for _, key := range []string{"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"} {
		if _, says := keys[key]; says {
			return schema
		}
	}
	out := []byte(`{"type":"object"`)
	if len(keys) > 0 {
		out = append(out, ',')
	}
	return append(out, bytes.TrimSpace(schema)[1:]...)
}

// rebaseRefs returns a schema whose references to itself hold inside another schema, at the JSON
// pointer root. Everything else stays as the client wrote it, because the order of properties
// determines the order in the answer.
func rebaseRefs(schema []byte, root string) []byte {
	var out []byte
	d := json.NewDecoder(bytes.NewReader(schema))
	open := []schemaBracket{{inside: inSchema}} // each open bracket
	copied := 0                                 // of schema
	for {
		before := d.InputOffset()
		token, err := d.Token()
		if err != nil { // the end: the schema is valid JSON
			return append(out, schema[copied:]...)
		}
		in := &open[len(open)-1]
		text, isText := token.(string)
		switch {
		case token == json.Delim('{') || token == json.Delim('['):
			inside := in.inside
			if in.object {
				inside, in.key = in.memberContext(), ""
			}
			open = append(open, schemaBracket{object: token == json.Delim('{'), inside: inside})
			continue
		case token == json.Delim('}') || token == json.Delim(']'):
			open = open[:len(open)-1]
			continue
		case in.object && in.key == "":
			in.key = "\x00" + text // so that an empty key is one too
			continue
		case isText && in.object && in.inside == inSchema && in.key == "\x00$ref" && strings.HasPrefix(text, "#"):
			from := int(before) + bytes.IndexByte(schema[before:], '"')
			out = append(out, schema[copied:from]...)
			out = strictjson.AppendString(out, root+strings.TrimPrefix(text, "#"))
			copied = int(d.InputOffset())
		}
		in.key = ""
	}
}

// schemaBracket is an open array or object of a JSON Schema.
type schemaBracket struct {
	object bool
	inside schemaContext
	key    string // read, and its value not yet; "" if none
}

// schemaContext says what the members of a bracket are.
type schemaContext uint8

const (
	inSchema schemaContext = iota // keywords, or schemas in an array
	inNames                       // schemas by names that the client chose
	inValues                      // data, such as the values of an enum
)

// memberContext is the context of the value of the key that was read.
func (b *schemaBracket) memberContext() schemaContext {
	switch {
	case b.inside == inNames:
		return inSchema
	case b.inside == inValues:
		return inValues
	}
	switch b.key[1:] {
	case "properties", "patternProperties", "dependentSchemas", "$defs", "definitions":
		return inNames
	case "const", "enum", "default", "examples":
		return inValues
	}
	return inSchema
}
