package anthropic

import "strings"

// MessageSchema returns the JSON schema of a whole answer of /v1/messages. It is closed: it has every member
// which this package prints. Its one reference is to the component AnswerExt of the API description.
func Schema() string {
	return messageSchema(`{"type":"array","items":`+anyOf(
		closed("type", is("text"), "text", anyString),
		closed("type", is("thinking"), "thinking", anyString, "signature", is("")),
		closed("type", is("tool_use"), "id", anyString, "name", anyString, "input", anyObject, "partial_json?", anyString),
	)+`}`, stopSchema(), usageSchema(), "nvext?", answerExt)
}

// EventSchema returns the JSON schema of the data of a stream's events, which is closed too.
func EventSchema() string {
	started := messageSchema(noElements, []string{"stop_reason", null, "stop_sequence", null}, closed(append(inputUsage(), "output_tokens", `{"const":0}`)...))
	return anyOf(
		closed("type", is("message_start"), "message", started),
		closed("type", is("content_block_start"), "index", aCount, "content_block", anyOf(
			closed("type", is("text"), "text", is("")),
			closed("type", is("thinking"), "thinking", is(""), "signature", is("")),
			closed("type", is("tool_use"), "id", anyString, "name", anyString, "input", closed()),
		)),
		closed("type", is("content_block_delta"), "index", aCount, "delta", anyOf(
			closed("type", is("text_delta"), "text", anyString),
			closed("type", is("thinking_delta"), "thinking", anyString),
			closed("type", is("signature_delta"), "signature", is("")),
			closed("type", is("input_json_delta"), "partial_json", anyString),
		)),
		closed("type", is("content_block_stop"), "index", aCount),
		closed("type", is("message_delta"), "delta", closed(stopSchema()...), "usage", usageSchema(), "nvext?", answerExt),
		closed("type", is("message_stop")),
		ErrorSchema,
	)
}

// CountSchema returns the JSON schema of an answer of /v1/messages/count_tokens.
func CountSchema() string { return closed("input_tokens", aCount) }

const (
	aCount       = `{"type":"integer","minimum":0}`
	null         = `{"type":"null"}`
	stringOrNull = `{"type":["string","null"]}`
	answerExt    = `{"$ref":"#/components/schemas/AnswerExt"}`
)

// messageSchema returns the schema of a message with the given content, stop members and usage.
func messageSchema(content string, stop []string, usage string, more ...string) string {
	members := []string{"id", anyString, "type", is("message"), "role", is("assistant"), "model", anyString, "content", content}
	members = append(members, stop...)
	members = append(members, "usage", usage)
	return closed(append(members, more...)...)
}

// stopMembers returns the members with the reason why an answer ended.
func stopSchema() []string {
	return []string{"stop_reason", `{"enum":["end_turn","max_tokens","stop_sequence","tool_use",null]}`, "stop_sequence", stringOrNull}
}

// inputUsageMembers returns the members with the cost of the prompt.
func inputUsage() []string {
	return []string{"input_tokens", aCount, "cache_creation_input_tokens", `{"const":0}`, "cache_read_input_tokens?", aCount}
}

func usageSchema() string {
	return closed(append(inputUsage(), "output_tokens", aCount, "output_tokens_details", closed("thinking_tokens", aCount))...)
}

// closedObject returns the schema of an object with these members and no others. members are names, each
// followed by its schema; a question mark after a name makes it optional.
func closed(members ...string) string {
	required, properties := []string{}, []string{}
	for i := 0; i < len(members); i += 2 {
		name, optional := strings.CutSuffix(members[i], "?")
		if !optional {
			required = append(required, `"`+name+`"`)
		}
		properties = append(properties, `"`+name+`":`+members[i+1])
	}
	return `{"type":"object","additionalProperties":false,"required":[` + strings.Join(required, ",") + `],"properties":{` + strings.Join(properties, ",") + `}}`
}

func anyOf(schemas ...string) string { return `{"anyOf":[` + strings.Join(schemas, ",") + `]}` }

// constString returns the schema of one string.
func is(word string) string { return `{"const":"` + word + `"}` }
