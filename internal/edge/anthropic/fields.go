package anthropic

import "penstock/internal/edge/api"

// JSON schemas which several fields share.
const (
	anyBoolean   = `{"type":"boolean"}`
	anyString    = `{"type":"string"}`
	anyObject    = `{"type":"object"}`
	emptyArray   = `{"type":"array","maxItems":0}`
	formatSchema = `{"type":"object","required":["type","schema"],"additionalProperties":{"type":"null"},"properties":{` +
		`"type":{"const":"json_schema"},"schema":{"type":"object"}}}`
	textBlock = `{"type":"object","required":["type","text"],"additionalProperties":{"type":"null"},"properties":{` +
		`"type":{"const":"text"},"text":{"type":"string"},"citations":{},"cache_control":{}}}`
	textOrBlocks = `{"anyOf":[{"type":"string"},{"type":"array","items":` + textBlock + `}]}`
)

// Fields lists the fields which requests to /v1/messages may have. Any other field is refused by name.
func Fields() []api.Field {
	return append(append(commonFields(), unusedFields()...), createFields()...)
}

// CountFields lists the fields of /v1/messages/count_tokens.
func CountFields() []api.Field { return append(commonFields(), unusedFields()...) }

// commonFields lists the fields which readCommonField reads.
func commonFields() []api.Field {
	return []api.Field{
		api.RequiredField("model", anyString),
		api.RequiredField("messages", messagesSchema),
		api.MappedField("system", textOrBlocks),
		api.MappedField("tools", toolsSchema),
		api.MappedField("tool_choice", `{"type":"object","required":["type"],"additionalProperties":{"type":"null"},"properties":{`+
			`"type":{"enum":["auto","any","tool","none"]},"name":{"type":"string"},"disable_parallel_tool_use":{"type":"boolean"}}}`),
		api.MappedField("thinking", `{"type":"object","required":["type"],"additionalProperties":{"type":"null"},"properties":{`+
			`"type":{"enum":["enabled","adaptive","disabled"]},"budget_tokens":{"type":"integer","minimum":1,"description":"without effect"},`+
			`"display":{"enum":["summarized","omitted",null]}}}`),
		api.MappedField("output_config", `{"type":"object","additionalProperties":{"type":"null"},"properties":{`+
			`"effort":{"enum":["low","medium","high","xhigh","max",null]},"format":{"anyOf":[{"type":"null"},`+formatSchema+`]}}}`),
		api.MappedField("output_format", formatSchema),
	}
}

const messagesSchema = `{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"additionalProperties":{"type":"null"},"properties":{` +
	`"role":{"enum":["user","assistant","system"]},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"anyOf":[` +
	textBlock + `,` +
	`{"type":"object","required":["type","thinking"],"properties":{"type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"type":"string"}}},` +
	`{"type":"object","required":["type"],"properties":{"type":{"const":"redacted_thinking"},"data":{"type":"string"}}},` +
	`{"type":"object","required":["type","id","name","input"],"properties":{"type":{"const":"tool_use"},"id":{"type":"string"},"name":{"type":"string"},"input":{"type":"object"}}},` +
	`{"type":"object","required":["type","tool_use_id"],"properties":{"type":{"const":"tool_result"},"tool_use_id":{"type":"string"},"content":` + textOrBlocks + `,"is_error":{"type":"boolean"}}}` +
	`]}}]}}}}`

const toolsSchema = `{"type":"array","maxItems":1536,"items":{"type":"object","required":["name","input_schema"],"properties":{` +
	`"type":{"enum":["custom",null]},"name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,128}$"},"description":{"type":"string"},"input_schema":{"type":"object"}}}}`

// createFields lists the fields which readCreateField reads.
func createFields() []api.Field {
	return []api.Field{
		api.RequiredField("max_tokens", `{"type":"integer","minimum":1}`),
		api.MappedField("stream", anyBoolean),
		api.MappedField("stop_sequences", `{"type":"array","maxItems":32,"items":{"type":"string","minLength":1}}`),
		api.MappedField("temperature", `{"type":"number","minimum":0,"maximum":1}`),
		api.MappedField("top_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.MappedField("top_k", `{"type":"integer","minimum":0}`),
		api.MappedField("cache_salt", `{"type":"string","minLength":1,"maxLength":1024}`),
		api.AcceptedField("metadata", anyObject),
		api.AcceptedField("diagnostics", anyObject),
		api.AcceptedField("service_tier", anyString),
		api.RefusedField("inference_geo", `{"const":"global"}`),
		api.RefusedField("fallbacks", emptyArray),
		api.RefusedField("container", ""),
		api.RefusedField("fallback_credit_token", ""),
		api.RefusedField("thread", ""),
	}
}

// unusedFields lists the fields which readUnusedField reads.
func unusedFields() []api.Field {
	return []api.Field{
		api.AcceptedField("cache_control", anyObject),
		api.AcceptedField("speed", `{"enum":["standard","fast"]}`),
		api.RefusedField("mcp_servers", emptyArray),
		api.RefusedField("context_management", `{"type":"object","additionalProperties":{"type":"null"},"properties":{"edits":{"type":"array","items":{`+
			`"type":"object","required":["type","keep"],"properties":{"type":{"const":"clear_thinking_20251015"},`+
			`"keep":{"anyOf":[{"const":"all"},{"type":"object","required":["type"],"properties":{"type":{"const":"all"}}}]}}}}}}`),
		api.RefusedField("billing_policy", ""),
		api.RefusedField("compaction", ""),
	}
}
