package openai

import (
	"strconv"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// Operation is one method of one path in a description of the API.
type Operation struct {
	Path    string // parameters in braces: /v1/models/{id}
	Method  string // in lower case
	Summary string
	// Fields are the fields of the request body, a JSON object; nil if there is no body.
	Fields []api.Field
	// Answer is the media type of a successful answer. If the body has a field "stream", it may ask for
	// server-sent events instead.
	Answer string
	// Schema is the JSON schema of a successful answer, and Events that of the data of a stream's events.
	// They are "" for paths of OpenAI's API and for answers without a schema.
	Schema, Events string
	// Error is the JSON schema of an error; "" for OpenAI's.
	Error string
	// Params are the names of the path's parameters.
	Params []string
}

// AppendOpenAPI appends an OpenAPI 3.1 description of the operations. Operations of one path must be
// adjacent.
func AppendOpenAPI(dst []byte, version string, ops []Operation) []byte {
	dst = strictjson.AppendMember(dst, `{"openapi":"3.1.0","info":{"title":"Penstock","version":`, version)
	dst = append(dst, `},"security":[{},{"bearer":[]},{"apiKey":[]}],"paths":{`...)
	for i, op := range ops {
		switch {
		case i == 0:
		case ops[i-1].Path == op.Path:
			dst = append(dst, ',')
		default:
			dst = append(dst, "},"...)
		}
		if i == 0 || ops[i-1].Path != op.Path {
			dst = strictjson.AppendString(dst, op.Path)
			dst = append(dst, ":{"...)
		}
		dst = appendOperation(dst, &op)
	}
	if len(ops) > 0 {
		dst = append(dst, '}')
	}
	dst = append(dst, `},"components":{"schemas":{`...)
	for i, c := range components() {
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendString(dst, c.name)
		dst = append(dst, ':')
		dst = append(dst, c.schema...)
	}
	dst = append(dst, `},"responses":{`...)
	for i, r := range errorResponses() {
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendString(dst, r.name)
		dst = strictjson.AppendMember(dst, `:{"description":`, r.description)
		dst = append(dst, `,"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Error"}}}}`...)
	}
	// Whether a server requires one of them depends on its configuration.
	return append(dst, `},"securitySchemes":{"bearer":{"type":"http","scheme":"bearer"},"apiKey":{"type":"apiKey","in":"header","name":"x-api-key"}}}}`...)
}

// errorResponse is an error status which operations return.
type errorResponse struct {
	name        string
	code        fault.Code
	description string
}

// errorResponses lists the errors of operations with a body. The last one stands for all others.
func errorResponses() []errorResponse {
	return []errorResponse{
		{"Invalid", fault.Invalid, "the request can never succeed as it is; param names the field that is wrong"},
		{"Unauthorized", fault.Unauthorized, "the server asks for keys, and the request shows none that is good"},
		{"Forbidden", fault.Forbidden, "the key is not for this"},
		{"Limited", fault.Limited, "the key is over a limit; Retry-After says when to try again"},
		{"NotFound", fault.NotFound, "there is no such model"},
		{"TooLarge", fault.TooLarge, "the body is larger than the server takes"},
		{"Failed", fault.Internal, "the server failed"},
		{"Unavailable", fault.Unavailable, "no worker can take the request now; Retry-After says when to try again"},
		{"Late", fault.Deadline, "time ran out"},
		{"Other", 0, "refused or failed"},
	}
}

func appendOperation(dst []byte, op *Operation) []byte {
	dst = strictjson.AppendString(dst, op.Method)
	dst = strictjson.AppendMember(dst, `:{"summary":`, op.Summary)
	if len(op.Params) > 0 {
		dst = append(dst, `,"parameters":[`...)
		for i, name := range op.Params {
			dst = strictjson.AppendComma(dst, i)
			dst = strictjson.AppendMember(dst, `{"in":"path","required":true,"schema":{"type":"string"},"name":`, name)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	streams := false
	if op.Fields != nil {
		dst = append(dst, `,"requestBody":{"required":true,"content":{"application/json":{"schema":`...)
		dst = appendBody(dst, op.Fields)
		dst = append(dst, `}}}`...)
		for _, f := range op.Fields {
			streams = streams || f.Name == "stream"
		}
	}
	dst = append(dst, `,"responses":{"200":{"description":"done","content":{`...)
	whole, event := op.responseSchemas()
	dst = appendContent(dst, op.Answer, whole)
	if streams {
		dst = append(dst, ',')
		dst = appendContent(dst, "text/event-stream", event)
	}
	dst = append(dst, `}}`...)
	return append(appendErrorResponses(dst, op), `}}`...)
}

// responseSchemas returns the JSON schemas of a whole answer and of the data of a stream's events; "" for one
// which does not exist.
func (op *Operation) responseSchemas() (whole, event string) {
	whole, event = answerSchemas(op.Path)
	if whole != "" {
		whole = `{"$ref":"#/components/schemas/` + whole + `"}`
	}
	if event != "" {
		event = `{"description":"the data of each event","anyOf":[{"$ref":"#/components/schemas/` + event +
			`"},{"$ref":"#/components/schemas/Error"},{"const":"[DONE]"}]}`
	}
	if op.Schema != "" {
		whole = op.Schema
	}
	if op.Events != "" {
		event = op.Events
	}
	return whole, event
}

func appendContent(dst []byte, media, schema string) []byte {
	dst = strictjson.AppendString(dst, media)
	dst = append(dst, `:{`...)
	if schema != "" {
		dst = append(dst, `"schema":`...)
		dst = append(dst, schema...)
	}
	return append(dst, '}')
}

// appendErrorResponses appends the error responses of an operation, each preceded by a comma. An operation
// without a body has few.
func appendErrorResponses(dst []byte, op *Operation) []byte {
	all := errorResponses()
	for i, r := range all {
		other := i == len(all)-1
		if op.Fields == nil && !other && !(r.code == fault.NotFound && len(op.Params) > 0) {
			continue
		}
		status := "default"
		if !other {
			status = strconv.Itoa(r.code.Class().Status)
		}
		dst = append(dst, ',')
		dst = strictjson.AppendString(dst, status)
		if op.Error != "" {
			dst = strictjson.AppendMember(dst, `:{"description":`, r.description)
			dst = append(dst, `,"content":{"application/json":{"schema":`...)
			dst = append(dst, op.Error...)
			dst = append(dst, `}}}`...)
			continue
		}
		dst = append(dst, `:{"$ref":"#/components/responses/`...)
		dst = append(dst, r.name...)
		dst = append(dst, `"}`...)
	}
	return dst
}

// appendBody appends the schema of a body with these fields. Null counts as not given.
func appendBody(dst []byte, fields []api.Field) []byte {
	dst = append(dst, `{"type":"object","additionalProperties":{"type":"null"},"required":[`...)
	n := 0
	for _, f := range fields {
		if !f.Required {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, f.Name)
	}
	dst = append(dst, `],"properties":{`...)
	for i, f := range fields {
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendString(dst, f.Name)
		dst = append(dst, `:{"x-penstock-treatment":`...)
		dst = strconv.AppendQuote(dst, f.Treatment.String())
		switch {
		case f.Schema == "":
			dst = append(dst, `,"type":"null"}`...)
		case f.Required:
			dst = append(dst, `,"allOf":[`...)
			dst = append(dst, f.Schema...)
			dst = append(dst, `]}`...)
		default:
			dst = append(dst, `,"anyOf":[`...)
			dst = append(dst, f.Schema...)
			dst = append(dst, `,{"type":"null"}]}`...)
		}
	}
	return append(dst, `}}`...)
}
