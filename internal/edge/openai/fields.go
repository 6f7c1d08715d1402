package openai

import "penstock/internal/edge/api"

// Treatment is what the decoder does with a field of a request.
type Treatment uint8

// The treatments.
const (
	// Mapped fields change the answer as those who defined them say.
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

// Schemas of several fields.
const (
	anyBoolean = `{"type":"boolean"}`
	anyString  = `{"type":"string"}`
	anyInteger = `{"type":"integer"}`
	anyObject  = `{"type":"object"}`
	noElements = `{"type":"array","maxItems":0}`
	count      = `{"type":"integer","minimum":1}`
	tokenIDs   = `{"type":"array","items":{"type":"integer","minimum":0}}`
	yes        = `{"const":true}`
	no         = `{"const":false}`
	noneOrAuto = `{"enum":["none","auto"]}`
)

// promptSchema is a text, texts, token ids or arrays of them.
const promptSchema = `{"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},` +
	tokenIDs + `,{"type":"array","minItems":1,"items":` + tokenIDs + `}]}`

// Fields lists the fields that an endpoint's requests may have. Any other is
// refused by name.
func Fields(e api.Endpoint) []Field {
	if e == api.Chat {
		return append(append(chatFields(), sharedFields()...), unusedFields()...)
	}
	return append(append(completionFields(), sharedFields()...), unusedFields()...)
}

func chatFields() []Field {
	return []Field{
		{"messages", Mapped, true, messagesSchema},
		{"max_completion_tokens", Mapped, false, count},
		{"logprobs", Mapped, false, anyBoolean},
		{"top_logprobs", Mapped, false, `{"type":"integer","minimum":0,"maximum":20}`},
		{"add_generation_prompt", Mapped, false, anyBoolean},
		{"continue_final_message", Mapped, false, anyBoolean},
		{"tools", Mapped, false, toolsSchema},
		{"tool_choice", Mapped, false, toolChoiceSchema},
		{"parallel_tool_calls", Mapped, false, anyBoolean},
		{"chat_template_kwargs", Mapped, false, anyObject},
		{"reasoning_effort", Mapped, false, `{"enum":["none","minimal","low","medium","high","xhigh","max"]}`},
		{"include_reasoning", Mapped, false, anyBoolean},
		{"functions", Refused, false, noElements},
		{"function_call", Refused, false, noneOrAuto},
		{"echo", Refused, false, no},
		{"add_special_tokens", Refused, false, no},
	}
}

func completionFields() []Field {
	return []Field{
		{"prompt", Mapped, false, promptSchema},
		{"logprobs", Mapped, false, `{"type":"integer","minimum":0,"maximum":5}`},
		{"echo", Mapped, false, anyBoolean},
		{"best_of", Refused, false, `{"type":"integer","minimum":0,"maximum":20,"description":"0, or what n is"}`},
		{"suffix", Refused, false, `{"const":""}`},
		{"add_special_tokens", Refused, false, yes},
		{"parallel_tool_calls", Accepted, false, anyBoolean},
		{"include_reasoning", Accepted, false, anyBoolean},
		{"tools", Refused, false, noElements},
		{"tool_choice", Refused, false, noneOrAuto},
		{"functions", Refused, false, noElements},
		{"function_call", Refused, false, noneOrAuto},
		{"chat_template_kwargs", Refused, false, ""},
		{"reasoning_effort", Refused, false, `{"const":"none"}`},
	}
}

func sharedFields() []Field {
	return []Field{
		{"model", Mapped, true, anyString},
		{"stream", Mapped, false, anyBoolean},
		{"stream_options", Mapped, false, `{"type":"object","additionalProperties":false,"properties":{` +
			`"include_usage":{"type":["boolean","null"]},"include_obfuscation":{"type":["boolean","null"]},"continuous_usage_stats":{"enum":[false,null]}}}`},
		{"n", Mapped, false, `{"type":"integer","minimum":1,"maximum":128}`},
		{"max_tokens", Mapped, false, count},
		{"min_tokens", Mapped, false, `{"type":"integer","minimum":0}`},
		{"temperature", Mapped, false, `{"type":"number","minimum":0,"maximum":2}`},
		{"top_p", Mapped, false, `{"type":"number","minimum":0,"maximum":1}`},
		{"min_p", Mapped, false, `{"type":"number","minimum":0,"maximum":1}`},
		{"top_k", Mapped, false, `{"type":"integer","minimum":-1}`},
		{"presence_penalty", Mapped, false, `{"type":"number","minimum":-2,"maximum":2}`},
		{"frequency_penalty", Mapped, false, `{"type":"number","minimum":-2,"maximum":2}`},
		{"repetition_penalty", Mapped, false, `{"type":"number","exclusiveMinimum":0,"maximum":2}`},
		{"seed", Mapped, false, anyInteger},
		{"logit_bias", Mapped, false, `{"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100}}`},
		{"stop", Mapped, false, `{"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"maxItems":32,"items":{"anyOf":[{"type":"string","minLength":1},{"type":"integer","minimum":0}]}}]}`},
		{"stop_token_ids", Mapped, false, tokenIDs},
		{"ignore_eos", Mapped, false, anyBoolean},
		{"include_stop_str_in_output", Mapped, false, anyBoolean},
		{"skip_special_tokens", Mapped, false, anyBoolean},
		{"cache_salt", Mapped, false, `{"type":"string","minLength":1,"maxLength":1024}`},
		{"response_format", Mapped, false, responseFormatSchema},
		{"guided_json", Mapped, false, schemaOrText},
		{"structured_outputs", Mapped, false, structuredOutputsSchema},
		{"nvext", Mapped, false, anyObject},
	}
}

// unusedFields are those of decoder.unused.
func unusedFields() []Field {
	fields := []Field{
		{"user", Accepted, false, `{"type":"string","minLength":1}`},
		{"store", Accepted, false, anyBoolean},
		{"metadata", Accepted, false, anyObject},
		{"service_tier", Accepted, false, anyString},
		{"safety_identifier", Accepted, false, anyString},
		{"prompt_cache_key", Accepted, false, anyString},
		{"prompt_cache_options", Accepted, false, anyObject},
		{"prompt_cache_retention", Accepted, false, anyString},
		{"request_id", Accepted, false, anyString},
		{"prediction", Accepted, false, `{}`},
		{"priority", Accepted, false, anyInteger},
		{"length_penalty", Accepted, false, `{"type":"number","minimum":-2,"maximum":2}`},

		{"modalities", Refused, false, `{"type":"array","items":{"const":"text"}}`},
		{"verbosity", Refused, false, `{"const":"medium"}`},
		{"detokenize", Refused, false, yes},
		{"spaces_between_special_tokens", Refused, false, yes},
	}
	for _, name := range []string{"bad_words", "logits_processors", "documents", "bad_words_token_ids"} {
		fields = append(fields, Field{Name: name, Treatment: Refused, Schema: noElements})
	}
	for _, name := range []string{"use_beam_search", "return_tokens_as_token_ids", "return_token_ids"} {
		fields = append(fields, Field{Name: name, Treatment: Refused, Schema: no})
	}
	for _, name := range []string{
		"allowed_token_ids", "audio", "chat_template", "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_regex",
		"guided_whitespace_pattern", "kv_transfer_params", "mm_processor_kwargs", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "web_search_options",
	} {
		fields = append(fields, Field{Name: name, Treatment: Refused})
	}
	return fields
}
