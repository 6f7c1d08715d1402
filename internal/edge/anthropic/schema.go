package anthropic

import "penstock/internal/edge/api"

// MessageSchema returns the JSON schema of a whole answer of /v1/messages. It is closed: it has every member
// which this package prints. Its one reference is to the component AnswerExt of the API description.
func MessageSchema() string {
	return messageSchema(api.ArraySchema(api.AnyOfSchema(
		api.ClosedSchema("type", api.ConstSchema("text"), "text", api.StringSchema),
		api.ClosedSchema("type", api.ConstSchema("thinking"), "thinking", api.StringSchema, "signature", api.ConstSchema("")),
		api.ClosedSchema("type", api.ConstSchema("tool_use"), "id", api.StringSchema, "name", api.StringSchema, "input", api.ObjectSchema, "partial_json?", api.StringSchema),
	)), stopMembers(), usageSchema(), "nvext?", api.AnswerExtSchema)
}

// EventSchema returns the JSON schema of the data of a stream's events, which is closed too.
func EventSchema() string {
	started := messageSchema(api.EmptyArraySchema, []string{"stop_reason", api.NullSchema, "stop_sequence", api.NullSchema}, api.ClosedSchema(append(inputUsageMembers(), "output_tokens", `{"const":0}`)...))
	return api.AnyOfSchema(
		api.ClosedSchema("type", api.ConstSchema("message_start"), "message", started),
		api.ClosedSchema("type", api.ConstSchema("content_block_start"), "index", api.CountSchema, "content_block", api.AnyOfSchema(
			api.ClosedSchema("type", api.ConstSchema("text"), "text", api.ConstSchema("")),
			api.ClosedSchema("type", api.ConstSchema("thinking"), "thinking", api.ConstSchema(""), "signature", api.ConstSchema("")),
			api.ClosedSchema("type", api.ConstSchema("tool_use"), "id", api.StringSchema, "name", api.StringSchema, "input", api.ClosedSchema()),
		)),
		api.ClosedSchema("type", api.ConstSchema("content_block_delta"), "index", api.CountSchema, "delta", api.AnyOfSchema(
			api.ClosedSchema("type", api.ConstSchema("text_delta"), "text", api.StringSchema),
			api.ClosedSchema("type", api.ConstSchema("thinking_delta"), "thinking", api.StringSchema),
			api.ClosedSchema("type", api.ConstSchema("signature_delta"), "signature", api.ConstSchema("")),
			api.ClosedSchema("type", api.ConstSchema("input_json_delta"), "partial_json", api.StringSchema),
		)),
		api.ClosedSchema("type", api.ConstSchema("content_block_stop"), "index", api.CountSchema),
		api.ClosedSchema("type", api.ConstSchema("message_delta"), "delta", api.ClosedSchema(stopMembers()...), "usage", usageSchema(), "nvext?", api.AnswerExtSchema),
		api.ClosedSchema("type", api.ConstSchema("message_stop")),
		ErrorSchema,
	)
}

// CountSchema returns the JSON schema of an answer of /v1/messages/count_tokens.
func CountSchema() string { return api.ClosedSchema("input_tokens", api.CountSchema) }

// messageSchema returns the schema of a message with the given content, stop members and usage.
func messageSchema(content string, stop []string, usage string, more ...string) string {
	members := []string{"id", api.StringSchema, "type", api.ConstSchema("message"), "role", api.ConstSchema("assistant"), "model", api.StringSchema, "content", content}
	members = append(members, stop...)
	members = append(members, "usage", usage)
	return api.ClosedSchema(append(members, more...)...)
}

// stopMembers returns the members with the reason why an answer ended.
func stopMembers() []string {
	return []string{"stop_reason", `{"enum":["end_turn","max_tokens","stop_sequence","tool_use",null]}`, "stop_sequence", api.StringOrNullSchema}
}

// inputUsageMembers returns the members with the cost of the prompt.
func inputUsageMembers() []string {
	return []string{"input_tokens", api.CountSchema, "cache_creation_input_tokens", `{"const":0}`, "cache_read_input_tokens?", api.CountSchema}
}

func usageSchema() string {
	return api.ClosedSchema(append(inputUsageMembers(), "output_tokens", api.CountSchema, "output_tokens_details", api.ClosedSchema("thinking_tokens", api.CountSchema))...)
}
