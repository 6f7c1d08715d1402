package responses

import (
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

const toolName = `{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,96}$"}`

// Fields lists the fields which a request may have. Any other field is refused by name.
func Fields() []api.Field { return table.Fields() }

// itemRow is a field of a request.
type itemRow = api.FieldRow[*itemsDecoder]

var table = api.NewTable(mappedRows, unusedRows, openai.ExtraRows[*itemsDecoder]())

// mappedRows are the fields which change the answer, or which the answer repeats.
var mappedRows = []itemRow{
	{Name: "model", Required: true, Value: api.Model},
	{
		Name: "input", Required: true, Read: (*itemsDecoder).readInput,
		Schema: `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":65536,"items":` + itemSchema + `}]}`,
	},
	{Name: "instructions", Schema: api.StringSchema, Read: func(d *itemsDecoder) error { return d.ReadOptional(&d.req.echo.instructions) }},
	{Name: "tools", Schema: `{"type":"array","maxItems":1536,"items":` + toolSchema + `}`, Read: (*itemsDecoder).readTools},
	{Name: "tool_choice", Schema: choiceSchema, Read: (*itemsDecoder).readToolChoice},
	{Name: "parallel_tool_calls", Value: api.OneCall},
	{
		Name: "text", Read: textTable.ReadObject,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{"format":` + formatSchema + `,"verbosity":{"enum":["low","medium","high",null]}}}`,
	},
	{Name: "reasoning", Schema: reasoningSchema, Read: reasoningTable.ReadObject},
	{Name: "max_output_tokens", Value: api.MaxTokens},

	{Name: "stream", Value: api.Stream},
	{Name: "temperature", Value: api.Temperature(2)},
	{Name: "top_p", Value: api.TopP},
	{Name: "top_logprobs", Schema: api.IntegerSchema(0, 20), Read: func(d *itemsDecoder) error {
		return d.ReadIntegerInto(&d.req.echo.topLogprobs, 0, 20)
	}},
	{Name: "include", Schema: api.ArraySchema(includeSchema), Read: (*itemsDecoder).readInclude},
	{
		Name: "metadata", Read: (*itemsDecoder).readMetadata,
		Schema: `{"type":"object","maxProperties":16,"propertyNames":{"maxLength":64},"additionalProperties":{"type":"string","maxLength":512}}`,
	},
	{Name: "max_tool_calls", Schema: api.IntegerSchema(1, strictjson.MaxCount), Read: func(d *itemsDecoder) error { // of the built-in tools, which do not exist here
		return d.ReadIntegerInto(&d.req.echo.maxToolCalls, 1, strictjson.MaxCount)
	}},
	{Name: "user", Schema: api.StringSchema, Read: func(d *itemsDecoder) error { return d.ReadOptional(&d.req.echo.user) }},
	{Name: "safety_identifier", Schema: api.StringSchema, Read: func(d *itemsDecoder) error { return d.ReadOptional(&d.req.echo.safetyIdentifier) }},
	{Name: "prompt_cache_key", Schema: api.StringSchema, Read: func(d *itemsDecoder) error { return d.ReadOptional(&d.req.echo.promptCacheKey) }},
}

// unusedRows are the fields which this server does not implement. A field is accepted if ignoring it cannot
// change the answer, and else refused by name.
var unusedRows = []itemRow{
	{Name: "store", Treatment: api.Accepted, Value: api.AnyBool}, // nothing is stored, and the answer says so
	{Name: "service_tier", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "prompt_cache_retention", Treatment: api.Accepted, Value: api.AnyString},
	{
		Name: "prompt_cache_options", Treatment: api.Accepted, Read: cacheOptionTable.ReadObject,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{` +
			`"mode":{"type":["string","null"]},"ttl":{"type":["string","null"]},"prewarm":{"enum":[false,null]},"comparison_response_id":{"type":"null"}}}`,
	},
	{Name: "image", Treatment: api.Accepted, Value: api.AnyObject}, // about generated images, which do not exist here
	{
		Name: "stream_options", Treatment: api.Accepted, Read: (*itemsDecoder).readStreamOptions,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{"include_obfuscation":{"type":["boolean","null"]}}}`,
	},

	{Name: "background", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "truncation", Treatment: api.Refused, Value: api.OnlyString("disabled")},
	{Name: "context_management", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "previous_response_id", Treatment: api.Refused, Read: (*itemsDecoder).refuseStored},
	{Name: "conversation", Treatment: api.Refused, Read: (*itemsDecoder).refuseStored},
	{Name: "prompt", Treatment: api.Refused, Read: (*itemsDecoder).refuseStored},
	{Name: "moderation", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "access_programs", Treatment: api.Refused, Value: api.OnlyNull},
}

// refuseStored refuses a reference to stored state.
func (d *itemsDecoder) refuseStored() error {
	return d.InvalidError("is not supported: this server keeps nothing between requests, so send the whole conversation as 'input'")
}

// readInclude reads include. Except for log-probabilities, it names parts of items which no answer here has,
// and encrypted reasoning, in whose place the answer has the reasoning itself.
func (d *itemsDecoder) readInclude() error {
	return d.ReadArray("an array of strings", func(int) error {
		s, err := d.ReadString()
		if err != nil {
			return err
		}
		switch s {
		case "message.output_text.logprobs":
			d.logprobs = true
			return nil
		case "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
			"message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs":
			return nil
		}
		return d.InvalidError("must be the name of something that an answer can include, such as message.output_text.logprobs")
	})
}

// reasoningTable has the members of reasoning. Summaries are not supported: the answer has the reasoning
// itself.
var reasoningTable = api.NewTable([]itemRow{
	{Name: "effort", Read: func(d *itemsDecoder) error {
		s, err := d.ReadEffort()
		d.req.echo.effort = &s
		return err
	}},
	{Name: "summary", Value: anySummary},
	{Name: "generate_summary", Value: anySummary},
	{Name: "context", Value: api.OnlyString("auto")},
	{Name: "mode", Value: api.OnlyString("standard")},
})

var anySummary = api.Value{Read: func(d *api.BodyDecoder) error { return d.RequireString("auto", "concise", "detailed") }}

// cacheOptionTable has the members of prompt_cache_options. They are hints, since the prefix cache needs none,
// except for values which request another kind of answer.
var cacheOptionTable = api.NewTable([]itemRow{
	{Name: "mode", Value: api.AnyString},
	{Name: "ttl", Value: api.AnyString},
	{Name: "prewarm", Value: api.OnlyFalse},
	{Name: "comparison_response_id", Value: api.OnlyNull},
})

// readStreamOptions reads stream_options. Obfuscation pads events with random characters, which clients drop;
// answers here have none.
func (d *itemsDecoder) readStreamOptions() error {
	d.streamOptions = true
	return streamOptionTable.ReadObject(d)
}

var streamOptionTable = api.NewTable([]itemRow{{Name: "include_obfuscation", Value: api.AnyBool}})

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
