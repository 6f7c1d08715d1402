package responses

import (
	"cmp"
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// echo has the fields of a request which its answer repeats and api.Request does not have. nil and 0 are fields
// which the client did not give.
type echo struct {
	instructions     *string
	user             *string
	safetyIdentifier *string
	promptCacheKey   *string
	effort           *string
	metadata         []byte // members of a JSON object, without its braces
	tools            []tool
	choice           choice
	format           format
	verbosity        string // "" is medium
	maxToolCalls     int
	topLogprobs      int
}

// appendEcho appends the members of a response which repeat the request, each preceded by a comma. A member is
// null if the client did not set it and the model decides, or if this server does not support it.
func (q *Request) appendEcho(dst []byte) []byte {
	e := &q.echo
	dst = appendOptional(append(dst, `,"instructions":`...), e.instructions)
	dst = appendPositive(append(dst, `,"max_output_tokens":`...), q.MaxTokens)
	dst = appendPositive(append(dst, `,"max_tool_calls":`...), e.maxToolCalls)
	dst = append(dst, `,"metadata":{`...)
	dst = append(dst, e.metadata...)
	dst = append(dst, `},"parallel_tool_calls":`...)
	dst = strconv.AppendBool(dst, !q.OneCall)
	dst = append(dst, `,"previous_response_id":null,"prompt_cache_key":`...)
	dst = appendOptional(dst, e.promptCacheKey)
	dst = append(dst, `,"reasoning":{"effort":`...)
	dst = appendOptional(dst, e.effort)
	dst = append(dst, `,"summary":null},"safety_identifier":`...)
	dst = appendOptional(dst, e.safetyIdentifier)
	dst = append(dst, `,"service_tier":"default","store":false,"temperature":`...)
	dst = appendNumber(dst, q.Temperature)
	dst = append(dst, `,"text":{"format":`...)
	dst = e.format.append(dst)
	dst = append(dst, `,"verbosity":"`...)
	dst = append(dst, cmp.Or(e.verbosity, "medium")...)
	dst = append(dst, `"},"tool_choice":`...)
	dst = e.choice.append(dst)
	dst = append(dst, `,"tools":[`...)
	for i := range e.tools {
		dst = strictjson.AppendComma(dst, i)
		dst = e.tools[i].append(dst)
	}
	dst = strictjson.AppendInt(dst, `],"top_logprobs":`, e.topLogprobs)
	dst = append(dst, `,"top_p":`...)
	dst = appendNumber(dst, q.TopP)
	dst = append(dst, `,"truncation":"disabled","user":`...)
	return appendOptional(dst, e.user)
}

func (t *tool) append(dst []byte) []byte {
	dst = strictjson.AppendMember(dst, `{"type":"function","name":`, t.name)
	dst = appendOptional(append(dst, `,"description":`...), t.description)
	dst = append(dst, `,"parameters":`...)
	if t.parameters == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, t.parameters...)
	}
	dst = appendFlag(append(dst, `,"strict":`...), t.strict)
	return append(dst, '}')
}

func (c *choice) append(dst []byte) []byte {
	switch {
	case c.mode == api.ToolNamed:
		return appendFunction(dst, c.name)
	case c.allowed == nil:
		return appendMode(dst, c.mode)
	}
	dst = append(dst, `{"type":"allowed_tools","mode":`...)
	dst = appendMode(dst, c.mode)
	dst = append(dst, `,"tools":[`...)
	for i, name := range c.allowed {
		dst = strictjson.AppendComma(dst, i)
		dst = appendFunction(dst, name)
	}
	return append(dst, `]}`...)
}

func appendFunction(dst []byte, name string) []byte {
	dst = strictjson.AppendMember(dst, `{"type":"function","name":`, name)
	return append(dst, '}')
}

func appendMode(dst []byte, m api.ToolMode) []byte {
	switch m {
	case api.ToolNone:
		return append(dst, `"none"`...)
	case api.ToolRequired:
		return append(dst, `"required"`...)
	}
	return append(dst, `"auto"`...)
}

func (f *format) append(dst []byte) []byte {
	switch f.kind {
	case api.FormatJSON:
		return append(dst, `{"type":"json_object"}`...)
	case api.FormatText:
		return append(dst, `{"type":"text"}`...)
	}
	dst = strictjson.AppendMember(dst, `{"type":"json_schema","name":`, f.name)
	dst = appendOptional(append(dst, `,"description":`...), f.description)
	dst = append(dst, `,"schema":`...)
	dst = append(dst, f.schema...)
	dst = appendFlag(append(dst, `,"strict":`...), f.strict)
	return append(dst, '}')
}

func appendOptional(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return strictjson.AppendString(dst, *s)
}

func appendFlag(dst []byte, b *bool) []byte {
	if b == nil {
		return append(dst, "null"...)
	}
	return strconv.AppendBool(dst, *b)
}

func appendNumber(dst []byte, f *float64) []byte {
	if f == nil {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, *f, 'g', -1, 64)
}

func appendPositive(dst []byte, n int) []byte {
	if n == 0 {
		return append(dst, "null"...)
	}
	return strconv.AppendInt(dst, int64(n), 10)
}
