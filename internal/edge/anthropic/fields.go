package anthropic

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// JSON schemas which several fields share.
const (
	formatSchema = `{"type":"object","required":["type","schema"],"additionalProperties":{"type":"null"},"properties":{` +
		`"type":{"const":"json_schema"},"schema":{"type":"object"}}}`
	textBlock = `{"type":"object","required":["type","text"],"additionalProperties":{"type":"null"},"properties":{` +
		`"type":{"const":"text"},"text":{"type":"string"},"citations":{},"cache_control":{}}}`
	textOrBlocks = `{"anyOf":[{"type":"string"},{"type":"array","items":` + textBlock + `}]}`
)

// Fields lists the fields which requests to /v1/messages may have. Any other field is refused by name.
func Fields() []api.Field { return createTable.Fields() }

// CountFields lists the fields of /v1/messages/count_tokens.
func CountFields() []api.Field { return countTable.Fields() }

// fieldRow is a field of a request.
type fieldRow = api.FieldRow[*requestDecoder]

var (
	createTable = api.NewTable(commonRows, unusedRows, createRows)
	countTable  = api.NewTable(commonRows, unusedRows)
)

// commonRows are the fields which define the prompt. Both endpoints have them.
var commonRows = []fieldRow{
	{Name: "model", Required: true, Value: api.Model},
	{Name: "messages", Required: true, Schema: messagesSchema, Read: (*requestDecoder).readMessages},
	{Name: "system", Schema: textOrBlocks, Read: (*requestDecoder).readSystemPrompt},
	{Name: "tools", Schema: toolsSchema, Read: (*requestDecoder).readTools},
	{
		Name: "tool_choice", Read: (*requestDecoder).readToolChoice,
		Schema: `{"type":"object","required":["type"],"additionalProperties":{"type":"null"},"properties":{` +
			`"type":{"enum":["auto","any","tool","none"]},"name":{"type":"string"},"disable_parallel_tool_use":{"type":"boolean"}}}`,
	},
	{
		Name: "thinking", Read: (*requestDecoder).readThinking,
		Schema: `{"type":"object","required":["type"],"additionalProperties":{"type":"null"},"properties":{` +
			`"type":{"enum":["enabled","adaptive","disabled"]},"budget_tokens":{"type":"integer","minimum":1,"description":"without effect"},` +
			`"display":{"enum":["summarized","omitted",null]}}}`,
	},
	{
		Name: "output_config", Read: outputConfigTable.ReadObject,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{` +
			`"effort":{"enum":["low","medium","high","xhigh","max",null]},"format":{"anyOf":[{"type":"null"},` + formatSchema + `]}}}`,
	},
	{Name: "output_format", Schema: formatSchema, Read: (*requestDecoder).readOutputFormat},
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

// createRows are the fields which control the answer.
var createRows = []fieldRow{
	{Name: "max_tokens", Required: true, Value: api.MaxTokens},
	{Name: "stream", Value: api.Stream},
	{
		Name: "stop_sequences", Read: (*requestDecoder).readStopSequences,
		Schema: `{"type":"array","maxItems":32,"items":{"type":"string","minLength":1}}`,
	},
	{Name: "temperature", Value: api.Temperature(1)},
	{Name: "top_p", Value: api.TopP},
	{Name: "top_k", Value: api.TopK(0)},
	{Name: "cache_salt", Value: api.Salt},
	{
		Name: "nvext", Read: extTable.ReadObject,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{"media_failure":` + api.MediaFailure.Schema + `}}`,
	},
	{Name: "metadata", Treatment: api.Accepted, Value: api.AnyObject},
	{Name: "diagnostics", Treatment: api.Accepted, Value: api.AnyObject},
	{Name: "service_tier", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "inference_geo", Treatment: api.Refused, Value: api.OnlyString("global")}, // global is no restriction
	{Name: "fallbacks", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "container", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "fallback_credit_token", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "thread", Treatment: api.Refused, Value: api.OnlyNull},
}

// unusedRows are the fields of both endpoints which this server does not implement. A field is accepted if
// ignoring it cannot change the answer, and else refused by name.
var unusedRows = []fieldRow{
	{Name: "cache_control", Treatment: api.Accepted, Value: api.AnyObject},         // the prefix cache needs no marks
	{Name: "speed", Treatment: api.Accepted, Value: api.OneOf("standard", "fast")}, // there is only one speed
	{Name: "mcp_servers", Treatment: api.Refused, Value: api.EmptyArray},
	{
		Name: "context_management", Treatment: api.Refused, Read: contextTable.ReadObject,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{"edits":{"type":"array","items":{` +
			`"type":"object","required":["type","keep"],"properties":{"type":{"const":"clear_thinking_20251015"},` +
			`"keep":{"anyOf":[{"const":"all"},{"type":"object","required":["type"],"properties":{"type":{"const":"all"}}}]}}}}}}`,
	},
	{Name: "billing_policy", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "compaction", Treatment: api.Refused, Value: api.OnlyNull},
}

// extTable has the members of nvext.
var extTable = api.NewTable([]fieldRow{{Name: "media_failure", Value: api.MediaFailure}})

// contextTable has the members of context_management. It accepts no edits, and the edit which clears nothing,
// which Claude Code requests: all thinking stays in the conversation.
var contextTable = api.NewTable([]fieldRow{{Name: "edits", Read: func(d *requestDecoder) error {
	return d.ReadArray("an array of edits", func(int) error { return d.readContextEdit() })
}}})

func (d *requestDecoder) readContextEdit() error {
	var kind, keep string
	err := d.ReadMembers(func(key string) error {
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "keep":
			return d.readKeep(&keep)
		}
		return d.SkipValue()
	})
	if err == nil && (kind != "clear_thinking_20251015" || keep != "all") {
		return d.RefuseUnsupported()
	}
	return err
}

// readKeep reads "all", {"type":"all"} or an object with a number of turns.
func (d *requestDecoder) readKeep(dst *string) error {
	if d.Kind() != strictjson.ObjectKind {
		return d.ReadStringInto(dst)
	}
	return d.ReadObject(func(key string) error {
		if key == "type" {
			return d.ReadStringInto(dst)
		}
		return d.SkipValue()
	})
}

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
