package responses

import "penstock/internal/edge/api"

// Schema returns the JSON schema of a whole answer. It lists every member which this package prints. Its one
// reference is to the component AnswerExt of the API description.
func Schema() string { return responseSchema("completed", "incomplete") }

// EventSchema returns the JSON schema of the data of a stream's events.
func EventSchema() string {
	place := []string{"item_id", api.StringSchema, "output_index", api.CountSchema}
	part := append(place, "content_index", `{"const":0}`)
	with := func(at []string, more ...string) []string { return append(at[:len(at):len(at)], more...) }
	return api.AnyOfSchema(
		eventSchema([]string{"response.created", "response.in_progress"}, "response", responseSchema("in_progress")),
		eventSchema([]string{"response.completed", "response.incomplete", "response.failed"}, "response", responseSchema("completed", "incomplete", "failed")),
		eventSchema([]string{"response.output_item.added", "response.output_item.done"}, "output_index", api.CountSchema, "item", outputSchema()),
		eventSchema([]string{"response.content_part.added", "response.content_part.done"}, with(part, "part", api.AnyOfSchema(textPartSchema(), reasoningPartSchema()))...),
		eventSchema([]string{"response.output_text.delta"}, with(part, "logprobs", api.ArraySchema(logprobSchema()), "delta", api.StringSchema)...),
		eventSchema([]string{"response.output_text.done"}, with(part, "text", api.StringSchema, "logprobs", api.ArraySchema(logprobSchema()))...),
		eventSchema([]string{"response.reasoning_text.delta"}, with(part, "delta", api.StringSchema)...),
		eventSchema([]string{"response.reasoning_text.done"}, with(part, "text", api.StringSchema)...),
		eventSchema([]string{"response.function_call_arguments.delta"}, with(place, "delta", api.StringSchema)...),
		eventSchema([]string{"response.function_call_arguments.done"}, with(place, "name", api.StringSchema, "arguments", api.StringSchema)...),
		eventSchema([]string{"error"}, "code", api.StringSchema, "message", api.StringSchema, "param", api.StringOrNullSchema,
			"error", api.ClosedSchema("message", api.StringSchema, "type", api.StringSchema, "param", api.StringOrNullSchema, "code", api.StringSchema)),
	)
}

// eventSchema returns the schema of events of these names.
func eventSchema(names []string, members ...string) string {
	return api.ClosedSchema(append([]string{"type", api.EnumSchema(names...), "sequence_number", api.CountSchema}, members...)...)
}

// responseSchema returns the schema of a response which has one of these statuses.
func responseSchema(statuses ...string) string {
	const integerOrNull, numberOrNull = `{"type":["integer","null"]}`, `{"type":["number","null"]}`
	return api.ClosedSchema(
		"id", api.StringSchema, "object", api.ConstSchema("response"), "created_at", `{"type":"integer"}`, "model", api.StringSchema,
		"status", api.EnumSchema(statuses...), "background", `{"const":false}`,
		"error", api.AnyOfSchema(api.NullSchema, api.ClosedSchema("code", api.EnumSchema("server_error", "rate_limit_exceeded", "invalid_prompt"), "message", api.StringSchema)),
		"incomplete_details", api.AnyOfSchema(api.NullSchema, api.ClosedSchema("reason", api.ConstSchema("max_output_tokens"))),
		"output", api.ArraySchema(outputSchema()),
		"instructions", api.StringOrNullSchema, "max_output_tokens", integerOrNull, "max_tool_calls", integerOrNull,
		"metadata", `{"type":"object","additionalProperties":{"type":"string"}}`, "parallel_tool_calls", api.BoolSchema,
		"previous_response_id", api.NullSchema, "prompt_cache_key", api.StringOrNullSchema,
		"reasoning", api.ClosedSchema("effort", api.StringOrNullSchema, "summary", api.NullSchema), "safety_identifier", api.StringOrNullSchema,
		"service_tier", api.ConstSchema("default"), "store", `{"const":false}`, "temperature", numberOrNull,
		"text", api.ClosedSchema("format", formatSchema, "verbosity", api.EnumSchema("low", "medium", "high")),
		"tool_choice", choiceSchema, "tools", api.ArraySchema(toolSchema), "top_logprobs", api.CountSchema, "top_p", numberOrNull,
		"truncation", api.ConstSchema("disabled"), "user", api.StringOrNullSchema,
		"usage", api.AnyOfSchema(api.NullSchema, usageSchema()), "nvext?", api.AnswerExtSchema,
	)
}

func usageSchema() string {
	return api.ClosedSchema(
		"input_tokens", api.CountSchema, "input_tokens_details", api.ClosedSchema("cached_tokens?", api.CountSchema, "cache_write_tokens", `{"const":0}`),
		"output_tokens", api.CountSchema, "output_tokens_details", api.ClosedSchema("reasoning_tokens", api.CountSchema), "total_tokens", api.CountSchema,
	)
}

// outputSchema returns the schema of an item of an answer.
func outputSchema() string {
	is := api.EnumSchema(string(inProgress), string(completed), string(incomplete))
	return api.AnyOfSchema(
		api.ClosedSchema("id", api.StringSchema, "type", api.ConstSchema("message"), "role", api.ConstSchema("assistant"), "content", api.ArraySchema(textPartSchema()), "status", is),
		api.ClosedSchema("id", api.StringSchema, "type", api.ConstSchema("reasoning"), "summary", api.EmptyArraySchema, "content", api.ArraySchema(reasoningPartSchema()), "status", is),
		api.ClosedSchema("id", api.StringSchema, "type", api.ConstSchema("function_call"), "call_id", api.StringSchema, "name", api.StringSchema, "arguments", api.StringSchema, "status", is),
	)
}

func textPartSchema() string {
	return api.ClosedSchema(
		"type", api.ConstSchema("output_text"), "text", api.StringSchema, "annotations", api.EmptyArraySchema, "logprobs", api.ArraySchema(logprobSchema()),
	)
}

func reasoningPartSchema() string {
	return api.ClosedSchema("type", api.ConstSchema("reasoning_text"), "text", api.StringSchema)
}

func logprobSchema() string {
	token := []string{"token", api.StringSchema, "logprob", `{"type":"number"}`, "bytes", `{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}}`}
	return api.ClosedSchema(append(token[:len(token):len(token)], "top_logprobs", api.ArraySchema(api.ClosedSchema(token...)))...)
}
