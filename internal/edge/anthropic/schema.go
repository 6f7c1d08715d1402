package anthropic

import "strings"

// MessageSchema returns the JSON schema of a whole answer of /v1/messages. It is closed: it has every member
// which this package prints. Its one reference is to the component AnswerExt of the API description.
func MessageSchema() string {
	return messageSchema(`{"type":"array","items":`+anyOfSchemas(
		closedObject("type", constString("text"), "text", anyString),
		closedObject("type", constString("thinking"), "thinking", anyString, "signature", constString("")),
		closedObject("type", constString("tool_use"), "id", anyString, "name", anyString, "input", anyObject, "partial_json?", anyString),
	)+`}`, stopMembers(), usageSchema(), "nvext?", answerExt)
}

// EventSchema returns the JSON schema of the data of a stream's events, which is closed too.
func EventSchema() string {
	started := messageSchema(emptyArray, []string{"stop_reason", null, "stop_sequence", null}, closedObject(append(inputUsageMembers(), "output_tokens", `{"const":0}`)...))
	return anyOfSchemas(
		closedObject("type", constString("message_start"), "message", started),
		closedObject("type", constString("content_block_start"), "index", nonNegativeInteger, "content_block", anyOfSchemas(
			closedObject("type", constString("text"), "text", constString("")),
			closedObject("type", constString("thinking"), "thinking", constString(""), "signature", constString("")),
			closedObject("type", constString("tool_use"), "id", anyString, "name", anyString, "input", closedObject()),
		)),
		closedObject("type", constString("content_block_delta"), "index", nonNegativeInteger, "delta", anyOfSchemas(
			closedObject("type", constString("text_delta"), "text", anyString),
			closedObject("type", constString("thinking_delta"), "thinking", anyString),
			closedObject("type", constString("signature_delta"), "signature", constString("")),
			closedObject("type", constString("input_json_delta"), "partial_json", anyString),
		)),
		closedObject("type", constString("content_block_stop"), "index", nonNegativeInteger),
		closedObject("type", constString("message_delta"), "delta", closedObject(stopMembers()...), "usage", usageSchema(), "nvext?", answerExt),
		closedObject("type", constString("message_stop")),
		ErrorSchema,
	)
}

// CountSchema returns the JSON schema of an answer of /v1/messages/count_tokens.
func CountSchema() string { return closedObject("input_tokens", nonNegativeInteger) }

const (
	nonNegativeInteger = `{"type":"integer","minimum":0}`
	null               = `{"type":"null"}`
	stringOrNull       = `{"type":["string","null"]}`
	answerExt          = `{"$ref":"#/components/schemas/AnswerExt"}`
)

// messageSchema returns the schema of a message with the given content, stop members and usage.
func messageSchema(content string, stop []string, usage string, more ...string) string {
	members := []string{"id", anyString, "type", constString("message"), "role", constString("assistant"), "model", anyString, "content", content}
	members = append(members, stop...)
	members = append(members, "usage", usage)
	return closedObject(append(members, more...)...)
}

// stopMembers returns the members with the reason why an answer ended.
func stopMembers() []string {
	return []string{"stop_reason", `{"enum":["end_turn","max_tokens","stop_sequence","tool_use",null]}`, "stop_sequence", stringOrNull}
}

// inputUsageMembers returns the members with the cost of the prompt.
func inputUsageMembers() []string {
	return []string{"input_tokens", nonNegativeInteger, "cache_creation_input_tokens", `{"const":0}`, "cache_read_input_tokens?", nonNegativeInteger}
}

func usageSchema() string {
	return closedObject(append(inputUsageMembers(), "output_tokens", nonNegativeInteger, "output_tokens_details", closedObject("thinking_tokens", nonNegativeInteger))...)
}

// closedObject returns the schema of an object with these members and no others. members are names, each
// followed by its schema; a question mark after a name makes it optional.
func closedObject(members ...string) string {
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

func anyOfSchemas(schemas ...string) string { return `{"anyOf":[` + strings.Join(schemas, ",") + `]}` }

// constString returns the schema of one string.
func constString(word string) string { return `{"const":"` + word + `"}` }
