package responses

import "penstock/internal/edge/openai"

// Schemas of several fields.
const (
	anyBoolean = `{"type":"boolean"}`
	anyString  = `{"type":"string"}`
	anyObject  = `{"type":"object"}`
	count      = `{"type":"integer","minimum":1}`
	toolName   = `{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,96}$"}`
)

// Fields lists the fields that a request may have. Any other is refused by name.
func Fields() []openai.Field {
	return append(append(effective(), unused()...), openai.ExtraFields()...)
}

// effective are the fields of decoder.talk and decoder.setting.
func effective() []openai.Field {
	const is = openai.Mapped
	return []openai.Field{
		{Name: "model", Treatment: is, Required: true, Schema: anyString},
		{Name: "input", Treatment: is, Required: true, Schema: `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":` + itemSchema + `}]}`},
		{Name: "instructions", Treatment: is, Schema: anyString},
		{Name: "tools", Treatment: is, Schema: `{"type":"array","maxItems":1536,"items":` + toolSchema + `}`},
		{Name: "tool_choice", Treatment: is, Schema: choiceSchema},
		{Name: "parallel_tool_calls", Treatment: is, Schema: anyBoolean},
		{Name: "text", Treatment: is, Schema: `{"type":"object","additionalProperties":false,"properties":{"format":` + formatSchema + `,"verbosity":{"enum":["medium",null]}}}`},
		{Name: "reasoning", Treatment: is, Schema: reasoningSchema},
		{Name: "max_output_tokens", Treatment: is, Schema: count},

		{Name: "stream", Treatment: is, Schema: anyBoolean},
		{Name: "temperature", Treatment: is, Schema: `{"type":"number","minimum":0,"maximum":2}`},
		{Name: "top_p", Treatment: is, Schema: `{"type":"number","minimum":0,"maximum":1}`},
		{Name: "top_logprobs", Treatment: is, Schema: `{"type":"integer","minimum":0,"maximum":20}`},
		{Name: "include", Treatment: is, Schema: `{"type":"array","items":` + includeSchema + `}`},
		{Name: "metadata", Treatment: is, Schema: `{"type":"object","maxProperties":16,"propertyNames":{"maxLength":64},"additionalProperties":{"type":"string","maxLength":512}}`},
		{Name: "max_tool_calls", Treatment: is, Schema: count},
		{Name: "user", Treatment: is, Schema: anyString},
		{Name: "safety_identifier", Treatment: is, Schema: anyString},
		{Name: "prompt_cache_key", Treatment: is, Schema: anyString},
	}
}

// unused are the fields of decoder.unused.
func unused() []openai.Field {
	const taken, not = openai.Accepted, openai.Refused
	return []openai.Field{
		{Name: "store", Treatment: taken, Schema: anyBoolean},
		{Name: "service_tier", Treatment: taken, Schema: anyString},
		{Name: "prompt_cache_retention", Treatment: taken, Schema: anyString},
		{Name: "prompt_cache_options", Treatment: taken, Schema: `{"type":"object","additionalProperties":false,"properties":{` +
			`"mode":{"type":["string","null"]},"ttl":{"type":["string","null"]},"prewarm":{"enum":[false,null]},"comparison_response_id":{"type":"null"}}}`},
		{Name: "image", Treatment: taken, Schema: anyObject},
		{Name: "stream_options", Treatment: taken, Schema: `{"type":"object","additionalProperties":false,"properties":{"include_obfuscation":{"type":["boolean","null"]}}}`},

		{Name: "background", Treatment: not, Schema: `{"const":false}`},
		{Name: "truncation", Treatment: not, Schema: `{"const":"disabled"}`},
		{Name: "context_management", Treatment: not, Schema: `{"type":"array","maxItems":0}`},
		{Name: "previous_response_id", Treatment: not},
		{Name: "conversation", Treatment: not},
		{Name: "prompt", Treatment: not},
		{Name: "moderation", Treatment: not},
		{Name: "access_programs", Treatment: not},
	}
}

const partsSchema = `{"anyOf":[{"type":"string"},{"type":"array","items":{"anyOf":[` +
	`{"type":"object","required":["type","text"],"properties":{"type":{"enum":["input_text","output_text","text"]},"text":{"type":"string"}}},` +
	`{"type":"object","required":["type","refusal"],"properties":{"type":{"const":"refusal"},"refusal":{"type":"string"}}}]}}]}`

const itemSchema = `{"anyOf":[` +
	`{"type":"object","required":["role","content"],"properties":{"type":{"const":"message"},` +
	`"role":{"enum":["system","developer","user","assistant"]},"content":` + partsSchema + `}},` +
	`{"type":"object","required":["type","call_id","name","arguments"],"properties":{"type":{"const":"function_call"},` +
	`"call_id":{"type":"string"},"name":{"type":"string"},"arguments":{"type":"string"}}},` +
	`{"type":"object","required":["type","output"],"properties":{"type":{"const":"function_call_output"},` +
	`"call_id":{"type":"string"},"output":` + partsSchema + `}},` +
	`{"type":"object","required":["type"],"properties":{"type":{"const":"reasoning"},` +
	`"summary":{"type":"array","items":{"type":"object","required":["type","text"],"properties":{"type":{"const":"summary_text"},"text":{"type":"string"}}}},` +
	`"content":{"type":"array","items":{"type":"object","required":["type","text"],"properties":{"type":{"const":"reasoning_text"},"text":{"type":"string"}}}}}}]}`

const toolSchema = `{"type":"object","required":["type","name"],"properties":{"type":{"const":"function"},"name":` + toolName + `,` +
	`"description":{"type":["string","null"]},"parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}}}`

const namedSchema = `{"type":"object","required":["type","name"],"additionalProperties":false,"properties":{"type":{"const":"function"},"name":` + toolName + `}}`

const choiceSchema = `{"anyOf":[{"enum":["none","auto","required"]},` + namedSchema + `,` +
	`{"type":"object","required":["type","mode","tools"],"additionalProperties":false,"properties":{"type":{"const":"allowed_tools"},` +
	`"mode":{"enum":["auto","required"]},"tools":{"type":"array","minItems":1,"items":` + namedSchema + `}}}]}`

const formatSchema = `{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object"]}}},` +
	`{"type":"object","required":["type","name","schema"],"properties":{"type":{"const":"json_schema"},` +
	`"name":{"type":"string","pattern":"^[a-zA-Z0-9_-]{1,64}$"},"schema":{"type":"object"},"description":{"type":["string","null"]},"strict":{"type":["boolean","null"]}}}]}`

const reasoningSchema = `{"type":"object","additionalProperties":false,"properties":{` +
	`"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},"summary":{"enum":["auto","concise","detailed",null]},` +
	`"generate_summary":{"enum":["auto","concise","detailed",null]},"context":{"enum":["auto",null]},"mode":{"enum":["standard",null]}}}`

const includeSchema = `{"enum":["message.output_text.logprobs","reasoning.encrypted_content","file_search_call.results","web_search_call.results",` +
	`"web_search_call.action.sources","message.input_image.image_url","computer_call_output.output.image_url","code_interpreter_call.outputs"]}`
