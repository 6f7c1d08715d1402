package openai

import "penstock/internal/edge/api"

// JSON schemas which several fields share.
const (
	anyBoolean = `{"type":"boolean"}`
	anyString  = `{"type":"string"}`
	anyInteger = `{"type":"integer"}`
	anyObject  = `{"type":"object"}`
	noElements = `{"type":"array","maxItems":0}`
	noMembers  = `{"const":{}}`
	count      = `{"type":"integer","minimum":1}`
	tokenIDs   = `{"type":"array","items":{"type":"integer","minimum":0}}`
	yes        = `{"const":true}`
	no         = `{"const":false}`
	noneOrAuto = `{"enum":["none","auto"]}`
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
		api.Needs("messages", messagesSchema),
		api.Maps("max_completion_tokens", count),
		api.Maps("logprobs", anyBoolean),
		api.Maps("top_logprobs", `{"type":"integer","minimum":0,"maximum":20}`),
		api.Maps("add_generation_prompt", anyBoolean),
		api.Maps("continue_final_message", anyBoolean),
		api.Maps("tools", toolsSchema),
		api.Maps("tool_choice", toolChoiceSchema),
		api.Maps("parallel_tool_calls", anyBoolean),
		api.Maps("chat_template_kwargs", anyObject),
		api.Maps("reasoning_effort", `{"enum":["none","minimal","low","medium","high","xhigh","max"]}`),
		api.Maps("include_reasoning", anyBoolean),
		api.Maps("mm_processor_kwargs", anyObject),
		api.Refuses("functions", noElements),
		api.Refuses("function_call", noneOrAuto),
		api.Refuses("echo", no),
		api.Refuses("add_special_tokens", no),
	}
}

func completionFields() []api.Field {
	return []api.Field{
		api.Maps("prompt", promptSchema),
		api.Maps("logprobs", `{"type":"integer","minimum":0,"maximum":5}`),
		api.Maps("echo", anyBoolean),
		api.Refuses("suffix", `{"const":""}`),
		api.Refuses("add_special_tokens", yes),
		api.Accepts("parallel_tool_calls", anyBoolean),
		api.Accepts("include_reasoning", anyBoolean),
		api.Refuses("tools", noElements),
		api.Refuses("tool_choice", noneOrAuto),
		api.Refuses("functions", noElements),
		api.Refuses("function_call", noneOrAuto),
		api.Refuses("chat_template_kwargs", noMembers),
		api.Refuses("mm_processor_kwargs", noMembers),
		api.Refuses("reasoning_effort", `{"const":"none"}`),
	}
}

func sharedFields() []api.Field {
	return []api.Field{
		api.Needs("model", anyString),
		api.Maps("stream", anyBoolean),
		api.Maps("stream_options", `{"type":"object","additionalProperties":{"type":"null"},"properties":{`+
			`"include_usage":{"type":["boolean","null"]},"include_obfuscation":{"type":["boolean","null"]},"continuous_usage_stats":{"type":["boolean","null"]}}}`),
		api.Maps("n", `{"type":"integer","minimum":1,"maximum":128}`),
		api.Refuses("best_of", `{"type":"integer","minimum":0,"maximum":20,"description":"0, or what n is"}`),
		api.Maps("max_tokens", count),
		api.Maps("min_tokens", `{"type":"integer","minimum":0}`),
		api.Maps("temperature", `{"type":"number","minimum":0,"maximum":2}`),
		api.Maps("top_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.Maps("min_p", `{"type":"number","minimum":0,"maximum":1}`),
		api.Maps("top_k", `{"type":"integer","minimum":-1}`),
		api.Maps("presence_penalty", `{"type":"number","minimum":-2,"maximum":2}`),
		api.Maps("frequency_penalty", `{"type":"number","minimum":-2,"maximum":2}`),
		api.Maps("repetition_penalty", `{"type":"number","exclusiveMinimum":0,"maximum":2}`),
		api.Maps("seed", anyInteger),
		api.Maps("logit_bias", `{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}}`),
		api.Maps("stop", `{"anyOf":[{"type":"string","minLength":1},{"type":"array","maxItems":32,"items":{"anyOf":[{"type":"string","minLength":1},{"type":"integer","minimum":0}]}}]}`),
		api.Maps("stop_token_ids", tokenIDs),
		api.Maps("ignore_eos", anyBoolean),
		api.Maps("include_stop_str_in_output", anyBoolean),
		api.Maps("skip_special_tokens", anyBoolean),
		api.Maps("cache_salt", `{"type":"string","minLength":1,"maxLength":1024}`),
		api.Maps("response_format", responseFormatSchema),
		api.Maps("guided_json", schemaOrText),
		api.Maps("structured_outputs", structuredOutputsSchema),
		api.Maps("nvext", anyObject),
	}
}

// unusedFields lists the fields which readUnusedField reads.
func unusedFields() []api.Field {
	fields := []api.Field{
		api.Accepts("user", anyString),
		api.Accepts("store", anyBoolean),
		api.Accepts("metadata", anyObject),
		api.Accepts("service_tier", anyString),
		api.Accepts("safety_identifier", anyString),
		api.Accepts("prompt_cache_key", anyString),
		api.Accepts("prompt_cache_options", anyObject),
		api.Accepts("prompt_cache_retention", anyString),
		api.Accepts("request_id", anyString),
		api.Accepts("rid", anyString),
		api.Accepts("session_id", anyString),
		api.Accepts("guided_decoding_backend", anyString),
		api.Accepts("verbosity", `{"enum":["low","medium","high"]}`),
		api.Accepts("stream_interval", anyInteger),
		api.Accepts("prediction", `{}`),
		api.Accepts("priority", anyInteger),
		api.Accepts("length_penalty", `{"type":"number","minimum":-2,"maximum":2}`),

		api.Refuses("modalities", `{"type":"array","items":{"const":"text"}}`),
		api.Refuses("detokenize", yes),
		api.Refuses("spaces_between_special_tokens", yes),
		api.Refuses("separate_reasoning", yes),
		api.Refuses("stream_reasoning", yes),
		api.Refuses("chat_template", `{"const":""}`),
		api.Refuses("kv_transfer_params", noMembers),
	}
	for _, name := range []string{"bad_words", "logits_processors", "documents", "bad_words_token_ids"} {
		fields = append(fields, api.Refuses(name, noElements))
	}
	for _, name := range []string{"use_beam_search", "return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "no_stop_trim"} {
		fields = append(fields, api.Refuses(name, no))
	}
	for _, name := range []string{
		"allowed_token_ids", "audio", "guided_choice", "guided_grammar", "guided_regex",
		"guided_whitespace_pattern", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "web_search_options",
	} {
		fields = append(fields, api.Refuses(name, ""))
	}
	return fields
}
