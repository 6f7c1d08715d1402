package openai

import "penstock/internal/edge/api"

// JSON schemas which several fields share.
const (
	anyBoolean      = `{"type":"boolean"}`
	anyString       = `{"type":"string"}`
	anyInteger      = `{"type":"integer"}`
	anyObject       = `{"type":"object"}`
	emptyArray      = `{"type":"array","maxItems":0}`
	emptyObject     = `{"const":{}}`
	positiveInteger = `{"type":"integer","minimum":1}`
	tokenIDs        = `{"type":"array","items":{"type":"integer","minimum":0}}`
	constTrue       = `{"const":true}`
	constFalse      = `{"const":false}`
	noneOrAuto      = `{"enum":["none","auto"]}`
)

// promptSchema is a string, strings, token ids or arrays of token ids.
const promptSchema = `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},` +
	tokenIDs + `,{"type":"array","minItems":1,"items":` + tokenIDs + `}]}`

// Fields lists the fields which an endpoint's requests may have. Any other field is refused by name.
func Fields(e api.Endpoint) []api.Field {
	if e == api.Chat {
		return append(append(chatFields(), sharedFields()...), unusedFields()...)
	}
	return append(append(completionFields(), sharedFields()...), unusedFields()...)
}

func chatFields() []api.Field {
	return []api.Field{
		api.RequiredField("messages", messagesSchema),
		api.MappedField("max_completion_tokens", positiveInteger),
		api.MappedField("logprobs", anyBoolean),
		api.MappedField("top_logprobs", `{"type":"integer","minimum":0,"maximum":20}`),
		api.MappedField("add_generation_prompt", anyBoolean),
		api.MappedField("continue_final_message", anyBoolean),
		api.MappedField("tools", toolsSchema),
		api.MappedField("tool_choice", toolChoiceSchema),
		api.MappedField("parallel_tool_calls", anyBoolean),
		api.MappedField("chat_template_kwargs", anyObject),
		api.MappedField("reasoning_effort", `{"enum":["none","minimal","low","medium","high","xhigh","max"]}`),
		api.MappedField("include_reasoning", anyBoolean),
		api.MappedField("mm_processor_kwargs", anyObject),
		api.RefusedField("functions", emptyArray),
		api.RefusedField("function_call", noneOrAuto),
		api.RefusedField("echo", constFalse),
		api.RefusedField("add_special_tokens", constFalse),
	}
}

func completionFields() []api.Field {
	return []api.Field{
		api.MappedField("prompt", promptSchema),
		api.MappedField("logprobs", `{"type":"integer","minimum":0,"maximum":5}`),
		api.MappedField("echo", anyBoolean),
		api.RefusedField("suffix", `{"const":""}`),
		api.RefusedField("add_special_tokens", constTrue),
		api.AcceptedField("parallel_tool_calls", anyBoolean),
		api.AcceptedField("include_reasoning", anyBoolean),
		api.RefusedField("tools", emptyArray),
		api.RefusedField("tool_choice", noneOrAuto),
		api.RefusedField("functions", emptyArray),
		api.RefusedField("function_call", noneOrAuto),
		api.RefusedField("chat_template_kwargs", emptyObject),
		api.RefusedField("mm_processor_kwargs", emptyObject),
		api.RefusedField("reasoning_effort", `{"const":"none"}`),
	}
}

func sharedFields() []api.Field {
	return []api.Field{
		api.RequiredField("model", anyString),
		api.MappedField("stream", anyBoolean),
		api.MappedField("stream_options", `{"type":"object","additionalProperties":{"type":"null"},"properties":{`+
			`"include_usage":{"type":["boolean","null"]},"include_obfuscation":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]}}}`),
		api.MappedField("n", `{"type":"integer","minimum":1,"maximum":128}`),
		api.RefusedField("best_of", `{"type":"integer","minimum":0,"maximum":20,"description":"0, or what n is"}`),
		api.MappedField("max_tokens", positiveInteger),
		api.MappedField("min_tokens", `{"type":"integer","minimum":0}`),
		api.MappedField("temperature", `{"type":"number","minimum":0,"maximum":2}`),
		api.MappedField("top_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.MappedField("min_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.MappedField("top_k", `{"type":"integer","minimum":-1}`),
		api.MappedField("presence_penalty", `{"type":"number","minimum":-2,"maximum":2}`),
		api.MappedField("frequency_penalty", `{"type":"number","minimum":-2,"maximum":2}`),
		api.MappedField("repetition_penalty", `{"type":"number","exclusiveMinimum":0,"maximum":2}`),
		api.MappedField("seed", anyInteger),
		api.MappedField("logit_bias", `{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}}`),
		api.MappedField("stop", `{"anyOf":[{"type":"string","minLength":1},{"type":"array","maxItems":32,"items":{"anyOf":[{"type":"string","minLength":1},{"type":"integer","minimum":0}]}}]}`),
		api.MappedField("stop_token_ids", tokenIDs),
		api.MappedField("ignore_eos", anyBoolean),
		api.MappedField("include_stop_str_in_output", anyBoolean),
		api.MappedField("skip_special_tokens", anyBoolean),
		api.MappedField("cache_salt", `{"type":"string","minLength":1,"maxLength":1024}`),
		api.MappedField("response_format", responseFormatSchema),
		api.MappedField("guided_json", schemaOrText),
		api.MappedField("structured_outputs", structuredOutputsSchema),
		api.MappedField("nvext", anyObject),
	}
}

// unusedFields lists the fields which readUnusedField reads.
func unusedFields() []api.Field {
	fields := []api.Field{
		api.AcceptedField("user", anyString),
		api.AcceptedField("store", anyBoolean),
		api.AcceptedField("metadata", anyObject),
		api.AcceptedField("service_tier", anyString),
		api.AcceptedField("safety_identifier", anyString),
		api.AcceptedField("prompt_cache_key", anyString),
		api.AcceptedField("prompt_cache_options", anyObject),
		api.AcceptedField("prompt_cache_retention", anyString),
		api.AcceptedField("request_id", anyString),
		api.AcceptedField("rid", anyString),
		api.AcceptedField("session_id", anyString),
		api.AcceptedField("guided_decoding_backend", anyString),
		api.AcceptedField("verbosity", `{"enum":["low","medium","high"]}`),
		api.AcceptedField("stream_interval", anyInteger),
		api.AcceptedField("prediction", `{}`),
		api.AcceptedField("priority", anyInteger),
		api.AcceptedField("length_penalty", `{"type":"number","minimum":-2,"maximum":2}`),

		api.RefusedField("modalities", `{"type":"array","items":{"const":"text"}}`),
		api.RefusedField("detokenize", constTrue),
		api.RefusedField("spaces_between_special_tokens", constTrue),
		api.RefusedField("separate_reasoning", constTrue),
		api.RefusedField("stream_reasoning", constTrue),
		api.RefusedField("chat_template", `{"const":""}`),
		api.RefusedField("kv_transfer_params", emptyObject),
	}
	for _, name := range []string{"bad_words", "logits_processors", "documents", "bad_words_token_ids"} {
		fields = append(fields, api.RefusedField(name, emptyArray))
	}
	for _, name := range []string{"use_beam_search", "return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "no_stop_trim"} {
		fields = append(fields, api.RefusedField(name, constFalse))
	}
	for _, name := range []string{
		"allowed_token_ids", "audio", "guided_choice", "guided_grammar", "guided_regex",
		"guided_whitespace_pattern", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "web_search_options",
	} {
		fields = append(fields, api.RefusedField(name, ""))
	}
	return fields
}
