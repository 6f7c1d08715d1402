package openai

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// JSON schemas which several fields share.
const (
	positiveInteger = `{"type":"integer","minimum":1}`
	tokenIDs        = `{"type":"array","items":{"type":"integer","minimum":0}}`
	noneOrAuto      = `{"enum":["none","auto"]}`
)

// promptSchema is a string, strings, token ids or arrays of token ids.
const promptSchema = `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},` +
	tokenIDs + `,{"type":"array","minItems":1,"items":` + tokenIDs + `}]}`

// Reasons for refused fields. OpenAI's older fields for tools are refused, because clients which use them
// expect another form of tool calls in the answer.
const (
	useTools      = "is not supported by this server: use 'tools'"
	useToolCalls  = "is not supported by this server: use 'tool_calls'"
	useToolChoice = "is not supported by this server: use 'tool_choice'"
)

// fieldRow is a field of the endpoints which generate.
type fieldRow = api.FieldRow[*requestDecoder]

// The fields which requests may have. Any other field is refused by name.
var (
	chatTable       = api.NewTable(chatRows, sharedRows, unusedRows)
	completionTable = api.NewTable(completionRows, sharedRows, unusedRows)
)

// Fields lists the fields of an endpoint which generates.
func Fields(e api.Endpoint) []api.Field { return tableOf(e).Fields() }

func tableOf(e api.Endpoint) *api.FieldTable[*requestDecoder] {
	if e == api.Chat {
		return chatTable
	}
	return completionTable
}

// chatRows are the fields which only chat requests have, or which have another meaning there.
var chatRows = []fieldRow{
	{Name: "messages", Required: true, Schema: messagesSchema, Read: (*requestDecoder).readMessages},
	{Name: "max_completion_tokens", Schema: positiveInteger, Read: func(d *requestDecoder) error {
		return d.ReadIntegerInto(&d.maxCompletion, 1, strictjson.MaxCount)
	}},
	{Name: "logprobs", Schema: api.BoolSchema, Read: func(d *requestDecoder) error { return d.ReadBoolInto(&d.logprobs) }},
	{Name: "top_logprobs", Schema: api.IntegerSchema(0, 20), Read: func(d *requestDecoder) error {
		return d.ReadIntegerInto(&d.topLogprobs, 0, 20)
	}},
	{Name: "add_generation_prompt", Schema: api.BoolSchema, Read: (*requestDecoder).readAddGeneration},
	{Name: "continue_final_message", Value: api.Bool(func(q *api.Request) *bool { return &q.ContinueFinal })},
	{Name: "tools", Schema: toolsSchema, Read: (*requestDecoder).readTools},
	{Name: "tool_choice", Schema: toolChoiceSchema, Read: (*requestDecoder).readToolChoice},
	{Name: "parallel_tool_calls", Value: api.OneCall},
	{Name: "chat_template_kwargs", Schema: api.ObjectSchema, Read: (*requestDecoder).readTemplateArgs},
	{Name: "reasoning_effort", Schema: api.EnumSchema(efforts...), Read: (*requestDecoder).readReasoningEffort},
	{Name: "include_reasoning", Value: api.InvertedBool(func(q *api.Request) *bool { return &q.HideReasoning })},
	{Name: "mm_processor_kwargs", Schema: api.ObjectSchema, Read: (*requestDecoder).readProcessorArgs},
	{Name: "functions", Treatment: api.Refused, Schema: api.EmptyArraySchema, Read: func(d *requestDecoder) error {
		return d.RequireEmptyArray(useTools)
	}},
	{Name: "function_call", Treatment: api.Refused, Schema: noneOrAuto, Read: func(d *requestDecoder) error {
		return d.requireNoToolChoice(useToolChoice)
	}},
	{Name: "echo", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "add_special_tokens", Treatment: api.Refused, Value: api.OnlyFalse},
}

// completionRows are the fields which only completions requests have, or which have another meaning there.
var completionRows = []fieldRow{
	{Name: "prompt", Schema: promptSchema, Read: func(d *requestDecoder) error {
		d.prompt = true
		return d.readPrompts(maxChoices)
	}},
	{Name: "logprobs", Value: api.Integer(0, 5, func(q *api.Request) *int { return &q.Logprobs })},
	{Name: "echo", Value: api.Bool(func(q *api.Request) *bool { return &q.Echo })},
	{Name: "suffix", Treatment: api.Refused, Value: api.OnlyString("")},
	{Name: "add_special_tokens", Treatment: api.Refused, Value: api.OnlyTrue},
	{Name: "parallel_tool_calls", Treatment: api.Accepted, Value: api.AnyBool},
	{Name: "include_reasoning", Treatment: api.Accepted, Value: api.AnyBool},
	{Name: "tools", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "tool_choice", Treatment: api.Refused, Schema: noneOrAuto, Read: (*requestDecoder).requireDefaultToolChoice},
	{Name: "functions", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "function_call", Treatment: api.Refused, Schema: noneOrAuto, Read: (*requestDecoder).requireDefaultToolChoice},
	{Name: "chat_template_kwargs", Treatment: api.Refused, Value: api.EmptyObject},
	{Name: "mm_processor_kwargs", Treatment: api.Refused, Value: api.EmptyObject},
	{Name: "reasoning_effort", Treatment: api.Refused, Value: api.OnlyString("none")},
}

// sharedRows are the fields which both endpoints have.
var sharedRows = []fieldRow{
	{Name: "model", Required: true, Value: api.Model},
	{Name: "stream", Value: api.Stream},
	{
		Name: "stream_options", Read: (*requestDecoder).readStreamOptions,
		Schema: `{"type":"object","additionalProperties":{"type":"null"},"properties":{` +
			`"include_usage":{"type":["boolean","null"]},"include_obfuscation":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]}}}`,
	},
	{Name: "n", Value: api.Integer(1, maxChoices, func(q *api.Request) *int { return &q.N })},
	{
		Name: "best_of", Treatment: api.Refused, Schema: `{"type":"integer","minimum":0,"maximum":20,"description":"0, or what n is"}`,
		Read: func(d *requestDecoder) error { return d.ReadIntegerInto(&d.bestOf, 0, 20) },
	},
	{Name: "max_tokens", Value: api.MaxTokens},
	{Name: "min_tokens", Value: api.Integer(0, strictjson.MaxCount, func(q *api.Request) *int { return &q.MinTokens })},
	{Name: "temperature", Value: api.Temperature(2)},
	{Name: "top_p", Value: api.TopP},
	{Name: "min_p", Value: api.Number(0, 1, func(q *api.Request) **float64 { return &q.MinP })},
	{Name: "top_k", Value: api.TopK(-1)},
	{Name: "presence_penalty", Value: api.Number(-2, 2, func(q *api.Request) **float64 { return &q.PresencePenalty })},
	{Name: "frequency_penalty", Value: api.Number(-2, 2, func(q *api.Request) **float64 { return &q.FrequencyPenalty })},
	{Name: "repetition_penalty", Schema: `{"type":"number","exclusiveMinimum":0,"maximum":2}`, Read: (*requestDecoder).readRepetitionPenalty},
	{Name: "seed", Schema: api.AnyInteger.Schema, Read: (*requestDecoder).readSeed},
	{Name: "logit_bias", Schema: `{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}}`, Read: (*requestDecoder).readLogitBias},
	{
		Name: "stop", Read: (*requestDecoder).readStop,
		Schema: `{"anyOf":[{"type":"string","minLength":1},{"type":"array","maxItems":32,"items":{"anyOf":[{"type":"string","minLength":1},{"type":"integer","minimum":0}]}}]}`,
	},
	{Name: "stop_token_ids", Schema: tokenIDs, Read: (*requestDecoder).readStopTokens},
	{Name: "ignore_eos", Value: api.Bool(func(q *api.Request) *bool { return &q.IgnoreEOS })},
	{Name: "include_stop_str_in_output", Value: api.Bool(func(q *api.Request) *bool { return &q.KeepStop })},
	{Name: "skip_special_tokens", Value: api.InvertedBool(func(q *api.Request) *bool { return &q.KeepSpecial })},
	{Name: "cache_salt", Value: api.Salt},
	{Name: "response_format", Schema: responseFormatSchema, Read: (*requestDecoder).readResponseFormat},
	{Name: "guided_json", Schema: schemaOrText, Read: (*requestDecoder).readGuidedJSON},
	{Name: "structured_outputs", Schema: structuredOutputsSchema, Read: (*requestDecoder).readStructuredOutputs},
	{Name: "nvext", Schema: api.ObjectSchema, Read: extTable.ReadObject},
}

// unusedRows are the fields of both endpoints which other servers define and this one does not implement. A
// field is accepted if ignoring it cannot change the answer, and else refused by name.
var unusedRows = []fieldRow{
	{Name: "user", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "store", Treatment: api.Accepted, Value: api.AnyBool},
	{Name: "metadata", Treatment: api.Accepted, Value: api.AnyObject},
	{Name: "service_tier", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "safety_identifier", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "prompt_cache_key", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "prompt_cache_options", Treatment: api.Accepted, Value: api.AnyObject}, // hints: the prefix cache needs none
	{Name: "prompt_cache_retention", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "request_id", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "rid", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "session_id", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "guided_decoding_backend", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "verbosity", Treatment: api.Accepted, Value: api.OneOf("low", "medium", "high")}, // a hint for the length of the answer
	{Name: "stream_interval", Treatment: api.Accepted, Value: api.AnyInteger},               // tokens per event: here tokens which arrive together share one
	{Name: "prediction", Treatment: api.Accepted, Value: api.AnyValue},                      // a hint for speed
	{Name: "priority", Treatment: api.Accepted, Value: api.AnyInteger},
	{Name: "length_penalty", Treatment: api.Accepted, Value: api.AnyNumber(-2, 2)}, // of beam search

	{Name: "modalities", Treatment: api.Refused, Schema: `{"type":"array","items":{"const":"text"}}`, Read: (*requestDecoder).readModalities},
	{Name: "detokenize", Treatment: api.Refused, Value: api.OnlyTrue},
	{Name: "spaces_between_special_tokens", Treatment: api.Refused, Value: api.OnlyTrue},
	{Name: "separate_reasoning", Treatment: api.Refused, Value: api.OnlyTrue},
	{Name: "stream_reasoning", Treatment: api.Refused, Value: api.OnlyTrue},
	{Name: "chat_template", Treatment: api.Refused, Value: api.OnlyString("")},
	{Name: "kv_transfer_params", Treatment: api.Refused, Value: api.EmptyObject},
	{Name: "bad_words", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "logits_processors", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "documents", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "bad_words_token_ids", Treatment: api.Refused, Value: api.EmptyArray},
	{Name: "use_beam_search", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "return_tokens_as_token_ids", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "return_token_ids", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "return_hidden_states", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "no_stop_trim", Treatment: api.Refused, Value: api.OnlyFalse},
	{Name: "allowed_token_ids", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "audio", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "guided_choice", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "guided_grammar", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "guided_regex", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "guided_whitespace_pattern", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "moderation", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "prompt_logprobs", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "truncate_prompt_tokens", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "web_search_options", Treatment: api.Refused, Value: api.OnlyNull},
}
