package responses

import (
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

// Schemas of several fields.
const (
	anyBoolean = `{"type":"boolean"}`
	anyString  = `{"type":"string"}`
	anyObject  = `{"type":"object"}`
	count      = `{"type":"integer","minimum":1}`
	toolName   = `{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,96}$"}`
)

// Fields lists the fields that a request may have. Any other is refused by name.
func Fields() []api.Field {
	return append(append(effective(), unused()...), openai.ExtraFields()...)
}

// effective are the fields of decoder.talk and decoder.setting.
func effective() []api.Field {
	return []api.Field{
		api.RequiredField("model", anyString),
		api.RequiredField("input", `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":65536,"items":`+itemSchema+`}]}`),
		api.MappedField("instructions", anyString),
		api.MappedField("tools", `{"type":"array","maxItems":1536,"items":`+toolSchema+`}`),
		api.MappedField("tool_choice", choiceSchema),
		api.MappedField("parallel_tool_calls", anyBoolean),
		api.MappedField("text", `{"type":"object","additionalProperties":{"type":"null"},"properties":{"format":`+formatSchema+`,"verbosity":{"enum":["low","medium","high",null]}}}`),
		api.MappedField("reasoning", reasoningSchema),
		api.MappedField("max_output_tokens", count),

		api.MappedField("stream", anyBoolean),
		api.MappedField("temperature", `{"type":"number","minimum":0,"maximum":2}`),
		api.MappedField("top_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.MappedField("top_logprobs", `{"type":"integer","minimum":0,"maximum":20}`),
		api.MappedField("include", `{"type":"array","items":`+includeSchema+`}`),
		api.MappedField("metadata", `{"type":"object","maxProperties":16,"propertyNames":{"maxLength":64},"additionalProperties":{"type":"string","maxLength":512}}`),
		api.MappedField("max_tool_calls", count),
		api.MappedField("user", anyString),
		api.MappedField("safety_identifier", anyString),
		api.MappedField("prompt_cache_key", anyString),
	}
}

// unused are the fields of decoder.unused.
func unused() []api.Field {
	return []api.Field{
		api.AcceptedField("store", anyBoolean),
		api.AcceptedField("service_tier", anyString),
		api.AcceptedField("prompt_cache_retention", anyString),
		api.AcceptedField("prompt_cache_options", `{"type":"object","additionalProperties":{"type":"null"},"properties":{`+
			`"mode":{"type":["string","null"]},"ttl":{"type":["string","null"]},"prewarm":{"enum":[false,null]},"comparison_response_id":{"type":"null"}}}`),
		api.AcceptedField("image", anyObject),
		api.AcceptedField("stream_options", `{"type":"object","additionalProperties":{"type":"null"},"properties":{"include_obfuscation":{"type":["boolean","null"]}}}`),

		api.RefusedField("background", `{"const":false}`),
		api.RefusedField("truncation", `{"const":"disabled"}`),
		api.RefusedField("context_management", `{"type":"array","maxItems":0}`),
		api.RefusedField("previous_response_id", ""),
		api.RefusedField("conversation", ""),
		api.RefusedField("prompt", ""),
		api.RefusedField("moderation", ""),
		api.RefusedField("access_programs", ""),
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

const namedSchema = `{"type":"object","required":["type","name"],"additionalProperties":{"type":"null"},"properties":{"type":{"const":"function"},"name":` + toolName + `}}`

const choiceSchema = `{"anyOf":[{"enum":["none","auto","required"]},` + namedSchema + `,` +
	`{"type":"object","required":["type","mode","tools"],"additionalProperties":{"type":"null"},"properties":{"type":{"const":"allowed_tools"},` +
	`"mode":{"enum":["auto","required"]},"tools":{"type":"array","minItems":1,"items":` + namedSchema + `}}}]}`

const formatSchema = `{"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object"]}}},` +
	`{"type":"object","required":["type","name","schema"],"properties":{"type":{"const":"json_schema"},` +
	`"name":{"type":"string","pattern":"^[a-zA-Z0-9_-]{1,64}$"},"schema":{"type":"object"},"description":{"type":["string","null"]},"strict":{"type":["boolean","null"]}}}]}`

const reasoningSchema = `{"type":"object","additionalProperties":{"type":"null"},"properties":{` +
	`"effort":{"enum":["none","minimal","low","medium","high","xhigh","max",null]},"summary":{"enum":["auto","concise","detailed",null]},` +
	`"generate_summary":{"enum":["auto","concise","detailed",null]},"context":{"enum":["auto",null]},"mode":{"enum":["standard",null]}}}`

const includeSchema = `{"enum":["message.output_text.logprobs","reasoning.encrypted_content","file_search_call.results","web_search_call.results",` +
	`"web_search_call.action.sources","message.input_image.image_url","computer_call_output.output.image_url","code_interpreter_call.outputs"]}`
