package responses

import "strings"

// Schema is the JSON schema of a whole answer. It is closed: it has every member
// that this package prints. Its one reference is to the component AnswerExt, which
// the description of the API has.
func Schema() string { return responseSchema("completed", "incomplete") }

// EventSchema is the JSON schema of the data of a stream's events, closed likewise.
func EventSchema() string {
	place := []string{"item_id", aString, "output_index", aCount}
	part := append(place, "content_index", `{"const":0}`)
	with := func(at []string, more ...string) []string { return append(at[:len(at):len(at)], more...) }
	return anyOf(
		event([]string{"response.created", "response.in_progress"}, "response", responseSchema("in_progress")),
		event([]string{"response.completed", "response.incomplete", "response.failed"}, "response", responseSchema("completed", "incomplete", "failed")),
		event([]string{"response.output_item.added", "response.output_item.done"}, "output_index", aCount, "item", outputSchema()),
		event([]string{"response.content_part.added", "response.content_part.done"}, with(part, "part", anyOf(textPart(), reasoningPart()))...),
		event([]string{"response.output_text.delta"}, with(part, "logprobs", listOf(logprobSchema()), "delta", aString)...),
		event([]string{"response.output_text.done"}, with(part, "text", aString, "logprobs", listOf(logprobSchema()))...),
		event([]string{"response.reasoning_text.delta"}, with(part, "delta", aString)...),
		event([]string{"response.reasoning_text.done"}, with(part, "text", aString)...),
		event([]string{"response.function_call_arguments.delta"}, with(place, "delta", aString)...),
		event([]string{"response.function_call_arguments.done"}, with(place, "name", aString, "arguments", aString)...),
		event([]string{"error"}, "code", aString, "message", aString, "param", stringOrNull,
			"error", closed("message", aString, "type", aString, "param", stringOrNull, "code", aString)),
	)
}

const (
	aString      = anyString
	aCount       = `{"type":"integer","minimum":0}`
	stringOrNull = `{"type":["string","null"]}`
	null         = `{"type":"null"}`
)

// closed is the schema of an object with these members and no others: names, each
// with its schema behind it. One with a question mark after its name may be missing.
func closed(members ...string) string {
	var required, properties []string
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

func listOf(schema string) string { return `{"type":"array","items":` + schema + `}` }

// oneOfWords is the schema of a string that is one of these.
func oneOfWords(words ...string) string { return `{"enum":["` + strings.Join(words, `","`) + `"]}` }

// event is the schema of events of these names.
func event(names []string, members ...string) string {
	return closed(append([]string{"type", oneOfWords(names...), "sequence_number", aCount}, members...)...)
}

// responseSchema is that of a response that may have these statuses.
func responseSchema(statuses ...string) string {
	const integerOrNull, numberOrNull = `{"type":["integer","null"]}`, `{"type":["number","null"]}`
	return closed(
		"id", aString, "object", `{"const":"response"}`, "created_at", `{"type":"integer"}`, "model", aString,
		"status", oneOfWords(statuses...), "background", `{"const":false}`,
		"error", anyOf(null, closed("code", oneOfWords("server_error", "rate_limit_exceeded", "invalid_prompt"), "message", aString)),
		"incomplete_details", anyOf(null, closed("reason", `{"const":"max_output_tokens"}`)),
		"output", listOf(outputSchema()),
		"instructions", stringOrNull, "max_output_tokens", integerOrNull, "max_tool_calls", integerOrNull,
		"metadata", `{"type":"object","additionalProperties":{"type":"string"}}`, "parallel_tool_calls", anyBoolean,
		"previous_response_id", null, "prompt_cache_key", stringOrNull,
		"reasoning", closed("effort", stringOrNull, "summary", null), "safety_identifier", stringOrNull,
		"service_tier", `{"const":"default"}`, "store", `{"const":false}`, "temperature", numberOrNull,
		"text", closed("format", formatSchema, "verbosity", `{"enum":["low","medium","high"]}`),
		"tool_choice", choiceSchema, "tools", listOf(toolSchema), "top_logprobs", aCount, "top_p", numberOrNull,
		"truncation", `{"const":"disabled"}`, "user", stringOrNull,
		"usage", anyOf(null, usageSchema()), "nvext?", `{"$ref":"#/components/schemas/AnswerExt"}`,
	)
}

func usageSchema() string {
	return closed(
		"input_tokens", aCount, "input_tokens_details", closed("cached_tokens?", aCount, "cache_write_tokens", `{"const":0}`),
		"output_tokens", aCount, "output_tokens_details", closed("reasoning_tokens", aCount), "total_tokens", aCount,
	)
}

// outputSchema is that of an item of an answer.
func outputSchema() string {
	is := oneOfWords(string(inProgress), string(completed), string(incomplete))
	return anyOf(
		closed("id", aString, "type", `{"const":"message"}`, "role", `{"const":"assistant"}`, "content", listOf(textPart()), "status", is),
		closed("id", aString, "type", `{"const":"reasoning"}`, "summary", `{"type":"array","maxItems":0}`, "content", listOf(reasoningPart()), "status", is),
		closed("id", aString, "type", `{"const":"function_call"}`, "call_id", aString, "name", aString, "arguments", aString, "status", is),
	)
}

func textPart() string {
	return closed(
		"type", `{"const":"output_text"}`, "text", aString, "annotations", `{"type":"array","maxItems":0}`, "logprobs", listOf(logprobSchema()),
	)
}

func reasoningPart() string {
	return closed("type", `{"const":"reasoning_text"}`, "text", aString)
}

func logprobSchema() string {
	token := []string{"token", aString, "logprob", `{"type":"number"}`, "bytes", `{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}}`}
	return closed(append(token[:len(token):len(token)], "top_logprobs", listOf(closed(token...)))...)
}
