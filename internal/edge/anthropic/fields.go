package anthropic

// Treatment is what the decoder does with a field of a request.
type Treatment uint8

// The treatments.
const (
	// Mapped fields change the answer as the API says.
	Mapped Treatment = iota
	// Accepted fields are read, checked and without effect: ignoring them cannot
	// change the answer.
	Accepted
	// Refused fields are answered with 400 and their name, but for values that ask
	// for what happens anyway.
	Refused
)

// String returns the treatment's name as documents print it.
func (t Treatment) String() string {
	return [...]string{"mapped", "accepted", "refused"}[t]
}

// Field is a top-level field of a request.
type Field struct {
	Name      string
	Treatment Treatment
	Required  bool
	// Schema is the JSON schema of what is taken; "" if that is null only, which
	// is a field not given whatever its name.
	Schema string
}

// Schemas of several fields, and of parts of them.
const (
	anyBoolean   = `{"type":"boolean"}`
	anyString    = `{"type":"string"}`
	anyObject    = `{"type":"object"}`
	noElements   = `{"type":"array","maxItems":0}`
	formatSchema = `{"type":"object","required":["type","schema"],"additionalProperties":false,"properties":{` +
		`"type":{"const":"json_schema"},"schema":{"type":"object"}}}`
	textBlock = `{"type":"object","required":["type","text"],"additionalProperties":false,"properties":{` +
		`"type":{"const":"text"},"text":{"type":"string"},"citations":{},"cache_control":{}}}`
	textOrBlocks = `{"anyOf":[{"type":"string"},{"type":"array","items":` + textBlock + `}]}`
)

// Fields lists the fields that requests to /v1/messages may have. Any other is
// refused by name.
func Fields() []Field {
	return append(append(commonFields(), unusedFields()...), createFields()...)
}

// CountFields lists those of /v1/messages/count_tokens.
func CountFields() []Field { return append(commonFields(), unusedFields()...) }

// commonFields are those of decoder.common.
func commonFields() []Field {
	return []Field{
		{"model", Mapped, true, anyString},
		{"messages", Mapped, true, messagesSchema},
		{"system", Mapped, false, textOrBlocks},
		{"tools", Mapped, false, toolsSchema},
		{"tool_choice", Mapped, false, `{"type":"object","required":["type"],"additionalProperties":false,"properties":{` +
			`"type":{"enum":["auto","any","tool","none"]},"name":{"type":"string"},"disable_parallel_tool_use":{"type":"boolean"}}}`},
		{"thinking", Mapped, false, `{"type":"object","required":["type"],"additionalProperties":false,"properties":{` +
			`"type":{"enum":["enabled","adaptive","disabled"]},"budget_tokens":{"type":"integer","minimum":1,"description":"without effect"},` +
			`"display":{"enum":["summarized","omitted",null]}}}`},
		{"output_config", Mapped, false, `{"type":"object","additionalProperties":false,"properties":{` +
			`"effort":{"enum":["low","medium","high","xhigh","max",null]},"format":{"anyOf":[{"type":"null"},` + formatSchema + `]}}}`},
		{"output_format", Mapped, false, formatSchema},
	}
}

const messagesSchema = `{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"additionalProperties":false,"properties":{` +
	`"role":{"enum":["user","assistant","system"]},"content":{"anyOf":[{"type":"string"},{"type":"array","items":{"anyOf":[` +
	textBlock + `,` +
	`{"type":"object","required":["type","thinking"],"properties":{"type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"type":"string"}}},` +
	`{"type":"object","required":["type"],"properties":{"type":{"const":"redacted_thinking"},"data":{"type":"string"}}},` +
	`{"type":"object","required":["type","id","name","input"],"properties":{"type":{"const":"tool_use"},"id":{"type":"string"},"name":{"type":"string"},"input":{"type":"object"}}},` +
	`{"type":"object","required":["type","tool_use_id"],"properties":{"type":{"const":"tool_result"},"tool_use_id":{"type":"string"},"content":` + textOrBlocks + `,"is_error":{"type":"boolean"}}}` +
	`]}}]}}}}`

const toolsSchema = `{"type":"array","maxItems":1536,"items":{"type":"object","required":["name","input_schema"],"properties":{` +
	`"type":{"enum":["custom",null]},"name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,128}$"},"description":{"type":"string"},"input_schema":{"type":"object"}}}}`

// createFields are those of decoder.create.
func createFields() []Field {
	return []Field{
		{"max_tokens", Mapped, true, `{"type":"integer","minimum":1}`},
		{"stream", Mapped, false, anyBoolean},
		{"stop_sequences", Mapped, false, `{"type":"array","maxItems":32,"items":{"type":"string","minLength":1}}`},
		{"temperature", Mapped, false, `{"type":"number","minimum":0,"maximum":1}`},
		{"top_p", Mapped, false, `{"type":"number","minimum":0,"maximum":1}`},
		{"top_k", Mapped, false, `{"type":"integer","minimum":0}`},
		{"cache_salt", Mapped, false, `{"type":"string","minLength":1,"maxLength":1024}`},
		{"metadata", Accepted, false, anyObject},
		{"diagnostics", Accepted, false, anyObject},
		{"service_tier", Accepted, false, anyString},
		{"inference_geo", Refused, false, `{"const":"global"}`},
		{"fallbacks", Refused, false, noElements},
		{Name: "container", Treatment: Refused},
		{Name: "fallback_credit_token", Treatment: Refused},
		{Name: "thread", Treatment: Refused},
	}
}

// unusedFields are those of decoder.unused.
func unusedFields() []Field {
	return []Field{
		{"cache_control", Accepted, false, anyObject},
		{"speed", Accepted, false, `{"enum":["standard","fast"]}`},
		{"mcp_servers", Refused, false, noElements},
		{"context_management", Refused, false, `{"type":"object","additionalProperties":false,"properties":{"edits":{"type":"array","items":{` +
			`"type":"object","required":["type","keep"],"properties":{"type":{"const":"clear_thinking_20251015"},` +
			`"keep":{"anyOf":[{"const":"all"},{"type":"object","required":["type"],"properties":{"type":{"const":"all"}}}]}}}}}}`},
		{Name: "billing_policy", Treatment: Refused},
		{Name: "compaction", Treatment: Refused},
	}
}
