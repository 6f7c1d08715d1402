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

// guide returns the schema that the answers to the request must match; nil if they
// are free. It is refused by the name of the field that asked if no engine of the
// model can keep to it.
func (p *planner) guide() (*engine.Guide, error) {
	q, param := p.req, p.guideParam()
	var schema []byte
	switch {
	case q.ToolChoice.Must():
		schema = callsSchema(q)
	case q.Format.Kind == api.FormatText:
		return nil, nil
	case q.ToolChoice.Mode == api.ToolAuto && len(q.Tools) > 0:
		return nil, fault.Param(param, "'%s' with tools that the model may call or not is not supported: set 'tool_choice' to none, or leave one of the two out", param)
	case q.Format.Kind == api.FormatJSON:
		schema = []byte(`{"type":"object"}`)
	default:
		schema = q.Format.Schema
	}
	switch {
	case len(p.model.unguided()) == len(p.model.workers):
		return nil, fault.Param(param, "the engine of the model '%s' cannot keep to a schema, which '%s' asks for: leave it out", p.model.card.Name, param)
	case len(schema) > engine.MaxSchema:
		return nil, fault.Param(param, "'%s' makes a schema of %d bytes; the limit is %d", param, len(schema), engine.MaxSchema)
	}
	return &engine.Guide{Schema: schema}, nil
}

// guideParam is the field that asked for the guide.
func (p *planner) guideParam() string {
	if p.req.ToolChoice.Must() {
		return "tool_choice"
	}
	return p.req.Format.Param
}

// unguided is an engine's refusal of the guide in the client's terms: engines know
// one name for what it was made from.
func (g *generation) unguided(err error) error {
	f := api.Fault(err)
	if g.request.Guide == nil || f.Param != engine.GuideParam || f.Param == g.guideParam {
		return err
	}
	told := *f
	told.Param = g.guideParam
	return &told
}

// callsSchema is the schema of an answer that is nothing but calls: an object of
// name and arguments, or an array of such objects if there may be several.
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
			arguments = string(rebased(objects(t.Parameters), at+"/properties/arguments"))
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

// objects returns the schema of a function's arguments as one of objects, which
// arguments are though many schemas do not say so: {} allows anything.
func objects(schema []byte) []byte {
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

// rebased returns a schema whose references to itself hold where it stands in
// another, at the JSON pointer root. Everything else stays as the client wrote it,
// since the order of properties is that of the answer.
func rebased(schema []byte, root string) []byte {
	var out []byte
	d := json.NewDecoder(bytes.NewReader(schema))
	var object []bool // of each open bracket
	copied := 0       // of schema
	key, ref := true, false
	for {
		before := d.InputOffset()
		token, err := d.Token()
		if err != nil { // the end: what comes here is JSON
			return append(out, schema[copied:]...)
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '{' || t == '[' {
				object = append(object, t == '{')
			} else {
				object = object[:len(object)-1]
			}
			key, ref = true, false
			continue
		case string:
			inObject := len(object) > 0 && object[len(object)-1]
			if inObject && key {
				key, ref = false, t == "$ref"
				continue
			}
			if ref && strings.HasPrefix(t, "#") {
				from := int(before) + bytes.IndexByte(schema[before:], '"')
				out = append(out, schema[copied:from]...)
				out = strictjson.AppendString(out, root+strings.TrimPrefix(t, "#"))
				copied = int(d.InputOffset())
			}
		}
		key, ref = true, false
	}
}
